package state

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Bounds on requests that may be repeated.
const (
	repeatLife  = 24 * time.Hour
	maxRepeats  = 32768     // of a namespace; beyond, the oldest are forgotten first
	maxAnswers  = 128 << 20 // bytes of a namespace; beyond, the oldest are forgotten first
	trimRepeats = 256       // so many at once, so that a count is needed as seldom
	trimAnswers = 1 << 20   // bytes of them: nobody can write meanwhile
)

// Repeatable is a request that its caller may repeat with the same key, without carrying it
// out again.
type Repeatable struct {
	Namespace string
	Key       string            // the caller's, of a length that package api bounds
	Hash      [sha256.Size]byte // of the request: another one with the same key is an error
	Resource  string            // what it will make, for example the ID of a sandbox; may be empty
}

// Earlier is an earlier request with the same key.
type Earlier struct {
	Resource string // of the earlier request

	// Answered says that Status and Response are those of the earlier request. Response is
	// nil if it was not stored: make it again from Resource. If Answered is false,
	// the server died during the request: if Resource does not exist, carry the request
	// out with Resource.
	Answered bool
	Status   int
	Response []byte
}

// repeats are the requests that this process is carrying out.
type repeats struct {
	mu     sync.Mutex
	active map[[2]string]bool // guarded by mu
	stored map[string]*stored // about what a namespace has stored; guarded by mu
}

// stored is what a namespace has stored.
type stored struct{ count, bytes int }

func (r *repeats) begin(id [2]string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active[id] {
		return false
	}
	if r.active == nil {
		r.active, r.stored = map[[2]string]bool{}, map[string]*stored{}
	}
	r.active[id] = true
	return true
}

func (r *repeats) end(id [2]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, id)
}

// BeginRepeatable reserves a request's key for 24 hours. It returns nil for a new key:
// carry the request out, then call FinishRepeatable, or AbandonRepeatable if the key may be
// used again. The same applies to an Earlier that is not Answered.
//
// It returns sandpit.ErrState while the same request is in progress, and sandpit.ErrInvalid
// for another request with the key.
func (s *Store) BeginRepeatable(ctx context.Context, r Repeatable) (*Earlier, error) {
	id := [2]string{r.Namespace, r.Key}
	if !s.repeat.begin(id) {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrState, "a request with this idempotency key is in progress"), "wait a moment, then send the request again")
	}
	var earlier *Earlier
	now := s.now()
	err := s.updateLazily(ctx, func(t *tx) error {
		earlier = nil
		found, err := s.findRepeat(t, r, now)
		if err != nil || found != nil {
			earlier = found
			return err
		}
		if err := s.makeRoom(t, r.Namespace, now); err != nil {
			return err
		}
		_, err = t.exec("INSERT INTO repeats (namespace, key, hash, resource, expires) VALUES (?, ?, ?, ?, ?)",
			r.Namespace, r.Key, s.seal.hash(r.Hash), r.Resource, now.Add(repeatLife).UnixNano())
		return err
	})
	if err != nil || earlier != nil && earlier.Answered {
		s.repeat.end(id)
	}
	if err != nil {
		return nil, err
	}
	return earlier, nil
}

// findRepeat looks for an earlier request; one that has expired is removed.
func (s *Store) findRepeat(t *tx, r Repeatable, now time.Time) (*Earlier, error) {
	var (
		hash    []byte
		status  sql.NullInt64
		expires int64
		e       Earlier
	)
	err := t.row("SELECT hash, resource, status, response, expires FROM repeats WHERE namespace=? AND key=?", []any{r.Namespace, r.Key}, &hash, &e.Resource, &status, &e.Response, &expires)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case expires <= now.UnixNano():
		_, err := t.exec("DELETE FROM repeats WHERE namespace=? AND key=?", r.Namespace, r.Key)
		return nil, err
	case !bytes.Equal(hash, s.seal.hash(r.Hash)) && !bytes.Equal(hash, r.Hash[:]): // earlier versions have stored that
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the idempotency key was used for another request"), "use a new key for each request")
	}
	e.Answered, e.Status = status.Valid, int(status.Int64)
	return &e, nil
}

// makeRoom forgets the oldest keys of a namespace that has too many, or too long answers.
func (s *Store) makeRoom(t *tx, namespace string, now time.Time) error {
	s.repeat.mu.Lock()
	defer s.repeat.mu.Unlock()
	has := s.repeat.stored[namespace]
	full := func() bool { return has.count >= maxRepeats || has.bytes > maxAnswers }
	if has == nil || full() {
		has = new(stored)
		if err := t.row("SELECT count(*), coalesce(sum(length(response)), 0) FROM repeats WHERE namespace=?", []any{namespace}, &has.count, &has.bytes); err != nil {
			return err
		}
	}
	if full() {
		if _, err := forget(t, "namespace=? ORDER BY seq", namespace); err != nil {
			return err
		}
		delete(s.repeat.stored, namespace) // it is counted again
		return nil
	}
	has.count++
	s.repeat.stored[namespace] = has
	return nil
}

// forget deletes the first of the requests that a condition selects: trimRepeats, or fewer with
// trimAnswers bytes, and at least one.
func forget(t *tx, which string, of any) (removed int64, err error) {
	res, err := t.exec(`DELETE FROM repeats WHERE seq IN (SELECT seq FROM (
		SELECT seq, coalesce(sum(size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
		FROM (SELECT seq, length(response) AS size FROM repeats WHERE `+which+` LIMIT ?)) WHERE before<=?)`, of, trimRepeats, trimAnswers)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// FinishRepeatable stores the answer to a request, which package api bounds, and what it has
// made; an empty resource is that of BeginRepeatable. On an error the request counts as interrupted.
func (s *Store) FinishRepeatable(ctx context.Context, namespace, key, resource string, status int, response []byte) error {
	defer s.repeat.end([2]string{namespace, key})
	s.repeat.mu.Lock()
	if has := s.repeat.stored[namespace]; has != nil {
		has.bytes += len(response)
	}
	s.repeat.mu.Unlock()
	return s.updateLazily(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE repeats SET status=?, response=?, resource=coalesce(nullif(?, ''), resource) WHERE namespace=? AND key=?", status, response, resource, namespace, key)
		return err
	})
}

// AbandonRepeatable releases a key, so that the request can be made again.
func (s *Store) AbandonRepeatable(ctx context.Context, namespace, key string) error {
	defer s.repeat.end([2]string{namespace, key})
	return s.updateLazily(ctx, func(t *tx) error {
		_, err := t.exec("DELETE FROM repeats WHERE namespace=? AND key=?", namespace, key)
		return err
	})
}

// Sweep deletes keys of requests that have expired. Call it every few minutes.
func (s *Store) Sweep(ctx context.Context) error {
	now := s.now().UnixNano()
	for {
		var removed int64
		err := s.updateLazily(ctx, func(t *tx) (err error) {
			removed, err = forget(t, "expires<=? ORDER BY expires", now)
			return err
		})
		if err != nil || removed == 0 {
			return err
		}
	}
}
