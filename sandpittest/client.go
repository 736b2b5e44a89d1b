package sandpittest

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var clientProperties = []property{
	{"the zero Spec is a running sandbox with every limit set", testZeroSpec},
	{"Get finds by id and by name, List is in order of age", testGetAndList},
	{"a name that is taken is ErrExists, and free again after Remove", testNameTaken},
	{"one of many Creates with one name wins", testNameRace},
	{"a Spec that makes no sense is ErrInvalid", testInvalidSpecs},
	{"an image that does not exist is ErrNotFound", testUnknownImage},
	{"what is not there is ErrNotFound", testNotFound},
	{"Remove is idempotent, and may be called by many", testRemoveTwice},
	{"after Remove everything is ErrClosed", testUseAfterRemove},
	{"Remove ends a Wait and a Read that are under way", testRemoveWhileWaiting},
	{"Create with a context that has ended leaves nothing", testCreateCancelled},
	{"a signal to the guest from inside is ignored", testKillGuest},
	{"the hostname, environment, labels and working directory are those of the Spec", testSpecParts},
	{"Metrics count what runs", testMetrics},
	{"many sandboxes at once do not see each other", testManySandboxes},
	{"a new sandbox has nothing of those that were removed", testNothingIsLeft},
	{"a lifetime ends the sandbox", testLife},
	{"a nested namespace has names of its own, and is seen alone or with all others", testNested},
}

func testZeroSpec(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State != sandpit.StateRunning || info.ID == "" || info.ID != sb.ID() || info.Name != sb.ID() || info.Name != sb.Name() || info.Driver == "" || info.Image == "" || info.CreatedAt.IsZero() {
		t.Errorf("info is %+v", info)
	}
	l := info.Limits
	if l.Memory <= 0 || l.CPUs <= 0 || l.Pids <= 0 || l.Disk <= 0 || l.Files <= 0 || l.NoFile <= 0 || l.Output <= 0 || l.Life <= 0 {
		t.Errorf("a limit is not set: %+v", l)
	}
	for _, g := range info.NotEnforced {
		if g.What == "" || g.Why == "" || g.Fix == "" {
			t.Errorf("a gap does not say what, why and what to do: %+v", g)
		}
	}
	if got := shell(t, sb, "echo hello"); got != "hello" {
		t.Errorf("got %q", got)
	}
}

func testGetAndList(t *testing.T, e *env) {
	name := uniqueName(t)
	first := e.sandbox(t, sandpit.Spec{Name: name, Labels: map[string]string{"a": "1"}})
	second := e.sandbox(t, sandpit.Spec{})
	for _, by := range []string{first.ID(), name} {
		sb, err := e.client.Get(t.Context(), by)
		if err != nil {
			t.Fatal(err)
		}
		if sb.ID() != first.ID() || sb.Name() != name {
			t.Errorf("Get(%q) gives %s, %s", by, sb.ID(), sb.Name())
		}
	}
	infos := e.list(t)
	at := func(id string) int {
		return slices.IndexFunc(infos, func(i sandpit.Info) bool { return i.ID == id })
	}
	if i, j := at(first.ID()), at(second.ID()); i < 0 || j < 0 || i > j {
		t.Errorf("they are at %d and %d of the list", i, j)
	} else if !maps.Equal(infos[i].Labels, map[string]string{"a": "1"}) {
		t.Errorf("labels are %v", infos[i].Labels)
	}
	if err := e.client.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	infos = e.list(t)
	if at(first.ID()) >= 0 {
		t.Error("a removed sandbox is in the list")
	}
}

// list returns all sandboxes, a page after the other.
func (e *env) list(t *testing.T) []sandpit.Info {
	t.Helper()
	var all []sandpit.Info
	for q := (sandpit.ListQuery{Limit: 2}); ; {
		page, err := e.client.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, page.Sandboxes...); page.Next == "" {
			return all
		}
		q.After = page.Next
	}
}

