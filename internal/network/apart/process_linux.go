package apart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// ProcessName is the name under which the program is started to be the process.
const ProcessName = "sandpit-network"

// socketFD is the descriptor of the process's end of the connection.
const socketFD = 3

// nobody is the user and group without files (65534 in every distribution).
const nobody = 65534

// IsProcess reports whether this program was started to keep the stacks.
func IsProcess(args []string) bool {
	return len(args) > 0 && filepath.Base(args[0]) == ProcessName
}

// Process keeps stacks until the server ends, and returns the exit code.
func Process() int {
	raiseFiles()
	sockets := network.NewSockets() // reads files that confine hides
	sockets.Busy = limitThreads
	gaps, err := confine()
	if err == nil {
		err = serve(gaps, sockets)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, fatal+err.Error())
		return 1
	}
	return 0
}

// raiseFiles lets the process open many files, one for each connection.
func raiseFiles() {
	const wanted = 1 << 20 // the default of fs.nr_open
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil || lim.Cur >= wanted {
		return
	}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wanted, Max: max(lim.Max, wanted)}) != nil { // which only root may
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lim.Max, Max: lim.Max})
	}
}

// process has the stacks.
type process struct {
	conn    *net.UnixConn
	sockets *network.Sockets
	way     *upstream.Way // set by the greeting
	sending sync.Mutex

	mu     sync.Mutex
	joined map[uint64]*network.Network // guarded by mu
	terms  map[uint64]engine.Terms     // of joined, guarded by mu
	last   uint64                      // ID of a request, guarded by mu
	asked  map[uint64]chan answered    // by ID, guarded by mu

	renewing map[uint64]int // requests to renew a secret, by sandbox, guarded by mu

	renewals, echoes chan struct{} // places of requests

	servers *nameServers
}

// answered is the server's answer to a request.
type answered struct {
	file *os.File // or nil
	err  error
}

func newProcess(conn *net.UnixConn) *process {
	p := &process{
		conn: conn, joined: map[uint64]*network.Network{}, terms: map[uint64]engine.Terms{}, asked: map[uint64]chan answered{}, renewing: map[uint64]int{},
		renewals: make(chan struct{}, maxRenewals), echoes: make(chan struct{}, maxEchoes),
	}
	p.servers = newNameServers(resolvConf, func(ctx context.Context) (*os.File, error) { return p.ask(ctx, &message{Op: opNames}) })
	return p
}

// serve answers the server until it ends.
func serve(gaps []string, sockets *network.Sockets) error {
	file := os.NewFile(socketFD, "server")
	if file == nil {
		return errors.New("started without a server")
	}
	c, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("the connection to the server is not a Unix socket")
	}
	p := newProcess(conn)
	p.sockets = sockets
	if err := p.greet(gaps); err != nil {
		return err
	}
	handling, failed := make(chan struct{}, maxHandling), make(chan error, maxHandling)
	for {
		body, file, err := receive(conn)
		if err != nil {
			select {
			case err = <-failed:
			default:
			}
			return ended(err)
		}
		handling <- struct{}{}
		go func() {
			defer func() { <-handling }()
			m, err := decode(body)
			if err != nil {
				failed <- err
				conn.Close()
				return
			}
			p.handle(m, file)
		}()
	}
}

// maxHandling bounds the messages that are handled at once. Of one sandbox there is one.
const maxHandling = 4

// greet answers the first message.
func (p *process) greet(gaps []string) error {
	body, file, err := receive(p.conn)
	if err != nil {
		return ended(err)
	}
	if file != nil {
		file.Close()
	}
	m, err := decode(body)
	if err != nil {
		return err
	}
	if m.Op != opHello || m.Version != version {
		return fmt.Errorf("the server speaks version %d, not %d", m.Version, version)
	}
	if m.Upstream != nil {
		if p.way, err = upstream.New(*m.Upstream); err != nil {
			return err
		}
	}
	p.way = p.way.AskBy(p.servers.choose)
	p.answer(m, &message{Version: version, Gaps: gaps}, nil)
	return nil
}

// ended leaves out the errors of a server that has ended.
func ended(err error) error {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// limitMemory lets the garbage collector work harder before the machine runs short.
func limitMemory() {
	const part = 4 // of the machine's
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		debug.SetMemoryLimit(int64(info.Totalram) * int64(info.Unit) / part) //nolint:gosec // less than 2^63
	}
}

// limitThreads leaves processors to the ends of connections, which are busy when this process is: more than half of them
// are used only for as many connections that move much. On two processors, the threads of this process would otherwise
// wake each other up for each packet of a single one, which takes twice the time.
func limitThreads(busy int) {
	all := runtime.NumCPU()
	runtime.GOMAXPROCS(max(1, all/2, min(all, busy)))
}

func (p *process) answer(to, m *message, err error) {
	m.ID, m.Op, m.Failed = to.ID, to.Op, failureOf(err)
	body, err := encode(m)
	if err != nil {
		body, _ = encode(&message{ID: to.ID, Op: to.Op, Failed: failureOf(err)})
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	_ = send(p.conn, body, -1) // that it failed, receive says
}

// Bounds of the requests of a process that run at once.
const (
	maxRenewals = 1024
	ownRenewals = 8  // of one sandbox
	maxEchoes   = 16 // which take the server microseconds: others wait
)

// renew returns the Terms.Renew of a sandbox: the server renews.
func (p *process) renew(sandbox uint64) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		p.mu.Lock()
		mine := p.renewing[sandbox] < ownRenewals
		if mine {
			p.renewing[sandbox]++
			defer p.renewed(sandbox)
		}
		p.mu.Unlock()
		if mine {
			select {
			case p.renewals <- struct{}{}:
				defer func() { <-p.renewals }()
				_, err := p.ask(ctx, &message{Op: opRenew, Sandbox: sandbox, Name: name})
				return err
			default:
			}
		}
		return fault.Errorf(sandpit.ErrExhausted, "too many secrets are being renewed")
	}
}

