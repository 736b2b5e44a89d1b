package process

import (
	"io"
	"sort"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// How much output of a detached process is kept.
const (
	defaultKeep = 64 << 10
	maxKeep     = 1 << 20
	minPiece    = 128
	maxPiece    = 16 << 10 // of a log that keeps eight such; of a smaller one less
	leastPiece  = 4 << 10
	pieceCost   = 64 // of the piece itself
	// endedOutput is what the output of processes that have ended may take in
	// all; the oldest goes first.
	endedOutput = 8 << 20
	// pieceSpan is the time in which output is added to one piece: the precision of its time.
	pieceSpan = 10 * time.Millisecond
)

// outputLog holds the latest output of a detached process for those who attach
// to it, now or later. The oldest is dropped to make room, and who has not seen
// it yet is told how much it was; only for a reader that holds the process
// back, it waits.
type outputLog struct {
	mu      sync.Mutex
	changed sync.Cond
	keep    int
	piece   int // the most bytes in a piece
	pieces  []piece
	end     int64  // position behind the last piece
	size    int    // what the pieces take
	spare   []byte // of a full piece that was dropped, or nil
	readers map[*logReader]bool
	ended   bool
}

// piece is output of one channel.
type piece struct {
	channel wire.Type
	pos     int64 // of its first byte, in the output of both channels
	at      time.Time
	data    []byte
}

// logReader is the position of an attached reader.
type logReader struct {
	pos  int64
	hold bool
	gone bool
	lost int64 // bytes that were dropped before they were read
}

func newOutputLog(keep uint64) *outputLog {
	if keep == 0 {
		keep = defaultKeep
	}
	l := &outputLog{keep: int(max(2*leastPiece, min(keep, maxKeep))), readers: make(map[*logReader]bool)}
	l.piece = min(max(leastPiece, l.keep/8), maxPiece)
	l.changed.L = &l.mu
	return l
}

// first is the position of the oldest output that is kept.
func (l *outputLog) first() int64 {
	if len(l.pieces) == 0 {
		return l.end
	}
	return l.pieces[0].pos
}

// position returns the number of bytes of output so far.
func (l *outputLog) position() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// put appends output.
func (l *outputLog) put(channel wire.Type, buf []byte, n int) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.changed.Broadcast()
	for i := 0; n > 0; i++ {
		data := conn.Payload(buf, i)
		data = data[:min(n, len(data))]
		n -= len(data)
		l.append(channel, data, now)
	}
	return nil
}

// append is put of one piece. Precondition: l.mu is held.
func (l *outputLog) append(channel wire.Type, data []byte, now time.Time) {
	for len(data) > 0 {
		k := len(l.pieces) - 1
		joins := k >= 0 && l.pieces[k].channel == channel && now.Sub(l.pieces[k].at) < pieceSpan
		if !joins || len(l.pieces[k].data) == cap(l.pieces[k].data) {
			size := minPiece
			if joins {
				size = 2 * cap(l.pieces[k].data)
			}
			size = min(max(size, len(data)), l.piece)
			l.pieces = append(l.pieces, piece{channel, l.end, now, l.room(size)})
			l.size += size + pieceCost
			k++
		}
		p := &l.pieces[k]
		m := min(len(data), cap(p.data)-len(p.data))
		p.data = append(p.data, data[:m]...)
		l.end += int64(m)
		data = data[m:]
		for l.size > l.keep && len(l.pieces) > 1 {
			if l.heldBack() { // by each piece anew: the first may be small
				l.changed.Broadcast() // who holds it has something to take
				l.changed.Wait()
				continue
			}
			l.dropFirst()
		}
	}
}

// room returns room for a piece. A program that writes much has the same few
// all the time.
func (l *outputLog) room(size int) []byte {
	if b := l.spare; b != nil && size == cap(b) {
		l.spare = nil
		return b
	}
	return make([]byte, 0, size)
}

func (l *outputLog) dropFirst() {
	if b := l.pieces[0].data; cap(b) == l.piece {
		l.spare = b[:0]
	}
	l.size -= cap(l.pieces[0].data) + pieceCost
	l.pieces[0] = piece{}
	l.pieces = l.pieces[1:]
}

// heldBack reports whether somebody for whom the process waits needs the first piece.
func (l *outputLog) heldBack() bool {
	end := l.pieces[0].pos + int64(len(l.pieces[0].data))
	for r := range l.readers {
		if r.hold && r.pos < end {
			return true
		}
	}
	return false
}

// finish says that no more output will come.
func (l *outputLog) finish() {
	l.mu.Lock()
	l.ended, l.spare = true, nil
	l.mu.Unlock()
	l.changed.Broadcast()
}

// drop drops all output, and returns the memory that it took.
func (l *outputLog) drop() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.size
	l.pieces, l.size = nil, 0
	return n
}

