package logstore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/ledger"
)

const (
	// maxPending bounds what waits for the disk.
	maxPending = 4 << 20

	// blockSize is how much is written at once: two of the longest records.
	blockSize = 128 << 10

	// smallBlock is enough for what a short program says.
	smallBlock = 4 << 10

	// linger is how long the file of a log stays open when nothing is to be
	// written: a program that goes on writing does not open it each time.
	linger = 100 * time.Millisecond
)

// pending are records that wait for the disk. All of it is guarded by Log.mu.
type pending struct {
	blocks   []*block // oldest first; records are appended to the last
	size     int      // bytes in them
	spare    *block   // a small one
	memory   *ledger.Account
	flushing bool // there is a goroutine that writes
	idle     bool // it waits for wake
	wake     chan struct{}
	done     uint64 // Seq up to which everything is written or lost
}

// block is records that are written at once.
type block struct {
	buf     []byte
	first   uint64 // Seq of the first entry
	last    uint64 // Seq of the last one
	entries uint64
}

// blocks are for reuse: a program that writes much would have each allocated.
var blocks = sync.Pool{New: func() any { return &block{buf: make([]byte, 0, blockSize)} }}

// add appends a record, and reports false when too much waits already.
func (p *pending) add(r *record) bool {
	need := prefixSize + outputSize + len(r.id) + len(r.data)
	if p.size+need > maxPending {
		return false
	}
	k := len(p.blocks)
	if k == 0 || cap(p.blocks[k-1].buf)-len(p.blocks[k-1].buf) < need {
		b := p.block(need)
		if k == 0 {
			p.memory.Add(int64(cap(b.buf)))
		} else if p.memory.Charge(int64(cap(b.buf))) != nil {
			blocks.Put(b) // a large one, as all but the first
			return false
		}
		p.blocks = append(p.blocks, b)
		b.first = r.seq
		k++
	}
	b := p.blocks[k-1]
	b.buf = r.append(b.buf)
	b.last = r.seq + uint64(r.entries) - 1
	b.entries += uint64(r.entries)
	p.size += need
	return true
}

// block returns an empty one that has room for n bytes.
func (p *pending) block(n int) *block {
	if n > smallBlock || len(p.blocks) > 0 {
		return blocks.Get().(*block)
	}
	b := p.spare
	if p.spare = nil; b == nil {
		b = &block{buf: make([]byte, 0, smallBlock)}
	}
	return b
}

// take removes the oldest block.
func (p *pending) take() *block {
	b := p.blocks[0]
	p.blocks[0] = nil
	if p.blocks = p.blocks[1:]; len(p.blocks) == 0 {
		p.blocks = nil
	}
	p.size -= len(b.buf)
	return b
}

// giveBack takes back a block that is written.
func (p *pending) giveBack(b *block) {
	*b = block{buf: b.buf[:0]}
	p.memory.Return(int64(cap(b.buf)))
	if cap(b.buf) == blockSize {
		blocks.Put(b)
	} else {
		p.spare = b
	}
}

// poke wakes the goroutine that writes, if it waits.
func (p *pending) poke() {
	if p.idle {
		p.idle = false
		p.wake <- struct{}{}
	}
}

// begin has what is pending written.
func (l *Log) begin() {
	if l.pending.flushing {
		l.pending.poke()
		return
	}
	l.pending.flushing = true
	go l.flush()
}

// flush writes what waits, until nothing has for a while.
func (l *Log) flush() {
	var out output
	p := &l.pending
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if len(p.blocks) == 0 {
			p.done = l.seq // what was lost meanwhile included
			l.notify()
			if l.closed || !l.linger() {
				break
			}
			continue
		}
		b := p.take()
		if s, head := l.fit(int64(len(b.buf)), b.first); s == nil {
			l.lost += b.entries
		} else {
			l.mu.Unlock()
			err := out.write(l.path(s.number), s, head, b.buf)
			l.mu.Lock()
			switch {
			case err == nil:
				s.size += int64(len(head) + len(b.buf))
			case s.broken:
				l.lost += b.entries
			default: // it was cut off
				l.lost += b.entries
				l.share.charge(s.size - s.disk)
				s.disk = s.size
			}
		}
		p.done = b.last
		p.giveBack(b)
		l.notify()
	}
	out.close()
	p.flushing = false
	l.notify()
}

// linger gives up the lock until something is to be written, and reports false
// when that was not so for a while.
func (l *Log) linger() bool {
	p := &l.pending
	p.idle = true
	l.mu.Unlock()
	timer := time.NewTimer(linger)
	select {
	case <-p.wake:
		timer.Stop()
		l.mu.Lock()
		return true
	case <-timer.C:
	}
	l.mu.Lock()
	if !p.idle { // just now
		<-p.wake
		return true
	}
	p.idle = false
	return false
}

// head is what a new segment begins with.
func (l *Log) head(first uint64) []byte {
	b := appendHeader(nil, first)
	for id, m := range l.marks {
		r := record{kind: markKind, id: id, marks: m.at}
		b = r.append(b)
	}
	return b
}

// output is the file of the segment that is written to. It is open only while
// something is: a sandbox that is silent holds none.
type output struct {
	file    *os.File // nil: none
	segment *segment
}

// write appends to the file of a segment, whole or not at all.
func (o *output) write(path string, s *segment, head, batch []byte) error {
	if o.segment != s || o.file == nil {
		o.close()
		f, err := create(path)
		if err != nil {
			return err
		}
		o.file, o.segment = f, s
	}
	if len(head) > 0 {
		batch = bytes.Join([][]byte{head, batch}, nil)
	}
	_, err := o.file.WriteAt(batch, s.size)
	if err != nil {
		if o.file.Truncate(s.size) != nil {
			s.broken = true
		}
		o.close() // it may be another disk's the next time
	}
	return err
}

func (o *output) close() {
	if o.file != nil {
		_ = o.file.Close() // what is written is with the kernel
		o.file = nil
	}
}

func create(path string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, flags, 0o600)
		}
	}
	return f, err
}
