package network

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/intercept"
)

// serveHTTP passes the requests of a connection on one by one. With secure, both sides speak TLS, which
// ends here. With http2, both speak HTTP/2 from the beginning.
func (n *Network) serveHTTP(in intercept.Conn, r *bufio.Reader, out net.Conn, d *dialler, secure *intercept.TLS, http2 bool) error {
	return n.requests.Serve(in, r, out, intercept.Connection{
		To: d.to, TLS: secure, HTTP2: http2, Proxied: d.proxied,
		Dial:     func(ctx, requests context.Context) (net.Conn, error) { return n.dialMore(ctx, requests, d) },
		Denied:   func(v sandpit.EgressDecision) sandpit.EgressDecision { return n.noteDenied(d, v) },
		Switched: d.flow.switchProtocol,
		Reset:    d.flow.reset,
	})
}

// noteDenied notes a request that is not allowed.
func (n *Network) noteDenied(d *dialler, v sandpit.EgressDecision) sandpit.EgressDecision {
	f := n.flows.begin(d.to)
	v = f.decide(v)
	f.finish(nil)
	return v
}

// start runs f as a part of the work that Close waits for.
func (n *Network) start(f func()) {
	if n.enter() {
		go func() {
			defer n.work.Done()
			f()
		}()
	}
}

// dialMore makes another connection for requests of an open one. It counts as one of the
// sandbox's own. It ends with requests, at the latest, or when the rules do not allow it any more.
func (n *Network) dialMore(ctx, requests context.Context, d *dialler) (net.Conn, error) {
	_, release, err := n.bounds.admit()
	if err != nil {
		return nil, err
	}
	more := *d
	more.flow = n.flows.begin(d.to)
	conn, err := more.dial(ctx)
	if err == nil && !n.open(more.flow, func() { conn.Close() }) {
		err = errors.New("the rules have changed")
	}
	if err != nil {
		more.flow.finish(err)
		release()
		return nil, err
	}
	stop := context.AfterFunc(requests, func() { conn.Close() })
	return &released{Conn: conn, release: sync.OnceFunc(func() {
		stop()
		more.flow.finish(nil)
		release()
	})}, nil
}

// released is a connection that gives its place back when it is closed.
type released struct {
	net.Conn
	release func()
}

func (c *released) Close() error {
	defer c.release()
	return c.Conn.Close()
}
