package fastrun

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/lanes"
	"github.com/sandpit-dev/sandpit/internal/unixsock"
)

// Run is one command that a server runs. Start starts it.
type Run struct {
	Home    string // data directory, whose server is asked
	Version string // of this program
	Spec    sandpit.Spec
	WorkDir bool // refuse with ErrNoWorkDir or ErrNotWorkDir if the Spec's working directory does not exist
	Report  bool // Info and Metrics are wanted
	Denials bool // Denied is wanted

	sandbox string // of Open; empty: one is made for the command
	conn    net.Conn
	in      *bufio.Reader
	report  Report
}

// Open returns a Run for a command in an existing sandbox, by its name or id, once the
// server has agreed. It returns ErrDeclined if no server does; then nothing has been done.
func Open(home, version, sandbox string) (*Run, error) {
	if !isName(sandbox) || strings.ContainsAny(version, "\r\n") {
		return nil, ErrDeclined
	}
	conn, err := dial(home)
	if err != nil {
		return nil, ErrDeclined
	}
	r := &Run{Home: home, Version: version, sandbox: sandbox}
	r.use(conn)
	if _, err = conn.Write(r.head(ExecPath(sandbox), "")); err == nil {
		err = accepted(r.in)
	}
	if err != nil {
		r.Close()
		return nil, ErrDeclined // the server has no command yet
	}
	return r, nil
}

// isName reports whether s can be in a path as it is. Every name and id of a sandbox can.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// Name returns the name that Open was given.
func (r *Run) Name() string { return r.sandbox }

// Start makes the server start the command, in a new sandbox unless r is of Open. It
// returns ErrDeclined if no server does; then nothing has been done. Call Wait once; it
// writes the output.
func (r *Run) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	var head []byte
	if r.sandbox == "" {
		place, err := Place()
		if err != nil || strings.ContainsAny(r.Version, "\r\n") {
			return nil, ErrDeclined
		}
		conn, err := dial(r.Home)
		if err != nil {
			return nil, ErrDeclined
		}
		head = r.head(RunPath, HeaderPlace+": "+place+"\r\n")
		r.use(conn)
	}
	p, err := r.start(ctx, head, cmd)
	if err != nil {
		r.Close()
		if cause := ctx.Err(); cause != nil {
			err = cause
		}
		return nil, err
	}
	return p, nil
}

// use has the command go over a connection.
func (r *Run) use(conn net.Conn) { r.conn, r.in = conn, bufio.NewReaderSize(conn, 16<<10) }

// head returns the head of the request.
func (r *Run) head(path, more string) []byte {
	head := make([]byte, 0, 1024)
	return append(head, "GET "+path+" HTTP/1.1\r\nHost: unix\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+
		"\r\n"+HeaderVersion+": "+r.Version+"\r\n"+more+"\r\n"...)
}

// Info describes the sandbox at the end of the command.
func (r *Run) Info(context.Context) (sandpit.Info, error) {
	if r.report.Info == nil {
		return sandpit.Info{}, fault.Errorf(sandpit.ErrProtocol, "describing the sandbox: the server did not")
	}
	return r.report.Info.Sandpit(), nil
}

// Metrics returns the usage of the sandbox.
func (r *Run) Metrics(context.Context) (sandpit.Metrics, error) {
	if r.report.Metrics == nil {
		return sandpit.Metrics{}, fault.Errorf(sandpit.ErrUnsupported, "reading metrics: the server has none")
	}
	return r.report.Metrics.Sandpit().Metrics, nil
}

// Denied returns what the sandbox was denied on the network while the command ran, the latest last.
func (r *Run) Denied() []sandpit.EgressDenial {
	denied := make([]sandpit.EgressDenial, 0, len(r.report.Denials))
	for _, d := range r.report.Denials {
		denied = append(denied, sandpit.EgressDenial(d))
	}
	return denied
}

// DeniedSince returns the denials that are in now and were not in before, the latest last. Both have all denials
// there were: those of destinations that are no longer kept are with the destination "". Their sum is right also
// if a destination came again after that.
func DeniedSince(before, now []sandpit.EgressDenial) (denied []sandpit.EgressDenial) {
	counts, others := map[string]int64{}, int64(0)
	for _, d := range before {
		counts[d.Destination] = d.Count
		others -= d.Count
	}
	for _, d := range now {
		others += d.Count
	}
	for _, d := range now {
		if d.Destination == "" {
			continue
		}
		if was := counts[d.Destination]; was <= d.Count { // else it is counted anew
			d.Count -= was
		}
		if others -= d.Count; d.Count > 0 {
			denied = append(denied, d)
		}
	}
	if others > 0 && len(now) > 0 && now[0].Destination == "" {
		denied = slices.Insert(denied, 0, sandpit.EgressDenial{Why: now[0].Why, Count: others})
	}
	return denied
}

// NotEnforced returns the names of the default limits that are not enforced for a run, once it
// has started.
func (r *Run) NotEnforced() []string { return r.report.NotEnforced }

