// Package state stores what a server must not lose: records of sandboxes, keys, answers to requests
// that may be repeated, webhooks, previews, and secrets.
//
// It is one SQLite database in its own directory, which one server at a time may use.
//
// # Durability
//
// Data that a call has written survives the death of the server and, once the call returns, a power
// cut. The database is in WAL mode, where a transaction is one append to the log, with
// synchronous=FULL, which adds an fdatasync to it; with NORMAL a power cut could lose the latest
// transactions, and with them a key's revocation, or the record of a sandbox that a caller was told
// of. Concurrent callers share a transaction and its fdatasync.
//
// NORMAL is enough for data that nobody was told of and that does not matter after a power cut,
// which ends all sandboxes: the record of one that is being made, and requests that may be
// repeated. The next fdatasync covers these, too.
//
// The one connection holds the database in exclusive mode, so there is no shared-memory file that
// would be mapped on a full disk, and no other program can write between two statements.
package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
)

// Files of a state directory.
const (
	fileDatabase = "state.db"
	fileLock     = "lock"
	fileSeal     = "state.key"
	fileReserve  = "reserve"
)

// busyTimeout is the time that a statement waits for another program that reads the
// database, in milliseconds.
const busyTimeout = "5000"

// maxTogether bounds the writes of one transaction.
const maxTogether = 256

// Store is an open state directory. All methods are safe for concurrent use. Their errors
// match sandpit.ErrExhausted if the disk is full, and sandpit.ErrUnavailable if it can't be
// read or written. Neither leaves anything half written, and the Store recovers with the
// disk. On a disk that hangs they return sandpit.ErrUnavailable after 10 s
// (groupcommit.Patience), and at once until it answers. Only the writes that were in
// progress when it began to hang may complete later.
type Store struct {
	dir   string
	lock  *os.File
	db    *sql.DB
	seal  *sealer
	now   func() time.Time
	queue *groupcommit.Queue[write]

	mu     sync.Mutex // one user of tx at a time, for a whole transaction
	tx     *tx        // guarded by mu
	lazy   bool       // synchronous is NORMAL; guarded by mu
	closed bool       // guarded by mu

	reserve *diskfull.Reserve // room for vital writes; guarded by mu

	repeat repeats
}

// Open opens the state in a directory, and migrates it to the newest schema. It makes a
// missing directory with mode 0700.
//
// It returns sandpit.ErrState if another server uses the directory or a newer version wrote
// the state, and sandpit.ErrIntegrity if the database is damaged.
func Open(ctx context.Context, dir string) (*Store, error) {
	return open(ctx, dir, migrations(), false)
}

// OpenWithKeyring is Open with the key of sealed values in the keyring of this user. Both move the key
// to where it is wanted, so that a state can be opened either way. They return ErrUnavailable if the keyring
// does not answer, or has not the key that it should have.
func OpenWithKeyring(ctx context.Context, dir string) (*Store, error) {
	return open(ctx, dir, migrations(), true)
}

func open(ctx context.Context, dir string, migrations []string, keyring bool) (_ *Store, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("opening the state: %w", err)
	}
	s := &Store{dir: dir, now: time.Now}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if s.seal, err = openSealer(filepath.Join(dir, fileSeal), keyring); err != nil {
		return nil, s.explain(err)
	}

	// locking_mode must be set before anything touches the database. The driver
	// sorts what is in _pragma, where journal_mode would come before it, and applies
	// _journal_mode after these.
	name := &url.URL{Scheme: "file", Path: filepath.Join(dir, fileDatabase), RawQuery: url.Values{"_pragma": {
		"busy_timeout(" + busyTimeout + ")", "locking_mode(EXCLUSIVE)", "synchronous(FULL)", "temp_store(MEMORY)", "trusted_schema(OFF)", "secure_delete(ON)",
	}, "_journal_mode": {"WAL"}}.Encode()}
	if s.db, err = sql.Open("sqlite", name.String()); err != nil {
		return nil, s.explain(err)
	}
	s.db.SetMaxOpenConns(1)
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, s.explain(err)
	}
	s.tx = &tx{conn: conn, stmts: map[string]*sql.Stmt{}}
	if err := migrate(ctx, conn, filepath.Join(dir, fileDatabase), migrations); err != nil {
		return nil, s.explain(err)
	}
	s.reserve = diskfull.OpenReserve(filepath.Join(dir, fileReserve))
	s.queue = groupcommit.New(maxTogether, s.commit)
	return s, nil
}

// prepare makes the directory and the empty database with the right modes, and
// takes the lock.
func (s *Store) prepare(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return s.explain(err)
	}
	info, err := os.Stat(s.dir)
	if err != nil {
		return s.explain(err)
	}
	if err := datadir.CheckOwner(s.dir); err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(s.dir, 0o700); err != nil {
			return s.explain(fmt.Errorf("restricting access to it: %w", err))
		}
	}
	if s.lock, err = takeLock(ctx, filepath.Join(s.dir, fileLock), s.dir); err != nil {
		return s.explain(err)
	}
	// SQLite gives its log the mode of the database.
	file := filepath.Join(s.dir, fileDatabase)
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return s.explain(err)
	}
	defer f.Close()
	if err := f.Chmod(0o600); err != nil {
		return s.explain(err)
	}
	return nil
}

