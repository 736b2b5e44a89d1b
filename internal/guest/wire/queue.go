package wire

import (
	"io"
	"slices"
	"sync"
)

// A Queue holds the received, unconsumed content of a stream: at most its window. One
// goroutine, the connection's reader, adds content with Space and Commit; one takes it with
// Next and Done.
//
// Frames are stored one after the other in chunks, so that a thousand frames of one byte
// take about as much as one frame of a thousand bytes.
type Queue struct {
	mu     sync.Mutex
	more   sync.Cond
	chunks []*chunk
	window int  // the highest cost that may be unconsumed
	queued int  // cost of what is unconsumed, or consumed and not credited
	owed   int  // cost of what is consumed and not credited
	lent   Lent // what Next has returned last
	eof    bool
	err    error
	closed bool // content is dropped
	woken  bool
}

// A chunk is a piece of memory with frames in it.
type chunk struct {
	buf     []byte
	used    int
	recs    []record
	filling bool // Space has given room out
	lent    int  // how often Next has given content out
}

// Lent is content that Next has returned.
type Lent struct {
	chunk *chunk
	cost  int
}

// A record is content of one channel, of one frame or of several in a row.
type record struct {
	channel  Type
	off, end int32
	cost     int32
}

// Chunks come in two sizes. Large ones have room for the header that follows
// a full frame (see Reader.Into), and are used again.
const (
	smallChunk = 4 << 10
	largeChunk = MaxData + HeaderSize
)

var largeChunks = sync.Pool{New: func() any { return &chunk{buf: make([]byte, largeChunk)} }}

// NewQueue returns a queue of the given window.
func NewQueue(window int) *Queue {
	q := &Queue{window: window}
	q.more.L = &q.mu
	return q
}

// Space returns room for n bytes, or false if the sender had no credit for them or has
// ended its direction. Fill it, then call Commit.
func (q *Queue) Space(n int) ([]byte, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.eof || q.queued+Cost(n) > q.window {
		return nil, false
	}
	var c *chunk
	if len(q.chunks) > 0 {
		c = q.chunks[len(q.chunks)-1]
		if len(c.recs) == 0 && c.lent == 0 {
			c.used = 0
		}
	}
	if c == nil || len(c.buf)-c.used < n {
		// The first small frames of a stream are often its only ones.
		if n <= smallChunk/2 && (c == nil || len(c.buf) == largeChunk) {
			c = &chunk{buf: make([]byte, smallChunk)}
		} else {
			c = largeChunks.Get().(*chunk)
		}
		q.chunks = append(q.chunks, c)
	}
	c.filling = true
	return c.buf[c.used : c.used+n], true
}

// Commit adds the room that Space has returned to a channel, Data or Data2.
func (q *Queue) Commit(channel Type, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.chunks[len(q.chunks)-1]
	c.filling = false
	if q.closed {
		q.chunks = nil
		return
	}
	q.queued += Cost(n)
	if k := len(c.recs) - 1; k >= 0 && c.recs[k].channel == channel && int(c.recs[k].end) == c.used {
		c.recs[k].end += int32(n)
		c.recs[k].cost += int32(Cost(n))
	} else {
		c.recs = append(c.recs, record{channel, int32(c.used), int32(c.used + n), int32(Cost(n))})
	}
	c.used += n
	q.more.Signal()
}

// Next waits for content and returns the available content of one channel, in order of
// arrival. It is valid until Done. After the last content the error is io.EOF, or that of
// Fail.
func (q *Queue) Next() (channel Type, content []byte, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if i := slices.IndexFunc(q.chunks, func(c *chunk) bool { return len(c.recs) > 0 }); i >= 0 {
			c := q.chunks[i]
			r := c.recs[0]
			c.recs = c.recs[1:]
			c.lent++
			q.lent = Lent{c, int(r.cost)}
			return r.channel, c.buf[r.off:r.end], nil
		}
		if q.err != nil {
			return 0, nil, q.err
		}
		if q.closed {
			return 0, nil, io.ErrClosedPipe
		}
		if q.eof {
			return 0, nil, io.EOF
		}
		if q.woken {
			return 0, nil, ErrWoken
		}
		q.more.Wait()
	}
}

// Wake makes Next return ErrWoken instead of waiting, until it is called with false.
func (q *Queue) Wake(on bool) {
	q.mu.Lock()
	q.woken = on
	q.mu.Unlock()
	q.more.Broadcast()
}

// Done reports that the content of Next was consumed, and returns the credit to give to the
// sender now: usually 0, because it is given in larger pieces.
func (q *Queue) Done() (credit int) {
	lent := q.Lend()
	defer q.Return(lent)
	return q.Credit(lent)
}

// Lend keeps what Next has returned valid until Return, while Next may be called again. Done
// is then not called for it.
func (q *Queue) Lend() Lent {
	q.mu.Lock()
	defer q.mu.Unlock()
	lent := q.lent
	q.lent = Lent{}
	return lent
}

// Credit reports that lent content counts as consumed, once, and returns the credit to give
// to the sender now, as Done does.
func (q *Queue) Credit(lent Lent) (credit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.owed += lent.cost
	return q.credit()
}

// Return ends what Lend began.
func (q *Queue) Return(lent Lent) {
	c := lent.chunk
	if c == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.lent--; c.lent > 0 || len(c.recs) > 0 || c.filling {
		return
	}
	i := slices.Index(q.chunks, c)
	if i < 0 {
		return // the queue was closed
	}
	q.chunks = slices.Delete(q.chunks, i, i+1)
	if len(q.chunks) == 0 {
		q.chunks = nil
	}
	if len(c.buf) == largeChunk {
		c.used, c.recs = 0, c.recs[:0:0]
		largeChunks.Put(c)
	}
}

// credit returns what is owed, once it is worth a frame and anything more can come.
func (q *Queue) credit() int {
	if q.eof || q.owed < q.window/4 {
		return 0
	}
	n := q.owed
	q.owed = 0
	q.queued -= n
	return n
}

// Widen enlarges the window, and returns the credit to give to the sender for it.
func (q *Queue) Widen(window int) (credit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	credit = max(0, window-q.window)
	q.window += credit
	if q.eof || q.closed {
		return 0
	}
	return credit
}

// Finish reports that no more content will arrive, and returns whether this is the first
// call.
func (q *Queue) Finish() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := !q.eof
	q.eof = true
	q.more.Broadcast()
	return first
}

// Fail makes Next return err once the received content is consumed.
func (q *Queue) Fail(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	q.more.Broadcast()
}

// Abort makes Next return err at once, and drops received and later content.
func (q *Queue) Abort(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	q.Close()
}

// Close drops received and later content, and gives no more credit. Next then fails.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	var keep []*chunk
	for i, c := range q.chunks {
		c.recs = nil
		if c.filling && i == len(q.chunks)-1 {
			keep = append(keep, c) // Commit wants it
		}
	}
	q.chunks = keep
	q.more.Broadcast()
}
