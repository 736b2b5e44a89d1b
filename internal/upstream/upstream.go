// Package upstream is the way out of a machine whose network has a proxy, certificates or name
// servers of its own: for connections of sandboxes and for pulls of images.
//
// A proxy is given names and resolves them itself. So a caller that has to check the addresses of
// a name resolves it, and gives the proxy an address.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpproxy"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Settings are those of the operator. The zero Settings mean direct connections, and the roots and
// name servers of this machine.
type Settings struct {
	// Proxy is http://, https:// or socks5://[USER:PASSWORD@]HOST[:PORT], or empty. It is a
	// secret if it has a password. The default port is 80, 443 or 1080.
	Proxy string

	// NoProxy are hosts that are connected to directly, in the form of NO_PROXY: names, which
	// include those below them, addresses and CIDRs, with or without a port, separated by commas.
	// Loopback and localhost always are.
	NoProxy string

	// Roots are certificates in PEM that are trusted beside this machine's. See ReadRoots.
	Roots []byte

	// DNS are name servers, ADDRESS or ADDRESS:PORT; none: those of this machine.
	DNS []netip.AddrPort
}

// maxRoots bounds a file of certificates, in bytes. Those of the public web are 250 KiB.
const maxRoots = 1 << 20

// ReadRoots reads a file of certificates in PEM; no name means none. The result has nothing else,
// because sandboxes get it. Errors name the file and match sandpit.ErrInvalid.
func ReadRoots(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	failed := func(format string, args ...any) error {
		return sandpit.WithHint(fault.Invalidf("reading ca-bundle: %w", fmt.Errorf(format, args...)), "name a file of certificates in PEM")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, failed("%w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRoots+1))
	if err != nil {
		return nil, failed("%w", err)
	}
	if len(text) > maxRoots {
		return nil, failed("%s: more than %d bytes", file, maxRoots)
	}
	var all []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, failed("%s has a %s, which does not belong there", file, fault.Clip(block.Type))
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, failed("%s: %w", file, err)
		}
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(all) == 0 {
		return nil, failed("%s has no certificate", file)
	}
	return all, nil
}

// Way makes connections. The nil Way is that of the zero Settings. It is immutable.
type Way struct {
	settings Settings
	proxy    *url.URL                         // nil: none
	choose   func(*url.URL) (*url.URL, error) // by NoProxy
	roots    *x509.CertPool                   // nil: those of this machine

	nameServer func(ctx context.Context, server string) (string, error) // see AskBy
}

// New checks settings. Errors match sandpit.ErrInvalid, and have no password.
func New(s Settings) (*Way, error) {
	w := &Way{settings: s}
	if err := checkNoProxy(s.NoProxy); err != nil {
		return nil, err
	}
	if s.Proxy != "" {
		u, err := parseProxy(s.Proxy)
		if err != nil {
			return nil, err
		}
		w.proxy = u
		w.choose = (&httpproxy.Config{HTTPProxy: u.String(), HTTPSProxy: u.String(), NoProxy: s.NoProxy}).ProxyFunc()
	}
	if len(s.Roots) > 0 {
		var err error
		if w.roots, err = x509.SystemCertPool(); err != nil {
			w.roots = x509.NewCertPool()
		}
		if !w.roots.AppendCertsFromPEM(s.Roots) {
			return nil, fault.Invalidf("ca-bundle has no certificate in PEM")
		}
	}
	return w, nil
}

// checkNoProxy refuses what could match nothing, or something else than it says: package httpproxy reads
// whatever it does not know as a name.
func checkNoProxy(text string) error {
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		host, port, err := net.SplitHostPort(entry)
		if err != nil {
			host, port = entry, "1"
		}
		n, err := strconv.ParseUint(port, 10, 16)
		_, cidr := netip.ParsePrefix(entry)
		if entry != "" && entry != "*" && cidr != nil && (err != nil || n == 0 || !canBeHost(host)) {
			return sandpit.WithHint(fault.Invalidf("no-proxy: %q is not a host, a domain, an address or a CIDR", fault.Clip(entry)), "write entries such as .example.com, 10.0.0.0/8, host:8080 or *, separated by commas")
		}
	}
	return nil
}

// canBeHost reports whether text is an address, or HOST, .HOST or *.HOST, where HOST is a name that is not
// an address of another form, such as 10.1.
func canBeHost(text string) bool {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Zone() == ""
	}
	if rest, ok := strings.CutPrefix(text, "*."); ok {
		text = rest
	} else {
		text = strings.TrimPrefix(text, ".")
	}
	labels := strings.Split(strings.TrimSuffix(text, "."), ".")
	odd := func(r rune) bool {
		return r < utf8.RuneSelf && r != '-' && r != '_' && !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, odd) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return last[0] < '0' || '9' < last[0]
}