// Close waits for calls in progress and closes the state. It is idempotent; afterwards
// every method returns an error.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.tx != nil {
		s.tx.close()
		errs = append(errs, s.tx.conn.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, dropLock(s.lock))
	}
	return errors.Join(errs...)
}

// errClosed is the error of a Store that was closed.
var errClosed = fault.Errorf(sandpit.ErrState, "the state is closed")

// write is what one caller does in a transaction.
type write struct {
	fn    func(*tx) error
	lazy  bool // a power cut may undo it
	vital bool // it may take the room that is kept for a full disk
	read  bool // it writes nothing, and needs no transaction
}

// update runs fn in a transaction, perhaps together with others. The writes of fn are
// durable if update returns nil, and undone if it returns an error. Once fn has begun, ctx
// has no effect, so that the outcome is known unless the disk hangs.
func (s *Store) update(ctx context.Context, fn func(*tx) error) error {
	return s.write(ctx, write{fn: fn})
}

// updateLazily is update for writes that a power cut may undo.
func (s *Store) updateLazily(ctx context.Context, fn func(*tx) error) error {
	return s.write(ctx, write{fn: fn, lazy: true})
}

// updateVitally is update for writes that revoke or end something, and must work on a full
// disk.
func (s *Store) updateVitally(ctx context.Context, fn func(*tx) error) error {
	return s.write(ctx, write{fn: fn, vital: true})
}

func (s *Store) write(ctx context.Context, w write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.explain(s.queue.Do(ctx, w))
}

// view runs fn while there are no writes.
func (s *Store) view(ctx context.Context, fn func(*tx) error) error {
	return s.write(ctx, write{fn: fn, read: true})
}

// Settle restores the reserve for vital writes after a full disk, if any is missing.
func (s *Store) Settle(ctx context.Context) error {
	return s.view(ctx, func(*tx) error { return nil }) // commit does it
}

// commit is the writer of the queue.
func (s *Store) commit(items []*groupcommit.Item[write]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		for _, it := range items {
			it.Err = errClosed
		}
		return
	}
	items = slices.DeleteFunc(slices.Clone(items), func(it *groupcommit.Item[write]) bool {
		if it.Value.read {
			it.Err = it.Value.fn(s.tx)
		}
		return it.Value.read
	})
	if len(items) > 0 {
		s.transact(items)
	}
	if full := func(it *groupcommit.Item[write]) bool { return isFull(it.Err) }; slices.ContainsFunc(items, full) {
		vital := slices.DeleteFunc(slices.Clone(items), func(it *groupcommit.Item[write]) bool { return !it.Value.vital })
		if len(vital) == 0 {
			return
		}
		s.reserve.Release()
		s.transact(vital)
	}
	s.reserve.Restore()
}

// transact runs writes in one transaction. Precondition: s.mu is held.
func (s *Store) transact(items []*groupcommit.Item[write]) {
	all := func(err error) {
		for _, it := range items {
			it.Err = err
		}
	}
	lazy := !slices.ContainsFunc(items, func(it *groupcommit.Item[write]) bool { return !it.Value.lazy })
	if err := s.setLazy(lazy); err != nil {
		all(err)
		return
	}
	ended := false
	defer func() {
		if !ended {
			_ = s.exec("ROLLBACK") // none is open if SQLite has ended it
		}
	}()
	if err := s.exec("BEGIN IMMEDIATE"); err != nil {
		all(err)
		return
	}
	for _, it := range items {
		if err := s.one(it, len(items) > 1); err != nil {
			// After such an error the whole transaction may be undone.
			all(err)
			return
		}
	}
	if len(items) == 1 && items[0].Err != nil {
		return
	}
	if err := s.exec("COMMIT"); err != nil {
		all(err)
		return
	}
	ended = true
}

// setLazy chooses whether the next transactions wait for the disk.
// Precondition: s.mu is held, and no transaction is open.
func (s *Store) setLazy(lazy bool) error {
	if lazy == s.lazy {
		return nil
	}
	query := "PRAGMA synchronous=FULL"
	if lazy {
		query = "PRAGMA synchronous=NORMAL"
	}
	if err := s.exec(query); err != nil {
		return err
	}
	s.lazy = lazy
	return nil
}

// one runs one write of a transaction. If the write itself fails, it is undone and has its
// own error; an error of the database is returned.
func (s *Store) one(it *groupcommit.Item[write], among bool) error {
	if among {
		if err := s.exec("SAVEPOINT one"); err != nil {
			return err
		}
	}
	it.Err = it.Value.fn(s.tx)
	if it.Err != nil && isDatabase(it.Err) {
		return it.Err
	}
	if !among {
		return nil
	}
	if it.Err != nil {
		if err := s.exec("ROLLBACK TO one"); err != nil {
			return err
		}
	}
	return s.exec("RELEASE one")
}

func (s *Store) exec(query string) error {
	_, err := s.tx.exec(query)
	return err
}

// explain adds the kind and the hint to an error of the database or the disk.
func (s *Store) explain(err error) error {
	var hinted *sandpit.HintError
	if err == nil || errors.As(err, &hinted) {
		return err
	}
	hint, kind := kindOf(err)
	if kind == nil {
		var path *fs.PathError
		if !errors.As(err, &path) {
			return err
		}
		hint, kind = "give this user read and write access to the directory", sandpit.ErrUnavailable
	}
	return sandpit.WithHint(fmt.Errorf("using the state in %s: %w: %w", s.dir, kind, err), hint)
}
