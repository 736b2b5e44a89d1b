package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
)

// Options configure an audit. The zero Options are usable.
type Options struct {
	// MaxSize is the size in bytes at which a new file is started. Default 64 MiB.
	MaxSize int64

	// MaxFiles is the number of files that are kept; beyond it the oldest is dropped, and
	// that is recorded. Default Files, which with MaxSize is DefaultSize.
	MaxFiles int

	// Relaxed makes Append return when a record is in the file and not yet on the disk. It
	// survives the death of the server; a power cut may lose the latest second.
	Relaxed bool
}

// An audit has Files files, so that it keeps all but 1/Files of its size when it
// drops the oldest of them.
const (
	Files       = 64
	DefaultSize = 4 << 30 // bytes of all files
)

// Sized returns Options for an audit of about the given number of bytes.
func Sized(size int64) Options { return Options{MaxSize: size / Files, MaxFiles: Files} }

// Kept returns the least number of bytes of records that an audit of a given size keeps
// once it has dropped its oldest file.
func Kept(size int64) int64 { return size - size/Files }

const (
	maxTogether = 512         // records of one write
	syncDelay   = time.Second // the most that a record waits to be on the disk
)

// Log is an open audit. All methods are safe for concurrent use.
//
// An intent and a refusal are on the disk (fdatasync) when Append returns, so that nothing
// takes effect without a trace. The end of an allowed call is in the file when Append
// returns and on the disk within a second: if the machine dies in between, the intent is
// there. Concurrent callers share the write and the fdatasync.
type Log struct {
	dir   string
	opt   Options
	queue *groupcommit.Queue[entry]

	mu     sync.Mutex
	file   *os.File    // guarded by mu, as all below
	number uint64      // of the file
	size   int64       // of its whole records
	broken bool        // there may be more in the file than size
	last   link        // the last record written
	synced bool        // last is on the disk
	head   *os.File    // the head file; holds the lock
	kept   []tail      // the files before this one that are kept, oldest first
	timer  *time.Timer // for what is not synced
	closed bool

	reserve *diskfull.Reserve // room for vital records
}

// entry is a record on its way.
type entry struct {
	body    []byte
	durable bool
	vital   bool
}

// tail is the end of a file.
type tail struct {
	number uint64
	hash   string
}

