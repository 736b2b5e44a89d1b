package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// findProgram looks for a program that was not found in the sandbox's PATH: in the PATH of this
// program, and where installers of languages put theirs. shown reports whether a sandbox with
// the image host shows the directory. dir is "" if there is no such program.
func (a *App) findProgram(name string) (dir string, shown bool) {
	search, _ := a.Lookup("PATH")
	dirs := append(filepath.SplitList(search), "/usr/local/go/bin", "/usr/lib/go/bin", "/usr/local/cargo/bin", "/usr/games", "/opt/bin", "/snap/bin")
	if home, _ := a.Lookup("HOME"); filepath.IsAbs(home) {
		for _, under := range [...]string{".local/bin", "bin", "go/bin", ".cargo/bin", ".pyenv/shims", ".rbenv/shims", ".asdf/shims", ".volta/bin", ".bun/bin", ".deno/bin"} {
			dirs = append(dirs, filepath.Join(home, under))
		}
		versions, _ := filepath.Glob(filepath.Join(home, ".nvm/versions/node/*/bin"))
		slices.Reverse(versions)
		dirs = append(dirs, versions...)
	}
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			continue
		}
		if st, err := os.Stat(filepath.Join(d, name)); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			continue
		}
		if strings.HasPrefix(filepath.Clean(d), "/usr/") {
			return d, true // what the sandbox shows is better
		}
		if dir == "" {
			dir = d
		}
	}
	return dir, false
}

// tree returns the directory that a program in dir needs: that of its installer, if it is one
// of those that keep everything in one.
func tree(dir string) string {
	for _, top := range [...]string{"/.pyenv/", "/.rbenv/", "/.asdf/", "/.nvm/", "/.cargo/", "/.volta/", "/.bun/", "/.deno/"} {
		if i := strings.Index(dir, top); i >= 0 {
			return dir[:i+len(top)-1]
		}
	}
	return dir
}