// Close ends the connection, and with it the command and a sandbox made for it.
func (r *Run) Close() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
}

// dial connects to the server of a data directory.
func dial(home string) (*net.UnixConn, error) {
	return unixsock.Dial(context.Background(), filepath.Join(home, "server.sock"))
}

// ServerPID returns the process id of the server of a data directory; 0: there is none, or it is not known.
func ServerPID(home string) int {
	conn, err := dial(home)
	if err != nil {
		return 0
	}
	defer conn.Close()
	pid := unixsock.Listener(conn)
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(line), "\x00serve\x00") {
		return 0 // a service manager, which stays
	}
	return pid
}

// start sends head, if there is one, and the request, and reads until the command has
// been started.
func (r *Run) start(ctx context.Context, head []byte, cmd sandpit.Command) (*process, error) {
	req := Request{Command: v1.FromCommand(cmd), WorkDir: r.WorkDir, Report: r.Report, Denials: r.Denials}
	if r.sandbox == "" {
		req.Spec = new(v1.FromSpec(r.Spec))
	}
	body, err := json.Marshal(req)
	if err == nil && len(body) > MaxRequest {
		err = errors.New("it is longer than 10 MiB")
	}
	switch {
	case r.sandbox == "" && (err != nil || bytes.Contains(body, []byte(`\ufffd`))): // as JSON has text that is not UTF-8
		return nil, ErrDeclined
	case err != nil:
		return nil, fmt.Errorf("sending the command: %w: %w", sandpit.ErrInvalid, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.conn.Close() })
	defer stop()
	// A server that declines may not read it all.
	_, werr := r.conn.Write(v1.AppendFrame(head, FrameRequest, body))
	if head != nil {
		if err := accepted(r.in); errors.Is(err, ErrDeclined) {
			return nil, err
		} else if err != nil {
			return nil, r.lost(err)
		}
	}
	if werr != nil {
		return nil, r.lost(werr)
	}
	p := &process{run: r, moved: make(chan struct{}, 1), ended: make(chan struct{}), done: make(chan struct{})}
	if err := p.begin(); err != nil {
		return nil, err
	}
	p.out = lanes.New(cmd.Stdout, cmd.Stderr, v1.Window, p.passed, p.follow)
	if cmd.Stdin || cmd.Terminal != nil {
		p.stdin = newStdin(p)
	}
	return p, nil
}

// accepted reads the head of the answer. It returns ErrDeclined unless that begins as
// the Upgrade does.
func accepted(in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil || !strings.HasPrefix(string(line), "HTTP/1.1 101 ") {
		return ErrDeclined
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			return nil
		}
	}
}

// lost returns the error of a connection that has ended before the command.
func (r *Run) lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		if r.sandbox == "" {
			return ServerEnded()
		}
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnavailable, "the server has exited"), "check that the server is running, and read its log")
	}
	return fmt.Errorf("running in the server: %w", err)
}

func unexpected(kind byte) error {
	return fault.Errorf(sandpit.ErrProtocol, "running in the server: a frame of type %d is out of place", kind)
}

// parse reads the JSON of a frame.
func parse(kind byte, payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return fault.Errorf(sandpit.ErrProtocol, "running in the server: reading a frame of type %d: %w", kind, err)
	}
	return nil
}

// told returns the error in the last frame, or nil.
func told(payload []byte) error {
	var end v1.End
	if err := parse(v1.FrameEnd, payload, &end); err != nil {
		return err
	}
	switch {
	case end.Error != nil:
		return decodeError(*end.Error)
	case end.Reason != v1.EndEnded:
		return decodeError(v1.Error{})
	}
	return nil
}

// process is the command. Its methods are safe for concurrent use.
type process struct {
	run   *Run
	id    string // empty: nobody can attach to it
	pid   int    // 0: not told
	out   *lanes.Lanes
	stdin *stdin // nil: none is sent

	once   sync.Once
	moved  chan struct{} // gets a value when the server has moved the process to the background
	ended  chan struct{} // closed when the last frame has come, or none can any more
	done   chan struct{} // closed when all output has been passed on, too
	result *v1.Result
	err    error
}

var (
	_ sandpit.GroupSignaler = (*process)(nil)
	_ sandpit.Backgrounder  = (*process)(nil)
)

// ID identifies the process in a sandbox that stays. It is empty in one that is made for
// the command.
func (p *process) ID() string { return p.id }

// PID returns the process id inside a sandbox that stays, else 0.
func (p *process) PID() int { return p.pid }

