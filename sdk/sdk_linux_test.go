// Package sdk_test builds the SDKs as they are published, installs what was built, and runs their tests on a real server.
package sdk_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// program builds the program that serves.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandpit")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "guestembed", "-o", path, "../cmd/sandpit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building sandpit: %v\n%s", err, out)
	}
	return path
}

// run runs a program, and fails the test with what it printed if it fails.
func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
	}
}

// cached returns a directory that install has filled. It is made once for each content of key. what names it where it can't be made.
func cached(t *testing.T, name string, key []byte, what string, install func(dir string) error) string {
	t.Helper()
	cache, err := filepath.Abs("../.cache/clients")
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, fmt.Sprintf("%s-%x", name, sha256.Sum256(key))[:len(name)+33])
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err = install(dir)
	if err != nil && os.Getenv("CI") != "" {
		t.Fatalf("installing %s: %v", what, err)
	}
	testkit.Need(t, what, err)
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
