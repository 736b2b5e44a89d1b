package apart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

const (
	restartTime = 10 * time.Second // that callers wait for a process that is being started again
	firstPause  = 50 * time.Millisecond
	longPause   = 10 * time.Second // between processes that end at once
	steadyTime  = 30 * time.Second // after which a process has not ended at once
	freshCounts = 100 * time.Millisecond
	countTime   = time.Second // that a caller waits for counts
)

// Host is the server's end: an engine.Network whose stacks are in another process, which the first
// Join starts. All methods are safe for concurrent use.
type Host struct {
	network.InProcess // decides about rules

	log     *slog.Logger
	program string // this one, but in tests
	resolv  string // resolvConf, but in tests

	mu      sync.Mutex
	members map[uint64]*member // guarded by mu
	last    uint64             // the last member's id, guarded by mu
	child   *child             // nil: none runs, guarded by mu
	changed chan struct{}      // closed when child changes; nil: no process was started yet, guarded by mu
	reason  error              // why none runs, guarded by mu
	names   string             // what was logged last about resolv.conf, guarded by mu
	closed  bool               // guarded by mu
	end     chan struct{}      // closed by Close
	keeping sync.WaitGroup

	counting sync.Mutex
	counted  time.Time // guarded by counting
}

var (
	_ engine.Network = (*Host)(nil)
	_ engine.Joined  = (*member)(nil)
)

// New returns a Host, which the caller closes. Connections are made by way.
func New(log *slog.Logger, way *upstream.Way) *Host {
	return &Host{InProcess: network.InProcess{Way: way}, log: log, program: "/proc/self/exe", resolv: resolvConf, members: map[uint64]*member{}, end: make(chan struct{})}
}

// Close ends the process, and with it all connections.
func (h *Host) Close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.end)
	}
	h.mu.Unlock()
	h.keeping.Wait()
	h.mu.Lock()
	left := h.members
	h.members = nil
	h.mu.Unlock()
	for _, m := range left {
		m.closeFile()
	}
}

// keep has a process running until Close.
func (h *Host) keep() {
	pause := time.Duration(0)
	for {
		select {
		case <-h.end:
			return
		case <-time.After(pause):
		}
		begun := time.Now()
		err := h.once()
		h.mu.Lock()
		closed := h.closed
		h.reason = err
		h.mu.Unlock()
		if closed {
			return
		}
		pause = min(max(2*pause, firstPause), longPause)
		if time.Since(begun) >= steadyTime {
			pause = 0
		}
		h.log.Error("the network process has ended: connections of sandboxes were lost, and it is started again", "reason", err, "pause", pause)
	}
}

// once starts a process, hands the sandboxes over to it, and returns why it has ended.
func (h *Host) once() error {
	c, gaps, err := startChild(h.program, withSystemRoots(h.Way.Settings()), h.note, h.renew, h.openNames)
	if err != nil {
		return err
	}
	for _, gap := range gaps {
		h.log.Warn("the network process has more rights than it needs", "gap", gap)
	}
	h.mu.Lock()
	var all []*member
	for _, m := range h.members {
		all = append(all, m)
	}
	h.mu.Unlock()
	h.set(c)
	slices.SortFunc(all, func(a, b *member) int { return int(a.id) - int(b.id) }) //nolint:gosec // few
	for _, m := range all {
		if err := m.do(context.Background(), c, nil, nil); err != nil && !errors.Is(err, errGone) {
			h.log.Error("a sandbox has lost its network", "error", err)
		}
	}
	select {
	case <-c.gone:
	case <-h.end:
		c.kill(errGone)
		<-c.gone
	}
	h.set(nil)
	return c.reason
}

// set notes which process runs, and wakes up those that wait for one.
func (h *Host) set(c *child) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.child = c
	close(h.changed)
	h.changed = make(chan struct{})
}

// running returns the process, for which it waits a while.
func (h *Host) running(ctx context.Context) (*child, error) {
	late := time.NewTimer(restartTime)
	defer late.Stop()
	for {
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			return nil, fault.Errorf(sandpit.ErrUnavailable, "the server is ending")
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
			h.keeping.Go(h.keep)
		}
		c, changed, reason := h.child, h.changed, h.reason
		h.mu.Unlock()
		if c != nil {
			select {
			case <-c.gone: // soon there is another
			default:
				return c, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fault.Errorf(sandpit.ErrUnavailable, "waiting for the network process: %w", context.Cause(ctx))
		case <-late.C:
			if reason == nil {
				reason = errors.New("it is being started")
			}
			return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnavailable, "the network process does not run: %w", reason), "try again; the server's log says more")
		}
	}
}

// Join gives a sandbox egress. See engine.Network.
func (h *Host) Join(ctx context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	fd, err := duplicate(file)
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("joining the network: %w", err)
	}
	m := &member{host: h, fd: fd, terms: t, renew: t.Renew}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		m.closeFile()
		return nil, fault.Errorf(sandpit.ErrUnavailable, "joining the network: the server is ending")
	}
	h.last++
	m.id = h.last
	h.mu.Unlock()
	if err := m.ask(ctx, nil, nil); err != nil {
		_ = m.Close()
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		m.closeFile()
		return nil, fault.Errorf(sandpit.ErrUnavailable, "joining the network: the server is ending")
	}
	h.members[m.id] = m
	return m, nil
}

// duplicate returns a descriptor of the file that the runtime does not watch: only the process is
// woken up by packets.
func duplicate(file *os.File) (fd int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 3) }); cerr != nil {
		return -1, cerr
	}
	return fd, os.NewSyscallError("fcntl", err)
}