// Stdin returns the standard input, or nil.
func (p *process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// send sends a frame. What a process that has ended is sent gets lost.
func (p *process) send(kind byte, payload []byte) error {
	frame := net.Buffers{v1.AppendFrameHead(nil, kind, len(payload)), payload}
	_, err := frame.WriteTo(p.run.conn)
	return err
}

// Signal sends a signal to the process.
func (p *process) Signal(_ context.Context, sig syscall.Signal) error {
	return p.sendJSON(v1.FrameSignal, v1.Signal{Signal: int(sig)})
}

// SignalGroup sends a signal to the group that the process leads.
func (p *process) SignalGroup(_ context.Context, sig syscall.Signal) error {
	return p.sendJSON(v1.FrameSignal, v1.Signal{Signal: int(sig), Group: true})
}

// Resize changes the size of the terminal.
func (p *process) Resize(_ context.Context, size sandpit.TerminalSize) error {
	return p.sendJSON(v1.FrameResize, v1.Size{Rows: size.Rows, Cols: size.Cols})
}

func (p *process) sendJSON(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.send(kind, payload)
}

// Kill makes the server kill the process and everything that it started, and waits until that
// has ended. A guest that does not kill it loses a sandbox made for the command.
func (p *process) Kill(ctx context.Context) error {
	if err := p.send(FrameKill, nil); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Background makes the server move the process to the background: it then outlives the
// connection. Wait must be running.
func (p *process) Background(ctx context.Context) error {
	if p.run.sandbox == "" {
		return fault.Errorf(sandpit.ErrUnsupported, "moving the command to the background: its sandbox ends with it")
	}
	if err := p.send(FrameBackground, nil); err != nil {
		return err
	}
	select {
	case <-p.moved:
		return nil
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait passes output on until the process has ended. When ctx ends first, so
// does the run.
func (p *process) Wait(ctx context.Context) (sandpit.Result, error) {
	p.once.Do(func() {
		stop := context.AfterFunc(ctx, func() { _ = p.run.conn.Close() })
		defer stop()
		go p.follow()
		<-p.ended
		p.out.Wait(ctx)
		if p.err != nil && ctx.Err() != nil {
			p.err = ctx.Err()
		}
		if p.stdin != nil {
			p.stdin.end()
		}
		close(p.done)
	})
	select {
	case <-p.done:
		if p.err != nil {
			return sandpit.Result{}, p.err
		}
		return p.result.Sandpit(), nil
	case <-ctx.Done():
		return sandpit.Result{}, ctx.Err()
	}
}

// begin reads frames until the process has been started.
func (p *process) begin() error {
	for {
		kind, payload, err := v1.ReadFrame(p.run.in, nil, v1.MaxFrame)
		if err != nil {
			return p.run.lost(err)
		}
		switch kind {
		case FrameReport:
			err = parse(kind, payload, &p.run.report)
		case v1.FrameEnd:
			if err = told(payload); err == nil {
				err = unexpected(kind)
			}
		case v1.FrameStarted:
			if p.run.sandbox == "" {
				return nil // nobody can attach to it
			}
			var started v1.Process
			err = parse(kind, payload, &started)
			p.id, p.pid = started.ID, started.PID
			return err
		default:
			err = unexpected(kind)
		}
		if err != nil {
			return err
		}
	}
}

// follow reads frames until the last, or until another goroutine does. It also writes the
// output: see package lanes. So the connection is always read, and the other stream, signals
// and input are not held up while nobody takes an output.
func (p *process) follow() {
	var buf []byte
	for {
		kind, payload, err := v1.ReadFrame(p.run.in, buf, v1.MaxFrame)
		if err != nil {
			p.end(p.run.lost(err))
			return
		}
		buf = payload
		switch kind {
		case v1.FrameStdout, v1.FrameStderr:
			lane := int(kind - v1.FrameStdout)
			if p.out.Waiting(lane)+len(payload) > v1.Window {
				p.end(unexpected(kind)) // the server sends more than it was told that there is room for
				return
			}
			if !p.out.Put(lane, payload) {
				return
			}
		case v1.FrameTaken:
			if len(payload) != 4 || p.stdin == nil {
				p.end(unexpected(kind))
				return
			}
			p.stdin.room.Give(binary.BigEndian.Uint32(payload))
		case v1.FrameStdinClosed:
			if p.stdin != nil {
				p.stdin.end()
			}
		case FrameBackground:
			select {
			case p.moved <- struct{}{}:
			default:
			}
		case v1.FramePing:
		case v1.FrameResult:
			p.result = new(v1.Result)
			if err := parse(kind, payload, p.result); err != nil {
				p.end(err)
				return
			}
		case FrameReport:
			if err := parse(kind, payload, &p.run.report); err != nil {
				p.end(err)
				return
			}
		case v1.FrameEnd:
			err := told(payload)
			if err == nil && p.result == nil {
				err = unexpected(kind)
			}
			p.end(err)
			return
		default:
			p.end(unexpected(kind))
			return
		}
	}
}

// passed tells the server how much of an output was passed on.
func (p *process) passed(lane, n int) {
	_ = p.send(v1.FramePassed, binary.BigEndian.AppendUint32([]byte{v1.FrameStdout + byte(lane)}, uint32(n))) // it may have ended
}

// end says how the process ended: with err, or with the result that was read.
func (p *process) end(err error) {
	p.err = err
	close(p.ended)
}
