package apart

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// answerTime bounds how long the process may take to answer. All that it is asked for takes
// milliseconds, or leaveTime.
const answerTime = 10 * time.Second

// renewTime bounds how long the process waits for a secret to be renewed.
const renewTime = 30 * time.Second

// child is a process that runs. All methods are safe for concurrent use.
type child struct {
	conn *net.UnixConn
	cmd  *exec.Cmd
	gone chan struct{}  // closed when it has ended
	note func([]counts) // is called with all that come, also when nobody waits for them any more

	// renew renews a secret of a sandbox, which the process has asked for.
	renew  func(ctx context.Context, sandbox uint64, name string) error
	names  func() (*os.File, error) // opens resolv.conf
	places chan struct{}            // of requests of the process

	patience time.Duration // answerTime, but in tests

	sending sync.Mutex

	mu      sync.Mutex
	last    uint64                   // ID, guarded by mu
	waiting map[uint64]chan *message // guarded by mu
	reason  error                    // why it ended; valid once gone is closed
	killed  error                    // why it was killed, guarded by mu
}

// errGone is the end of the process.
var errGone = errors.New("the network process has ended")

// startChild starts the process, tells it how connections are made, and waits until it answers.
func startChild(program string, way upstream.Settings, note func([]counts), renew func(context.Context, uint64, string) error, names func() (*os.File, error)) (c *child, gaps []string, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own, theirs := os.NewFile(uintptr(ends[0]), "network process"), os.NewFile(uintptr(ends[1]), "server")
	conn, err := net.FileConn(own)
	own.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	c = &child{conn: conn.(*net.UnixConn), gone: make(chan struct{}), note: note, renew: renew, names: names, places: make(chan struct{}, maxRenewals+maxEchoes+1), patience: answerTime, waiting: map[uint64]chan *message{}}
	stderr, said, err := os.Pipe()
	if err != nil {
		theirs.Close()
		conn.Close()
		return nil, nil, err
	}
	c.cmd = &exec.Cmd{
		Path: program, Args: []string{ProcessName}, Dir: "/", Env: environment(),
		ExtraFiles: []*os.File{theirs}, Stderr: said,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // the terminal's signals are for the server
	}
	err = startConfined(c.cmd)
	said.Close()
	theirs.Close() // or its end would not be seen
	if err != nil {
		stderr.Close()
		conn.Close()
		return nil, nil, fmt.Errorf("starting the network process: %w", err)
	}
	go c.hear(stderr)
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	hello, err := c.ask(ctx, &message{Op: opHello, Version: version, Upstream: &way}, -1)
	if err == nil && hello.Version != version {
		err = fmt.Errorf("the network process speaks version %d, not %d", hello.Version, version)
	}
	if err != nil {
		c.kill(err)
		<-c.gone
		return nil, nil, c.reason
	}
	return c, hello.Gaps, nil
}

// environment is what the process gets of the server's: where roots of TLS are. It resolves names
// in Go, which needs no thread for each.
func environment() []string {
	env := []string{"GODEBUG=netdns=go"}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} { // of crypto/x509
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// startConfined starts a command that can never get rights again. What is dropped is dropped for
// this thread, which the command inherits from, and which ends with the goroutine.
func startConfined(cmd *exec.Cmd) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			failed <- os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
			return
		}
		// Without rights to do so there is nothing to drop, or the process will say so.
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if c != unix.CAP_SETUID && c != unix.CAP_SETGID && c != unix.CAP_SYS_RESOURCE { // which the process uses, and drops
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			}
		}
		failed <- cmd.Start()
	}()
	return <-failed
}

// ask sends a request and waits for the answer. A process that does not answer is killed.
func (c *child) ask(ctx context.Context, m *message, fd int) (*message, error) {
	answered := make(chan *message, 1)
	c.mu.Lock()
	c.last++
	m.ID = c.last
	c.waiting[m.ID] = answered
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, m.ID)
		c.mu.Unlock()
	}()
	c.sending.Lock()
	body, err := encode(m) // one at a time: they may be large
	if err != nil {
		c.sending.Unlock()
		return nil, err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(answerTime))
	err = send(c.conn, body, fd)
	c.sending.Unlock()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.kill(fmt.Errorf("it did not listen for %s", answerTime))
	case err != nil:
		_ = c.cmd.Process.Kill() // it has ended, and that says why
	}
	late := time.NewTimer(c.patience)
	defer late.Stop()
	for {
		select {
		case a := <-answered:
			return a, a.Failed.err()
		case <-c.gone:
			return nil, errGone
		case <-ctx.Done():
			return nil, fault.Errorf(sandpit.ErrUnavailable, "the network process: %w", context.Cause(ctx))
		case <-late.C:
			c.kill(fmt.Errorf("it did not answer for %s", c.patience))
		}
	}
}

