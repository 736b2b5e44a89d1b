// Package sandpittest holds every promise of sandpit.Client as a test, to be
// run against any implementation: the engine on any driver, and the remote
// client.
//
//	func TestClient(t *testing.T) {
//		sandpittest.Suite(t, func(t *testing.T) sandpit.Client { … }, sandpittest.Options{Local: true, Features: …})
//	}
//
// The names of the tests are the properties. What runs inside the sandboxes
// is a POSIX shell and the usual small programs (coreutils, and setsid of
// util-linux); nothing is downloaded.
package sandpittest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Options say what is special about the client under test.
type Options struct {
	// Image is the image of every sandbox. Default: the client's own default.
	// It must have a shell, coreutils, and a "/etc/passwd" with root.
	Image string

	// Local says that sandboxes are made on this machine, by this user, so
	// that mounts and directories as images can be tried.
	Local bool

	// Features are what the driver of the sandboxes can enforce and do. The suite skips
	// the properties that need another, and checks that the client says that it lacks it.
	Features Features

	// Shared says that every client is one of the same server: all see the same
	// sandboxes, which live on when a client is closed.
	Shared bool

	// Long runs the long forms of the tests: 1 GiB where it is else 64 MiB.
	// Default: whether SANDPIT_TEST_LONG is set.
	Long bool

	// Skip names properties that do not hold here, with the reason.
	Skip map[string]string
}

// Features are names such as "memory", "pause" and "users", which are true for what a
// driver can enforce and do.
type Features = feature.Set

// Suite runs every property as a subtest. newClient is called once per group
// of properties; the client is closed after it.
func Suite(t *testing.T, newClient func(t *testing.T) sandpit.Client, opt Options) {
	opt.Long = opt.Long || os.Getenv("SANDPIT_TEST_LONG") != ""
	for _, g := range []struct {
		name  string
		props []property
	}{
		{"Client", clientProperties},
		{"Process", processProperties},
		{"Output", outputProperties},
		{"Kill", killProperties},
		{"Terminal", terminalProperties},
		{"User", userProperties},
		{"Files", filesProperties},
		{"Writing", writeProperties},
		{"Limits", limitProperties},
		{"Mounts", mountProperties},
		{"Life", lifeProperties},
		{"Keeper", keeperProperties},
		{"Logs", logProperties},
		{"Events", eventProperties},
		{"Ports", portProperties},
		{"File work", fileworkProperties},
		{"Metrics", metricsProperties},
	} {
		t.Run(g.name, func(t *testing.T) {
			e := &env{client: newClient(t), newClient: newClient, opt: opt}
			t.Cleanup(func() {
				if err := e.client.Close(); err != nil {
					t.Errorf("closing the client: %v", err)
				}
			})
			e.learn(t)
			for _, p := range g.props {
				t.Run(p.name, func(t *testing.T) {
					if why, ok := opt.Skip[g.name+"/"+p.name]; ok {
						t.Skip(why)
					}
					p.test(t, e)
				})
			}
		})
	}
}

// property is one promise.
type property struct {
	name string
	test func(t *testing.T, e *env)
}

// env is what the properties of a group share.
type env struct {
	client    sandpit.Client
	newClient func(t *testing.T) sandpit.Client // one more
	opt       Options
	gaps      map[feature.Feature]string // what this machine can't enforce, and why
}

// learn finds out why limits are not enforced here, which must be those that are not
// among the features.
func (e *env) learn(t *testing.T) {
	t.Helper()
	info, err := e.sandbox(t, sandpit.Spec{}).Info(t.Context())
	if err != nil {
		t.Fatalf("asking for the state of a sandbox: %v", err)
	}
	e.gaps = map[feature.Feature]string{}
	for _, g := range info.NotEnforced {
		e.gaps[feature.Feature(g.What)] = g.Why
	}
	for _, f := range feature.Limits() {
		if why, gap := e.gaps[f]; gap == e.opt.Features[f] {
			t.Errorf("%s: enforced is %v, and the sandbox gives as the reason why not: %q", f, e.opt.Features[f], why)
		}
	}
}

// need skips a test that needs features that are missing here.
func (e *env) need(t *testing.T, features ...feature.Feature) {
	t.Helper()
	for _, f := range features {
		if !e.opt.Features[f] {
			t.Skipf("needs the feature %s: %s", f, cmp.Or(e.gaps[f], "the driver lacks it here"))
		}
	}
}

// needLocal skips a test that needs files of this machine.
func (e *env) needLocal(t *testing.T) {
	t.Helper()
	if !e.opt.Local {
		t.Skip("the sandboxes are not on this machine")
	}
}

