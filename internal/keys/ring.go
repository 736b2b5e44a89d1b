package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxKeys bounds the keys of a server, those that have ended included: they
// are all held in memory, some 400 bytes each.
const maxKeys = 100_000

// A Ring holds all keys of a server in memory. Its answers include every Create and Revoke
// that has returned. All methods are safe for concurrent use.
type Ring struct {
	store Store
	now   func() time.Time

	mu   sync.RWMutex
	held map[string]*entry // by prefix; guarded by mu

	unsaved map[string]bool // prefixes of keys whose revocation the store has not; guarded by mu

	changing chan struct{} // one place: held while the store and the map are changed together
}

type entry struct {
	Stored              // but UsedAt; RevokedAt is guarded by Ring.mu
	used   atomic.Int64 // Unix seconds
	noted  int64        // what the store has; guarded by Ring.changing
}

// Open returns the keys of a store.
func Open(ctx context.Context, store Store) (*Ring, error) {
	stored, err := store.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the keys: %w", err)
	}
	r := &Ring{store: store, now: time.Now, held: make(map[string]*entry, len(stored)), changing: make(chan struct{}, 1)}
	for _, k := range stored {
		e := &entry{Stored: k}
		if !k.UsedAt.IsZero() {
			e.noted = k.UsedAt.Unix()
			e.used.Store(e.noted)
		}
		r.held[k.Prefix] = e
	}
	return r, nil
}

// Verify returns the key of a token, or an error that matches ErrUnauthorized. An unknown
// key and a wrong one take the same work.
func (r *Ring) Verify(token string) (Key, error) {
	plain, format, ok := plainOf(token)
	if !ok {
		return Key{}, sandpit.WithHint(ErrUnauthorized, hint)
	}
	prefix, _ := prefixOf(plain)
	hash := sha256.Sum256([]byte(plain))
	var nobody entry // its hash is of no token

	r.mu.RLock()
	e, known := r.held[prefix]
	if !known {
		e = &nobody
	}
	matches := e.check(&hash)
	key := e.Key
	r.mu.RUnlock()

	// A JWT whose claims were changed is not this key's.
	if !known || !matches || key.Token(plain, format) != token {
		return Key{}, sandpit.WithHint(ErrUnauthorized, "check that it is the key of this server")
	}
	now := r.now()
	if err := key.ended(now); err != nil {
		return Key{}, err
	}
	e.used.Store(now.Unix())
	key.UsedAt = now
	return key, nil
}

// change begins a change of the store and the map, which ends with changed.
func (r *Ring) change(ctx context.Context) error {
	select {
	case r.changing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Ring) changed() { <-r.changing }

// Create creates a key from k. It sets the Prefix and the times of creation, use and
// revocation. The token is not kept anywhere.
func (r *Ring) Create(ctx context.Context, k Key) (token string, made Key, err error) {
	now := r.now().UTC()
	if err := checkNew(k, now); err != nil {
		return "", Key{}, err
	}
	if err := r.change(ctx); err != nil {
		return "", Key{}, fmt.Errorf("creating a key: %w", err)
	}
	defer r.changed()
	r.mu.RLock()
	count := len(r.held)
	r.mu.RUnlock()
	if count >= maxKeys {
		return "", Key{}, sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "creating a key: the limit of %d keys is reached", count), "remove expired and revoked keys")
	}
	k.CreatedAt, k.RevokedAt, k.UsedAt = now, time.Time{}, time.Time{}
	for {
		token, k.Prefix = newToken()
		e := &entry{Stored: Stored{Key: k, Hash: sha256.Sum256([]byte(token))}}
		err := r.store.PutKey(ctx, e.Stored)
		if errors.Is(err, sandpit.ErrExists) {
			continue // two of 40 bits were the same
		}
		if err != nil {
			return "", Key{}, fmt.Errorf("creating a key: %w", err)
		}
		r.mu.Lock()
		r.held[k.Prefix] = e
		r.mu.Unlock()
		return token, k, nil
	}
}

// Revoke revokes a key. Verify refuses it before Revoke returns, even if the revocation
// can't be written; then Revoke returns an error, and Settle tries again. Revoking a key
// again is a no-op. Revoke returns ErrNotFound if no key has the prefix.
func (r *Ring) Revoke(ctx context.Context, prefix string) (Key, error) {
	at := r.now().UTC()
	r.mu.Lock()
	e, ok := r.held[prefix]
	if !ok {
		r.mu.Unlock()
		return Key{}, notFound("no key has the ID %.20q", prefix)
	}
	// It is refused from now on, whatever the store does.
	if e.RevokedAt.IsZero() {
		e.RevokedAt = at
	}
	if r.unsaved == nil {
		r.unsaved = map[string]bool{}
	}
	r.unsaved[prefix] = true
	shown := e.shown()
	r.mu.Unlock()
	if err := r.saveNow(context.WithoutCancel(ctx), prefix); err != nil {
		return shown, fmt.Errorf("revoking the key %s: it is refused from now on, but the revocation is not on disk yet; the server keeps trying to write it: %w", prefix, err)
	}
	return shown, nil
}

