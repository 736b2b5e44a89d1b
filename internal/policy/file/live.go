package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Live is a file that is read again when it changes. All methods are safe for concurrent use.
type Live struct {
	name string
	set  atomic.Pointer[Set]

	mu   sync.Mutex
	seen mark  // of the file as it was last looked at; guarded by mu
	err  error // why that is not in force; guarded by mu
}

// mark tells whether a file has changed.
type mark struct {
	there bool
	size  int64
	time  time.Time
	file  os.FileInfo
}

func markOf(info os.FileInfo) mark {
	if info == nil {
		return mark{}
	}
	return mark{true, info.Size(), info.ModTime(), info}
}

func (m mark) same(o mark) bool {
	return m.there == o.there && (!m.there || m.size == o.size && m.time.Equal(o.time) && os.SameFile(m.file, o.file))
}

// Open reads a policy file. A file that was not asked for need not exist: until it does,
// the built-in policies apply. Errors are those of Read.
func Open(name string, asked bool) (*Live, error) {
	l := &Live{name: name}
	l.set.Store(BuiltIn())
	if name == "" {
		return l, nil
	}
	set, info, err := read(name)
	switch {
	case err == nil:
		l.set.Store(set)
	case asked || !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	l.seen = markOf(info)
	return l, nil
}

// Set returns the policies in force.
func (l *Live) Set() *Set { return l.set.Load() }

// Policy returns a policy that is in force. See Set.Policy.
func (l *Live) Policy(name string) (policy.Policy, error) { return l.Set().Policy(name) }

// Reload reads the file now. If that fails, the previous policies stay in force, and the
// error says what is wrong.
func (l *Live) Reload() error {
	_, err := l.reload(true)
	return err
}

// Err returns why the present file is not in force, or nil.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Live) reload(always bool) (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == "" {
		return false, nil
	}
	now, _ := os.Stat(l.name)
	if !always && markOf(now).same(l.seen) {
		return false, l.err
	}
	if now == nil && !l.seen.there && l.err == nil {
		return false, nil // it was not asked for, and is not there
	}
	set, info, err := read(l.name)
	if l.err = err; err == nil {
		l.set.Store(set)
	}
	l.seen = markOf(info)
	if info == nil {
		l.seen = markOf(now)
	}
	return true, err
}

// Watch checks the file periodically until ctx ends, and calls changed when it was read
// again, with the error if it is invalid.
func (l *Live) Watch(ctx context.Context, every time.Duration, changed func(error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if again, err := l.reload(false); again {
				changed(err)
			}
		}
	}
}
