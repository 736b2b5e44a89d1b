package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ServeStdio serves one client over the standard input and output of the program, until the client closes the input
// or ctx ends. What tools have in progress is then called off. Each line is a message.
func ServeStdio(ctx context.Context, opt Options, host Host, in io.ReadCloser, out io.Writer) error {
	s, err := newServer(opt)
	if err != nil {
		return err
	}
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			return next(withHost(ctx, host), method, req)
		}
	})
	err = s.Run(ctx, &lines{in: bufio.NewReaderSize(in, 64<<10), closer: in, out: out})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// maxMessageLine bounds a message, in bytes. It has room for a file of 8 MiB.
const maxMessageLine = 16 << 20

// lines is the transport of a program: a message in each line. Unlike that of the SDK it answers lines that are no messages
// with an error and goes on. It is used for one connection.
type lines struct {
	in     *bufio.Reader
	closer io.Closer

	mu  sync.Mutex
	out io.Writer // guarded by mu

	messages chan message
	closed   chan struct{}
	close    sync.Once
}

// message is a line, or why there are no more.
type message struct {
	line []byte
	tail []byte // the end of a line that is too long
	err  error
}

// maxTail bounds the end of a line that is too long, in bytes.
const maxTail = 1 << 10

// Connect implements sdk.Transport.
func (l *lines) Connect(context.Context) (sdk.Connection, error) {
	l.messages, l.closed = make(chan message), make(chan struct{})
	go l.read()
	return l, nil
}

// SessionID implements sdk.Connection.
func (l *lines) SessionID() string { return "" }

// read reads lines until there are no more. A read of a terminal or a pipe can't be called off: it ends with the program then.
func (l *lines) read() {
	for {
		m := l.readLine()
		select {
		case l.messages <- m:
		case <-l.closed:
			return
		}
		if m.err != nil && !errors.Is(m.err, errTooLong) {
			return
		}
	}
}

var errTooLong = fmt.Errorf("the message has more than %d bytes", maxMessageLine)

// readLine reads a line. One that is too long is read to its end, but not kept.
func (l *lines) readLine() message {
	var line, tail []byte
	long := false
	for {
		part, err := l.in.ReadSlice('\n')
		if !long && len(line)+len(part) > maxMessageLine {
			long = true
			tail = bytes.Clone(line[max(0, len(line)-maxTail):])
		}
		if long {
			tail = append(tail, part...)
			tail = append(tail[:0], tail[max(0, len(tail)-maxTail):]...)
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)):
			return message{err: err}
		case long:
			return message{line, tail, errTooLong}
		}
		return message{line: line} // also the last one, without its end
	}
}

// Read implements sdk.Connection. It returns the next message.
func (l *lines) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		var m message
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.closed:
			return nil, io.EOF
		case m = <-l.messages:
		}
		switch {
		case errors.Is(m.err, errTooLong):
			if err := l.refuse(jsonrpc.CodeInvalidRequest, idOf(m.line, m.tail), m.err.Error()); err != nil {
				return nil, err
			}
			continue
		case m.err != nil:
			return nil, m.err
		}
		line := bytes.TrimSpace(m.line)
		if len(line) == 0 {
			continue
		}
		msg, err := decode(line)
		if err == nil {
			return msg, nil
		}
		if err := l.refuse(complaint(line, err)); err != nil {
			return nil, err
		}
	}
}

// decode reads a message. It refuses those with an ID alone, which the SDK takes for answers, and text after a message, which
// the SDK passes over.
func decode(line []byte) (jsonrpc.Message, error) {
	if !json.Valid(line) {
		return nil, errors.New("it is not valid JSON")
	}
	msg, err := jsonrpc.DecodeMessage(line)
	if r, ok := msg.(*jsonrpc.Response); ok && err == nil && r.Result == nil && r.Error == nil {
		return nil, errors.New("it has neither a method nor a result")
	}
	return msg, err
}

// complaint says what is wrong with a line that is not a message.
func complaint(line []byte, err error) (code int64, id json.RawMessage, text string) {
	if !json.Valid(line) {
		return jsonrpc.CodeParseError, nil, "the message is not valid JSON"
	}
	if line[0] == '[' {
		return jsonrpc.CodeInvalidRequest, nil, "batches are not supported: send one message at a time"
	}
	var asked struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &asked) // it is not an object then, and has no ID
	return jsonrpc.CodeInvalidRequest, validID(asked.ID), "the message is not one of JSON-RPC 2.0: " + clean(err.Error())
}

// validID returns an ID, or nil if it is not a text or number.
func validID(id json.RawMessage) json.RawMessage {
	if len(id) > 0 && id[0] != '"' && (id[0] < '0' || id[0] > '9') {
		return nil
	}
	return id
}

// idOf returns the ID of a message that is too long, by its start or its end, or nil if it is not there.
func idOf(start, end []byte) json.RawMessage {
	// The ID may come after the parameters. Quotes in texts have a backslash before them.
	pattern := regexp.MustCompile(`[,{]\s*"id"\s*:\s*(\d+|"[^"\\]*")\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*\}\s*$`)
	if found := pattern.FindSubmatch(end); found != nil && json.Valid(found[1]) {
		return found[1]
	}
	d := json.NewDecoder(bytes.NewReader(start))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	for {
		name, err := d.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil
		}
		if name == "id" {
			return validID(value)
		}
	}
}

// refuse answers a line that is not a message.
func (l *lines) refuse(code int64, id json.RawMessage, text string) error {
	if id == nil {
		id = json.RawMessage("null")
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}})
	if err != nil {
		return err
	}
	return l.send(body)
}

func (l *lines) send(body []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.out.Write(append(body, '\n'))
	return err
}

// Write implements sdk.Connection.
func (l *lines) Write(_ context.Context, m jsonrpc.Message) error {
	body, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return l.send(body)
}

// Close implements sdk.Connection.
func (l *lines) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.closer.Close()
}