// uniqueName is a name that no other test run on this machine uses.
func uniqueName(t *testing.T) string {
	t.Helper()
	return "test-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

func testNameTaken(t *testing.T, e *env) {
	name := uniqueName(t)
	sb := e.sandbox(t, sandpit.Spec{Name: name})
	e.refused(t, sandpit.Spec{Name: name}, sandpit.ErrExists)
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.sandbox(t, sandpit.Spec{Name: name})
}

func testNameRace(t *testing.T, e *env) {
	name := uniqueName(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			sb, err := e.client.Create(t.Context(), sandpit.Spec{Name: name, Image: e.opt.Image})
			if err != nil {
				wantKind(t, err, sandpit.ErrExists)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won++
			t.Cleanup(func() { _ = sb.Remove(context.Background()) })
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d have the name", won)
	}
}

func testInvalidSpecs(t *testing.T, e *env) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]sandpit.Spec{
		"name with a slash":        {Name: "a/b"},
		"name that begins with -":  {Name: "-a"},
		"name too long":            {Name: strings.Repeat("a", 64)},
		"hostname":                 {Hostname: "a b"},
		"user with spaces":         {User: "a b"},
		"unknown user":             {User: "no-such-user-here"},
		"unknown group":            {User: "0:no-such-group-here"},
		"uid out of range":         {User: "4294967295"},
		"relative working dir":     {WorkDir: "work"},
		"env without =":            {Env: []string{"A"}},
		"env without a name":       {Env: []string{"=a"}},
		"env with a NUL":           {Env: []string{"A=\x00"}},
		"pull policy":              {Pull: "sometimes"},
		"label":                    {Labels: map[string]string{"": "a"}},
		"negative memory":          {Limits: sandpit.Limits{Memory: -1}},
		"memory below the minimum": {Limits: sandpit.Limits{Memory: sandpit.MinMemory - 1}},
		"negative cpus":            {Limits: sandpit.Limits{CPUs: -1}},
		"cpus not a number":        {Limits: sandpit.Limits{CPUs: math.NaN()}},
		"too few cpus":             {Limits: sandpit.Limits{CPUs: sandpit.MinCPUs / 2}},
		"negative pids":            {Limits: sandpit.Limits{Pids: -1}},
		"too few pids":             {Limits: sandpit.Limits{Pids: sandpit.MinPids - 1}},
		"too small a disk":         {Limits: sandpit.Limits{Disk: sandpit.MinDisk - 1}},
		"too few files":            {Limits: sandpit.Limits{Files: sandpit.MinFiles - 1}},
		"too few open files":       {Limits: sandpit.Limits{NoFile: sandpit.MinNoFile - 1}},
		"negative output":          {Limits: sandpit.Limits{Output: -1}},
		"negative life":            {Limits: sandpit.Limits{Life: -1}},
		"read-only and write":      {ReadOnly: true, Write: []string{"/tmp"}},
		"relative write path":      {Write: []string{"tmp"}},
		"relative tmpfs":           {Tmpfs: []sandpit.Tmpfs{{Target: "tmp"}}},
		"tmpfs at the root":        {Tmpfs: []sandpit.Tmpfs{{Target: "/"}}},
		"tmpfs in proc":            {Tmpfs: []sandpit.Tmpfs{{Target: "/proc/x"}}},
		"tmpfs at /dev/..":         {Tmpfs: []sandpit.Tmpfs{{Target: "/tmp/../dev"}}},
		"negative tmpfs":           {Tmpfs: []sandpit.Tmpfs{{Target: "/x", Size: -1}}},
		"mount without a source":   {Mounts: []sandpit.Mount{{Target: "/x"}}},
		"relative mount source":    {Mounts: []sandpit.Mount{{Source: "x", Target: "/x"}}},
		"missing mount source":     {Mounts: []sandpit.Mount{{Source: filepath.Join(dir, "missing"), Target: "/x"}}},
		"mount source is a link":   {Mounts: []sandpit.Mount{{Source: link, Target: "/x"}}},
		"mount source is a device": {Mounts: []sandpit.Mount{{Source: "/dev/null", Target: "/x"}}},
		"mount of the root":        {Mounts: []sandpit.Mount{{Source: "/", Target: "/x"}}},
		"relative mount target":    {Mounts: []sandpit.Mount{{Source: dir, Target: "x"}}},
		"mount over the root":      {Mounts: []sandpit.Mount{{Source: dir, Target: "/"}}},
		"mount over proc":          {Mounts: []sandpit.Mount{{Source: dir, Target: "/proc/self"}}},
		"two mounts at one place":  {Mounts: []sandpit.Mount{{Source: dir, Target: "/x"}, {Source: dir, Target: "/x/"}}},
		"image with a newline":     {Image: "a\nb"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(spec.Mounts) > 0 {
				e.needLocal(t)
			}
			e.refused(t, spec, sandpit.ErrInvalid)
		})
	}
}

func testUnknownImage(t *testing.T, e *env) {
	e.needLocal(t)
	e.refused(t, sandpit.Spec{Image: "dir:" + filepath.Join(t.TempDir(), "missing")}, sandpit.ErrNotFound)
	e.refused(t, sandpit.Spec{Image: "localhost:1/no/such:image", Pull: sandpit.PullNever}, sandpit.ErrNotFound)
}

