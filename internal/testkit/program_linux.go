package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CopyProgram copies a program of this machine to /usr/bin of the root of an image, and the
// libraries that it needs to where they are. It skips the test if the program has none.
func CopyProgram(t testing.TB, root, program string) {
	t.Helper()
	at, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", at).Output()
	Need(t, "a program with shared libraries", err)
	files := []string{at}
	for word := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(word) {
			files = append(files, word)
		}
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name == at {
			name = "/usr/bin/" + program
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
