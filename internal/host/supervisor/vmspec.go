package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"foldyard/internal/box"
	"foldyard/internal/box/container"
	"foldyard/internal/host/config"
	"foldyard/internal/host/control"
	"foldyard/internal/host/state"
	"foldyard/internal/wall/namespace"
)

// vmPort gives the box a port of the band, and listens there.
func (s *Supervisor) vmPort(rec *state.Box) (*net.TCPListener, error) {
	if !rec.Oneshot && rec.Name != twinName {
		rec.Port = s.vm.band + state.PortProxy
		return s.bandListener(rec.Port)
	}
	for p := s.vm.band + state.PortOneshots; p < s.vm.band+state.PortServices; p++ {
		if l, err := s.bandListener(p); err == nil {
			rec.Port = p
			return l, nil
		}
	}
	return nil, &control.Error{Code: control.CodeHost, Detail: "every port for one-shot boxes is taken", Hint: "end some of them"}
}

// vmFiles are the box's files below /etc/foldyard.
func (s *Supervisor) vmFiles(id string, u namespace.User, cfg *config.Effective) (map[string][]byte, error) {
	files, err := box.EtcFiles(box.Identity{
		Box: id, Project: s.opt.Project.Name, Backend: cfg.Machine.Backend, Hostname: "box", Resolver: s.vm.m.Gateway(),
		User: box.User{Name: u.Name, UID: u.UID, GID: u.GID, Home: u.Home, Shell: u.Shell},
	})
	if err != nil {
		return nil, err
	}
	trust, err := s.trust()
	for p, b := range trust {
		files[p] = b
	}
	return files, err
}

// boxable says why no container can be made of what is configured, as far as that can be told without a machine.
func (s *Supervisor) boxable(cfg *config.Effective) error {
	if _, err := s.vmMounts(cfg); err != nil {
		return err
	}
	switch {
	case strings.ContainsAny(s.opt.Dir, ":,"):
		return &control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("the repo's path %q holds a colon or a comma, and a container cannot mount it", s.opt.Dir), Hint: "move it"}
	case cfg.Box.Rootfs != "":
		root, err := os.OpenRoot(s.opt.Dir)
		if err != nil {
			return err
		}
		defer root.Close()
		f, err := s.openRootfs(root, cfg.Box.Rootfs)
		if err != nil {
			return err
		}
		return f.Close()
	case cfg.Box.Image == "":
		return &control.Error{Code: control.CodeBad, Detail: "the box has no image", Hint: `set [box] image = "…", or rootfs = "box.tar"`}
	}
	return nil
}

// vmMounts are the box's own mounts, all below the repo: a machine has nothing else of this computer.
func (s *Supervisor) vmMounts(cfg *config.Effective) (out []container.Mount, err error) {
	root, err := os.OpenRoot(s.opt.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, m := range cfg.Box.Mounts {
		source := m.Source
		if filepath.IsAbs(source) {
			if source, err = filepath.Rel(s.opt.Dir, source); err != nil {
				return nil, err
			}
		}
		refuse := func(why string) ([]container.Mount, error) {
			return nil, &control.Error{Code: control.CodeBad, Detail: fmt.Sprintf("[box] mounts: %q %s", m.Source, why), Hint: "a box in a VM mounts paths inside the repo, at their own place"}
		}
		if !filepath.IsLocal(source) || m.Target != "" && filepath.Clean(m.Target) != filepath.Join(s.opt.Dir, source) {
			return refuse("lies outside the repo, or goes elsewhere")
		}
		if info, err := root.Lstat(source); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			return refuse("is no directory and no regular file")
		}
		out = append(out, container.Mount{Path: filepath.Clean(source), Write: m.Write})
	}
	return out, nil
}

// vmImage brings the box's image into the machine and returns its name.
func (s *Supervisor) vmImage(ctx context.Context, cfg *config.Effective) (string, error) {
	line := "brings the box's image into the VM"
	s.vm.step.Store(&line)
	if cfg.Box.Rootfs != "" {
		return s.vmRootfs(ctx, cfg.Box.Rootfs)
	}
	return cfg.Box.Image, boxError(container.Pull(ctx, s.vm.host(), cfg.Box.Image))
}

// openRootfs opens the archive that is the box's root file system, beneath the repo.
func (s *Supervisor) openRootfs(root *os.Root, path string) (*os.File, error) {
	refuse := func(why string) (*os.File, error) {
		return nil, &control.Error{Code: control.CodeBad, Detail: "[box] rootfs: " + why, Hint: "name an archive inside the repo"}
	}
	if filepath.IsAbs(path) {
		rel, err := filepath.Rel(s.opt.Dir, path)
		if err != nil {
			return refuse(err.Error())
		}
		path = rel
	}
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not hold us
	if err != nil {
		return refuse(err.Error())
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > 64<<30 {
		_ = f.Close() // it is not read
		return refuse(path + " is no regular file, or over 64 GiB")
	}
	return f, nil
}

// vmRootfs imports an archive that lies in the repo. It is opened beneath the repo, and read twice: for its digest, and whole.
func (s *Supervisor) vmRootfs(ctx context.Context, path string) (string, error) {
	root, err := os.OpenRoot(s.opt.Dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := s.openRootfs(root, path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read [box] rootfs: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	name, err := container.Import(ctx, s.vm.host(), f, hex.EncodeToString(sum.Sum(nil)))
	return name, boxError(err)
}
