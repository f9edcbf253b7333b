package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// executed are files of a repo that tools on the host execute, or take commands from, when somebody works in it. A box may
// write them (those that it may not are the wall's business), so what changed is told when it ends.
func executed() []string {
	return []string{
		"Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "Taskfile.yml", "Rakefile", "Gemfile", "Procfile",
		"package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnp.cjs", "pnpm-workspace.yaml", "lerna.json",
		"setup.py", "setup.cfg", "pyproject.toml", "conftest.py", "tox.ini", "noxfile.py", "manage.py", "requirements.txt",
		"build.rs", ".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "go.work", "magefile.go",
		"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradlew", "gradle/wrapper/gradle-wrapper.properties",
		"pom.xml", "mvnw", ".mvn/jvm.config", ".mvn/extensions.xml", "build.sbt", "CMakeLists.txt", "configure", "meson.build",
		"flake.nix", "shell.nix", "default.nix", "WORKSPACE", "MODULE.bazel", ".bazelrc", "BUILD", "BUILD.bazel",
		"Dockerfile", "compose.yaml", "compose.yml", "docker-compose.yml", "Vagrantfile", ".devcontainer/devcontainer.json", ".devcontainer.json",
		".gitattributes", ".gitmodules", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml", ".mcp.json",
		".tool-versions", "mise.toml", ".mise.toml", ".env", ".editorconfig", ".clangd", ".clang-tidy", ".vimrc", ".nvim.lua", ".exrc",
		"foldyard.toml",
		".git", ".git/config", ".envrc", // read-only in a box where they exist; told when a box made them
	}
}

// executedDirs are directories of which every file counts, one level deep.
func executedDirs() []string {
	return []string{".git/hooks", ".vscode", ".idea", ".husky", ".github/workflows", ".gitlab", ".circleci", "node_modules/.bin", "bin", "scripts", ".yarn/releases", ".yarn/plugins"}
}

// maxWatched bounds the files that are looked at.
const maxWatched = 2000

// mark is what tells one version of a file from another; it holds no contents.
type mark struct {
	ino          uint64
	size         int64
	mode         os.FileMode
	mtime, ctime syscall.Timespec
}

// marks looks at what the host would execute below root. It opens nothing that a box may have planted: names are resolved
// beneath root, and links are looked at, not followed.
func marks(root string) map[string]mark {
	out := map[string]mark{}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return out
	}
	defer dir.Close()
	look := func(name string) {
		if len(out) >= maxWatched {
			return
		}
		info, err := dir.Lstat(name)
		if err != nil || info.IsDir() {
			return
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			m, c := times(st)
			out[name] = mark{st.Ino, info.Size(), info.Mode(), m, c}
		}
	}
	for _, name := range executed() {
		look(name)
	}
	for _, name := range executedDirs() {
		d, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		entries, _ := d.ReadDir(500) // as far as it can be read
		d.Close()
		for _, e := range entries {
			look(filepath.Join(name, e.Name()))
		}
	}
	return out
}

// changedSince lists, sorted, what differs now from before.
func changedSince(root string, before map[string]mark) []string {
	now := marks(root)
	var out []string
	for name, m := range now {
		if old, ok := before[name]; !ok || old != m {
			out = append(out, name)
		}
	}
	for name := range before {
		if _, ok := now[name]; !ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
