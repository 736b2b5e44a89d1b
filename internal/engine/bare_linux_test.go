package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// bare is a driver without isolation but a pid namespace: a guest that outlives
// its owner, so that what the engine does with it can be tried quickly.
type bare struct{ dir string }

// prepareBare makes a /proc of its own for a guest that was started by bare.
func prepareBare() {
	if os.Getenv("SANDPIT_TEST_BARE") != "" {
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err == nil {
			_ = unix.Mount("proc", "/proc", "proc", 0, "")
		}
	}
}

func (d bare) Name() string { return "bare" }

func (d bare) Probe(context.Context) driver.Capabilities {
	caps := driver.Capabilities{Available: true, Features: feature.Set{feature.Users: true, feature.Mounts: true, feature.Pause: true}}
	for _, limit := range feature.Limits() {
		caps.Features[limit] = true
	}
	return caps
}

type bareState struct {
	PID    int    `json:"pid"`
	Socket string `json:"socket"`
}

func (d bare) Create(_ context.Context, plan driver.Plan) (driver.Instance, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	socket := filepath.Join(d.dir, plan.ID)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	lf, err := l.File()
	if err != nil {
		return nil, err
	}
	defer lf.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{linux.GuestName, "bootstrap"}
	cmd.Env = append(os.Environ(), "SANDPIT_TEST_BARE=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := unix.Sendmsg(pair[0], []byte{'s'}, unix.UnixRights(int(lf.Fd())), nil, 0); err != nil {
		return nil, err
	}
	i := &bareInstance{id: plan.ID, bareState: bareState{cmd.Process.Pid, socket}, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(i.done)
	}()
	return i, nil
}

// Persistent returns those whose sockets are listened on.
func (d bare) Persistent(context.Context) ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			continue
		}
		if conn, err := net.Dial("unix", filepath.Join(d.dir, e.Name())); err == nil {
			_ = conn.Close()
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

func (d bare) Recover(_ context.Context, h driver.Handle) (driver.Instance, error) {
	var st bareState
	if h.Driver != "bare" || h.ID == "" {
		return nil, fmt.Errorf("the handle of %q belongs to %q: %w", h.ID, h.Driver, sandpit.ErrInvalid)
	}
	if len(h.State) > 0 {
		if err := json.Unmarshal(h.State, &st); err != nil {
			return nil, err
		}
	}
	if st.PID == 0 || !alive(st.PID) {
		_ = os.Remove(filepath.Join(d.dir, h.ID))
		return nil, fmt.Errorf("sandbox %s: %w", h.ID, sandpit.ErrNotFound)
	}
	i := &bareInstance{id: h.ID, bareState: st, done: make(chan struct{})}
	go func() { // it may be another one's child
		for alive(st.PID) {
			time.Sleep(5 * time.Millisecond)
		}
		close(i.done)
	}()
	return i, nil
}

func status(pid int) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(data), ") ")
	if rest == "" {
		return ""
	}
	return rest[:1]
}

func alive(pid int) bool { s := status(pid); return s != "" && s != "Z" }

type bareInstance struct {
	id string
	bareState
	done chan struct{}
}

func (i *bareInstance) Handle() driver.Handle {
	state, _ := json.Marshal(i.bareState)
	return driver.Handle{Version: driver.HandleVersion, Driver: "bare", ID: i.id, State: state}
}

func (i *bareInstance) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", i.Socket)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", sandpit.ErrClosed, err)
	}
	return conn, err
}

func (i *bareInstance) Stats(context.Context) (sandpit.Metrics, error) {
	return sandpit.Metrics{CPU: -1, Memory: -1, MemoryPeak: -1, Pids: 1, OOMKills: 0}, nil
}

func (i *bareInstance) Done() <-chan struct{} { return i.done }

func (i *bareInstance) Destroy(context.Context) error {
	_ = syscall.Kill(i.PID, syscall.SIGKILL)
	<-i.done
	_ = os.Remove(i.Socket)
	return nil
}

