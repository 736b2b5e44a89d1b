package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

type peerKey struct{}

// WithPeer notes who is at the other end of a connection, as the kernel tells
// it of a unix socket. It is for http.Server.ConnContext. A request on such a
// connection needs no key; one that has a key acts with that.
func WithPeer(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, peerKey{}, c)
}

// Headers in which a key may come. The second is for requests that are passed
// on to a sandbox, which then get to keep their own Authorization.
const (
	headerAuthorization = "Authorization"
	headerKey           = "X-Sandpit-Key"
)

// maxKey is the longest key that is looked at, in bytes.
const maxKey = 512

// secretOf returns the key that a request has, or "".
func secretOf(r *http.Request) string {
	if k := r.Header.Get(headerKey); k != "" {
		return k
	}
	scheme, key, _ := strings.Cut(r.Header.Get(headerAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// authenticate finds out who makes the request.
func (c *call) authenticate() error {
	secret := secretOf(c.r)
	if secret == "" {
		peer, ok := c.r.Context().Value(peerKey{}).(Caller)
		if ok {
			c.caller, c.known = peer, true
			return nil
		}
		return c.unauthenticated("no key was given", "send the header Authorization: Bearer KEY; sandpit key create makes one")
	}
	if len(secret) > maxKey {
		return c.unauthenticated("the key is not valid", "")
	}
	who, err := c.api.opts.Keys.Verify(c.ctx, secret)
	switch {
	case errors.Is(err, sandpit.ErrForbidden), errors.Is(err, sandpit.ErrNotFound), errors.Is(err, sandpit.ErrInvalid):
		return c.unauthenticated("the key is not valid", "it may have expired or been revoked: ask for a new one")
	case err != nil:
		return err
	}
	c.caller, c.known = who, true
	return nil
}

func (c *call) unauthenticated(message, hint string) error {
	c.w.Header().Set("WWW-Authenticate", `Bearer realm="sandpit"`)
	return &refusal{status: http.StatusUnauthorized, code: v1.CodeUnauthenticated, message: message, hint: hint}
}
