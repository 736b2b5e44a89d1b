package process

import (
	"io"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// A sink takes output, which is in the blocks of a buffer. An error means that
// nobody wants it any more.
type sink interface {
	put(channel wire.Type, buf []byte, n int) error
}

// streamSink sends output as it comes.
type streamSink struct{ s *conn.Stream }

func (k streamSink) put(channel wire.Type, buf []byte, n int) error {
	return k.s.SendBlocks(channel, buf, n)
}

// pump carries one stream of output. After the exit it passes on what is there,
// and then drops what children that still hold the stream write, so that they
// neither stop nor die of it. room, unless nil, is what the host takes of this output.
func (p *process) pump(src *source, channel wire.Type, room *wire.Window, to sink) {
	defer src.close()
	drained := false
	finish := func() {
		if !drained {
			drained = true
			p.drained <- src
		}
	}
	defer finish()

	var buf *[]byte
	release := func() {
		if buf != nil {
			conn.Release(buf)
			buf = nil
		}
	}
	defer release()
	get := func() []byte {
		if src.busy && buf != nil && len(*buf) == conn.BlockSize {
			release()
		}
		if buf == nil {
			if src.busy {
				buf = conn.LargeBuffer()
			} else {
				buf = conn.Buffer()
			}
		}
		return conn.Payload(*buf, 0)
	}
	count := &p.written[0]
	if channel == wire.Data2 {
		count = &p.written[1]
	}
	pass := func(n int) {
		count.Add(int64(n))
		p.table.touch()
		keep := n
		if p.limit > 0 {
			if over := p.passed.Add(int64(n)) - p.limit; over > 0 {
				keep = max(0, n-int(min(over, int64(n))))
				p.dropped.Add(int64(n - keep))
			}
		}
		if keep > 0 && room != nil && room.Spend(keep) != nil {
			room = nil // the stream is gone
		}
		if keep > 0 && to != nil && to.put(channel, *buf, keep) != nil {
			to = nil
		}
	}
	for {
		n, err := src.read(get)
		if n > 0 {
			n += src.readOn(*buf, n)
			pass(n)
			src.pace(n)
			continue
		}
		if err != errWoken {
			return
		}
		// The process has exited. A child may be writing without end, so what
		// is passed on is what is there now.
		for left := src.held(); left > 0; {
			n, err := src.readNow(get()[:min(left, wire.MaxData)])
			if n > 0 {
				pass(n)
				left -= n
			}
			if err != nil {
				break
			}
		}
		finish()
		release()
		src.unwake()
		break
	}
	var trash [4 << 10]byte
	for {
		if _, err := src.read(func() []byte { return trash[:] }); err != nil {
			return
		}
	}
}

// lockPatience is how long one system call for the output of a process that has exited
// may take. None of them waits for anything but the lock of a pipe, which a program may
// hold: it can sleep in splice(2) with it.
const lockPatience = time.Second

// drain waits until what the process had written has been passed on, and reports false
// if the rest can't be read because a program holds the lock of a pipe.
func (p *process) drain() bool {
	left := map[*source]uint32{p.stdout: 0} // with the calls at the last tick
	if p.stderr != nil {
		left[p.stderr] = 0
	}
	ticker := time.NewTicker(lockPatience)
	defer ticker.Stop()
	for len(left) > 0 {
		select {
		case src := <-p.drained:
			delete(left, src)
		case <-ticker.C:
			held := 0
			for src, before := range left {
				left[src] = src.calls.Load()
				if left[src]%2 == 1 && left[src] == before {
					held++
				}
			}
			if held == len(left) {
				return false
			}
		}
	}
	return true
}

// feed carries standard input from a stream. That of a foreground process ends
// with its stream, that of a background process when the host says so.
func (p *process) feed(s *conn.Stream) {
	midLine := false
	err := s.Content(func(b []byte) error {
		midLine = b[len(b)-1] != '\n'
		_, err := p.stdin.Write(b)
		return err
	})
	switch {
	case err == conn.ErrGone:
		if !p.detached && !p.terminal {
			p.stdin.Close()
		}
	case err != io.EOF:
		s.Refuse() // the process has closed its end, or has exited
	case !p.terminal:
		p.stdin.Close()
	default:
		if b := endOfInput(p.stdout.fd, midLine); b != nil {
			_, _ = p.stdin.Write(b)
		}
	}
}