func (i *bareInstance) Leave() {}

// Freeze stops the guest alone, which is enough to see what waits for it.
func (i *bareInstance) Freeze(context.Context) error {
	if err := syscall.Kill(i.PID, syscall.SIGSTOP); err != nil {
		return err
	}
	for status(i.PID) != "T" {
		if !alive(i.PID) {
			return syscall.ESRCH
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (i *bareInstance) Thaw(context.Context) error { return syscall.Kill(i.PID, syscall.SIGCONT) }

func (i *bareInstance) Frozen(context.Context) (bool, error) { return status(i.PID) == "T", nil }

// mapStore is a store in memory, which outlives the engines of a test.
type mapStore struct {
	mu      sync.Mutex
	records map[string]engine.Record
	fail    error // of every write, when set
}

func (m *mapStore) PutSandbox(_ context.Context, r engine.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for _, o := range m.records {
		if o.ID != r.ID && o.Namespace == r.Namespace && o.Name == r.Name {
			return fmt.Errorf("sandbox %s: %w", r.Name, sandpit.ErrExists)
		}
	}
	if m.records == nil {
		m.records = map[string]engine.Record{}
	}
	m.records[r.ID] = r
	return nil
}

func (m *mapStore) DeleteSandbox(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	delete(m.records, id)
	return nil
}

func (m *mapStore) Sandboxes(context.Context) ([]engine.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []engine.Record
	for _, r := range m.records {
		all = append(all, r)
	}
	return all, nil
}

func (m *mapStore) setFail(err error) {
	m.mu.Lock()
	m.fail = err
	m.mu.Unlock()
}

func (m *mapStore) get(id string) (engine.Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[id]
	return r, ok
}

// survivor is what stays when an engine dies.
type survivor struct {
	dir   string
	store *mapStore
}

func newSurvivor(t *testing.T) *survivor {
	t.Helper()
	testkit.NeedRoot(t, "to make a pid namespace without a user namespace")
	s := &survivor{dir: t.TempDir(), store: &mapStore{}}
	t.Cleanup(func() { // whatever has failed before
		s.store.setFail(nil)
		for id, r := range s.store.records {
			var d struct{ Handle *driver.Handle }
			if json.Unmarshal(r.Data, &d) == nil && d.Handle != nil {
				if i, err := (bare{s.dir}).Recover(context.Background(), *d.Handle); err == nil {
					_ = i.Destroy(context.Background())
				} else if !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
	})
	return s
}

// open starts an engine.
func (s *survivor) open(t *testing.T, change ...func(*engine.Options)) *engine.Engine {
	t.Helper()
	images, _ := engine.Home(s.dir)
	opt := engine.Options{
		Driver: bare{s.dir}, Images: image.Open(images, image.Options{NoSync: true}), Policy: policy.Default(),
		Store: s.store, Dir: filepath.Join(s.dir, "logs"),
	}
	for _, f := range change {
		f(&opt)
	}
	e := engine.New(opt)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// made makes a sandbox.
func made(t *testing.T, c sandpit.Client, spec sandpit.Spec) sandpit.Sandbox {
	t.Helper()
	if spec.User == "" {
		spec.User, spec.WorkDir = "root", "/"
	}
	sb, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("%v (%s)", err, sandpit.Hint(err))
	}
	return sb
}

// fromOutside returns the instance of a sandbox that an engine has.
func fromOutside(t *testing.T, srv *survivor, id string) driver.Instance {
	t.Helper()
	r, ok := srv.store.get(id)
	var d struct{ Handle driver.Handle }
	if err := json.Unmarshal(r.Data, &d); err != nil || !ok {
		t.Fatal(ok, err)
	}
	i, err := bare{srv.dir}.Recover(t.Context(), d.Handle)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// kill kills the guest of a sandbox from outside.
func kill(t *testing.T, srv *survivor, id string) {
	t.Helper()
	if err := fromOutside(t, srv, id).Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}