func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		// The text, which an error of url.Parse has, may have a password.
		return nil, sandpit.WithHint(fault.Invalidf("upstream-proxy is not the address of a proxy"), "write http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT, after USER:PASSWORD@ if it needs them; write %40 for @ in a password")
	}
	u.Path = ""
	if _, known := defaultPorts()[u.Scheme]; !known {
		return nil, sandpit.WithHint(fault.Invalidf("upstream-proxy: %q is not a kind of proxy", fault.Clip(u.Scheme)), "use http, https or socks5")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, sandpit.WithHint(fault.Invalidf("upstream-proxy: %q is not a port", fault.Clip(port)), "use one from 1 to 65535")
		}
	}
	return u, nil
}

func defaultPorts() map[string]string {
	return map[string]string{"http": "80", "https": "443", "socks5": "1080"} // as net/http has them
}

// Settings returns those that the Way was made from.
func (w *Way) Settings() Settings {
	if w == nil {
		return Settings{}
	}
	return w.settings
}

// AskBy returns a Way that lets choose decide which name server HOST:PORT is asked where package net would ask server. It is
// for a process that may be unable to read which name servers this machine has.
func (w *Way) AskBy(choose func(ctx context.Context, server string) (string, error)) *Way {
	by := new(Way)
	if w != nil {
		*by = *w
	}
	by.nameServer = choose
	return by
}

// NameServer returns the name server of this machine to ask where package net would ask server: see AskBy.
func (w *Way) NameServer(ctx context.Context, server string) (string, error) {
	if w == nil || w.nameServer == nil {
		return server, nil
	}
	return w.nameServer(ctx, server)
}

// Shown returns the address of the proxy without user and password, for people; "": none.
func (w *Way) Shown() string {
	if w == nil || w.proxy == nil {
		return ""
	}
	shown := *w.proxy
	shown.User = nil
	return shown.String()
}

// Roots returns the certificates to trust; nil: those of this machine.
func (w *Way) Roots() *x509.CertPool {
	if w == nil {
		return nil
	}
	return w.roots
}

// Proxies reports whether connections to a name or an address go through the proxy.
func (w *Way) Proxies(host string, port uint16) bool {
	if w == nil || w.proxy == nil {
		return false
	}
	u, err := w.choose(&url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
	return err == nil && u != nil
}

// For returns the proxy of a request, as http.Transport.Proxy does: the environment's if Settings
// have none.
func (w *Way) For(r *http.Request) (*url.URL, error) {
	if w == nil || w.proxy == nil {
		return http.ProxyFromEnvironment(r)
	}
	return w.choose(r.URL)
}

// Transport returns one for requests of this program itself, not of sandboxes: see For.
func (w *Way) Transport() *http.Transport {
	return &http.Transport{Proxy: w.For, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: w.Roots()}, ForceAttemptHTTP2: true, IdleConnTimeout: idleTime}
}

// idleTime is how long connections of Transport are kept.
const idleTime = 90 * time.Second

// answerTime bounds how long a proxy may take, in which it connects to its own destination.
const answerTime = 20 * time.Second

// Dial connects to HOST:PORT through the proxy. Errors match sandpit.ErrUnavailable, say nothing of
// the proxy's address or password, and are one line with what to do.
func (w *Way) Dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := w.dial(ctx, address)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("it did not answer in time; check that it runs, or name the host in no-proxy")
	}
	return nil, fault.Errorf(sandpit.ErrUnavailable, "the upstream proxy: %w", err)
}

func (w *Way) dial(ctx context.Context, address string) (net.Conn, error) {
	port := w.proxy.Port()
	if port == "" {
		port = defaultPorts()[w.proxy.Scheme]
	}
	names := &net.Resolver{PreferGo: w.nameServer != nil, Dial: func(ctx context.Context, network, server string) (net.Conn, error) {
		server, err := w.NameServer(ctx, server)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	conn, err := (&net.Dialer{Resolver: names}).DialContext(ctx, "tcp", net.JoinHostPort(w.proxy.Hostname(), port))
	if err != nil {
		return nil, bare(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	out := conn
	switch w.proxy.Scheme {
	case "socks5":
		err = w.socks(ctx, conn, address)
	case "https":
		secure := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: w.proxy.Hostname(), RootCAs: w.roots})
		if err = secure.HandshakeContext(ctx); err != nil {
			err = bareTLS(err)
			break
		}
		out, err = w.connect(secure, address)
	default:
		out, err = w.connect(conn, address)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return out, nil
}

// bareTLS does as bare does, of a handshake.
func bareTLS(err error) error {
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return errors.New("its certificate is not trusted; add that of its authority to ca-bundle")
	}
	return fmt.Errorf("its TLS: %w", err)
}

// bare returns an error of connecting without the address of the proxy, which is not for callers.
func bare(err error) error {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return errors.New("its name can't be resolved; correct upstream-proxy")
	case errors.As(err, &op):
		return fmt.Errorf("connecting to it: %w; check that it runs", op.Err)
	}
	return err
}
