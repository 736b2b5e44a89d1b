package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// bench is one run of the benchmark.
type bench struct {
	opts   options
	log    io.Writer // progress
	report *report

	source  string // top of the source tree
	dir     string // temporary, of this run
	sandpit string // the program that is measured
	guest   []byte // the guest program
	digest  string // of guest
	true    string // /usr/bin/true or where it is
	env     []string
	null    *os.File
	stderr  *os.File // what commands say; read when one fails
	root    hostRoot
	count   int // of containers so far, for their names
	found   []*peer
}

// budget is how long one thing is timed within a group, at most.
func (b *bench) budget() time.Duration {
	if b.opts.quick {
		return 1500 * time.Millisecond
	}
	return 10 * time.Second
}

// fewer is a number of rounds for what is slow by nature.
func (b *bench) fewer(full, quick int) int {
	if b.opts.quick {
		return min(quick, b.opts.rounds)
	}
	return min(full, b.opts.rounds)
}

// newBench finds or builds what is measured.
func newBench(ctx context.Context, opts options, log io.Writer) (_ *bench, err error) {
	b := &bench{opts: opts, log: log, report: &report{}, root: findHostRoot()}
	if b.source, err = sourceTree(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "sandpit-bench-"); err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	// The sandbox's user may be another one, who has to get to its files.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	if b.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if b.stderr, err = os.OpenFile(filepath.Join(b.dir, "stderr"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	noConfig := filepath.Join(b.dir, "no-config.yaml")
	if err := os.WriteFile(noConfig, nil, 0o600); err != nil {
		return nil, err
	}
	b.env = append(cleanEnviron(), "SANDPIT_HOME="+filepath.Join(b.dir, "home"), "SANDPIT_CONFIG="+noConfig)
	if b.true, err = realProgram("true"); err != nil {
		return nil, err
	}
	if err := b.findSandpit(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	for _, p := range b.found {
		if p.remove != nil {
			p.remove()
		}
	}
	for _, f := range []*os.File{b.null, b.stderr} {
		if f != nil {
			f.Close()
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		fmt.Fprintln(b.log, "bench: removing the temporary directory:", err)
	}
}

// say tells what is being done.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.log, "bench: "+format+"\n", args...) }

// findSandpit finds the program and its guest, and builds them when there are none.
func (b *bench) findSandpit(ctx context.Context) error {
	guest := filepath.Join(b.source, "internal/guest/embedded/sandpit-guest-"+runtime.GOARCH+".bin")
	b.sandpit = b.opts.sandpit
	if b.sandpit == "" {
		b.sandpit = filepath.Join(b.source, "bin/sandpit")
	}
	_, missing := os.Stat(guest)
	if _, err := os.Stat(b.sandpit); missing != nil || err != nil && b.opts.sandpit == "" {
		b.say("building bin/sandpit")
		cmd := exec.CommandContext(ctx, "make", "-s", "-C", b.source, "build")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building bin/sandpit: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	var err error
	if b.sandpit, err = filepath.Abs(b.sandpit); err != nil {
		return err
	}
	if b.guest, err = os.ReadFile(guest); err != nil {
		return fmt.Errorf("reading the guest program: %w", err)
	}
	sum := sha256.Sum256(b.guest)
	b.digest = hex.EncodeToString(sum[:8])
	return nil
}

// sourceTree finds the top of the source tree: it is where one stands, or above.
func sourceTree() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(data, []byte("module github.com/sandpit-dev/sandpit\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("looking for the source tree: %s is not in it; start the benchmark from its top", start)
		}
	}
}

// cleanEnviron is the environment without what would change what is measured.
func cleanEnviron() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SANDPIT_") && !strings.HasPrefix(v, "GODEBUG=") && !strings.HasPrefix(v, "GOTRACEBACK=") {
			env = append(env, v)
		}
	}
	return env
}

// realProgram finds a program in the system's own directories. A version
// manager's stand-in, which many have first in their PATH, costs a hundred
// milliseconds.
func realProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/local/sbin"} {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

// cacheDir keeps what takes minutes to build.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w", err)
	}
	return filepath.Join(dir, "sandpit-bench"), nil
}

// errNotBuilt says that a peer could be built, but not now.
var errNotBuilt = errors.New("not built yet: a run without -quick builds it")

// goInstall returns a program built from a Go module, which is built the first
// time and kept. Its version is in its directory's name.
func (b *bench) goInstall(ctx context.Context, name, pkg, version string, env ...string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name+"-"+version)
	file := filepath.Join(dir, name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if !b.opts.build {
		return "", errNotBuilt
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, ".building-")
	if err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	b.say("building %s %s, once; this may take minutes", name, version)
	cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags", "-s -w", pkg+"@"+version)
	cmd.Dir = tmp // not in this module
	cmd.Env = append(os.Environ(), append(env, "GOBIN="+tmp, "GOFLAGS=-mod=mod")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s %s: %w: %s", name, version, err, lastLine(out))
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, statErr := os.Stat(file); statErr == nil {
			return file, nil // another run was faster
		}
		return "", fmt.Errorf("keeping %s: %w", name, err)
	}
	return file, nil
}

// emptyProgram builds a Go program that does nothing, as bin/sandpit is built.
func (b *bench) emptyProgram(ctx context.Context) (string, error) {
	dir := filepath.Join(b.dir, "empty")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, text := range map[string]string{"go.mod": "module empty\n\ngo 1.26.0\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", "empty", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building an empty program: %w: %s", err, lastLine(out))
	}
	return filepath.Join(dir, "empty"), nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

func unzipped(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(z)
	return string(data), err
}
