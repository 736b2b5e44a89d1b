package sdk_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// venv returns a Python with what requirements.txt names.
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
	dir := cached(t, "sdk-python", append(version, text...), "the packages of Python", func(dir string) error {
		run(t, ".", nil, python, "-m", "venv", dir)
		pip := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--retries=1", "--disable-pip-version-check", "-r", requirements)
		if out, err := pip.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "bin", "python")
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
