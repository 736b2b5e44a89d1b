package hosttest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Suite is a Go test binary, or a part of one, that is run on many hosts.
type Suite struct {
	// Name is the column in the table and the folder in the bundle.
	Name string

	// Package is the folder of the tests from the module's root.
	Package string

	// Run and Refused are patterns for -test.run: on a host where sandboxes
	// work, and on one where they must be refused. An empty one means that the
	// suite has nothing to say there.
	Run, Refused string

	// Whole suites could harm a machine that is in use: they run on whole
	// machines made for the test, which have a systemd of their own.
	Whole bool

	// Quick suites have a quick form; QuickRun, when set, is Run there: under
	// QEMU without KVM everything takes ten times as long.
	Quick    bool
	QuickRun string
}

// Suites returns every suite that hosts are tried with.
func Suites() []Suite {
	return []Suite{
		{Name: "probe", Package: "internal/hosttest/probe", Run: ".", Refused: ".", Quick: true},
		{Name: "smoke", Package: "internal/hosttest/smoke", Run: ".", Refused: ".", Quick: true},
		{
			Name: "cgroup", Package: "internal/cgroup", Run: ".",
			Quick: true, QuickRun: "^Test(LimitsAreSet|SetLimits|LimitBelowUse|Stats|MemoryBomb|KillTree)$",
		},
		{Name: "drivertest", Package: "internal/driver/linux", Run: "^TestDriver", Quick: true, QuickRun: "^TestDriver$/^Driver$"},
		{Name: "posture", Package: "internal/driver/linux", Run: "^TestPosture", Quick: true},
		{Name: "leak", Package: "internal/driver/linux", Run: "^TestLeak", Quick: true, QuickRun: "^TestLeakAfter(GuestDeath|Kill)$"},
		{Name: "starve", Package: "internal/driver/linux", Run: "^TestStarve", Whole: true, Quick: true},
		{
			// The quick form has the script of which most depends on the host. The suite smoke tries
			// run and doctor, and the rest of their scripts is the same everywhere.
			Name: "cli", Package: "cmd/sandpit", Run: ".", Refused: "^TestRefusal$",
			Quick: true, QuickRun: "^TestScripts$/^limits$",
		},
	}
}

// pattern is the suite's -test.run on h; empty when it has nothing to say.
func (s Suite) pattern(h Host, quick bool) string {
	switch {
	case len(h.Only) > 0 && !slices.Contains(h.Only, s.Name):
		return ""
	case h.Refuses:
		return s.Refused
	case s.Whole && !strings.Contains(h.Traits, "systemd=yes"):
		return ""
	case quick && !s.Quick:
		return ""
	case quick && s.QuickRun != "":
		return s.QuickRun
	}
	return s.Run
}

// A Bundle is a folder with everything a host needs: run.sh, bin/sandpit, and
// per suite its test binary beside its testdata.
type Bundle struct {
	Root   string // of the module it was built from
	Dir    string
	Suites []Suite

	// Missing returns why a suite of the list is not in the bundle.
	Missing map[string]string
}

// Build makes a bundle in dir from the module at root, for one architecture.
// All files are readable for every account.
func Build(ctx context.Context, root, dir, goarch string, suites []Suite) (*Bundle, error) {
	b := &Bundle{Root: root, Dir: dir, Missing: map[string]string{}}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch)

	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	// The programs that others embed are not built at their places in the module: others may be
	// reading those files now.
	parts, err := os.MkdirTemp("", "sandpit-hosttest-parts-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(parts)
	guest, full, overlay := filepath.Join(parts, "guest"), filepath.Join(parts, "full"), filepath.Join(parts, "overlay.json")
	places, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(root, "internal/guest/embedded/sandpit-guest-"+goarch+".bin"): guest,
		filepath.Join(root, "cmd/sandpit/sandpit-full-"+goarch+".bin"):              full,
	}})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(overlay, places, 0o644); err != nil {
		return nil, err
	}
	if hasFiles(filepath.Join(root, "cmd/sandpit"), "main.go") {
		for _, args := range [][]string{ // as make build does
			{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", guest, "./cmd/sandpit-guest"},
			{"build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-tags=guestembed", "-ldflags=-s -w", "-o", full, "./cmd/sandpit"},
			{"build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-tags=guestembed,launcher", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin/sandpit"), "./cmd/sandpit"},
		} {
			if err := goTool(ctx, root, env, args...); err != nil {
				return nil, err
			}
		}
	}

	built := map[string]string{} // package to test binary
	for _, s := range suites {
		pkg := filepath.Join(root, s.Package)
		if !hasFiles(pkg, "*_test.go") {
			b.Missing[s.Name] = "no tests in " + s.Package
			continue
		}
		into := filepath.Join(dir, s.Name)
		if err := os.MkdirAll(into, 0o755); err != nil {
			return nil, err
		}
		binary := filepath.Join(into, "suite.test")
		if first, ok := built[s.Package]; ok {
			if err := os.Link(first, binary); err != nil {
				return nil, err
			}
		} else {
			args := []string{"test", "-c", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary}
			if hasFiles(filepath.Join(dir, "bin"), "sandpit") {
				args = append(args, "-tags=guestembed", "-overlay", overlay)
			}
			if err := goTool(ctx, root, env, append(args, "./"+s.Package)...); err != nil {
				return nil, err
			}
			built[s.Package] = binary
		}
		if data := filepath.Join(pkg, "testdata"); hasFiles(data, "*") {
			if err := os.CopyFS(filepath.Join(into, "testdata"), os.DirFS(data)); err != nil {
				return nil, err
			}
		}
		b.Suites = append(b.Suites, s)
	}

	script := filepath.Join(dir, "run.sh")
	if err := os.WriteFile(script, []byte(runScript), 0o755); err != nil {
		return nil, err
	}
	// The umask of whoever runs the test must not close it to other accounts.
	return b, exec.CommandContext(ctx, "chmod", "-R", "a+rX", dir).Run()
}

// Jobs is what run.sh reads: a line per host, and under it a line per suite.
func (b *Bundle) Jobs(hosts []Host, quick bool) string {
	var jobs strings.Builder
	for _, h := range hosts {
		expect := "works"
		if h.Refuses {
			expect = "refused"
		}
		fmt.Fprintf(&jobs, "host %s %s %s %s\n", h.Name, h.Become, expect, h.Traits)
		for _, s := range b.Suites {
			if pattern := s.pattern(h, quick); pattern != "" {
				fmt.Fprintf(&jobs, "suite %s %s\n", s.Name, pattern)
			}
		}
	}
	return jobs.String()
}

// order writes into the bundle what a whole machine is to do with it.
func (b *Bundle) order(jobs string, opt Options) error {
	for name, content := range map[string]string{"jobs": jobs, "env": opt.shell()} {
		if err := os.WriteFile(filepath.Join(b.Dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func goTool(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func hasFiles(dir, pattern string) bool {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	return err == nil && len(found) > 0
}
