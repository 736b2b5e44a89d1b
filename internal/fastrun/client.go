package fastrun

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Run is one run of a server, to be begun with Start.
type Run struct {
	Home    string // data directory, whose server is asked
	Version string // of this program
	Spec    sandpit.Spec
	WorkDir bool // refuse with ErrNoWorkDir or ErrNotWorkDir when the Spec's is none
	Report  bool // Info and Metrics are wanted

	conn    net.Conn
	outcome Outcome
}

// Start has the server make the sandbox and start the command. It returns
// ErrDeclined when no server would: then nothing has been done. The output is
// written while the process is waited for, by Wait, once.
func (r *Run) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	conn, err := dial(r.Home)
	if err != nil {
		return nil, ErrDeclined
	}
	p, err := r.start(ctx, conn, cmd)
	if err != nil {
		_ = conn.Close()
		if cause := ctx.Err(); cause != nil {
			err = cause
		}
		return nil, err
	}
	r.conn = conn
	return p, nil
}

// Info describes the sandbox as it was when the command had ended.
func (r *Run) Info(context.Context) (sandpit.Info, error) {
	if r.outcome.Info == nil {
		return sandpit.Info{}, fmt.Errorf("describing the sandbox: the server did not: %w", sandpit.ErrProtocol)
	}
	return r.outcome.Info.Sandpit(), nil
}

// Metrics returns what the sandbox has used.
func (r *Run) Metrics(context.Context) (sandpit.Metrics, error) {
	if r.outcome.Metrics == nil {
		return sandpit.Metrics{}, fmt.Errorf("reading metrics: the server has none: %w", sandpit.ErrUnsupported)
	}
	return r.outcome.Metrics.Sandpit().Metrics, nil
}

// Close ends the connection, and with it the sandbox.
func (r *Run) Close() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
}

// maxSocketPath is the longest path that connect(2) takes on every system:
// sun_path holds 108 bytes on Linux, 104 on Darwin.
const maxSocketPath = 103

// dial connects to the server of a data directory, if that is this user's.
func dial(home string) (*net.UnixConn, error) {
	path := filepath.Join(home, "server.sock")
	if len(path) > maxSocketPath {
		dir, err := os.Open(home)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		path = "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/server.sock"
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if !ours(conn) {
		_ = conn.Close()
		return nil, ErrDeclined
	}
	return conn, nil
}

// start sends the request, and reads until the command has been started.
func (r *Run) start(ctx context.Context, conn net.Conn, cmd sandpit.Command) (*process, error) {
	place, err := Place()
	if err != nil || strings.ContainsAny(r.Version, "\r\n") {
		return nil, ErrDeclined
	}
	body, err := json.Marshal(Request{Spec: v1.FromSpec(r.Spec), Command: v1.FromCommand(cmd), WorkDir: r.WorkDir, Report: r.Report})
	if err != nil || len(body) > MaxRequest {
		return nil, ErrDeclined
	}
	message := make([]byte, 0, 512+len(body))
	message = append(message, "GET "+Path+" HTTP/1.1\r\nHost: unix\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+
		"\r\n"+HeaderVersion+": "+r.Version+"\r\n"+HeaderPlace+": "+place+"\r\n\r\n"...)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	in := bufio.NewReaderSize(conn, 16<<10)
	// A server that declines may not read it all.
	_, werr := conn.Write(AppendFrame(message, FrameRequest, body))
	if err := accepted(in); err != nil {
		return nil, err
	}
	if werr != nil {
		return nil, lost(werr)
	}
	kind, payload, err := ReadFrame(in, nil, v1.MaxFrame)
	switch {
	case err != nil:
		return nil, lost(err)
	case kind == v1.FrameError:
		return nil, told(payload)
	case kind != v1.FrameStarted:
		return nil, unexpected(kind)
	}
	p := &process{run: r, conn: conn, in: in, done: make(chan struct{})}
	p.out = newOutlet(p, cmd.Stdout, cmd.Stderr)
	if cmd.Stdin || cmd.Terminal != nil {
		p.stdin = newStdin(p)
	}
	return p, nil
}

// accepted reads the head of the answer. Whatever is not the Upgrade declines.
func accepted(in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil || !strings.HasPrefix(string(line), "HTTP/1.1 101 ") {
		return ErrDeclined
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return lost(err)
		}
		if len(line) <= 2 {
			return nil
		}
	}
}