func testNotFound(t *testing.T, e *env) {
	_, err := e.client.Get(t.Context(), "no-such-sandbox")
	wantKind(t, err, sandpit.ErrNotFound)
	wantKind(t, e.client.Remove(t.Context(), "no-such-sandbox"), sandpit.ErrNotFound)
	sb := e.sandbox(t, sandpit.Spec{})
	if err := e.client.Remove(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	wantKind(t, e.client.Remove(t.Context(), sb.ID()), sandpit.ErrNotFound)
	_, err = e.client.Get(t.Context(), sb.ID())
	wantKind(t, err, sandpit.ErrNotFound)
}

func testRemoveTwice(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := sb.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sb.Remove(ended); err != nil {
		t.Error(err)
	}
}

func testUseAfterRemove(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := sb.Start(t.Context(), sandpit.Command{Script: "true"})
	wantKind(t, err, sandpit.ErrClosed)
	_, err = sb.Info(t.Context())
	wantKind(t, err, sandpit.ErrClosed)
	_, err = sb.Metrics(t.Context())
	wantKind(t, err, sandpit.ErrClosed)
	for _, f := range []sandpit.Files{files, sb.Files()} {
		_, err = f.Stat(t.Context(), "/")
		wantKind(t, err, sandpit.ErrClosed)
		_, err = f.Open(t.Context(), "/etc/passwd", 0, -1)
		wantKind(t, err, sandpit.ErrClosed)
		_, err = f.Write(t.Context(), "/tmp/x", strings.NewReader("x"), sandpit.WriteOptions{})
		wantKind(t, err, sandpit.ErrClosed)
	}
}

func testRemoveWhileWaiting(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}, Stdin: true})
	waited := make(chan error, 1)
	go func() {
		_, err := p.Wait(guarded(t))
		waited <- err
	}()
	wrote := make(chan error, 1)
	go func() {
		_, err := p.Stdin().Write(make([]byte, 64<<20)) // more than fits anywhere
		wrote <- err
	}()
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("Wait returns %v", err)
	}
	if err := <-wrote; err == nil {
		t.Error("writing to standard input succeeds")
	}
	if err := p.Kill(t.Context()); err != nil && !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("Kill returns %v", err)
	}
}

func testCreateCancelled(t *testing.T, e *env) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := e.list(t)
	// Each has a name of its own: a server may still be undoing the one before.
	names := []string{uniqueName(t)}
	if _, err := e.client.Create(ended, sandpit.Spec{Name: names[0], Image: e.opt.Image}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create returns %v", err)
	}
	for _, d := range []time.Duration{time.Microsecond, time.Millisecond, 3 * time.Millisecond, 6 * time.Millisecond, 10 * time.Millisecond} {
		name := uniqueName(t)
		names = append(names, name)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		sb, err := e.client.Create(ctx, sandpit.Spec{Name: name, Image: e.opt.Image})
		cancel()
		if err == nil {
			if err := sb.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create returns %v", err)
		}
	}
	if e.opt.Shared {
		// A server undoes by itself what it has begun for a client that has left.
		eventually(t, "no more sandboxes are listed", func() bool { return len(e.list(t)) <= len(before) })
		for _, name := range names {
			eventually(t, "the name is free", func() bool {
				sb, err := e.client.Create(t.Context(), sandpit.Spec{Name: name, Image: e.opt.Image})
				if err == nil {
					must(t, sb.Remove(guarded(t)))
				} else if !errors.Is(err, sandpit.ErrExists) {
					t.Fatal(err)
				}
				return err == nil
			})
		}
	}
	after := e.list(t)
	if len(after) > len(before) {
		t.Errorf("%d sandboxes more are listed", len(after)-len(before))
	}
	for _, name := range names {
		e.sandbox(t, sandpit.Spec{Name: name}) // the name is free
	}
}

func testKillGuest(t *testing.T, e *env) {
	for _, user := range []string{"", "root"} {
		sb := e.sandbox(t, sandpit.Spec{User: user})
		for _, sig := range []string{"KILL", "STOP", "TERM", "HUP", "INT", "SEGV", "QUIT", "ABRT", "USR1", "PIPE"} {
			run(t, sb, sandpit.Command{Script: "kill -" + sig + " 1"})
		}
		// Takes everything with it, the shell and what keeps track of it too.
		out := run(t, sb, sandpit.Command{Script: "sleep 0.1; kill -9 -1; exit 3"})
		if out.Success() {
			t.Errorf("killing everything ends with %+v", out.Result)
		}
		if got := shell(t, sb, "echo alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StateRunning {
			t.Errorf("state is %s, %v", info.State, err)
		}
	}
}

