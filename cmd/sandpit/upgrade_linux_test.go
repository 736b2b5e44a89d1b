package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// upgradeFrom is the oldest program whose sandboxes and state this one promises
// to take over, as long as no release has a tag. When there are tags, the newest one before
// this commit is used, and this can go. Until then it moves on only together with
// a change that ends the reading of what was written before it: of the schema
// (internal/state), of a handle or a record (driver.HandleVersion, the engine's
// dataVersion) or of the guest's protocol (wire.MinVersion), or of the API that the
// commands of one program and the server of the other speak.
const upgradeFrom = "1d66e0676172a0aa22adfa6821cbc60698ea4319"

// TestUpgrade replaces a server of an older program by the one under test, when
// it has ended and when it was killed, and looks whether anything is lost; then
// goes back to the older one, and forth again. SANDPIT_TEST_UPGRADE_FROM names
// another commit or tag to upgrade from.
func TestUpgrade(t *testing.T) {
	testkit.NeedLong(t, "it builds an older program, which takes minutes")
	needSandboxes(t)
	old := oldProgram(t)
	t.Run("ended", func(t *testing.T) { upgraded(t, old, syscall.SIGTERM) })
	t.Run("killed", func(t *testing.T) { upgraded(t, old, syscall.SIGKILL) })
}

// program is one of an earlier commit.
type program struct {
	ref  string // as it was asked for
	file string
}

// oldProgram builds the program to upgrade from, with the guest that it carries.
func oldProgram(t *testing.T) program {
	t.Helper()
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	ref := os.Getenv("SANDPIT_TEST_UPGRADE_FROM")
	if ref == "" {
		ref = upgradeFrom
		if tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"); err == nil {
			ref = tag
		}
	}
	root, err := git("rev-parse", "--show-toplevel")
	testkit.Need(t, "a checkout by git", err)
	commit, err := git("rev-parse", "--verify", "--quiet", ref+"^{commit}")
	testkit.Need(t, "commit "+ref+" to upgrade from (git fetch --unshallow --tags)", err)
	dir := filepath.Join(t.TempDir(), "old")
	for _, args := range [][]string{{"clone", "--quiet", "--shared", "--no-checkout", root, dir}, {"-C", dir, "checkout", "--quiet", commit}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("taking %s out of git: %v %s", ref, err, out)
		}
	}
	build := exec.Command("make", "-C", dir, "build", "VERSION="+ref)
	// What another make has told this one is not about that tree.
	build.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", ref, err, out)
	}
	t.Logf("upgrading from %s (%s)", ref, commit)
	return program{ref, filepath.Join(dir, "bin", "sandpit")}
}

// upgrade is a data directory whose server is replaced.
type upgrade struct {
	t       *testing.T
	old     program        // to upgrade from
	signal  syscall.Signal // that its server gets
	home    string
	address string // HOST:PORT of the server, with TLS
	key     string // the first key, which the old server has shown
	team    string // the key of a tenant, whose sandboxes the first one does not list
	ends    int    // a guest that ends while there is no server
	s       *service
	c       *client.Client // at the unix socket, all the time
	limits  sandpit.Limits
	traces  traces
}

// situation is something that an upgrade must not harm: begin sets it up with
// the old server, and what it returns looks at it with the new one.
type situation struct {
	name  string
	begin func(*upgrade) (check func(*upgrade))
}

// upgraded takes a data directory through an upgrade, where the old server gets
// a signal.
func upgraded(t *testing.T, old program, signal syscall.Signal) {
	home := shortHome(t)
	u := &upgrade{t: t, old: old, signal: signal, home: home, limits: enforceable(t, sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64})}
	u.traces.before(t)
	// Whatever fails: the program under test removes what there is.
	t.Cleanup(func() {
		if serverPID(t, home) == 0 {
			startService(t, home, nil, "--config", u.config())
		}
		if u.team != "" {
			if err := removeAll(context.WithoutCancel(t.Context()), u.tenant(u.team)); err != nil {
				t.Error(err)
			}
		}
		endServer(t, home)
	})
	u.address = writeTLS(t, home, "private-webhooks: true\n")
	if err := os.WriteFile(filepath.Join(home, "policy.yaml"), []byte("policies: {default: {}, small: {maximum: {memory: 256m}, defaults: {memory: 64m}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.serveOld()
	u.key = shownKey(t, u.s)
	u.c = u.s.client()

	all := situations()
	checks := make([]func(*upgrade), len(all))
	for i, s := range all {
		checks[i] = s.begin(u)
	}
	if t.Failed() {
		return
	}
	u.traces.note(t, home)
	if err := u.s.cmd.Process.Signal(u.signal); err != nil {
		t.Fatal(err)
	}
	<-u.s.ended
	u.until("a sandbox whose time is over has ended by itself", func() bool { return ended(u.ends) })
	u.serveNew()
	if log := u.s.log.String(); strings.Contains(log, "left alone") || strings.Contains(log, "could not be adopted") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the server that takes over says\n%s", log)
	}
	for i, s := range all {
		t.Run(s.name, func(t *testing.T) {
			within := *u
			within.t = t
			checks[i](&within)
		})
	}
	if t.Failed() {
		return
	}
	u.back()
	u.remove()
}

func (u *upgrade) config() string { return filepath.Join(u.home, "server.yaml") }

