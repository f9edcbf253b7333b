package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"foldyard/internal/host/config"
	"foldyard/internal/machine"
	"foldyard/internal/machine/lima"
	"foldyard/internal/machine/podman"
	"foldyard/internal/proof/doctor"
)

// MachineRows looks, for the doctor, at what the machine of a project needs, and at the machine if it is there. It needs no supervisor,
// and changes nothing.
func MachineRows(ctx context.Context, h config.Host, project string, cfg *config.Effective) []doctor.Row {
	var found []machine.Finding
	if cfg.Machine.Backend == config.Podman {
		found = podman.Doctor(ctx, podmanOptions(h, project))
	} else {
		found = lima.Doctor(ctx, limaOptions(h, project), imageSpec(cfg), time.Now())
	}
	var out []doctor.Row
	for _, f := range found {
		out = append(out, doctor.Row{Name: f.Name, State: f.State, Detail: f.Detail, Fix: f.Fix})
	}
	return out
}

// RemoveMachines deletes every project's virtual machine, with what runs from it, for fy uninstall, and says which it could not. Supervisors
// have ended.
func RemoveMachines(ctx context.Context, h config.Host, say func(string)) error {
	errs := []error{lima.RemoveAll(ctx, limaOptions(h, ""))}
	projects, _ := filepath.Glob(filepath.Join(h.Layout.ProjectsDir(), "*")) // the pattern is ours
	for _, dir := range projects {
		command, err := podman.Uninstall(ctx, podmanOptions(h, filepath.Base(dir)))
		switch {
		case command != "":
			say(fmt.Sprintf("a podman machine is left (%v): %s", err, command))
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// instanceName is what a project's machine is called.
func instanceName(project string) string { return "fy-" + project }

func limaOptions(h config.Host, project string) lima.Options {
	return lima.Options{
		Home: filepath.Join(h.Layout.StateDir, "lima"), Cache: h.Layout.CacheDir, Instance: instanceName(project),
		Getenv: h.Getenv, GOOS: runtime.GOOS, GOARCH: runtime.GOARCH, UID: os.Geteuid(),
	}
}

func podmanOptions(h config.Host, project string) podman.Options {
	return podman.Options{
		Name: instanceName(project), Record: filepath.Join(h.Layout.ProjectsDir(), project, "podman-machine"),
		Getenv: h.Getenv, GOOS: runtime.GOOS, UID: os.Geteuid(),
	}
}

// imageSpec is what the configuration says of a machine.
func imageSpec(cfg *config.Effective) machine.Spec {
	m := cfg.Machine
	return machine.Spec{
		CPUs: m.CPUs, Memory: int64(m.Memory), Disk: int64(m.Disk), Image: m.Image, Digest: m.Digest, Kernel: m.Kernel, Initrd: m.Initrd,
		Firewall: m.Firewall,
	}
}