// answer does what the process asks for, and answers. More requests at once than it may make are not answered.
func (c *child) answer(m *message) {
	select {
	case c.places <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-c.places }()
		fd, err := -1, error(nil)
		switch m.Op {
		case opEcho:
			if fd, err = openEcho(m.IPv6); err == nil {
				defer unix.Close(fd)
			}
		case opNames:
			var file *os.File
			if file, err = c.names(); err == nil {
				defer file.Close()
				fd = int(file.Fd()) //nolint:gosec // a descriptor
			}
		default:
			err = c.renewFor(m)
		}
		body, err := encode(&message{ID: m.ID, Op: m.Op, Failed: failureOf(err)})
		if err != nil {
			return
		}
		c.sending.Lock()
		defer c.sending.Unlock()
		_ = c.conn.SetWriteDeadline(time.Now().Add(answerTime))
		_ = send(c.conn, body, fd) // if that fails, the next request says so
	}()
}

// openEcho opens an ICMP socket for echo requests. The caller closes it.
func openEcho(ipv6 bool) (fd int, err error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if ipv6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// renewFor renews a secret for the process.
func (c *child) renewFor(m *message) error {
	ctx, cancel := context.WithTimeout(context.Background(), renewTime)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.gone:
			cancel()
		case <-stop:
		}
	}()
	return c.renew(ctx, m.Sandbox, m.Name)
}

// kill ends the process.
func (c *child) kill(why error) {
	c.mu.Lock()
	if c.killed == nil {
		c.killed = why
	}
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
}

// hear passes answers on until the process has ended.
func (c *child) hear(stderr *os.File) {
	last := make(chan string, 1)
	go func() {
		defer stderr.Close()
		last <- summary(stderr)
	}()
	for {
		body, file, err := receive(c.conn)
		if err != nil {
			break
		}
		if file != nil {
			file.Close()
		}
		m, err := decode(body)
		if err != nil {
			break
		}
		if m.Op.ofProcess() {
			c.answer(m)
			continue
		}
		if m.Op == opCounts {
			c.note(m.Counts)
		}
		c.mu.Lock()
		answered := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if answered != nil {
			answered <- m
		}
	}
	_ = c.cmd.Process.Kill() // one that has closed its connection is of no use
	state := c.cmd.Wait()
	c.conn.Close()
	said := <-last
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.killed != nil:
		c.reason = c.killed
	case said != "":
		c.reason = errors.New(said)
	case state != nil:
		c.reason = state
	default:
		c.reason = errGone
	}
	close(c.gone)
}

// fatal begins an error that the process ends with.
const fatal = "sandpit: "

// summary reads what a process says to the end, and returns why it has ended: a few lines that tell a
// maintainer where, but no value of the program, which may be a secret.
func summary(r io.Reader) string {
	function := regexp.MustCompile(`^(?:created by )?([A-Za-z0-9_./*()\[\]-]+\.[A-Za-z0-9_.()*\[\]-]+)\(.*\)$`)
	var lines []string
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64<<10)
	for s.Scan() {
		if line, ok := harmless(s.Text(), function); ok && len(lines) < 8 {
			lines = append(lines, line)
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line may have been too long
	return strings.Join(lines, "; ")
}

// harmless returns what may be told of a line. Those of functions in a trace of goroutines match function.
func harmless(line string, function *regexp.Regexp) (string, bool) {
	switch {
	case strings.HasPrefix(line, fatal):
		return fault.Clip(strings.TrimPrefix(line, fatal)), true
	case strings.HasPrefix(line, "fatal error: "), strings.HasPrefix(line, "panic: runtime error: "):
		return fault.Clip(line), true
	case strings.HasPrefix(line, "panic: "):
		return "panic", true
	}
	if m := function.FindStringSubmatch(line); m != nil {
		return fault.Clip(m[1]), true
	}
	return "", false
}

// withSystemRoots adds the roots that the server trusts beside those that everybody may read: the
// process runs as another user, and could not read a file that SSL_CERT_FILE names.
func withSystemRoots(s upstream.Settings) upstream.Settings {
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		if roots, err := upstream.ReadRoots(file); err == nil {
			s.Roots = slices.Concat(s.Roots, roots)
		}
	}
	return s
}
