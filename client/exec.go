package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// Start starts a process. See sandpit.Sandbox.
func (s *sandbox) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	p, err := s.start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s *sandbox) start(ctx context.Context, cmd sandpit.Command) (*process, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	body, err := encodeCommand(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	out := output{stdout: cmd.Stdout, stderr: cmd.Stderr}
	switch {
	case cmd.Background:
		return s.startBackground(ctx, body, cmd)
	case cmd.Stdin || cmd.Terminal != nil || lanes.Apart(cmd.Stdout, cmd.Stderr):
		return s.interactive(ctx, s.path+"/exec", url.Values{"windows": {"true"}}, body, cmd.Stdin || cmd.Terminal != nil, out)
	default:
		return s.streamed(ctx, request{method: http.MethodPost, path: s.path + "/exec", body: body, accept: v1.StreamType}, out)
	}
}

// startBackground starts what goes on without this client.
func (s *sandbox) startBackground(ctx context.Context, body []byte, cmd sandpit.Command) (*process, error) {
	r := request{method: http.MethodPost, path: s.path + "/processes", header: once(), body: body}
	do := func(ctx context.Context) (*process, error) {
		var v v1.Process
		if err := s.c.call(ctx, r, &v); err != nil {
			return nil, s.explain(ctx, err)
		}
		return s.process(v, true)
	}
	p, err := orUndo(ctx, s.c, do, func(ctx context.Context, p *process) { _ = p.Kill(ctx) })
	if err != nil || p.id == "" {
		return p, err
	}
	stdin := cmd.Stdin || cmd.Terminal != nil
	if cmd.Stdout == nil && cmd.Stderr == nil && !stdin {
		return p, nil
	}
	attached, err := s.attach(ctx, p.id, sandpit.AttachOptions{Stdout: cmd.Stdout, Stderr: cmd.Stderr, Stdin: stdin})
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = p.Kill(undo)
		return nil, err
	}
	return attached, nil
}

