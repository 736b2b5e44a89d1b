package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// AttachOptions configure Attach.
type AttachOptions struct {
	// Without Stdout, Stderr and Chunk no output is sent, only the end is waited for.
	sandpit.AttachOptions

	// From is the position in the output, both streams together, at which to begin;
	// NoHistory is its present end. Older output that is not kept is lost.
	From int64

	// Chunk, unless nil, is called with each piece of output or loss before Stdout, Stderr
	// and Lost, in order. After an error it is not called again.
	Chunk func(Chunk) error

	// Hold makes the process wait for this caller, as in the foreground: nothing is lost.
	Hold bool

	// Passive keeps the stream from counting as activity of the sandbox.
	Passive bool
}

// Chunk is a piece of the output of a background process.
type Chunk struct {
	Position int64     // of its first byte: bytes written before it, both streams together
	Time     time.Time // when the guest read it, within 10 ms; zero of a loss
	Stderr   bool
	Lost     int64  // so many bytes are missing here; Data is then empty
	Data     []byte // valid until Chunk returns
}

// Attach attaches to a background process, also to one that has ended and is still kept: it
// passes on kept output, then new output. It finds the process by ref, or by pid if ref is
// 0. A slow caller loses output and holds up no other, unless opt.Hold is set. To close the
// standard input, attach with opt.Stdin and close Process.Stdin. The error matches
// sandpit.ErrNotFound if there is no such process, and sandpit.ErrState if it is not in the
// background.
func (c *Client) Attach(ctx context.Context, ref uint64, pid int, opt AttachOptions) (*Process, error) {
	if opt.From < 0 {
		return nil, fmt.Errorf("attaching to a process: %w: a negative position", sandpit.ErrInvalid)
	}
	m := &wire.Attach{Target: wire.Target{Ref: ref, PID: uint64(max(0, pid))}, Stdin: opt.Stdin, Flags: wire.AttachRecords, From: opt.From}
	if opt.NoHistory {
		m.From = -1
	}
	if opt.Stdout == nil && opt.Stderr == nil && opt.Chunk == nil {
		m.Flags |= wire.AttachQuiet
	}
	if opt.Hold {
		m.Flags |= wire.AttachHold
	}
	if opt.Passive {
		m.Flags |= wire.AttachPassive
	}
	s, err := c.open(ctx, wire.OpAttach, m, true, 0)
	if err != nil {
		return nil, fmt.Errorf("attaching to a process: %w", err)
	}
	started, err := s.started(ctx)
	if err != nil {
		return nil, fmt.Errorf("attaching to a process: %w", err)
	}
	p := c.newProcess(s, started, opt.Stdin)
	p.opt = opt
	go p.deliverRecords()
	return p, nil
}

// deliverRecords hands records of output on until the process has exited.
func (p *Process) deliverRecords() {
	r := newRecordReader(p.s)
	opt := &p.opt
	next := opt.From
	for {
		var m wire.Output
		if err := r.next(&m); err != nil {
			p.finish(err)
			return
		}
		at := clamp(m.Position)
		if !opt.NoHistory && at != next || m.Kind == wire.OutputLost && (m.Lost == 0 || m.Lost > math.MaxInt64-uint64(at)) ||
			m.Kind != wire.OutputLost && (m.Data == "" || int64(len(m.Data)) > math.MaxInt64-at) {
			err := violation("output that is out of order")
			p.c.fail(err)
			p.finish(err)
			return
		}
		c := Chunk{Position: at, Stderr: m.Kind == wire.OutputStderr, Lost: clamp(m.Lost), Data: []byte(m.Data)}
		if m.Kind == wire.OutputLost {
			c.Data = nil
			next = at + c.Lost
		} else {
			c.Lost, c.Time = 0, time.Unix(0, m.Time)
			next = at + int64(len(c.Data))
		}
		opt.NoHistory = false // from now on it is known where it goes on
		if opt.Chunk != nil && opt.Chunk(c) != nil {
			opt.Chunk = nil
		}
		if c.Lost > 0 {
			if opt.Lost != nil {
				opt.Lost(c.Lost)
			}
			continue
		}
		w := &opt.Stdout
		if c.Stderr {
			w = &opt.Stderr
		}
		if *w != nil {
			if _, err := (*w).Write(c.Data); err != nil {
				*w = nil
			}
		}
	}
}

// recordReader reads content that is records.
type recordReader struct {
	s   *stream
	r   *bufio.Reader
	buf []byte
}

func newRecordReader(s *stream) *recordReader {
	return &recordReader{s: s, r: bufio.NewReaderSize(&wire.ContentReader{In: s.in, Credit: s.credit}, 16<<10)}
}

// next reads a record to m. The error is io.EOF at the end of the content. A
// record that makes no sense ends the connection.
func (r *recordReader) next(m decoder) error {
	b, err := wire.ReadRecord(r.r, &r.buf)
	if err == nil {
		err = m.Decode(b)
	}
	if err == wire.ErrMessage || err == io.ErrUnexpectedEOF {
		err = violation("malformed record")
		r.s.c.fail(err)
	}
	return err
}