// sandbox makes a sandbox that is removed at the end of the test.
func (e *env) sandbox(t *testing.T, spec sandpit.Spec) sandpit.Sandbox {
	t.Helper()
	if spec.Image == "" {
		spec.Image = e.opt.Image
	}
	sb, err := e.client.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("creating a sandbox: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.Background()); err != nil {
			t.Errorf("removing the sandbox: %v", err)
		}
	})
	return sb
}

// refused checks that a Spec is refused with an error of a kind.
func (e *env) refused(t *testing.T, spec sandpit.Spec, kind error) {
	t.Helper()
	if spec.Image == "" {
		spec.Image = e.opt.Image
	}
	sb, err := e.client.Create(t.Context(), spec)
	if err == nil {
		_ = sb.Remove(context.Background())
	}
	wantKind(t, err, kind)
}

// wantKind checks the kind of an error, and that its text tells something.
func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want one that is %q", err, kind)
	} else if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %q", err)
	}
}

// guard bounds what should take no time. Nothing depends on how fast a machine
// is; without it a hang would end the whole test binary.
const guard = 2 * time.Minute

// guarded returns a context that ends with the guard.
func guarded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return ctx
}

// run runs a command to its end.
func run(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) sandpit.Output {
	t.Helper()
	out, err := sandpit.Run(guarded(t), sb, cmd)
	if err != nil {
		t.Fatalf("running %q%s: %v (hint: %s)", cmd.Argv, cmd.Script, err, sandpit.Hint(err))
	}
	return out
}

// shell runs a script that must succeed, and returns its output without the
// white space around it.
func shell(t *testing.T, sb sandpit.Sandbox, script string) string {
	t.Helper()
	return command(t, sb, sandpit.Command{Script: script})
}

// command runs a command that must succeed.
func command(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) string {
	t.Helper()
	out := run(t, sb, cmd)
	if !out.Success() {
		t.Fatalf("%q%s ended with %+v\nstdout: %s\nstderr: %s", cmd.Argv, cmd.Script, out.Result, brief(out.Stdout), brief(out.Stderr))
	}
	return strings.TrimSpace(string(out.Stdout))
}

// start starts a command.
func start(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) sandpit.Process {
	t.Helper()
	p, err := sb.Start(guarded(t), cmd)
	if err != nil {
		t.Fatalf("starting %q%s: %v", cmd.Argv, cmd.Script, err)
	}
	return p
}

// wait waits for a process.
func wait(t *testing.T, p sandpit.Process) sandpit.Result {
	t.Helper()
	res, err := p.Wait(guarded(t))
	if err != nil {
		t.Fatalf("waiting: %v", err)
	}
	return res
}

// running returns the command lines in the sandbox that hold a word.
func running(t *testing.T, sb sandpit.Sandbox, word string) []string {
	t.Helper()
	// The word is not in the script, which would find itself.
	all := shell(t, sb, `for p in /proc/[0-9]*; do c=$(tr '\0' ' ' <$p/cmdline) && echo "$c"; done 2>/dev/null; :`)
	var found []string
	for line := range strings.Lines(all) {
		if strings.Contains(line, word) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// allDead waits until no process with a word in its command line is left.
func allDead(t *testing.T, sb sandpit.Sandbox, word string) {
	t.Helper()
	eventually(t, "no process with "+word+" is left", func() bool { return len(running(t, sb, word)) == 0 })
}

// survives checks that one process with a text in its command line is left. A
// process that has just been executed has none for a moment.
func survives(t *testing.T, sb sandpit.Sandbox, text string) {
	t.Helper()
	eventually(t, "one process with "+text+" is left", func() bool { return len(running(t, sb, text)) == 1 })
}

// patiently does something within a time that a busy machine may not keep, and
// again within three times as much until it was enough, which do reports. What
// else must hold, do checks each time.
func patiently[T any](t *testing.T, within *time.Duration, do func() (_ T, done bool)) T {
	t.Helper()
	for {
		got, done := do()
		if done || *within > guard/4 {
			return got
		}
		*within *= 3
	}
}

// written collects what a process writes, and can be read meanwhile.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// until waits until the output holds a text.
func (w *written) until(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(guard); !strings.Contains(w.String(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the output never holds %q: %q", text, w.String())
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(guard); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// brief shortens output for a message.
func brief(b []byte) string {
	if len(b) > 2000 {
		return fmt.Sprintf("%q… (%d bytes)", b[:2000], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// isInvalidOrUnsupported reports a request that makes no sense, or that a
// sandbox with a single user can't serve.
func isInvalidOrUnsupported(err error) bool {
	return errors.Is(err, sandpit.ErrInvalid) || errors.Is(err, sandpit.ErrUnsupported)
}