func testSpecParts(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{
		Hostname: "some-host", WorkDir: "/usr", Env: []string{"A=1", "B=two words", "A=3"},
		Labels: map[string]string{"purpose": "test"},
	})
	if got := shell(t, sb, `printf '%s,%s,%s,%s' "$(uname -n)" "$(cat /etc/hostname)" "$A" "$B"; pwd`); got != "some-host,some-host,3,two words/usr" {
		t.Errorf("got %q", got)
	}
	if got := shell(t, sb, `grep -c some-host /etc/hosts`); got != "1" {
		t.Errorf("%s lines of /etc/hosts have the name", got)
	}
	info, err := sb.Info(t.Context())
	if err != nil || info.Labels["purpose"] != "test" {
		t.Errorf("info is %+v, %v", info, err)
	}
	// What is returned is a copy.
	info.Labels["purpose"] = "changed"
	if info, err := sb.Info(t.Context()); err != nil || info.Labels["purpose"] != "test" {
		t.Errorf("info is %+v, %v", info, err)
	}
}

// testNothingIsLeft fills what a later sandbox may be given again: directories, shared memory and queues.
func testNothingIsLeft(t *testing.T, e *env) {
	const canary = "canary-of-a-sandbox"
	for range 3 {
		sb := e.sandbox(t, sandpit.Spec{Hostname: canary})
		shell(t, sb, "for d in /tmp /var/tmp /dev/shm /run ~; do echo "+canary+" >$d/"+canary+" || true; done 2>/dev/null; ls /tmp/"+canary)
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		sb = e.sandbox(t, sandpit.Spec{})
		if got := shell(t, sb, "uname -n; find /tmp /var/tmp /dev/shm /run ~ -name 'canary*' 2>/dev/null; cat /proc/sysvipc/shm /proc/1/mountinfo"); strings.Contains(got, canary) {
			t.Errorf("a new sandbox has %q", got)
		}
	}
}

func testMetrics(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}})
	m, err := sb.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.CPU == 0 || m.Memory == 0 || m.MemoryPeak == 0 || m.Pids == 0 || m.OOMKills > 0 {
		t.Errorf("metrics are %+v", m)
	}
	if m.MemoryPeak >= 0 && m.MemoryPeak < m.Memory/2 {
		t.Errorf("metrics are %+v", m)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func testManySandboxes(t *testing.T, e *env) {
	const n = 16
	boxes := make([]sandpit.Sandbox, n)
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			sb, err := e.client.Create(t.Context(), sandpit.Spec{Image: e.opt.Image})
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = sb
			if _, err := sb.Files().Write(t.Context(), "/tmp/who", strings.NewReader(sb.ID()), sandpit.WriteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, sb := range boxes {
			if sb != nil {
				_ = sb.Remove(context.Background())
			}
		}
	})
	if t.Failed() {
		return
	}
	for _, sb := range boxes {
		p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}})
		defer p.Kill(context.Background())
	}
	for _, sb := range boxes {
		if got := shell(t, sb, "cat /tmp/who"); got != sb.ID() {
			t.Errorf("sandbox %s has the file of %s", sb.ID(), got)
		}
		survives(t, sb, "sleep 1000")
	}
	for _, sb := range boxes {
		wg.Go(func() {
			if err := sb.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func testLife(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Life: 500 * time.Millisecond}})
	// The process runs out of the same time, or the sandbox goes under it.
	out, err := sandpit.Exec(guarded(t), sb, "sleep", "1000")
	if err == nil && !out.TimedOut {
		t.Errorf("the process ends with %+v", out.Result)
	} else if err != nil && !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("running: %v", err)
	}
	eventually(t, "the sandbox is gone", func() bool {
		_, err := sb.Files().Lstat(t.Context(), "/")
		return errors.Is(err, sandpit.ErrClosed)
	})
	if _, err := e.client.Get(t.Context(), sb.ID()); !errors.Is(err, sandpit.ErrNotFound) {
		eventually(t, "the sandbox is not listed", func() bool {
			_, err := e.client.Get(t.Context(), sb.ID())
			return errors.Is(err, sandpit.ErrNotFound)
		})
	}
}

