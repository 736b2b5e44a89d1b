package sdk_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// modules returns the directory of the packages with which the SDK for TypeScript is built and tested.
func modules(t *testing.T, npm string) string {
	t.Helper()
	lock, err := os.ReadFile("typescript/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := cached(t, "sdk-typescript", lock, "the packages of npm", func(dir string) error {
		if err := os.CopyFS(dir, os.DirFS("typescript")); err != nil {
			return err
		}
		ci := exec.CommandContext(t.Context(), npm, "ci", "--engine-strict", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")
		ci.Dir = dir
		if out, err := ci.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "node_modules")
}

// The package is typed, and its tests pass on the package that is published.
func TestTypeScript(t *testing.T) {
	testkit.NeedFull(t, "it installs packages")
	testkit.NeedWorkingHost(t)
	npm, node := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node")
	testkit.NeedProgram(t, "openssl")
	tools := modules(t, npm)
	tsc := filepath.Join(tools, "typescript", "bin", "tsc")

	source := t.TempDir()
	if err := os.CopyFS(source, os.DirFS("typescript")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tools, filepath.Join(source, "node_modules")); err != nil {
		t.Fatal(err)
	}
	packed := t.TempDir()
	run(t, source, nil, npm, "pack", "--silent", "--pack-destination", packed)
	archives, err := filepath.Glob(filepath.Join(packed, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("packed %v, %v", archives, err)
	}

	clean := t.TempDir()
	write := func(name string, content []byte, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(clean, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(clean, os.DirFS("typescript/test")); err != nil {
		t.Fatal(err)
	}
	write("package.json", []byte(`{"private": true, "type": "module"}`), nil)
	readme, err := os.ReadFile("typescript/README.md")
	for i, example := range regexp.MustCompile("(?s)```ts\n(.*?)```").FindAllSubmatch(readme, -1) {
		write(fmt.Sprintf("example%d.ts", i+1), example[1], err)
	}
	run(t, clean, nil, npm, "install", "--offline", "--no-audit", "--no-fund", "--silent", archives[0])
	run(t, clean, nil, node, tsc, "--project", ".", "--strict", "--typeRoots", filepath.Join(tools, "@types"))
	// The types need none of Node's.
	for _, module := range [][]string{{"NodeNext"}, {"ES2022", "--moduleResolution", "Node10"}, {"ES2022", "--moduleResolution", "Bundler"}} {
		run(t, clean, nil, node, append([]string{tsc, "--noEmit", "--strict", "--target", "ES2022", "example1.ts", "--module"}, module...)...)
	}
	tests, err := filepath.Glob(filepath.Join(clean, "*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("compiled %v, %v", tests, err)
	}
	run(t, clean, []string{"SANDPIT_BINARY=" + program(t), "SANDPIT_ERROR_CODES=" + strings.Join(errcode.All(), " ")}, node, append([]string{"--test"}, tests...)...)
}
