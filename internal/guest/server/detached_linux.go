package server

import (
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// How much output of a detached process is kept.
const (
	defaultKeep = 64 << 10
	maxKeep     = 1 << 20
	minPiece    = 128
	maxPiece    = 4 << 10
	pieceCost   = 48 // of the piece itself
)

// outputLog holds the latest output of a detached process for those who attach
// to it, now or later. While somebody is attached nothing that he has not seen
// is dropped: the process waits for him. Else the oldest is dropped.
type outputLog struct {
	mu      sync.Mutex
	changed sync.Cond
	keep    int
	pieces  []piece
	first   int64 // position of the first piece: the bytes before it
	size    int   // what the pieces take
	readers map[*logReader]bool
	ended   bool
}

// piece is output of one channel.
type piece struct {
	channel wire.Type
	data    []byte
}

// logReader is where one who is attached is.
type logReader struct {
	at   int64
	gone bool
}

func newOutputLog(keep uint64) *outputLog {
	if keep == 0 {
		keep = defaultKeep
	}
	l := &outputLog{keep: int(max(2*maxPiece, min(keep, maxKeep))), readers: make(map[*logReader]bool)}
	l.changed.L = &l.mu
	return l
}

// put appends output, and waits for those attached when they are behind.
func (l *outputLog) put(channel wire.Type, buf []byte, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for data := buf[wire.HeaderSize : wire.HeaderSize+n]; len(data) > 0; {
		k := len(l.pieces) - 1
		if k < 0 || l.pieces[k].channel != channel || len(l.pieces[k].data) == cap(l.pieces[k].data) {
			size := minPiece
			if k >= 0 && l.pieces[k].channel == channel {
				size = 2 * cap(l.pieces[k].data)
			}
			size = min(max(size, len(data)), maxPiece)
			l.pieces = append(l.pieces, piece{channel, make([]byte, 0, size)})
			l.size += size + pieceCost
			k++
		}
		p := &l.pieces[k]
		m := min(len(data), cap(p.data)-len(p.data))
		p.data = append(p.data, data[:m]...)
		data = data[m:]
		l.changed.Broadcast()
		for l.size > l.keep && l.behind() {
			l.changed.Wait()
		}
		for l.size > l.keep && len(l.pieces) > 1 {
			l.first += int64(len(l.pieces[0].data))
			l.size -= cap(l.pieces[0].data) + pieceCost
			l.pieces[0] = piece{}
			l.pieces = l.pieces[1:]
		}
	}
	return nil
}

// behind reports whether somebody needs the first piece.
func (l *outputLog) behind() bool {
	end := l.first + int64(len(l.pieces[0].data))
	for r := range l.readers {
		if r.at < end {
			return true
		}
	}
	return false
}

// end is the position behind the latest output: how many bytes there were.
func (l *outputLog) end() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.first
	for _, p := range l.pieces {
		end += int64(len(p.data))
	}
	return end
}

// finish says that no more output will come.
func (l *outputLog) finish() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.changed.Broadcast()
}

// attach enters a reader at the oldest output that is kept.
func (l *outputLog) attach() *logReader {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &logReader{at: l.first}
	l.readers[r] = true
	return r
}

// leave removes a reader, and makes its next fail.
func (l *outputLog) leave(r *logReader) {
	l.mu.Lock()
	r.gone = true
	delete(l.readers, r)
	l.mu.Unlock()
	l.changed.Broadcast()
}

// next waits for output and copies some to b. The error is io.EOF at its end
// and errGone after leave.
func (l *outputLog) next(r *logReader, b []byte) (wire.Type, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if r.gone {
			return 0, 0, errGone
		}
		at := l.first
		for _, p := range l.pieces {
			if end := at + int64(len(p.data)); r.at < end {
				n := copy(b, p.data[r.at-at:])
				r.at += int64(n)
				l.changed.Broadcast()
				return p.channel, n, nil
			}
			at += int64(len(p.data))
		}
		if l.ended {
			return 0, 0, io.EOF
		}
		l.changed.Wait()
	}
}

// follow sends the output of a detached process to a stream until the process
// exits or the stream is gone.
func (p *process) follow(s *stream) {
	r := p.log.attach()
	s.whenGone(func() { p.log.leave(r) })
	defer p.log.leave(r)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		channel, n, err := p.log.next(r, (*buf)[wire.HeaderSize:])
		if err == io.EOF {
			s.end(wire.Event, &p.exit)
			p.forget()
			return
		}
		if err != nil || s.sendContent(channel, *buf, n) != nil {
			return
		}
	}
}

// attach answers an attach stream.
func (p *process) attach(s *stream) {
	if p.log == nil {
		s.fail(fail(wire.CodeState, "the process was not started as a background process"))
		return
	}
	if s.in != nil {
		if p.stdin == nil {
			s.fail(invalid("the process has no standard input"))
			return
		}
		go p.feed(s)
		defer s.in.Abort(errGone)
	}
	s.reply(&wire.Started{Ref: p.ref, PID: uint64(p.pid)})
	p.follow(s)
}