// serveOld starts a server of the old program.
func (u *upgrade) serveOld() {
	u.s = startService(u.t, u.home, func(cmd *exec.Cmd) { cmd.Path = u.old.file }, "--config", u.config())
}

// serveNew starts a server of the program under test.
func (u *upgrade) serveNew() {
	u.s = startService(u.t, u.home, nil, "--config", u.config())
}

// oldCommand is a command line of the old program.
func (u *upgrade) oldCommand(argv ...string) *exec.Cmd {
	cmd := commandLineAt(u.t, u.home, argv...)
	cmd.Path = u.old.file
	return cmd
}

// box makes a sandbox.
func (u *upgrade) box(spec sandpit.Spec) sandpit.Sandbox {
	u.t.Helper()
	if spec.Limits == (sandpit.Limits{}) {
		spec.Limits = u.limits
	}
	sb, err := u.c.Create(u.t.Context(), spec)
	if err != nil {
		u.t.Fatalf("making %s: %v (%s)", spec.Name, err, sandpit.Hint(err))
	}
	return sb
}

// again is a sandbox as one finds it by its name.
func (u *upgrade) again(name string) sandpit.Sandbox {
	u.t.Helper()
	sb, err := u.c.Get(u.t.Context(), name)
	if err != nil {
		u.t.Fatal(err)
	}
	return sb
}

// shell runs a script that must succeed, and returns what it wrote.
func (u *upgrade) shell(sb sandpit.Sandbox, script string) string {
	u.t.Helper()
	out, err := sandpit.Shell(u.t.Context(), sb, script)
	if err != nil || !out.Success() {
		u.t.Fatalf("%s: %+v %v: %s", script, out.Result, err, out.Stderr)
	}
	return string(out.Stdout)
}

// back has the old program on the state of the new one: it says clearly that it
// can't, or takes over what there is, and harms nothing in either case.
func (u *upgrade) back() {
	t := u.t
	sb := u.box(sandpit.Spec{Name: "made-by-the-new"})
	u.shell(sb, "echo hello >/tmp/file")
	p, err := sb.Start(t.Context(), sandpit.Command{Script: "read x; echo got $x", Stdin: true, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	u.traces.note(t, u.home)
	guest := guestOf(t, u.home, sb.ID())
	stop := func() {
		u.traces.note(t, u.home)
		if err := u.s.cmd.Process.Signal(u.signal); err != nil {
			t.Fatal(err)
		}
		<-u.s.ended
	}
	stop()
	if schemaOf(t, u.home) > u.newestOfOld() {
		u.refused(u.home)
	} else {
		u.serveOld()
		u.whole("made-by-the-new", p.ID())
		stop()
	}
	if ended(guest) {
		t.Error("the sandbox is gone")
	}
	u.serveNew()
	u.whole("made-by-the-new", p.ID())
	in, err := u.again("made-by-the-new").(sandpit.ProcessKeeper).Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Stdin().Write([]byte("it\n")); err != nil {
		t.Error(err)
	}
	if res, err := in.Wait(t.Context()); err != nil || !res.Success() {
		t.Errorf("its process, after the way back and forth: %+v %v", res, err)
	}
}

// whole looks whether a sandbox of back is as it was.
func (u *upgrade) whole(name, process string) {
	u.t.Helper()
	sb := u.again(name)
	if got := u.shell(sb, "cat /tmp/file"); got != "hello\n" {
		u.t.Errorf("its file is %q", got)
	}
	list, err := sb.(sandpit.ProcessKeeper).Processes(u.t.Context())
	if !slices.ContainsFunc(list, func(p sandpit.ProcessInfo) bool { return p.ID == process && p.Result == nil }) {
		u.t.Errorf("its process %s is not among %+v, %v", process, list, err)
	}
}

// newestOfOld is the newest schema that the old program knows: that of a state
// which it makes. A later one it refuses.
func (u *upgrade) newestOfOld() int {
	t := u.t
	home := shortHome(t)
	s := startService(t, home, func(cmd *exec.Cmd) { cmd.Path = u.old.file })
	s.end()
	newest := schemaOf(t, home)
	execute(t, filepath.Join(home, "state", "state.db"), fmt.Sprintf("PRAGMA user_version=%d", newest+1))
	u.refused(home)
	return newest
}

// refused has the old program refuse a state of a schema that it does not know.
func (u *upgrade) refused(home string) {
	t := u.t
	db := filepath.Join(home, "state", "state.db")
	before, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	cmd := commandLineAt(t, home, "serve")
	cmd.Path = u.old.file
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "schema") || !strings.Contains(string(out), "hint: ") {
		t.Errorf("the old program, on a state that is newer: %v %s", err, out)
	}
	if after, err := os.ReadFile(db); err != nil || !bytes.Equal(before, after) {
		t.Errorf("it has changed the state: %v", err)
	}
}

// remove removes everything, and looks whether anything is left.
func (u *upgrade) remove() {
	t := u.t
	u.traces.note(t, u.home)
	for _, way := range []client.Options{{Address: "unix://" + u.home + "/server.sock"}, u.tenant(u.key), u.tenant(u.team)} {
		if err := removeAll(context.WithoutCancel(t.Context()), way); err != nil {
			t.Error(err)
		}
	}
	if got := u.s.end(); got != 0 {
		t.Errorf("the server's exit code is %d", got)
	}
	u.traces.left(t, u.home)
	if out, err := commandLineAt(t, u.home, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("the audit of both programs: %v %s", err, out)
	}
}