// lost is the error of a connection that has ended before the run.
func lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return ServerEnded()
	}
	return fmt.Errorf("running in the server: %w", err)
}

func unexpected(kind byte) error {
	return fmt.Errorf("running in the server: a frame of type %d is out of place: %w", kind, sandpit.ErrProtocol)
}

// told returns the error in a frame.
func told(payload []byte) error {
	var e v1.Error
	if err := json.Unmarshal(payload, &e); err != nil {
		return fmt.Errorf("running in the server: reading its error: %w (%w)", err, sandpit.ErrProtocol)
	}
	return decodeError(e)
}

// process is the command. Its methods may be called from many goroutines.
type process struct {
	run   *Run
	conn  net.Conn
	in    *bufio.Reader
	out   *outlet
	stdin *stdin // nil: none is sent

	once   sync.Once
	done   chan struct{} // closed when it has ended, or nobody can tell
	result sandpit.Result
	err    error
}

var _ sandpit.GroupSignaler = (*process)(nil)

// ID is empty: nobody can attach to it.
func (p *process) ID() string { return "" }

// PID is not told.
func (p *process) PID() int { return 0 }

// Stdin returns the standard input, or nil.
func (p *process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// send sends a frame. What a process that has ended is sent gets lost.
func (p *process) send(kind byte, payload []byte) error {
	_, err := p.conn.Write(AppendFrame(make([]byte, 0, frameHead+len(payload)), kind, payload))
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

// Kill has the server kill the process and all that it started. A guest that
// does not do so loses its sandbox.
func (p *process) Kill(context.Context) error { return p.send(FrameKill, nil) }

// Wait passes output on until the process has ended. When ctx ends first, so
// does the run.
func (p *process) Wait(ctx context.Context) (sandpit.Result, error) {
	p.once.Do(func() {
		stop := context.AfterFunc(ctx, func() { _ = p.conn.Close() })
		defer stop()
		p.result, p.err = p.follow()
		p.out.flush(ctx)
		if p.err != nil && ctx.Err() != nil {
			p.err = ctx.Err()
		}
		if p.stdin != nil {
			p.stdin.taken(0)
		}
		close(p.done)
	})
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return sandpit.Result{}, ctx.Err()
	}
}

// follow reads frames up to the last.
func (p *process) follow() (sandpit.Result, error) {
	var buf []byte
	for {
		kind, payload, err := ReadFrame(p.in, buf, v1.MaxFrame)
		if err != nil {
			return sandpit.Result{}, lost(err)
		}
		buf = payload
		switch kind {
		case v1.FrameStdout, v1.FrameStderr:
			if !p.out.put(kind, payload) {
				return sandpit.Result{}, unexpected(kind)
			}
		case FrameTaken:
			if len(payload) != 4 || p.stdin == nil {
				return sandpit.Result{}, unexpected(kind)
			}
			p.stdin.taken(binary.BigEndian.Uint32(payload))
		case v1.FramePing:
		case v1.FrameError:
			return sandpit.Result{}, told(payload)
		case v1.FrameResult:
			if err := json.Unmarshal(payload, &p.run.outcome); err != nil {
				return sandpit.Result{}, fmt.Errorf("running in the server: reading the result: %w (%w)", err, sandpit.ErrProtocol)
			}
			return p.run.outcome.Result.Sandpit(), nil
		default:
			return sandpit.Result{}, unexpected(kind)
		}
	}
}
