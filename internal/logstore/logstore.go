// Package logstore keeps the latest output of the processes of a sandbox, in order, with the time,
// the process and the stream.
//
// A log is a few files to which records are appended. It is bounded: when a file is full, the
// oldest is removed. Logs also share bounds (Room): a log that may not grow goes on in the room
// that it has. It never blocks a process: output that can't be written, because the disk is full or
// too slow, is counted as lost. After a program was killed, the next one continues its log, without
// the record that was being written.
package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// Options bound a log.
type Options struct {
	MaxBytes int64 // of all files; default 16 MiB, and 256 KiB of a log in memory
	Segments int   // files; default 4, at least 2

	// Memory is charged for records that wait for the disk. If it has no room, they are
	// lost, except for one block.
	Memory *ledger.Account

	// Share is a share of the room on the disk. If it is nil, only MaxBytes bounds the
	// log.
	Share *Share
}

const (
	defaultDisk     = 16 << 20
	defaultMemory   = 256 << 10
	defaultSegments = 4
	minSegment      = 4 << 10

	// maxMarks bounds for how many processes it is known up to where they
	// have been logged.
	maxMarks = 1024

	// memoryStep is how a segment in memory begins.
	memoryStep = 4 << 10

	suffix = ".log"
)

// Log holds the output of the processes of one sandbox. Its methods are safe for concurrent use.
type Log struct {
	dir        string // empty: in memory
	segmentMax int64
	segments   int
	share      *Share

	mu      sync.Mutex
	segs    []*segment // oldest first; records go to the last
	seq     uint64     // of the latest entry
	lost    uint64
	marks   map[string]*mark
	writers map[*Writer]struct{}
	timer   *time.Timer // flushes lines that are not ended; nil: none waits
	closed  bool
	pending pending
	reading int           // how many read segments in memory
	changed chan struct{} // closed when anything above has changed; nil: nobody waits
}

// segment is a part of a log.
type segment struct {
	number uint64
	first  uint64 // Seq of its first entry
	size   int64  // of its complete records, with its header
	disk   int64  // of its file, which the share is charged for
	mem    []byte // of a log in memory
	broken bool   // its end could not be cut off: nothing is appended
}

// mark is up to where a process has been logged, per stream.
type mark struct {
	at   [2]int64
	used uint64 // Seq when it was changed last
}

// Open opens the log in a directory, which is made when something is written. If dir is
// empty, the log is in memory.
func Open(dir string, opt Options) (*Log, error) {
	l := &Log{dir: dir, share: opt.Share, pending: pending{wake: make(chan struct{}, 1), memory: opt.Memory}, segments: max(cmp.Or(opt.Segments, defaultSegments), 2), marks: map[string]*mark{}, writers: map[*Writer]struct{}{}}
	limit := opt.MaxBytes
	if limit <= 0 {
		limit = defaultMemory
		if dir != "" {
			limit = defaultDisk
		}
	}
	l.segmentMax = max(limit/int64(l.segments), minSegment)
	if dir == "" {
		return l, nil
	}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("opening the log %s: %w", dir, err)
	}
	return l, nil
}

func (l *Log) path(number uint64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%016x%s", number, suffix))
}

