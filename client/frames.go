package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// frames is the stream of a process as the server sends it.
type frames interface {
	// next returns a frame; the bytes are good until the next call. Output that
	// is long comes in several.
	next() (kind byte, b []byte, err error)

	// finish gives the stream up. After a last frame its connection may be
	// used again.
	finish()
}

const frameBuffer = 64 << 10 // bytes

// buffers are of frameBuffer bytes each.
var buffers = sync.Pool{New: func() any { return new([frameBuffer]byte) }}

// head reads the head of a frame.
func head(b []byte) (kind byte, length int, err error) {
	kind, n := v1.ParseFrameHead(b)
	if n > v1.MaxFrame {
		return 0, 0, badAnswer(fmt.Sprintf("a frame of %d bytes", n))
	}
	return kind, int(n), nil
}

func isOutput(kind byte) bool { return kind == v1.FrameStdout || kind == v1.FrameStderr }

// bodyFrames reads frames from the body of an answer.
type bodyFrames struct {
	body io.ReadCloser
	buf  *[frameBuffer]byte
	r, w int  // what of buf is not used yet
	kind byte // of the output that is being handed on
	left int  // bytes of it to come
}

func newBodyFrames(body io.ReadCloser) *bodyFrames {
	return &bodyFrames{body: body, buf: buffers.Get().(*[frameBuffer]byte)}
}

// fill reads until n bytes are there, which fit into the buffer.
func (f *bodyFrames) fill(n int) error {
	if f.w-f.r >= n {
		return nil
	}
	if f.r == f.w {
		f.r, f.w = 0, 0
	} else if f.r+n > len(f.buf) {
		f.w = copy(f.buf[:], f.buf[f.r:f.w])
		f.r = 0
	}
	got, err := io.ReadAtLeast(f.body, f.buf[f.w:], n-(f.w-f.r))
	f.w += got
	if f.w-f.r >= n {
		return nil
	}
	return err
}

func (f *bodyFrames) next() (byte, []byte, error) {
	for {
		if f.left > 0 {
			if err := f.fill(1); err != nil {
				return 0, nil, err
			}
			n := min(f.left, f.w-f.r)
			b := f.buf[f.r : f.r+n]
			f.r += n
			f.left -= n
			return f.kind, b, nil
		}
		if err := f.fill(v1.FrameHead); err != nil {
			return 0, nil, err
		}
		kind, n, err := head(f.buf[f.r:])
		if err != nil {
			return 0, nil, err
		}
		f.r += v1.FrameHead
		switch {
		case isOutput(kind):
			f.kind, f.left = kind, n
		case n <= len(f.buf):
			if err := f.fill(n); err != nil {
				return 0, nil, err
			}
			f.r += n
			return kind, f.buf[f.r-n : f.r], nil
		default:
			b := make([]byte, n)
			m := copy(b, f.buf[f.r:f.w])
			f.r += m
			_, err := io.ReadFull(f.body, b[m:])
			return kind, b, err
		}
	}
}

func (f *bodyFrames) finish() {
	drain(f.body)
	buffers.Put(f.buf)
}

// socketFrames reads frames from the messages of a WebSocket, which have no length.
type socketFrames struct {
	conn *websocket.Conn
	ctx  context.Context // of all reads
	buf  *[frameBuffer]byte
	msg  io.Reader // of the output that is being handed on
	kind byte

	windows bool // see v1.Window
}

func newSocketFrames(ctx context.Context, conn *websocket.Conn, windows bool) *socketFrames {
	conn.SetReadLimit(1 + v1.MaxFrame)
	return &socketFrames{conn: conn, ctx: ctx, buf: buffers.Get().(*[frameBuffer]byte), windows: windows}
}

// renew leaves what next has returned to whoever still uses it.
func (f *socketFrames) renew() { f.buf = buffers.Get().(*[frameBuffer]byte) }

// passed tells the server how much of an output was passed on.
func (f *socketFrames) passed(lane, n int) {
	msg := binary.BigEndian.AppendUint32([]byte{v1.FramePassed, v1.FrameStdout + byte(lane)}, uint32(n))
	_ = f.conn.Write(f.ctx, websocket.MessageBinary, msg) // the process may have ended
}

func (f *socketFrames) next() (byte, []byte, error) {
	for {
		if f.msg != nil {
			n, err := f.msg.Read(f.buf[:])
			if err == io.EOF {
				f.msg = nil
			} else if err != nil {
				return 0, nil, err
			}
			if n > 0 {
				return f.kind, f.buf[:n], nil
			}
			continue
		}
		typ, msg, err := f.conn.Reader(f.ctx)
		if err != nil {
			return 0, nil, err
		}
		if typ != websocket.MessageBinary {
			return 0, nil, badAnswer("a text message")
		}
		if _, err := io.ReadFull(msg, f.buf[:1]); err == io.EOF {
			return 0, nil, badAnswer("an empty message")
		} else if err != nil {
			return 0, nil, err
		}
		kind := f.buf[0]
		if isOutput(kind) {
			f.msg, f.kind = msg, kind
			continue
		}
		b, err := io.ReadAll(msg)
		return kind, b, err
	}
}

func (f *socketFrames) finish() {
	_ = f.conn.CloseNow()
	buffers.Put(f.buf)
}
