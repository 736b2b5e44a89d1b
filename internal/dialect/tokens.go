package dialect

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Tokens makes and checks access tokens: rights to use one sandbox without a key, which a dialect gives to
// callers that have a key.
//
//	dt_k3v7q2ma_k3v7q2mak3v7q2ma_x5...        dt_ KEY _ SANDBOX _ SIGNATURE
//
// KEY is the public prefix of the caller's key, and SIGNATURE the HMAC-SHA256 of the name of the dialect, KEY and
// SANDBOX, by a key of the server. So each pair of key and sandbox has one token. It is not stored, and
// stays valid after a restart of the server. It ends when the key expires or is revoked, and when the sandbox is removed, whose ID
// is never used again. In the dialect it grants what the key may do with that sandbox, but never the rights of an administrator.
type Tokens struct {
	dialect string
	secret  []byte
	holder  func(ctx context.Context, key string) (gate.Caller, error)
}

const (
	tokenScheme = "dt_"
	signLen     = 52 // SHA-256 in base32
)

// NewTokens returns the tokens of a dialect, signed with a secret of at least 32 random bytes. holder returns the
// owner of a key by its public prefix, or an error if the key has ended.
func NewTokens(dialect string, secret []byte, holder func(ctx context.Context, key string) (gate.Caller, error)) *Tokens {
	return &Tokens{dialect, secret, holder}
}

// ErrTokenEnded is the error of every token that is not valid. A stranger must not find out why.
var ErrTokenEnded error = &gate.Refusal{Code: errcode.Unauthenticated, Message: "the access token is not valid", Hint: "connect to the sandbox again, with a key: this token may be of another sandbox, or its key has expired or been revoked"}

// Of returns the token of a key for a sandbox, and who makes requests with it. The error is ErrTokenEnded if
// the key is not valid, or empty, as that of peers of a unix socket is.
func (t *Tokens) Of(ctx context.Context, key, sandbox string) (token string, who gate.Caller, err error) {
	if key == "" {
		return "", who, ErrTokenEnded
	}
	who, err = t.holder(ctx, key)
	if err != nil {
		return "", gate.Caller{}, ErrTokenEnded
	}
	who.Admin = false
	return tokenScheme + key + "_" + sandbox + "_" + t.sign(key, sandbox), who, nil
}

// Verify returns the sandbox of a token, and who makes the request, or ErrTokenEnded. It takes the same time for each
// signature.
func (t *Tokens) Verify(ctx context.Context, token string) (sandbox string, who gate.Caller, err error) {
	rest, ok := strings.CutPrefix(token, tokenScheme)
	parts := strings.Split(rest, "_")
	if !ok || len(parts) != 3 || !hmac.Equal([]byte(t.sign(parts[0], parts[1])), []byte(parts[2])) {
		return "", who, ErrTokenEnded
	}
	if _, who, err = t.Of(ctx, parts[0], parts[1]); err != nil {
		return "", who, err
	}
	return parts[1], who, nil
}

// InTokens reports whether a text has something in it of the form of a token, valid or not.
func InTokens(text string) bool {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	for {
		_, rest, found := strings.Cut(text, tokenScheme)
		if !found {
			return false
		}
		parts := strings.SplitN(rest, "_", 3)
		if len(parts) == 3 && len(parts[2]) >= signLen && strings.Trim(parts[2][:signLen], alphabet) == "" {
			return true
		}
		text = rest
	}
}

func (t *Tokens) sign(key, sandbox string) string {
	mac := hmac.New(sha256.New, t.secret)
	fmt.Fprintf(mac, "token\n%s\n%s\n%s\n", t.dialect, key, sandbox)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)))
}