// saveNow is save for who does not hold r.changing yet.
func (r *Ring) saveNow(ctx context.Context, prefix string) error {
	if err := r.change(ctx); err != nil {
		return err
	}
	defer r.changed()
	return r.save(ctx, prefix)
}

// save writes down that a key was revoked. The caller holds r.changing.
func (r *Ring) save(ctx context.Context, prefix string) error {
	r.mu.RLock()
	e, at := r.held[prefix], time.Time{}
	if e != nil {
		at = e.RevokedAt
	}
	r.mu.RUnlock()
	if e != nil {
		// A key that the store does not have any more can't come back.
		if err := r.store.RevokeKey(ctx, prefix, at); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unsaved, prefix)
	return nil
}

// Settle writes revocations that could not be written before, and returns their number. It
// is free if there are none.
func (r *Ring) Settle(ctx context.Context) (int, error) {
	if err := r.change(ctx); err != nil {
		return 0, err
	}
	defer r.changed()
	r.mu.RLock()
	unsaved := slices.Collect(maps.Keys(r.unsaved))
	r.mu.RUnlock()
	for n, prefix := range unsaved {
		if err := r.save(ctx, prefix); err != nil {
			return n, fmt.Errorf("recording the revocation of key %s: %w", prefix, err)
		}
	}
	return len(unsaved), nil
}

// shown is the key with its last use. The caller holds r.mu or r.changing.
func (e *entry) shown() Key {
	k := e.Key
	k.UsedAt = time.Time{}
	if used := e.used.Load(); used != 0 {
		k.UsedAt = time.Unix(used, 0).UTC()
	}
	return k
}

// List returns all keys, oldest first.
func (r *Ring) List() []Key {
	r.mu.RLock()
	all := make([]Key, 0, len(r.held))
	for _, e := range r.held {
		all = append(all, e.shown())
	}
	r.mu.RUnlock()
	slices.SortFunc(all, func(a, b Key) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.Prefix, b.Prefix)
	})
	return all
}

// Get returns the key with a prefix, or ErrNotFound.
func (r *Ring) Get(prefix string) (Key, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e, ok := r.held[prefix]
	if !ok {
		return Key{}, notFound("no key has the ID %.20q", prefix)
	}
	return e.shown(), nil
}

func notFound(format, prefix string) error {
	return sandpit.WithHint(fault.NotFoundf(format, prefix), "run 'sandpit key ls' to list the keys")
}

// Valid returns a key by its prefix, without its token: for rights that its owner has given away.
// The error matches ErrNotFound, or ErrUnauthorized if the key has ended.
func (r *Ring) Valid(prefix string) (Key, error) {
	key, err := r.Get(prefix)
	if err != nil {
		return Key{}, err
	}
	return key, key.ended(r.now())
}

// Flush writes the times of last use. Call it every minute or so, and at the end.
func (r *Ring) Flush(ctx context.Context) error {
	if err := r.change(ctx); err != nil {
		return err
	}
	defer r.changed()
	changed := map[string]time.Time{}
	r.mu.RLock()
	for prefix, e := range r.held {
		if used := e.used.Load(); used != e.noted {
			changed[prefix] = time.Unix(used, 0).UTC()
		}
	}
	r.mu.RUnlock()
	if len(changed) == 0 {
		return nil
	}
	if err := r.store.TouchKeys(ctx, changed); err != nil {
		return fmt.Errorf("recording the use of keys: %w", err)
	}
	r.mu.RLock()
	for prefix, at := range changed {
		r.held[prefix].noted = at.Unix()
	}
	r.mu.RUnlock()
	return nil
}

// Prune deletes the keys that expired or were revoked before a time, and returns their
// number.
func (r *Ring) Prune(ctx context.Context, before time.Time) (int, error) {
	if err := r.change(ctx); err != nil {
		return 0, err
	}
	defer r.changed()
	var old []string
	r.mu.RLock()
	for prefix, e := range r.held {
		if !e.RevokedAt.IsZero() && e.RevokedAt.Before(before) || !e.ExpiresAt.IsZero() && e.ExpiresAt.Before(before) {
			old = append(old, prefix)
		}
	}
	r.mu.RUnlock()
	if len(old) == 0 {
		return 0, nil
	}
	if err := r.store.DeleteKeys(ctx, old); err != nil {
		return 0, fmt.Errorf("removing keys: %w", err)
	}
	r.mu.Lock()
	for _, prefix := range old {
		delete(r.held, prefix)
	}
	r.mu.Unlock()
	return len(old), nil
}
