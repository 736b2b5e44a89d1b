package commands

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestExamineHome looks at data directories in which no sandbox could be made.
func TestExamineHome(t *testing.T) {
	a := &tree{App: &cli.App{OpenImages: func(home string) *image.Store {
		return image.Open(filepath.Join(home, "images"), image.Options{})
	}}}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	homes := map[string]string{filepath.Join(file, "home"): "not a directory", file: "not a directory"}
	if os.Geteuid() == 0 {
		for problem, mount := range map[string]struct {
			flags uintptr
			data  string
		}{
			"read-only file system":         {syscall.MS_RDONLY, ""},
			"mounted noexec":                {syscall.MS_NOEXEC, ""},
			"not enough space":              {0, "size=64k"},
			"file system has no inode left": {0, "nr_inodes=1"},
			"":                              {0, "size=64m"},
		} {
			dir := t.TempDir()
			testkit.Tmpfs(t, dir, mount.flags, mount.data)
			homes[filepath.Join(dir, "not", "made")] = problem
		}
	}
	for home, want := range homes {
		got := a.examineHome(home)
		if want == "" && got.Problem != "" || !strings.Contains(got.Problem, want) || (got.Problem == "") != (got.Fix == "") {
			t.Errorf("%s: got %q, fix %q, want %q", home, got.Problem, got.Fix, want)
		}
	}
}
