// Package preview keeps previews: rights to use one TCP port of one sandbox without a key, for a
// bounded time. The URL of a preview, which its owner gives away, carries the right as a token:
//
//	pv_k3v7q2mak3v7q2ma_x5...           pv_ ID _ SIGNATURE
//
// The ID is 16 characters of [a-z2-7], the public name of the preview. The signature is the
// HMAC-SHA256 of the ID, the ID of the sandbox, the port and the end of the preview, in the same
// alphabet. So a token is of use only for what it was made for, and a token of another port is
// refused although the preview exists. It is not enough: a token is of use only while the book has
// its preview.
package preview

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Parts of a token.
const (
	scheme   = "pv_"
	idLen    = 16
	signLen  = 52 // SHA-256 in base32
	tokenLen = len(scheme) + idLen + 1 + signLen
)

// Bounds of previews. One takes less than 1 KiB of memory. A namespace may also have no more than a
// part of those for which there is room left: then many that take what they get leave some for others.
const (
	maxOfNamespace = 1000
	maxOfAll       = 20_000
	ofRest         = 16 // the divisor of that part
)

// Cookie and SecureCookie are the names of the cookies in which browsers keep a token. No other host can set
// the second (RFC 6265bis, 4.1.3.2), which needs TLS.
const (
	Cookie       = "sandpit-preview"
	SecureCookie = "__Host-" + Cookie
)

// IsCookie reports whether the name of a cookie is or looks like one of these. Browsers compare prefixes of names
// without case (RFC 6265bis, 5.7).
func IsCookie(name string) bool {
	name = strings.TrimSpace(name)
	return strings.EqualFold(name, Cookie) || strings.EqualFold(name, SecureCookie)
}

// Preview is the right to use a port of a sandbox.
type Preview struct {
	ID        string
	Sandbox   string // its ID
	Port      uint16
	Namespace string // of the sandbox, and of who made the preview
	Key       string // the public prefix of the key that made it; empty: a peer of the unix socket
	Name      string // of who made it, for the audit
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Store keeps previews for the next server. It drops those of sandboxes that were removed and of
// keys that were revoked by itself.
type Store interface {
	PutPreview(ctx context.Context, p Preview) error

	// DeletePreview deletes a preview. Deleting a missing one is a no-op.
	DeletePreview(ctx context.Context, id string) error
}

// Book has all previews of a server. Its methods are safe for concurrent use.
type Book struct {
	secret []byte
	store  Store

	mu    sync.Mutex
	held  map[string]map[string]Preview // by sandbox and ID; guarded by mu
	all   int                           // in held; guarded by mu
	count map[string]int                // by namespace; guarded by mu

	unsaved map[string]Preview // by ID: revoked, but the store may still have them; guarded by mu
}

// New returns a book that signs with a secret of at least 32 random bytes, and has the previews of
// a store.
func New(secret []byte, store Store, kept []Preview) *Book {
	b := &Book{secret: secret, store: store, held: map[string]map[string]Preview{}, count: map[string]int{}, unsaved: map[string]Preview{}}
	for _, p := range kept {
		b.hold(p)
	}
	return b
}

// Add adds a preview, to which it gives its ID, and returns the token. The error matches
// ErrQuota if the namespace has too many, and ErrExhausted if the server has.
func (b *Book) Add(ctx context.Context, p Preview) (made Preview, token string, err error) {
	p.ID = strings.ToLower(rand.Text()[:idLen])
	if err := b.admit(p); err != nil {
		return p, "", err
	}
	if err := b.store.PutPreview(ctx, p); err != nil {
		b.mu.Lock()
		b.forget(p)
		b.mu.Unlock()
		return p, "", fmt.Errorf("creating a preview: %w", err)
	}
	return p, scheme + p.ID + "_" + b.sign(p), nil
}

// admit holds a preview if there is room.
func (b *Book) admit(p Preview) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count[p.Namespace] >= min(maxOfNamespace, (maxOfAll-b.all)/ofRest) {
		now := time.Now()
		b.drop(func(p Preview) bool { return !now.Before(p.ExpiresAt) })
	}
	switch {
	case b.count[p.Namespace] >= maxOfNamespace:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "this namespace has %d previews", maxOfNamespace), "revoke some, or wait until they end")
	case b.count[p.Namespace] >= (maxOfAll-b.all)/ofRest:
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "the server has too many previews"), "try again later")
	}
	b.hold(p)
	return nil
}

// hold adds a preview. Precondition: b.mu is held.
func (b *Book) hold(p Preview) {
	if b.held[p.Sandbox] == nil {
		b.held[p.Sandbox] = map[string]Preview{}
	}
	b.held[p.Sandbox][p.ID] = p
	b.all++
	b.count[p.Namespace]++
}

