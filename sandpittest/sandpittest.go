// Package sandpittest tests every promise of sandpit.Client. The suite runs against any
// implementation: the engine on any driver, and the remote client.
//
//	func TestClient(t *testing.T) {
//		sandpittest.Suite(t, func(t *testing.T) sandpit.Client { … }, sandpittest.Options{Local: true, Features: …})
//	}
//
// The names of the tests are the properties. The sandboxes need a POSIX shell,
// coreutils, and setsid of util-linux. The suite downloads nothing.
package sandpittest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Options describe the client under test.
type Options struct {
	// Image is the image of every sandbox. Default: the client's own default.
	// It must have a shell, coreutils, and a "/etc/passwd" with root.
	Image string

	// Local means that this user makes the sandboxes on this machine. The suite then
	// tests mounts and directories as images.
	Local bool

	// Features lists what the driver can enforce and do. The suite skips properties
	// that need other features, and checks that the client reports those as missing.
	Features Features

	// Shared means that all clients use the same server. They see the same sandboxes,
	// which keep running when a client is closed.
	Shared bool

	// Nested returns a client like the one under test in a nested namespace, or in
	// sandpit.AllNamespaces. It may be nil for clients without nested namespaces.
	Nested func(t *testing.T, namespace string) sandpit.Client

	// Previews is the HOST:PORT where the server of the client is reached at the URLs of
	// previews, in place of what DNS says. It may be empty for clients without previews.
	Previews string

	// Long runs the long forms of the tests, which move 1 GiB instead of 64 MiB.
	// By default it is true if SANDPIT_TEST_LONG is set.
	Long bool

	// Groups are the names of the groups of properties to run. Empty: all. Those of Except are not run.
	Groups, Except []string

	// Skip maps the names of properties that do not hold here to the reason.
	Skip map[string]string
}

// Languages are the groups of languages beside Python. What runs code in them is the same for every client whose sandboxes
// have processes and sockets, so one run of them is enough.
func Languages() []string { return []string{"JavaScript", "Bash", "R"} }

// Features maps names such as "memory", "pause" and "users" to whether a driver can
// enforce or do that.
type Features = feature.Set

// Suite runs every property as a subtest. It calls newClient once per group of
// properties, and closes the client after the group.
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
		{"Update", updateProperties},
		{"Keeper", keeperProperties},
		{"Logs", logProperties},
		{"Events", eventProperties},
		{"Ports", portProperties},
		{"Code", codeProperties},
		{"JavaScript", javascriptProperties},
		{"Bash", bashProperties},
		{"R", rProperties},
		{"Egress", egressProperties},
		{"File work", fileworkProperties},
		{"Copy and Do", copyProperties},
		{"Metrics", metricsProperties},
		{"Commit", commitProperties},
	} {
		if len(opt.Groups) > 0 && !slices.Contains(opt.Groups, g.name) || slices.Contains(opt.Except, g.name) {
			continue
		}
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

// env holds what the properties of a group share.
type env struct {
	client    sandpit.Client
	newClient func(t *testing.T) sandpit.Client // one more
	opt       Options
	gaps      map[feature.Feature]string // what this machine can't enforce, and why
}

// learn records why limits are not enforced here, and checks that these are exactly the
// limits that are missing from the features.
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

// need skips the test if one of the features is missing here.
func (e *env) need(t *testing.T, features ...feature.Feature) {
	t.Helper()
	for _, f := range features {
		if !e.opt.Features[f] {
			t.Skipf("needs the feature %s: %s", f, cmp.Or(e.gaps[f], "the driver lacks it here"))
		}
	}
}

// needLocal skips the test if the sandboxes can't use files of this machine.
func (e *env) needLocal(t *testing.T) {
	t.Helper()
	if !e.opt.Local {
		t.Skip("the sandboxes are not on this machine")
	}
}

// sandbox creates a sandbox and removes it at the end of the test.
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

// refused checks that creating a sandbox of a Spec fails with an error of the given kind.
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

// wantKind checks the kind of an error, and that its text has a single line.
func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want one that is %q", err, kind)
	} else if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %q", err)
	}
}

// guard bounds operations that should be quick. No result depends on the speed of the
// machine; without the guard a hang would end the whole test binary.
const guard = 2 * time.Minute

// guarded returns a context that ends with the guard.
func guarded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return ctx
}

// run runs a command and waits until it has exited.
func run(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) sandpit.Output {
	t.Helper()
	out, err := sandpit.Run(guarded(t), sb, cmd)
	if err != nil {
		t.Fatalf("running %q%s: %v (hint: %s)", cmd.Argv, cmd.Script, err, sandpit.Hint(err))
	}
	return out
}

// shell runs a script that must succeed, and returns its trimmed output.
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

// notStarted starts a command whose program can't be started, and returns the error.
func notStarted(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) sandpit.StartError {
	t.Helper()
	p, err := sb.Start(guarded(t), cmd)
	var failed *sandpit.StartError
	if !errors.As(err, &failed) || !errors.Is(err, sandpit.ErrStart) || p != nil {
		t.Fatalf("starting %.100q%.100s: got %v, %v, want a StartError", cmd.Argv, cmd.Script, p, err)
	}
	return *failed
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

// running returns the command lines in the sandbox that contain a word.
func running(t *testing.T, sb sandpit.Sandbox, word string) []string {
	t.Helper()
	// The script does not contain the word, because its own command line is listed too.
	all := shell(t, sb, `for p in /proc/[0-9]*; do c=$(tr '\0' ' ' <$p/cmdline) && echo "$c"; done 2>/dev/null; :`)
	var found []string
	for line := range strings.Lines(all) {
		if strings.Contains(line, word) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// allDead waits until no process has the word in its command line.
func allDead(t *testing.T, sb sandpit.Sandbox, word string) {
	t.Helper()
	eventually(t, "no process with "+word+" is left", func() bool { return len(running(t, sb, word)) == 0 })
}

// survives checks that exactly one process with the text in its command line is left. It
// waits, because a process has no command line for a moment during exec.
func survives(t *testing.T, sb sandpit.Sandbox, text string) {
	t.Helper()
	eventually(t, "one process with "+text+" is left", func() bool { return len(running(t, sb, text)) == 1 })
}

// patiently calls do, which works within the given time and reports whether that was
// enough. As long as it was not, because the machine is busy, patiently triples the time
// and calls do again. What must hold in any case do checks each time.
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

// written collects the output of a process. It can be read while the process writes.
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

// until waits until the output contains a text.
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

// brief shortens output for an error message.
func brief(b []byte) string {
	if len(b) > 2000 {
		return fmt.Sprintf("%q… (%d bytes)", b[:2000], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// isInvalidOrUnsupported reports whether err says that a request is invalid, or that a
// sandbox with a single user can't serve it.
func isInvalidOrUnsupported(err error) bool {
	return errors.Is(err, sandpit.ErrInvalid) || errors.Is(err, sandpit.ErrUnsupported)
}