// Open opens the audit in a directory, and continues it. It makes a missing directory with
// mode 0700. The first record of a new file closes what a crash has left at the end.
//
// It returns sandpit.ErrState if another server keeps the audit there, and
// sandpit.ErrDiskFull if the disk is full.
func Open(dir string, opt Options) (_ *Log, err error) {
	if opt.MaxSize <= 0 {
		opt.MaxSize = DefaultSize / Files
	}
	if opt.MaxFiles <= 0 {
		opt.MaxFiles = Files
	}
	l := &Log{dir: dir, opt: opt}
	defer func() {
		if err != nil {
			l.release()
			err = l.explain("opening the audit log", err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	if l.head, err = os.OpenFile(filepath.Join(dir, fileHead), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err := lock(l.head); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrState, "another server uses the audit log in %s", dir), "stop that server first, or choose another directory")
	} else if err != nil {
		return nil, err
	}
	if err := l.resume(); err != nil {
		return nil, err
	}
	l.reserve = diskfull.OpenReserve(filepath.Join(dir, fileReserve))
	l.queue = groupcommit.New(maxTogether, l.write)
	return l, nil
}

// Append adds a record, and returns its size in the audit. It sets Seq, and Time if that is
// zero: a record that could not be written when it happened may be added later with its own
// time. If Append fails, the caller must not carry the request out. The error matches
// sandpit.ErrDiskFull if the disk is full, and sandpit.ErrUnavailable if it can't be
// written; the Log recovers with the disk. Vital records have a reserve on a full disk.
//
// On a disk that hangs Append returns sandpit.ErrUnavailable after 10 s
// (groupcommit.Patience), and at once until the disk answers. Only the records that were
// being written when it began to hang may be written later: their errors have the method
// Wait of groupcommit.ErrHangs.
func (l *Log) Append(_ context.Context, r Record) (size int, err error) {
	at := r.Time
	if at.IsZero() {
		at = time.Now()
	}
	body, err := r.body(at, nil)
	if err != nil {
		return 0, err
	}
	// Not with the context of Append: a client that leaves is not a failure of the audit.
	err = l.queue.Do(context.Background(), entry{body, !l.opt.Relaxed && (r.Phase != PhaseEnd || !r.Allowed), r.Vital})
	if errors.Is(err, groupcommit.ErrHangs) {
		err = l.explain("writing the audit log", err)
	}
	if err != nil {
		return 0, err
	}
	return len(body) + lineFrame, nil
}

// Hangs reports whether a write hangs that Append has given up.
func (l *Log) Hangs() bool { return l.queue.Hangs() }

// write is the writer of the queue.
func (l *Log) write(items []*groupcommit.Item[entry]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.writeAll(items)
	if diskfull.Is(err) {
		l.fail(items, err)
		if items = slices.DeleteFunc(slices.Clone(items), func(it *groupcommit.Item[entry]) bool { return !it.Value.vital }); len(items) > 0 {
			l.reserve.Release()
			err = l.writeAll(items)
		}
	}
	l.fail(items, err)
	if err == nil {
		l.reserve.Restore()
	}
}

// fail sets the error of items, or none.
func (l *Log) fail(items []*groupcommit.Item[entry], err error) {
	if err != nil {
		err = l.explain("writing the audit log", err)
	}
	for _, it := range items {
		it.Err = err
	}
}

func (l *Log) writeAll(items []*groupcommit.Item[entry]) error {
	if l.closed {
		return fault.Errorf(sandpit.ErrState, "the audit log is closed")
	}
	if err := l.mend(); err != nil {
		return err
	}
	if l.size >= l.opt.MaxSize {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	var buf []byte
	last, durable := l.last, false
	for _, it := range items {
		buf, last = appendLine(buf, last, it.Value.body)
		durable = durable || it.Value.durable
	}
	// Until all is written, the file may hold more than its records.
	l.broken = true
	if _, err := l.file.WriteAt(buf, l.size); err != nil {
		return errors.Join(err, l.mend())
	}
	if durable {
		if err := datasync(l.file); err != nil {
			return errors.Join(err, l.mend())
		}
	}
	l.broken = false
	l.size += int64(len(buf))
	l.last, l.synced = last, durable
	if durable {
		l.noteHead()
	} else if l.timer == nil {
		l.timer = time.AfterFunc(syncDelay, l.syncLater)
	}
	return nil
}

// mend cuts off what a failed write has left after the whole records: nobody
// was told that it is there.
func (l *Log) mend() error {
	if !l.broken {
		return nil
	}
	if err := l.file.Truncate(l.size); err != nil {
		return fmt.Errorf("truncating an incomplete record: %w", err)
	}
	l.broken = false
	return nil
}

// noteHead notes the last record, which is on the disk. It does no harm if this
// is not: then Verify has an older one to compare with.
func (l *Log) noteHead() { _, _ = l.head.WriteAt(encodeHead(l.last), 0) }

// syncLater brings what was only written to the disk.
func (l *Log) syncLater() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	if !l.closed {
		_ = l.sync() // the next durable record tells of a disk that fails
	}
}

func (l *Log) sync() error {
	if l.synced {
		return nil
	}
	if err := datasync(l.file); err != nil {
		return err
	}
	l.synced = true
	l.noteHead()
	return nil
}

// Close syncs everything to the disk and closes the audit. It is idempotent; afterwards
// Append returns an error.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	err := errors.Join(l.mend(), l.sync())
	l.release()
	if err != nil {
		return l.explain("closing the audit log", err)
	}
	return nil
}

// dying is how long a lock is waited for. What a dead server was starting has its
// descriptors, and so the lock, for a moment longer: of a server that lives, the
// state is locked for as long, before.
const dying = time.Second

func lock(f *os.File) error {
	for end := time.Now().Add(dying); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// release gives the lock back, and closes the files. Closing alone would not do:
// what this process is just starting may have the descriptor, too, until it
// executes something else.
func (l *Log) release() {
	if l.head != nil {
		_ = syscall.Flock(int(l.head.Fd()), syscall.LOCK_UN)
	}
	for _, f := range []*os.File{l.file, l.head} {
		if f != nil {
			f.Close()
		}
	}
}

// explain gives an error its kind, and a way out.
func (l *Log) explain(doing string, err error) error {
	var hinted *sandpit.HintError
	switch {
	case errors.As(err, &hinted), errors.Is(err, sandpit.ErrState):
		return fmt.Errorf("%s: %w", doing, err)
	case diskfull.Is(err):
		return sandpit.WithHint(diskfull.Mark(fmt.Errorf("%s in %s: %w", doing, l.dir, err)),
			"free some space on its disk; requests that must be recorded are refused until then; no restart is needed")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return sandpit.WithHint(fmt.Errorf("%s in %s: %w: %w", doing, l.dir, sandpit.ErrExhausted, err), "raise the limit on open files")
	}
	return sandpit.WithHint(fmt.Errorf("%s in %s: %w: %w", doing, l.dir, sandpit.ErrUnavailable, err),
		"check its disk and that this user can write there; requests that must be recorded are refused until then")
}