// count gets the counts of all sandboxes, unless somebody just did.
func (h *Host) count() {
	h.counting.Lock()
	defer h.counting.Unlock()
	h.mu.Lock()
	c := h.child
	h.mu.Unlock()
	if c == nil || time.Since(h.counted) < freshCounts {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	_, _ = c.ask(ctx, &message{Op: opCounts}, -1) // else the last ones count
	h.counted = time.Now()
}

// renew renews a secret of a sandbox.
func (h *Host) renew(ctx context.Context, sandbox uint64, name string) error {
	h.mu.Lock()
	m := h.members[sandbox]
	h.mu.Unlock()
	if m == nil || m.renew == nil {
		return fault.NotFoundf("the sandbox has not joined")
	}
	return m.renew(ctx, name)
}

// openNames opens resolv.conf for the process, and logs that it can't, once.
func (h *Host) openNames() (*os.File, error) {
	file, err := os.OpenFile(h.resolv, os.O_RDONLY|unix.O_NONBLOCK, 0)
	said := "the network process can't read this machine's name servers: the server reads them for it"
	if err != nil {
		said = "names of sandboxes can't be resolved: this machine's name servers are not known"
	}
	text := fmt.Sprint(said, err)
	h.mu.Lock()
	same := h.names == text
	h.names = text
	h.mu.Unlock()
	switch {
	case same:
	case err != nil:
		h.log.Error(said, "error", err)
	default:
		h.log.Info(said, "file", h.resolv)
	}
	return file, err
}

// note notes counts of sandboxes.
func (h *Host) note(all []counts) {
	for _, n := range all {
		h.mu.Lock()
		m := h.members[n.Sandbox]
		h.mu.Unlock()
		if m != nil {
			m.note(n)
		}
	}
}

// member is the network of one sandbox.
type member struct {
	host *Host
	id   uint64

	renew func(context.Context, string) error // Terms.Renew, which no Set changes

	using sync.Mutex // serialises requests
	child *child     // that it has joined, guarded by using
	terms engine.Terms
	fd    int // of the interface; -1 once closed, guarded by using

	mu      sync.Mutex
	traffic engine.Traffic  // guarded by mu
	denials network.Denials // that nobody has asked for, guarded by mu
}

func (m *member) note(n counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.traffic = n.Traffic
	for _, d := range n.Denials {
		m.denials.Add(d)
	}
}

// ask sends a request about the sandbox, or only joins it, and waits for a process if need be.
func (m *member) ask(ctx context.Context, request *message, terms *engine.Terms) (err error) {
	for range 3 { // a process may end while it is asked
		var c *child
		if c, err = m.host.running(ctx); err != nil {
			return err
		}
		if err = m.do(ctx, c, request, terms); !errors.Is(err, errGone) {
			return err
		}
	}
	return sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnavailable}, "try again; the server's log says more")
}

// do joins the sandbox to c if it has not, and sends a request, whose answer replaces it. Terms that
// are accepted are those of the next process, too.
//
// What was begun is waited for, however soon the caller leaves, so that both ends know the same.
func (m *member) do(ctx context.Context, c *child, request *message, terms *engine.Terms) error {
	ctx = context.WithoutCancel(ctx)
	m.using.Lock()
	defer m.using.Unlock()
	if m.fd < 0 {
		return fault.Errorf(sandpit.ErrClosed, "the sandbox has no network any more")
	}
	if m.child != c {
		m.mu.Lock()
		used := m.traffic
		m.mu.Unlock()
		_, err := c.ask(ctx, &message{Op: opJoin, Sandbox: m.id, Terms: &m.terms, Used: &used}, m.fd)
		if err != nil {
			return err
		}
		m.child = c
	}
	if request == nil {
		return nil
	}
	request.Sandbox = m.id
	if terms != nil {
		sent, same := difference(m.terms, *terms)
		request.Terms, request.Same = &sent, same
	}
	a, err := c.ask(ctx, request, -1)
	if err != nil {
		return err
	}
	*request = *a
	if terms != nil {
		m.terms = *terms
	}
	return nil
}

// Set changes what the sandbox may reach. See engine.Joined.
func (m *member) Set(ctx context.Context, t engine.Terms) error {
	return m.ask(ctx, &message{Op: opSet}, &t)
}

// Log returns the last connections. See engine.Joined. Those that an earlier process has made are
// not among them.
func (m *member) Log(ctx context.Context) (sandpit.EgressLog, error) {
	request := &message{Op: opLog}
	if err := m.ask(ctx, request, nil); err != nil || request.Log == nil {
		return sandpit.EgressLog{}, err
	}
	return *request.Log, nil
}

// Traffic returns what was counted. See engine.Joined.
func (m *member) Traffic() engine.Traffic {
	m.host.count()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.traffic
}

// Denials returns the latest denials. See engine.Joined.
func (m *member) Denials() []sandpit.EgressDenial {
	m.host.count()
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.denials
	m.denials = network.Denials{}
	return taken.List()
}

// Close ends all connections and closes the file. See engine.Joined.
func (m *member) Close() error {
	m.host.mu.Lock()
	delete(m.host.members, m.id)
	m.host.mu.Unlock()
	c := m.closeFile()
	if c == nil {
		return nil
	}
	a, err := c.ask(context.Background(), &message{Op: opLeave, Sandbox: m.id}, -1)
	if errors.Is(err, errGone) {
		return nil
	}
	if err == nil && len(a.Counts) == 1 {
		m.note(a.Counts[0])
	}
	return err
}

// closeFile closes the host's descriptor, after which no other process gets it, and returns the process
// that has one.
func (m *member) closeFile() *child {
	m.using.Lock()
	defer m.using.Unlock()
	if m.fd >= 0 {
		unix.Close(m.fd)
		m.fd = -1
	}
	c := m.child
	m.child = nil
	return c
}
