package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

type peerKey struct{}

// WithPeer notes who is at the other end of a connection, as the kernel tells
// it of a unix socket. It is for http.Server.ConnContext. A request on such a
// connection needs no key; one that has a key acts with that.
func WithPeer(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, peerKey{}, c)
}

type refusedPeerKey struct{}

// WithRefusedPeer notes that the program at the other end of a unix socket may
// be in a sandbox or container: its requests are refused, with a key too. It is
// for http.Server.ConnContext.
func WithRefusedPeer(ctx context.Context) context.Context {
	return context.WithValue(ctx, refusedPeerKey{}, true)
}

type connKey struct{}

// WithConn notes the connection of a request, which may be a httpconn.Conn or made of
// one: what is streamed over it then goes out in larger pieces. It is for
// http.Server.ConnContext.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	if conn := httpconn.Find(c); conn != nil {
		return context.WithValue(ctx, connKey{}, conn)
	}
	return ctx
}

// cork returns the connection of the call, or nil when there is none that the
// call has for itself.
func (c *call) cork() *httpconn.Conn {
	if c.r.ProtoMajor != 1 {
		return nil
	}
	conn, _ := c.r.Context().Value(connKey{}).(*httpconn.Conn)
	return conn
}

type admissionKey struct{}

// WithAdmission sets the function that is told whose request comes on a connection:
// the namespace of a caller with a valid key, or "" for a stranger. The request is
// refused if admit returns false: the namespace has too many connections. It is for
// http.Server.ConnContext.
func WithAdmission(ctx context.Context, admit func(namespace string) bool) context.Context {
	return context.WithValue(ctx, admissionKey{}, admit)
}

// TooManyConnections is the message of an error of code errcode.TooManyConnections.
const TooManyConnections = "there are too many connections"

// admitConnection calls the function of WithAdmission, once it is known whose request
// the call is.
func (c *call) admitConnection() error {
	admit, ok := c.r.Context().Value(admissionKey{}).(func(string) bool)
	switch {
	case !ok || !c.known && c.r.ProtoMajor > 1: // other requests of HTTP/2 may be a caller's
	case !c.known:
		admit("")
	case !admit(c.connectionShare()):
		c.w.Header().Set("Connection", "close")
		return &refusal{status: http.StatusServiceUnavailable, code: errcode.TooManyConnections, message: TooManyConnections, hint: "use fewer connections for more requests", after: time.Second}
	}
	return nil
}

// connectionShare names those with whom the caller shares a bound on connections:
// its namespace; or the other administrators, whom no tenant can keep from revoking
// a key. No namespace has that name.
func (c *call) connectionShare() string {
	if c.caller.Admin {
		return "(administrators)"
	}
	return c.caller.Namespace
}

// Headers in which a key may come. The second is for requests that are passed
// on to a sandbox, which then get to keep their own Authorization.
const (
	headerAuthorization = "Authorization"
	headerKey           = "X-Sandpit-Key"
)

// maxKey is the longest key that is looked at, in bytes.
const maxKey = 512

// secretOf returns the key that a request has, and the header that it is in, or "".
func secretOf(r *http.Request) (secret, header string) {
	if k := r.Header.Get(headerKey); k != "" {
		return k, headerKey
	}
	scheme, key, _ := strings.Cut(r.Header.Get(headerAuthorization), " ")
	if key = strings.TrimSpace(key); !strings.EqualFold(scheme, "Bearer") || key == "" {
		return "", ""
	}
	return key, headerAuthorization
}

// authenticate finds out who makes the request, and whether it may come on its
// connection.
func (c *call) authenticate() error {
	err := c.identify()
	if refused := c.admitConnection(); err == nil {
		err = refused
	}
	return err
}

// identify finds out who makes the request.
func (c *call) identify() error {
	if c.r.Context().Value(refusedPeerKey{}) != nil {
		return &refusal{
			status: http.StatusForbidden, code: "forbidden", message: "this socket serves only programs that are shown to be in the server's own user and pid namespaces",
			hint: "from a sandbox or container, or where /proc hides your processes from the server's user (hidepid), use the server's TCP address and a key",
		}
	}
	peer, isPeer := c.r.Context().Value(peerKey{}).(Caller)
	secret, header := secretOf(c.r)
	if secret == "" && !isPeer {
		return c.unauthenticated("no key was given", "send the header Authorization: Bearer KEY, or set SANDPIT_KEY for the command line; sandpit key create makes one")
	}
	var who Caller
	err := sandpit.ErrForbidden
	if secret != "" && len(secret) <= maxKey {
		who, err = c.api.opts.Keys.Verify(c.ctx, secret)
	}
	switch {
	case err == nil:
		c.caller, c.known = who, true
	case !errors.Is(err, sandpit.ErrForbidden) && !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrInvalid):
		return err
	case isPeer && (secret == "" || header == headerAuthorization && c.forward.sandbox != ""):
		c.caller, c.known = peer, true // who needs no key may send the sandbox one of its own
	default:
		return c.unauthenticated("the key is not valid", "it may have expired or been revoked: ask for a new one")
	}
	return nil
}

func (c *call) unauthenticated(message, hint string) error {
	c.w.Header().Set("WWW-Authenticate", `Bearer realm="sandpit"`)
	return &refusal{status: http.StatusUnauthorized, code: errcode.Unauthenticated, message: message, hint: hint}
}
