package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/unixsock"
)

// endpoint is a place where a server listens.
type endpoint struct {
	shown   string // for messages
	network string // "unix" or "tcp"
	address string // a path, or HOST:PORT
	name    string // of the host, for TLS
	base    string // of URLs
	secure  bool
	tls     *tls.Config // when secure
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
}

// parseAddress reads Options.Address.
func parseAddress(text string, insecure bool) (endpoint, error) {
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
			return endpoint{}, badAddress(text)
		}
		return endpoint{shown: text, network: "unix", address: filepath.Clean(path), base: "http://localhost"}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return endpoint{}, badAddress(text)
	}
	e := endpoint{network: "tcp", name: u.Hostname(), base: u.Scheme + "://" + u.Host, shown: u.Scheme + "://" + u.Host}
	port := u.Port()
	switch u.Scheme {
	case "https":
		e.secure = true
		if port == "" {
			port = "443"
		}
	case "http":
		if !insecure && !isLoopback(e.name) {
			return endpoint{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "connecting to %s: plain HTTP is allowed only on this machine", e.shown),
				"use https; a Go program may set Options.InsecureHTTP")
		}
		if port == "" {
			port = "80"
		}
	default:
		return endpoint{}, badAddress(text)
	}
	e.address = net.JoinHostPort(e.name, port)
	return e, nil
}

func badAddress(text string) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%q is not a server address", text), "write unix:///PATH, https://HOST:PORT or, on this machine, http://127.0.0.1:PORT")
}

// isLoopback reports whether a host is this machine for sure. Of names only
// localhost is: others may change their meaning.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// A server that does not take a connection within dialPatience is not there,
// and one that does not answer the probes of TCP for a minute is gone.
const dialPatience = 10 * time.Second

func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3}
}

// connect makes a connection, without TLS.
func (e *endpoint) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	if e.dialer != nil {
		return e.dialer(ctx, e.network, e.address)
	}
	if e.network == "unix" {
		return unixsock.Dial(ctx, e.address)
	}
	d := net.Dialer{KeepAliveConfig: keepAlive()}
	conn, err := d.DialContext(ctx, e.network, e.address)
	var op *net.OpError
	if errors.As(err, &op) {
		return nil, op.Err // the message names the address already
	}
	return conn, err
}

// connectTLS makes a connection with TLS.
func (e *endpoint) connectTLS(ctx context.Context) (net.Conn, error) {
	plain, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	conn := tls.Client(plain, e.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return conn, nil
}

// open makes a connection as the server's address wants it.
func (e *endpoint) open(ctx context.Context) (net.Conn, error) {
	if e.secure {
		return e.connectTLS(ctx)
	}
	return e.connect(ctx)
}
