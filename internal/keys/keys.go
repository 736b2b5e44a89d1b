// Package keys creates, stores and checks the keys that authenticate callers.
//
// A key is shown once, as a token:
//
//	sp_k3v7q2ma_x5...                     sp_ PREFIX _ SECRET
//
// Clients of other projects may get it in another form (see Format).
//
// The prefix is 8 characters, the key's public identity, by which it is listed
// and found. The secret is 40 characters of [a-z2-7]: 200 random bits.
//
// Only the SHA-256 of a token, in this form, is stored. A slow password hash would add nothing: it protects
// secrets that people choose, and nobody can guess 200 bits. A check takes less than a microsecond,
// so no caller can keep the server busy with wrong keys.
package keys

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Key is everything about a key except its secret.
type Key struct {
	Prefix    string // identity
	Namespace string // the namespace; letters, digits, '_', '.' and '-', at most 63
	Policy    string // name of its policy
	Admin     bool   // may also manage keys and read the audit
	Label     string // for people; at most 128 bytes
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: it is not
	UsedAt    time.Time // to the minute or so; zero: never
}

// Stored is a key with the SHA-256 of its token.
type Stored struct {
	Key
	Hash [sha256.Size]byte
}

// A Store keeps keys. Every call is durable when it returns. On a disk that hangs it
// returns sandpit.ErrUnavailable in bounded time.
type Store interface {
	// Keys returns all keys, oldest first.
	Keys(ctx context.Context) ([]Stored, error)

	// PutKey adds a key. It returns ErrExists if there is one with its prefix.
	PutKey(ctx context.Context, k Stored) error

	// RevokeKey records that a key was revoked. Revoking it again is a no-op. It returns
	// ErrNotFound if there is no such key.
	RevokeKey(ctx context.Context, prefix string, at time.Time) error

	// TouchKeys records when keys were last used, by prefix. It ignores missing keys.
	TouchKeys(ctx context.Context, used map[string]time.Time) error

	// DeleteKeys deletes keys. Deleting a missing one is a no-op.
	DeleteKeys(ctx context.Context, prefixes []string) error
}

// ErrUnauthorized is the error of an invalid token. It does not tell unknown tokens from
// wrong ones. Only the holder of the secret is told that a key has expired or was revoked.
// It matches sandpit.ErrForbidden.
var ErrUnauthorized error = unauthorizedError{}

type unauthorizedError struct{}

func (unauthorizedError) Error() string        { return "the key is not valid" }
func (unauthorizedError) Is(target error) bool { return target == sandpit.ErrForbidden }

// Parts of a token.
const (
	scheme    = "sp_"
	prefixLen = 8
	secretLen = 40
	tokenLen  = len(scheme) + prefixLen + 1 + secretLen

	maxLabel = 128 // bytes
)

// newToken returns a new token and its prefix.
func newToken() (token, prefix string) {
	// rand.Text gives at least 128 bits in characters of the base32 alphabet.
	var b strings.Builder
	for b.Len() < prefixLen+secretLen {
		b.WriteString(strings.ToLower(rand.Text()))
	}
	text := b.String()
	prefix = text[:prefixLen]
	return scheme + prefix + "_" + text[prefixLen:prefixLen+secretLen], prefix
}

// prefixOf returns the prefix of what has the form of a token.
func prefixOf(token string) (string, bool) {
	if len(token) != tokenLen || token[:len(scheme)] != scheme || token[len(scheme)+prefixLen] != '_' {
		return "", false
	}
	for i := len(scheme); i < len(token); i++ {
		if c := token[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') && i != len(scheme)+prefixLen {
			return "", false
		}
	}
	return token[len(scheme) : len(scheme)+prefixLen], true
}

// In reports whether a text contains something in the form of a token, valid or not.
func In(text string) bool {
	if (strings.Contains(text, e2bScheme) || strings.Contains(text, msbScheme)) && inFormat().MatchString(text) {
		return true
	}
	for {
		i := strings.Index(text, scheme)
		if i < 0 {
			return false
		}
		text = text[i:]
		if _, ok := prefixOf(text[:min(len(text), tokenLen)]); ok {
			return true
		}
		text = text[len(scheme):]
	}
}

// check compares a token with a key. The time that it takes does not depend on
// either.
func (k *Stored) check(hash *[sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(k.Hash[:], hash[:]) == 1
}

// ended says why a key that was valid is not any more, or nil.
func (k *Key) ended(now time.Time) error {
	switch {
	case !k.RevokedAt.IsZero():
		return sandpit.WithHint(fmt.Errorf("%w: key %s was revoked", ErrUnauthorized, k.Prefix), "ask the operator for a new key")
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return sandpit.WithHint(fmt.Errorf("%w: key %s expired at %s", ErrUnauthorized, k.Prefix, k.ExpiresAt.UTC().Format(time.RFC3339)), "ask the operator for a new key")
	}
	return nil
}

// checkNew checks what is asked of a new key.
func checkNew(k Key, now time.Time) error {
	switch {
	case !notation.IsName(k.Namespace):
		return invalid("%.80q is not a valid namespace", k.Namespace)
	case !notation.IsName(k.Policy):
		return invalid("%.80q is not a valid policy name", k.Policy)
	case len(k.Label) > maxLabel || !utf8.ValidString(k.Label) || strings.ContainsFunc(k.Label, unicode.IsControl):
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a key: the label is longer than %d bytes or contains control characters", maxLabel), "use a shorter label without control characters")
	case !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(now):
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a key: its expiry is in the past"), "use a time in the future")
	}
	return nil
}

func invalid(format, name string) error {
	return sandpit.WithHint(fault.Invalidf("creating a key: "+format, name), notation.NameHint)
}