// isPathError checks the kind of an error of Files.
func isPathError(t *testing.T, err, kind error) {
	t.Helper()
	wantKind(t, err, kind)
	if pe := (*fs.PathError)(nil); !errors.As(err, &pe) {
		t.Errorf("the error %v (%T) is no *fs.PathError", err, err)
	}
}

// nested returns a client of a nested namespace.
func (e *env) nested(t *testing.T, namespace string) sandpit.Client {
	t.Helper()
	c := e.opt.Nested(t, namespace)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func testNested(t *testing.T, e *env) {
	if e.opt.Nested == nil {
		t.Skip("this client has no nested namespaces")
	}
	name := uniqueName(t)
	in, other, all := e.nested(t, name+".a"), e.nested(t, name+".ab"), e.nested(t, sandpit.AllNamespaces)
	first, err := all.List(t.Context(), sandpit.ListQuery{Limit: 1})
	must(t, err)
	spec := sandpit.Spec{Name: name, Image: e.opt.Image, Labels: map[string]string{"nested": name}}
	outside := e.sandbox(t, spec)
	create := func(c sandpit.Client) sandpit.Sandbox {
		t.Helper()
		sb, err := c.Create(t.Context(), spec)
		must(t, err)
		t.Cleanup(func() { _ = sb.Remove(context.Background()) })
		return sb
	}
	a, ab := create(in), create(other)
	_, err = in.Create(t.Context(), spec)
	wantKind(t, err, sandpit.ErrExists)
	_, err = all.Create(t.Context(), sandpit.Spec{Image: e.opt.Image})
	wantKind(t, err, sandpit.ErrInvalid)

	// Names and lists are those of the namespace.
	for c, sb := range map[sandpit.Client]sandpit.Sandbox{e.client: outside, in: a, other: ab} {
		found, err := c.Get(t.Context(), name)
		must(t, err)
		if found.ID() != sb.ID() {
			t.Errorf("the name means %s, want %s", found.ID(), sb.ID())
		}
		page, err := c.List(t.Context(), sandpit.ListQuery{Labels: spec.Labels})
		must(t, err)
		if len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != sb.ID() {
			t.Errorf("the list is %+v", page.Sandboxes)
		}
	}
	page, err := all.List(t.Context(), sandpit.ListQuery{Labels: spec.Labels})
	must(t, err)
	var got []string
	for _, i := range page.Sandboxes {
		got = append(got, i.ID, i.Name, i.Namespace)
	}
	if want := []string{outside.ID(), name, "", a.ID(), name, name + ".a", ab.ID(), name, name + ".ab"}; !slices.Equal(got, want) {
		t.Errorf("all are %q, want %q", got, want)
	}

	// An id is found from outside, and not from another nested namespace.
	for _, c := range []sandpit.Client{e.client, all, in} {
		found, err := c.Get(t.Context(), a.ID())
		must(t, err)
		if got := shell(t, found, "hostname"); got != name {
			t.Errorf("got %q", got)
		}
	}
	_, err = other.Get(t.Context(), a.ID())
	wantKind(t, err, sandpit.ErrNotFound)
	wantKind(t, other.Remove(t.Context(), a.ID()), sandpit.ErrNotFound)
	_, err = in.Get(t.Context(), outside.ID())
	wantKind(t, err, sandpit.ErrNotFound)

	// Events too.
	must(t, ab.Update(t.Context(), sandpit.Change{Name: name + "-2"}))
	must(t, a.Update(t.Context(), sandpit.Change{Name: name + "-2"}))
	for c, want := range map[sandpit.Client]string{in: a.ID(), other: ab.ID()} {
		for _, ev := range collect(t, func(ctx context.Context) func(func(sandpit.Event, error) bool) {
			return c.Events(ctx, sandpit.EventQuery{After: first.Seq, Labels: spec.Labels})
		}, func(all []sandpit.Event) bool { return all[len(all)-1].Kind == sandpit.EventUpdated }) {
			if ev.Kind != sandpit.EventLost && (ev.Sandbox != want || ev.Namespace == "") {
				t.Errorf("an event of another namespace comes: %+v", ev)
			}
		}
	}
	if found, err := in.Get(t.Context(), name+"-2"); err != nil || found.ID() != a.ID() {
		t.Errorf("its new name leads to %v, %v", found, err)
	}
	_, err = in.Get(t.Context(), name)
	wantKind(t, err, sandpit.ErrNotFound)
	must(t, in.Remove(t.Context(), name+"-2"))
	if _, err := other.Get(t.Context(), name+"-2"); err != nil {
		t.Error(err)
	}
}