// load finds the segments, and in the last of them where to go on.
func (l *Log) load() error {
	names, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range names {
		hex, ok := strings.CutSuffix(e.Name(), suffix)
		n, err := strconv.ParseUint(hex, 16, 63)
		if !ok || err != nil || !e.Type().IsRegular() || e.Name() != filepath.Base(l.path(n)) {
			continue
		}
		l.segs = append(l.segs, &segment{number: n})
	}
	slices.SortFunc(l.segs, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	latest := uint64(0)
	l.segs = slices.DeleteFunc(l.segs, func(s *segment) bool {
		if err := s.open(l.path(s.number)); err != nil || s.first < latest {
			// It was made and never written to, taken over and not written to, or
			// is no log.
			_ = os.Remove(l.path(s.number))
			return true
		}
		latest = s.first
		return false
	})
	if len(l.segs) == 0 {
		return nil
	}
	if err := l.resume(l.segs[len(l.segs)-1]); err != nil {
		return err
	}
	for _, s := range l.segs {
		s.disk = s.size
		l.share.charge(s.disk)
	}
	return nil
}

// open reads the header of a segment.
func (s *segment) open(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(f, head); err != nil {
		return err
	}
	first, ok := parseHeader(head)
	if !ok {
		return errTorn
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	s.first, s.size = first, st.Size()
	return nil
}

// resume reads the last segment, and cuts off what is torn at its end.
func (l *Log) resume(s *segment) error {
	l.seq = s.first - 1
	f, err := os.OpenFile(l.path(s.number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	good := int64(headerSize)
	err = scan(io.NewSectionReader(f, good, s.size-good), s.first, func(r *record, size int) bool {
		good += int64(size)
		l.learn(r)
		return true
	})
	if err != nil && !errors.Is(err, errTorn) {
		return err
	}
	if good < s.size {
		if err := f.Truncate(good); err != nil {
			return err
		}
		s.size = good
	}
	return nil
}

// learn takes what a record says about where the log is.
func (l *Log) learn(r *record) {
	m := l.mark(r.id)
	switch r.kind {
	case outputKind:
		l.seq = max(l.seq, r.seq+uint64(r.entries)-1)
		m.at[r.stream-Stdout] = max(m.at[r.stream-Stdout], r.position)
	case markKind:
		m.at = [2]int64{max(m.at[0], r.marks[0]), max(m.at[1], r.marks[1])}
	}
	m.used = l.seq
}

// mark returns where a process is. Of too many, the one that has been silent
// for longest is forgotten.
func (l *Log) mark(id string) *mark {
	m := l.marks[id]
	if m == nil {
		if len(l.marks) >= maxMarks {
			var oldest string
			for id, m := range l.marks {
				if o := l.marks[oldest]; o == nil || m.used < o.used {
					oldest = id
				}
			}
			delete(l.marks, oldest)
		}
		m = &mark{used: l.seq}
		l.marks[id] = m
	}
	return m
}

// scan calls f with the records of a segment until it returns false or they
// end: where the file does, or what it held before as another segment begins.
// Its first entry is no older than first.
func scan(r io.Reader, first uint64, f func(r *record, size int) bool) error {
	for {
		rec, size, err := readRecord(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if rec.kind == outputKind {
			if rec.seq < first {
				return errTorn
			}
			first = rec.seq + uint64(rec.entries)
		}
		if !f(&rec, size) {
			return nil
		}
	}
}

// Lost returns how many entries could not be kept.
func (l *Log) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Close writes what waits, and ends queries that follow the log. Afterwards nothing can be
// written.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	for w := range l.writers {
		w.flush(time.Now())
	}
	l.closed = true
	l.notify()
	l.pending.poke()
	for l.pending.flushing {
		l.wait()
	}
}

// Remove closes the log and removes it.
func (l *Log) Remove() error {
	l.Close()
	if l.dir == "" {
		return nil
	}
	err := os.RemoveAll(l.dir)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segs {
		l.share.charge(-s.disk)
		s.disk = 0
	}
	return err
}

// notify wakes those who wait.
func (l *Log) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// change returns a channel that is closed at the next change.
func (l *Log) change() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// wait waits for a change. It gives up the lock meanwhile.
func (l *Log) wait() {
	ch := l.change()
	l.mu.Unlock()
	<-ch
	l.mu.Lock()
}

// put enters output: lines, or a part of one. data is copied.
func (l *Log) put(w *Writer, stream byte, position int64, data []byte, now time.Time) {
	m := l.mark(w.id)
	m.at[stream-Stdout] = position
	r := record{
		kind: outputKind, seq: l.seq + 1, entries: countEntries(data), time: now.UnixNano(),
		position: position, pid: uint32(w.pid), stream: stream, id: w.id, data: data,
	}
	l.seq += uint64(r.entries)
	m.used = l.seq
	if l.dir == "" {
		s := l.room(int64(prefixSize+outputSize+len(r.id)+len(data)), r.seq)
		s.mem = r.append(s.mem)
		s.size = int64(len(s.mem))
		l.notify()
		return
	}
	if !l.pending.add(&r) {
		l.lost += uint64(r.entries)
		return
	}
	l.begin()
}

// room returns the segment to which n bytes are appended, which is a new one
// when the last is full.
func (l *Log) room(n int64, seq uint64) *segment {
	if k := len(l.segs); k > 0 {
		if s := l.segs[k-1]; !s.broken && (s.size+n <= l.segmentMax || s.size <= int64(headerSize)) {
			return s
		}
	}
	return l.turn(seq, l.segments)
}

// turn begins a new segment, and removes the oldest ones so that there are at most
// so many.
func (l *Log) turn(seq uint64, limit int) *segment {
	s := &segment{first: seq}
	if k := len(l.segs); k > 0 {
		s.number = l.segs[k-1].number + 1
	}
	if l.dir == "" {
		mem := make([]byte, 0, min(l.segmentMax, memoryStep))
		if len(l.segs) == l.segments && l.reading == 0 {
			mem = l.segs[0].mem[:0]
		}
		s.mem = appendHeader(mem, seq)
		s.size = int64(len(s.mem))
	}
	l.segs = append(l.segs, s)
	for len(l.segs) > limit {
		if l.dir != "" {
			l.replace(l.segs[0], s)
		}
		l.segs[0] = nil
		l.segs = l.segs[1:]
	}
	return s
}

// fit returns the segment on the disk to which n bytes are appended, and what it
// begins with if it is new. When the log may not grow, older entries make room;
// nil when that is not enough.
func (l *Log) fit(n int64, seq uint64) (*segment, []byte) {
	s := l.room(n, seq)
	for {
		var head []byte
		if s.size == 0 {
			head = l.head(s.first)
		}
		grow := s.size + int64(len(head)) + n - s.disk
		switch {
		case grow <= 0:
			return s, head
		case l.share.take(grow):
			s.disk += grow
			return s, head
		case s.size > 0 && l.onDisk() >= int64(len(l.head(seq)))+n: // go on in the file of the oldest
			s = l.turn(seq, len(l.segs))
		case s.size == 0 && len(l.segs) > 1:
			l.replace(l.segs[0], nil)
			l.segs = l.segs[1:]
		default:
			return nil, nil
		}
	}
}

// onDisk is what the log takes.
func (l *Log) onDisk() (n int64) {
	for _, s := range l.segs {
		n += s.disk
	}
	return n
}

// replace removes the file of the oldest segment. A new one takes it over and
// is written over what is in it, as long as nobody is reading that: new files
// would have the file system find room for each page of a log that is only
// passing through.
func (l *Log) replace(oldest, s *segment) {
	path := l.path(oldest.number)
	if s != nil && s.disk == 0 && l.reading == 0 && !oldest.broken && os.Rename(path, l.path(s.number)) == nil {
		s.disk = oldest.disk
		return
	}
	if os.Remove(path) == nil {
		l.share.charge(-oldest.disk)
	}
}