// Processes returns the processes of the sandbox. See sandpit.ProcessKeeper.
func (s *sandbox) Processes(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	all := []sandpit.ProcessInfo{}
	err := pages(ctx, s, "/processes", url.Values{}, func(list v1.ProcessList) (string, error) {
		for _, p := range list.Processes {
			info, err := p.Sandpit()
			if err != nil {
				return "", badAnswer(err.Error())
			}
			all = append(all, info)
		}
		return list.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Attach attaches to a process. See sandpit.ProcessKeeper.
func (s *sandbox) Attach(ctx context.Context, id string, opt sandpit.AttachOptions) (sandpit.Process, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if !isName(id) {
		return nil, fmt.Errorf("attaching to process %q: %w", id, sandpit.ErrNotFound)
	}
	p, err := s.attach(ctx, id, opt)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (s *sandbox) attach(ctx context.Context, id string, opt sandpit.AttachOptions) (*process, error) {
	path := s.path + "/processes/" + id
	out := output{stdout: opt.Stdout, stderr: opt.Stderr, lost: opt.Lost}
	query := url.Values{}
	if opt.NoHistory {
		query.Set("history", "false")
	}
	switch {
	case opt.Stdin:
		query.Set("stdin", "true")
		return s.interactive(ctx, path+"/attach", query, nil, true, out)
	case opt.Stdout != nil || opt.Stderr != nil:
		return s.streamed(ctx, request{method: http.MethodGet, path: path + "/output", query: query, accept: v1.StreamType}, out)
	}
	var v v1.Process
	if err := s.c.quick(ctx, request{method: http.MethodGet, path: path}, &v); err != nil {
		return nil, s.explain(ctx, err)
	}
	return s.process(v, true)
}

// streamed makes a request whose answer is the stream of a process.
func (s *sandbox) streamed(ctx context.Context, r request, out output) (*process, error) {
	l := s.c.tie(ctx)
	resp, err := s.c.send(l.ctx, r)
	if err == nil && !isType(resp, v1.StreamType) {
		_ = resp.Body.Close()
		err = badAnswer("no stream")
	}
	if err != nil {
		return nil, s.notStarted(ctx, l, err)
	}
	return s.begin(ctx, l, newBodyFrames(resp.Body), nil, out)
}

// interactive opens a WebSocket to a process. The first message is the command, unless that is
// nil. One with a command has windows.
func (s *sandbox) interactive(ctx context.Context, path string, query url.Values, command []byte, input bool, out output) (*process, error) {
	l := s.c.tie(ctx)
	var conn *websocket.Conn
	err := s.c.inTurn(l.ctx, func() (again bool, err error) {
		conn, err = s.c.socket(l.ctx, path, query)
		return true, err
	})
	if err != nil {
		return nil, s.notStarted(ctx, l, err)
	}
	if command != nil {
		if err := conn.Write(l.ctx, websocket.MessageText, command); err != nil {
			_ = conn.CloseNow()
			return nil, s.notStarted(ctx, l, s.c.failed(l.ctx, err))
		}
	}
	var in *stdin
	if input {
		in = newStdin(conn, l.ctx)
	}
	if in != nil && command != nil {
		in.room = lanes.NewRoom(v1.InputWindow)
	}
	return s.begin(ctx, l, newSocketFrames(l.ctx, conn, command != nil), in, out)
}

// begin waits until the process has started, and then has its output delivered.
func (s *sandbox) begin(ctx context.Context, l *link, f frames, in *stdin, out output) (*process, error) {
	p, err := s.started(l, f)
	if err == nil && !l.untie() {
		err = ctx.Err()
	}
	if err == nil {
		p.in, p.l = in, l
		ok := s.c.goWork(func() {
			if in != nil {
				s.c.work.Go(in.send)
			}
			p.deliver(l, f, out)
		})
		if ok {
			return p, nil
		}
		err = errClosed
	}
	err = s.notStarted(ctx, l, err)
	f.finish()
	return nil, err
}

// started reads the first frame of a stream.
func (s *sandbox) started(l *link, f frames) (*process, error) {
	silence := time.AfterFunc(patience, func() { l.cancel(errSilent) })
	defer silence.Stop()
	for {
		kind, b, err := f.next()
		silence.Reset(patience)
		switch {
		case err != nil:
			return nil, s.c.failed(l.ctx, err)
		case kind == v1.FramePing:
		case kind == v1.FrameStarted:
			var v v1.Process
			if err := json.Unmarshal(b, &v); err != nil {
				return nil, badAnswer("unreadable JSON: " + err.Error())
			}
			return s.process(v, false)
		case kind == v1.FrameEnd:
			return nil, endError(b)
		case isOutput(kind), kind == v1.FrameResult:
			return nil, badAnswer(fmt.Sprintf("a first frame of type %d", kind))
		}
	}
}

// notStarted ends a link and makes the error of a Start that failed.
func (s *sandbox) notStarted(ctx context.Context, l *link, err error) error {
	l.end()
	if ctx.Err() != nil {
		return fmt.Errorf("starting a process: %w", ctx.Err())
	}
	return s.explain(ctx, err)
}

// link is what a stream lives under: the client, and until the process has
// started the context of who starts it.
type link struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	untie  func() bool // from the starter's context; false when that has ended it
	unlink func() bool // from the client
}

func (c *Client) tie(ctx context.Context) *link {
	l := &link{}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.untie = context.AfterFunc(ctx, func() { l.cancel(ctx.Err()) })
	l.unlink = context.AfterFunc(c.ctx, func() { l.cancel(errClosed) })
	return l
}

func (l *link) end() {
	l.untie()
	l.unlink()
	l.cancel(nil)
}

// socket opens a WebSocket.
func (c *Client) socket(ctx context.Context, path string, query url.Values) (*websocket.Conn, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	conn, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: c.header.Clone(), Subprotocols: []string{v1.Subprotocol}})
	if err == nil && conn.Subprotocol() != v1.Subprotocol {
		_ = conn.CloseNow()
		return nil, badAnswer("a WebSocket of another protocol")
	}
	if err == nil {
		return conn, nil
	}
	if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(resp)
	}
	return nil, c.failed(ctx, err)
}