func (l *outputLog) takes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// attach enters a reader at a position; -1 is the present end. It returns nil
// for a position that has yet to come.
func (l *outputLog) attach(from int64, hold bool) *logReader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from > l.end {
		return nil
	}
	if from < 0 {
		from = l.end
	}
	r := &logReader{pos: from, hold: hold}
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

// next waits until there is something behind r. It then calls take with each
// piece, and with how much was dropped before it, until there is no more or take
// wants none: take returns how much of the piece it has taken. The error is
// io.EOF at the end of the output and conn.ErrGone after leave.
func (l *outputLog) next(r *logReader, take func(p *piece, at int, lost int64) int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r.pos == l.end && !l.ended && !r.gone {
		l.changed.Wait()
	}
	if r.gone {
		return conn.ErrGone
	}
	lost := max(0, l.first()-r.pos)
	r.pos += lost
	r.lost += lost
	if r.pos == l.end {
		if lost == 0 {
			return io.EOF
		}
		take(nil, 0, lost)
		return nil
	}
	i := sort.Search(len(l.pieces), func(i int) bool { return l.pieces[i].pos > r.pos }) - 1
	for ; i < len(l.pieces); i++ {
		p := &l.pieces[i]
		at := int(r.pos - p.pos)
		n := take(p, at, lost)
		lost = 0
		r.pos += int64(n)
		if n < len(p.data)-at {
			break
		}
	}
	if r.hold {
		l.changed.Broadcast()
	}
	return nil
}

// follow sends the output of a detached process to a stream until the process
// exits or the stream is gone. flags are those of Attach.
func (p *process) follow(s *conn.Stream, r *logReader, flags uint64) {
	defer p.log.leave(r)
	var buf *[]byte
	for {
		n := 0
		channel := wire.Data
		err := p.log.next(r, func(q *piece, at int, lost int64) int {
			if flags&wire.AttachQuiet != 0 {
				if q == nil {
					return 0
				}
				return len(q.data) - at
			}
			if flags&wire.AttachRecords == 0 {
				if q == nil || n > 0 && channel != q.channel {
					return 0
				}
				channel = q.channel
				if buf == nil {
					if p.log.end-r.pos > wire.MaxData {
						buf = conn.LargeBuffer()
					} else {
						buf = conn.Buffer()
					}
				}
				k := 0
				for data := q.data[at:]; k < len(data) && n < len(*buf)/conn.BlockSize*wire.MaxData; {
					m := copy(conn.Payload(*buf, n/wire.MaxData)[n%wire.MaxData:], data[k:])
					k, n = k+m, n+m
				}
				return k
			}
			if buf == nil {
				buf = conn.Buffer()
			}
			room := conn.Payload(*buf, 0)[n:]
			if len(room) < 2*recordRoom+maxPiece {
				return 0
			}
			b := room[:0]
			if lost > 0 {
				b = wire.AppendRecord(b, &wire.Output{Position: uint64(r.pos - lost), Lost: uint64(lost)})
			}
			k := 0
			if q != nil {
				o := wire.Output{Kind: wire.OutputStdout, Position: uint64(r.pos), Time: q.at.UnixNano(), Data: string(q.data[at:])}
				if q.channel == wire.Data2 {
					o.Kind = wire.OutputStderr
				}
				b = wire.AppendRecord(b, &o)
				k = len(o.Data)
			}
			n += len(b)
			return k
		})
		if err == io.EOF {
			e := p.exit
			if flags&(wire.AttachRecords|wire.AttachQuiet) == 0 {
				e.Lost = uint64(r.lost) // there was no place to say it
			}
			s.End(wire.Event, &e)
			p.forget()
			return
		}
		if n > 0 && err == nil {
			err = s.SendBlocks(channel, *buf, n)
		}
		if buf != nil {
			conn.Release(buf)
			buf = nil
		}
		if err != nil {
			return
		}
	}
}

// recordRoom is more than a record of output takes beside its data.
const recordRoom = 64

// attach answers an attach stream.
func (p *process) attach(s *conn.Stream, m *wire.Attach) {
	if p.log == nil {
		s.Fail(wire.Fail(wire.CodeState, "the process was not started as a background process"))
		return
	}
	if s.In != nil && p.stdin == nil {
		s.Fail(wire.Invalid("the process has no standard input"))
		return
	}
	r := p.log.attach(m.From, m.Flags&wire.AttachHold != 0)
	if r == nil {
		s.Fail(wire.Invalid("the process has not written that much output"))
		return
	}
	if s.In != nil {
		go p.feed(s)
		defer s.In.Abort(conn.ErrGone)
	}
	s.WhenGone(func() { p.log.leave(r) })
	s.Reply(&wire.Started{Ref: p.ref, PID: uint64(p.pid)})
	p.follow(s, r, m.Flags)
}
