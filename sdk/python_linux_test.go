// Package sdk_test builds the SDKs as they are published, installs what was built, and runs their tests on a real server.
package sdk_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/errcode"
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

// venv returns a Python with what requirements.txt names. It is made once for each content of that file.
func venv(t *testing.T, python, requirements string) string {
	t.Helper()
	text, err := os.ReadFile(requirements)
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(python, "-VV").Output()
	if err != nil {
		t.Fatal(err)
	}
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
	dir := filepath.Join(cache, fmt.Sprintf("sdk-python-%x", sha256.Sum256(append(version, text...)))[:32+len("sdk-python-")])
	bin := filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return bin
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	run(t, ".", nil, python, "-m", "venv", dir)
	out, err := exec.CommandContext(t.Context(), bin, "-m", "pip", "install", "--quiet", "--retries=1", "--disable-pip-version-check", "-r", requirements).CombinedOutput()
	if err != nil && os.Getenv("CI") != "" {
		t.Fatalf("installing the packages: %v\n%s", err, out)
	}
	testkit.Need(t, "the packages of Python", err)
	if err := os.WriteFile(filepath.Join(dir, "complete"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return bin
}

// The package is typed, one kind of its programs is made from the other, and its tests pass on the wheel that is published.
func TestPython(t *testing.T) {
	testkit.NeedFull(t, "it installs packages")
	testkit.NeedWorkingHost(t)
	python := venv(t, testkit.NeedProgram(t, "python3"), "python/requirements.txt")
	source := t.TempDir()
	if err := os.CopyFS(source, os.DirFS("python")); err != nil {
		t.Fatal(err)
	}
	run(t, source, nil, python, "scripts/sync.py", "--check")
	run(t, source, nil, python, "-m", "ruff", "check", "--no-cache", ".")
	run(t, source, nil, python, "-m", "ruff", "format", "--no-cache", "--check", ".")
	run(t, source, nil, python, "-m", "mypy", "--strict", "--cache-dir="+t.TempDir(), "src")
	run(t, source, nil, python, "-m", "pyright", "--pythonpath", python, "src")

	run(t, source, nil, python, "-m", "build", "--no-isolation", "--outdir", "dist")
	wheels, err := filepath.Glob(filepath.Join(source, "dist", "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("built %v, %v", wheels, err)
	}
	installed := t.TempDir()
	run(t, source, nil, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", installed, wheels[0])
	if err := os.RemoveAll(filepath.Join(source, "src")); err != nil {
		t.Fatal(err)
	}
	run(t, source, []string{"PYTHONPATH=" + installed, "SANDPIT_BINARY=" + program(t), "PYTHONDONTWRITEBYTECODE=1", "SANDPIT_ERROR_CODES=" + strings.Join(errcode.All(), " ")}, python, "-m", "pytest", "-q", "tests")
}