// sign returns the signature of a preview.
func (b *Book) sign(p Preview) string {
	mac := hmac.New(sha256.New, b.secret)
	fmt.Fprintf(mac, "preview\n%s\n%s\n%d\n%d\n", p.ID, p.Sandbox, p.Port, p.ExpiresAt.UnixNano())
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)))
}

// Verify returns the preview of a token for a port of a sandbox, unless it has ended. Signatures
// are compared in constant time.
func (b *Book) Verify(token, sandbox string, port uint16) (Preview, bool) {
	if !isToken(token) {
		return Preview{}, false
	}
	id, signature := token[len(scheme):len(scheme)+idLen], token[tokenLen-signLen:]
	p, ok := b.Get(sandbox, id)
	if !ok {
		return Preview{}, false
	}
	p.Port = port // a token of another port has another signature
	return p, hmac.Equal([]byte(b.sign(p)), []byte(signature))
}

// Get returns a preview of a sandbox that has not ended.
func (b *Book) Get(sandbox, id string) (Preview, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.held[sandbox][id]
	return p, ok && !p.ended(time.Now())
}

// List returns the previews of a sandbox that have not ended, in no order.
func (b *Book) List(sandbox string) (all []Preview) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.held[sandbox] {
		if !p.ended(now) {
			all = append(all, p)
		}
	}
	return all
}

// All returns the previews of all sandboxes that have not ended, in no order.
func (b *Book) All() (all []Preview) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.held {
		for _, p := range of {
			if !p.ended(now) {
				all = append(all, p)
			}
		}
	}
	return all
}

// Revoke ends a preview for this server. Save must follow, so that it does not come back with the
// next one. The error matches ErrNotFound if there is none that is valid, or that Save must delete.
func (b *Book) Revoke(sandbox, id string) (Preview, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.unsaved[id]; ok && p.Sandbox == sandbox {
		return p, nil
	}
	p, ok := b.held[sandbox][id]
	if !ok || p.ended(time.Now()) {
		return p, fault.NotFoundf("no preview of this sandbox has the ID %.20q", id)
	}
	b.forget(p)
	b.unsaved[id] = p
	return p, nil
}

// Save deletes a revoked preview from the store. After an error Settle tries again.
func (b *Book) Save(ctx context.Context, p Preview) error {
	if err := b.store.DeletePreview(ctx, p.ID); err != nil {
		return fmt.Errorf("revoking the preview %s: it is refused from now on, but that is not on disk yet; the server keeps trying to write it: %w", p.ID, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unsaved, p.ID)
	return nil
}

// Settle saves the previews that were revoked and could not be saved before, and returns their
// number. It is free if there are none.
func (b *Book) Settle(ctx context.Context) (int, error) {
	b.mu.Lock()
	unsaved := slices.Collect(maps.Values(b.unsaved))
	b.mu.Unlock()
	for n, p := range unsaved {
		if err := b.Save(ctx, p); err != nil {
			return n, err
		}
	}
	return len(unsaved), nil
}

// RemoveSandbox ends the previews of a sandbox.
func (b *Book) RemoveSandbox(sandbox string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.held[sandbox] {
		b.forget(p)
	}
}

// RemoveKey ends the previews that a key has made.
func (b *Book) RemoveKey(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(func(p Preview) bool { return p.Key == key })
}

func (p Preview) ended(now time.Time) bool { return !now.Before(p.ExpiresAt) }

// drop forgets all previews that a function selects. Precondition: b.mu is held.
func (b *Book) drop(which func(Preview) bool) {
	for _, all := range b.held {
		for _, p := range all {
			if which(p) {
				b.forget(p)
			}
		}
	}
}

// forget forgets a preview, if it is there. Precondition: b.mu is held.
func (b *Book) forget(p Preview) {
	if _, ok := b.held[p.Sandbox][p.ID]; !ok {
		return
	}
	delete(b.held[p.Sandbox], p.ID)
	if len(b.held[p.Sandbox]) == 0 {
		delete(b.held, p.Sandbox)
	}
	b.all--
	if b.count[p.Namespace]--; b.count[p.Namespace] == 0 {
		delete(b.count, p.Namespace)
	}
}

// isToken reports whether a text has the form of a token.
func isToken(text string) bool {
	return len(text) == tokenLen && text[:len(scheme)] == scheme && text[len(scheme)+idLen] == '_' &&
		isCode(text[len(scheme):len(scheme)+idLen]) && isCode(text[tokenLen-signLen:])
}

func isCode(text string) bool { return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz234567") == "" }

// In reports whether a text contains something in the form of a token, valid or not.
func In(text string) bool {
	for {
		i := strings.Index(text, scheme)
		if i < 0 {
			return false
		}
		text = text[i:]
		if len(text) >= tokenLen && isToken(text[:tokenLen]) {
			return true
		}
		text = text[len(scheme):]
	}
}
