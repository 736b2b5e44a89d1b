package gate

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// Caller is who makes a request, and what the server knows about the caller.
type Caller struct {
	Name      string // for people and the audit: a key's name, "uid 1000"
	Key       string // the public prefix of the key; empty for the peer of a unix socket
	Namespace string // whose sandboxes the caller sees
	Nested    string // the namespace in Namespace whose sandboxes the request is about; sandpit.AllNamespaces; "": none
	Policy    string // the name of the policy
	Admin     bool   // may manage keys and read the audit and /metrics

	// Preview is the ID of the preview with which the request was made, in place of the key or
	// socket of the caller, who has given it away. Empty: none.
	Preview string

	Expires time.Time // when the key or preview expires and its calls end; zero: never
}

// limited reports whether the rates and shares of keys apply to the caller. Peers of a unix socket
// have none, unless others make requests with a preview of theirs.
func (c Caller) limited() bool { return c.Key != "" || c.Preview != "" }

// owner returns who has given away the preview of a request.
func (c Caller) owner() Caller {
	c.Preview = ""
	return c
}

type peerKey struct{}

// WithPeer notes who is at the other end of a unix socket, as the kernel reports it. It is
// for http.Server.ConnContext. Requests on such a connection need no key. A request with a
// key acts as the owner of that key.
func WithPeer(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, peerKey{}, c)
}

type refusedPeerKey struct{}

// WithRefusedPeer notes that the program at the other end of a unix socket may be in a
// sandbox or container. Its requests are refused, even with a key. It is for
// http.Server.ConnContext.
func WithRefusedPeer(ctx context.Context) context.Context {
	return context.WithValue(ctx, refusedPeerKey{}, true)
}

type connKey struct{}

// WithConn notes the connection of a request. If it is a httpconn.Conn, or wraps one,
// Call.Conn returns that, and streams are sent in larger pieces. It is for
// http.Server.ConnContext.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	if conn := httpconn.Find(c); conn != nil {
		return context.WithValue(ctx, connKey{}, conn)
	}
	return ctx
}

// Conn returns the connection of the call, or nil if the call shares its connection with
// others, as in HTTP/2.
func (c *Call) Conn() *httpconn.Conn {
	if c.R.ProtoMajor != 1 {
		return nil
	}
	conn, _ := c.R.Context().Value(connKey{}).(*httpconn.Conn)
	return conn
}

type admissionKey struct{}

// WithAdmission sets a function that the gate calls with the namespace of each caller
// with a valid key or preview, or with "" for a stranger. If it returns false, the namespace or its
// previews have too many connections, and the gate refuses the request. It is for
// http.Server.ConnContext.
func WithAdmission(ctx context.Context, admit func(namespace string, preview bool) bool) context.Context {
	return context.WithValue(ctx, admissionKey{}, admit)
}

// TooManyConnections is the message of an error of code errcode.TooManyConnections.
const TooManyConnections = "too many connections are open"

// admitConnection calls the function of WithAdmission, after the caller has been
// identified.
func (c *Call) admitConnection() error {
	admit, ok := c.R.Context().Value(admissionKey{}).(func(string, bool) bool)
	switch {
	case !ok || !c.known && c.R.ProtoMajor > 1: // other requests of HTTP/2 may be a caller's
	case !c.known:
		admit("", false)
	case !admit(c.connectionShare(), c.Caller.Preview != ""):
		c.W.Header().Set("Connection", "close")
		return &Refusal{Code: errcode.TooManyConnections, Message: TooManyConnections, Hint: "reuse connections", After: time.Second}
	}
	return nil
}

// connectionShare names the group that shares a bound on connections with the caller: its
// namespace, or all administrators. Administrators have a share of their own so that
// no tenant can keep them from revoking a key. No namespace has that name.
func (c *Call) connectionShare() string {
	if c.Caller.Admin {
		return "(administrators)"
	}
	return c.Caller.Namespace
}

// maxKey bounds the length of a key, in bytes. Longer ones are not valid.
const maxKey = 512

// authenticate identifies the caller, and decides whether the request may use its
// connection.
func (c *Call) authenticate() error {
	err := c.identify()
	if refused := c.admitConnection(); err == nil {
		err = refused
	}
	return err
}

// identify sets the caller, or returns why the request has none.
func (c *Call) identify() error {
	if c.R.Context().Value(refusedPeerKey{}) != nil {
		return &Refusal{
			Code: errcode.Forbidden, Message: "this socket serves only programs in the server's own user and pid namespaces, and this program could not be shown to be in them",
			Hint: "use the server's TCP address and a key: this is needed from a sandbox or container, or if /proc is mounted with hidepid",
		}
	}
	if c.route.Ticketed && c.R.Method == http.MethodGet {
		if had, err := c.redeem(); had {
			return err
		}
	}
	if c.route.Proof != nil {
		who, ok, err := c.route.Proof(c)
		if err != nil || ok {
			c.Caller, c.known = who, ok
			return err
		}
	}
	peer, isPeer := c.R.Context().Value(peerKey{}).(Caller)
	secret, shared := c.service.dialect.Credential(c.R)
	if secret == "" && !isPeer {
		return c.unauthenticated("the request has no key", c.service.dialect.KeyHint)
	}
	var who Caller
	err := sandpit.ErrForbidden
	if secret != "" && len(secret) <= maxKey {
		who, err = c.gate.opts.Keys.Verify(c.Ctx, secret)
	}
	switch {
	case err == nil:
		c.Caller, c.known = who, true
	case !errors.Is(err, sandpit.ErrForbidden) && !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrInvalid):
		return err
	case isPeer && (secret == "" || shared && c.route.Passes):
		c.Caller, c.known = peer, true // it may be a key of the program that the request is passed on to
	default:
		return c.unauthenticated("the key is not valid", "ask the operator for a new one: this key may have expired or been revoked")
	}
	return c.nest()
}

// nest sets the nested namespace that the request is about. That of a request with a ticket or
// preview is part of these.
func (c *Call) nest() (err error) {
	if nested := c.service.dialect.Nested; nested != nil {
		c.Caller.Nested, err = nested(c.R)
	}
	return err
}

// challenge says in the answer how to authenticate.
func (c *Call) challenge() {
	if challenge := c.service.dialect.Challenge; challenge != "" {
		c.W.Header().Set("WWW-Authenticate", challenge)
	}
}

func (c *Call) unauthenticated(message, hint string) error {
	c.challenge()
	return &Refusal{Code: errcode.Unauthenticated, Message: message, Hint: hint}
}