// renewed gives back the place of a request to renew.
func (p *process) renewed(sandbox uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewing[sandbox]--; p.renewing[sandbox] == 0 {
		delete(p.renewing, sandbox)
	}
}

// listenEcho is a network.ListenEcho: the server opens the socket, by its own group.
func (p *process) listenEcho(ctx context.Context, ipv6 bool) (net.PacketConn, error) {
	select {
	case p.echoes <- struct{}{}:
		defer func() { <-p.echoes }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	file, err := p.ask(ctx, &message{Op: opEcho, IPv6: ipv6})
	if err != nil {
		return nil, err
	}
	if file == nil {
		return nil, fault.Errorf(sandpit.ErrExhausted, "the socket did not arrive: too many open files")
	}
	defer file.Close()
	return net.FilePacketConn(file)
}

// ask asks the server. The file is the caller's, or nil.
func (p *process) ask(ctx context.Context, m *message) (*os.File, error) {
	answer := make(chan answered, 1)
	p.mu.Lock()
	p.last++
	m.ID = p.last
	p.asked[m.ID] = answer
	p.mu.Unlock()
	body, err := encode(m)
	if err == nil {
		p.sending.Lock()
		err = send(p.conn, body, -1)
		p.sending.Unlock()
	}
	if err == nil {
		select {
		case a := <-answer:
			return a.file, a.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.asked, m.ID)
	select {
	case a := <-answer: // meanwhile
		_ = a.file.Close() // or there is none
	default:
	}
	return nil, err
}

// answers passes on the server's answer to a request.
func (p *process) answers(m *message, file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := p.asked[m.ID]
	delete(p.asked, m.ID)
	if answer == nil {
		_ = file.Close() // or there is none
		return
	}
	answer <- answered{file, m.Failed.err()} // which has room
}

func (p *process) handle(m *message, file *os.File) {
	if m.Op.ofProcess() {
		p.answers(m, file)
		return
	}
	if m.Op == opJoin {
		p.answer(m, new(message), p.join(m, file))
		return
	}
	if file != nil {
		file.Close()
	}
	p.mu.Lock()
	j := p.joined[m.Sandbox]
	if m.Op == opLeave {
		delete(p.joined, m.Sandbox)
		delete(p.terms, m.Sandbox)
	}
	p.mu.Unlock()
	switch {
	case m.Op == opHello:
		p.answer(m, &message{Version: version}, nil)
	case m.Op == opCounts:
		go func() { p.answer(m, &message{Counts: p.counts(maxTexts)}, nil) }()
	case j == nil && m.Op == opLeave:
		p.answer(m, new(message), nil)
	case j == nil:
		p.answer(m, new(message), fault.NotFoundf("the sandbox has not joined"))
	case m.Op == opSet && m.Terms != nil && m.Same != nil:
		p.answer(m, new(message), p.set(j, m))
	case m.Op == opLog:
		go func() {
			l := fit(j.Log())
			p.answer(m, &message{Log: &l}, nil)
		}()
	case m.Op == opLeave:
		closed := make(chan struct{})
		go func() {
			j.Close()
			close(closed)
		}()
		go func() {
			select {
			case <-closed:
			case <-time.After(leaveTime):
			}
			p.answer(m, &message{Counts: []counts{{Sandbox: m.Sandbox, Traffic: j.Traffic(), Denials: j.Denials()}}}, nil)
		}()
	default:
		p.answer(m, new(message), fault.Invalidf("unknown request %q", m.Op))
	}
}

// leaveTime bounds how long the answer to a sandbox that leaves waits for the end of its connections. They
// end all the same, but are no longer counted.
const leaveTime = 2 * time.Second

// join makes the stack of a sandbox.
func (p *process) join(m *message, file *os.File) error {
	if file == nil {
		return fault.Errorf(sandpit.ErrExhausted, "the interface did not arrive: too many open files")
	}
	p.mu.Lock()
	_, twice := p.joined[m.Sandbox]
	p.mu.Unlock()
	if m.Terms == nil || twice {
		file.Close()
		return fault.Invalidf("the sandbox joins twice, or without terms")
	}
	m.Terms.Renew = p.renew(m.Sandbox)
	n, err := network.New(file, *m.Terms, p.way, p.listenEcho, p.sockets)
	if err != nil {
		return err
	}
	if m.Used != nil {
		n.Resume(*m.Used)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.joined[m.Sandbox], p.terms[m.Sandbox] = n, *m.Terms
	return nil
}

// set changes the terms of a sandbox.
func (p *process) set(j *network.Network, m *message) error {
	p.mu.Lock()
	terms := p.terms[m.Sandbox]
	p.mu.Unlock()
	terms, err := m.Same.whole(terms, *m.Terms)
	if err != nil {
		return err
	}
	terms.Renew = p.renew(m.Sandbox)
	if err := j.Set(terms); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, is := p.joined[m.Sandbox]; is {
		p.terms[m.Sandbox] = terms
	}
	return nil
}

// counts returns those of all sandboxes. Once the denials exceed a size, as sizeOf counts it, the others
// are left for the next time.
func (p *process) counts(size int) []counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]counts, 0, len(p.joined))
	for id, j := range p.joined {
		n := counts{Sandbox: id, Traffic: j.Traffic()}
		if size > 0 {
			n.Denials = j.Denials()
			size -= sizeOfDenials(n.Denials)
		}
		all = append(all, n)
	}
	return all
}
