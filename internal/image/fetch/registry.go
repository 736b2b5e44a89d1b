package fetch

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// The registry client speaks the pull half of the OCI distribution
// specification v1.1 and the token protocol of Docker's registries
// (distribution.github.io/distribution/spec/auth/token). It is our own because
// of what a pull of Sandpit needs beyond them: transfers that are taken up in
// the middle, bounds on everything, a guard on where a registry may send us,
// and no cost at the start of the program. Go's net/http does the rest.

const (
	dialTimeout   = 15 * time.Second
	headerTimeout = 60 * time.Second
	idleTimeout   = 60 * time.Second // a body that brings nothing for so long is broken
	maxRedirects  = 5
	maxIdle       = 4       // connections to one host: as many layers as come at once, and one more
	maxTokenReply = 1 << 20 // bytes
	maxErrorReply = 16 << 10
)

// A registrySource is an image in a registry, or in a mirror of one.
type registrySource struct {
	fetcher   *Fetcher
	ref       image.Reference
	client    *http.Client
	endpoints []*endpoint // mirrors first
	public    bool        // image.AcquireOptions.PublicOnly
	way       *upstream.Way

	mu      sync.Mutex
	chosen  *endpoint       // the one that has given the manifest; blobs are asked for there first
	trusted map[string]bool // hosts that were named by the person, not by a registry
}

// An endpoint is one place where a registry can be asked.
type endpoint struct {
	base     string // "https://host[/prefix]/v2/REPOSITORY"
	registry string // whose credentials are for it
	plain    bool   // HTTP was asked for

	mu   sync.Mutex // held while a token is got
	auth string     // the Authorization header
	cred *credential
}

// Registry prepares to pull a reference; nothing is sent yet.
func (f *Fetcher) Registry(ref image.Reference, opt image.AcquireOptions) (image.Source, error) {
	return f.registry(ref, opt)
}

func (f *Fetcher) registry(ref image.Reference, opt image.AcquireOptions) (*registrySource, error) {
	roots, err := upstream.ReadRoots(opt.CABundle)
	if err != nil {
		return nil, err
	}
	way, err := upstream.New(upstream.Settings{Proxy: opt.Proxy, NoProxy: opt.NoProxy, Roots: roots})
	if err != nil {
		return nil, err
	}
	r := &registrySource{fetcher: f, ref: ref, public: opt.PublicOnly, way: way, trusted: make(map[string]bool)}
	for _, m := range opt.Mirrors[ref.Registry] {
		u, err := url.Parse(m)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
			return nil, sandpit.WithHint(fault.Invalidf("reading mirror %q of %s: it is not a base URL", fault.Clip(m), ref.Registry),
				`write it like "https://mirror.example" or "http://localhost:5000/prefix"`)
		}
		r.add(u.Scheme, u.Host, strings.TrimSuffix(u.Path, "/"), u.Host)
		r.trusted[strings.ToLower(u.Hostname())] = true
	}
	host, scheme := ref.Registry, "https"
	if host == "docker.io" {
		host = "registry-1.docker.io" // where Docker Hub answers
	}
	if opt.PlainHTTP {
		scheme = "http"
	}
	r.add(scheme, host, "", ref.Registry)
	if !opt.PublicOnly {
		r.trusted[strings.ToLower((&url.URL{Host: host}).Hostname())] = true
	}
	r.client = &http.Client{CheckRedirect: r.checkRedirect, Transport: &http.Transport{
		Proxy:                 r.proxy,
		DialContext:           r.dial,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: way.Roots()},
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // content is digested as it comes
		MaxIdleConnsPerHost:   maxIdle,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       idleTimeout,
	}}
	return r, nil
}

func (r *registrySource) add(scheme, host, prefix, registry string) {
	r.endpoints = append(r.endpoints, &endpoint{
		base: scheme + "://" + host + prefix + "/v2/" + r.ref.Repository, registry: registry, plain: scheme == "http",
	})
}

// Close closes connections that are kept for further requests.
func (r *registrySource) Close() { r.client.CloseIdleConnections() }

// Tries is how often in a row a request may fail that may pass.
func (r *registrySource) Tries() int { return 4 }

// proxy is the operator's proxy or the environment's, which the person has named as well. An
// address that is not to be connected to, it is not asked for.
func (r *registrySource) proxy(req *http.Request) (*url.URL, error) {
	host := req.URL.Hostname()
	if ip, err := netip.ParseAddr(host); err == nil && !netaddr.IsPublic(ip) && r.public && !r.trusts(host) {
		return nil, errNotPublic
	}
	u, err := r.way.For(req)
	if u != nil {
		r.mu.Lock()
		r.trusted[strings.ToLower(u.Hostname())] = true
		r.mu.Unlock()
	}
	return u, err
}

// dial connects. A host that a registry has sent us to must not be this
// machine or its cloud's metadata service, nor, where the caller is not trusted
// with it, in this machine's network; one that the person has named may be
// anything.
func (r *registrySource) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, Resolver: r.fetcher.opt.Resolver}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if !r.trusts(host) {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			switch ip := ap.Addr().Unmap(); {
			case r.public && !netaddr.IsPublic(ip):
				return errNotPublic
			case !r.public && netaddr.IsLocal(ip):
				return fault.Kind{Err: fmt.Errorf("the registry redirected to %s, which is not allowed", ip), Kind: sandpit.ErrForbidden}
			}
			return nil
		}
	}
	conn, err := d.DialContext(ctx, network, addr)
	var dns *net.DNSError
	if r.public && !r.trusts(host) && (errors.Is(err, errNotPublic) || errors.As(err, &dns) && dns.IsNotFound) {
		// One error for both: which names this network has is not the caller's to know.
		err = hidden{errNotPublic, err.Error()}
	}
	return conn, err
}

// hidden is an error whose text says nothing about this machine's network. Its Detail
// does, and is for a server's log.
type hidden struct {
	error
	detail string
}

func (h hidden) Unwrap() error  { return h.error }
func (h hidden) Detail() string { return h.detail }

// hide returns an error of the network without the addresses in it: of the name
// server, of this machine, and of proxies.
func hide(err error) error {
	var bare error
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		bare = errNoSuchHost
	case errors.As(err, &dns):
		bare = errNameServer
	case errors.As(err, &op):
		bare = hide(op.Err)
		if op.Op == "proxyconnect" {
			bare = fmt.Errorf("connecting to the proxy: %w", bare)
		}
	default:
		return err
	}
	return hidden{bare, err.Error()}
}

var (
	errNoSuchHost = errors.New("no such host")
	errNameServer = errors.New("its name can't be resolved now")
)

// trusts reports whether a host was named by the person.
func (r *registrySource) trusts(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trusted[strings.ToLower(host)]
}

// errNotPublic is the error for a caller who named a registry of this network.
var errNotPublic = sandpit.WithHint(fault.Kind{Err: errors.New("it has no public address, or its name can't be resolved"), Kind: sandpit.ErrForbidden},
	"check its name and the name server of the server, or ask the operator to name the registry (without a star) in the policy's images")

// checkRedirect keeps redirects few and encrypted, and credentials at home.
func (r *registrySource) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fault.Kind{Err: fmt.Errorf("the registry redirected more than %d times", maxRedirects), Kind: sandpit.ErrUnavailable}
	}
	from := via[len(via)-1].URL
	if req.URL.Scheme != "https" && (from.Scheme == "https" || req.URL.Scheme != "http") {
		return fault.Kind{Err: fmt.Errorf("the registry redirected to %s, which does not use TLS", fault.Clip(req.URL.Host)), Kind: sandpit.ErrForbidden}
	}
	// Compared with the first one, and with its port: net/http alone would let
	// the header go to a subdomain and to another port of the same machine.
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	// The query often holds a signature: it must not be shown.
	req.Header.Del("Referer")
	return nil
}

// Root fetches what the reference names: from the first endpoint that has it.
func (r *registrySource) Root(ctx context.Context) ([]byte, string, error) {
	target := r.ref.Digest
	if target == "" {
		target = r.ref.Tag
	}
	var lastErr error
	for _, e := range r.endpoints {
		data, mediaType, err := r.manifest(ctx, e, target)
		if err == nil {
			r.mu.Lock()
			r.chosen = e
			r.mu.Unlock()
			return data, mediaType, nil
		}
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		// The registry itself has the last word.
		lastErr = err
	}
	return nil, "", lastErr
}

// manifest fetches a manifest by tag or digest, and checks it.
func (r *registrySource) manifest(ctx context.Context, e *endpoint, target string) (data []byte, mediaType string, err error) {
	for try := 1; ; try++ {
		data, mediaType, err = r.manifestOnce(ctx, e, target)
		var temporary *fault.Temporary
		if err == nil || try >= r.Tries() || !errors.As(err, &temporary) {
			return data, mediaType, err
		}
		if err := fault.Backoff(ctx, try, err); err != nil {
			return nil, "", err
		}
	}
}

func (r *registrySource) manifestOnce(ctx context.Context, e *endpoint, target string) ([]byte, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := r.get(ctx, e, "/manifests/"+target, http.Header{"Accept": image.ManifestTypes()})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, "", r.statusError(e, resp, "manifest")
	}
	data, err := io.ReadAll(io.LimitReader(newIdleReader(resp.Body, cancel), image.MaxManifest+1))
	if err != nil {
		return nil, "", fault.Temporaryf(0, "fetching manifest: %w", err)
	}
	if len(data) > image.MaxManifest {
		return nil, "", fault.Invalidf("fetching manifest: it is larger than %d MiB", image.MaxManifest>>20)
	}
	got := image.DigestOf(data)
	if image.ValidDigest(target) && got != target {
		return nil, "", fault.Integrityf("fetching manifest %s: the digest of its content does not match", target)
	}
	if said := resp.Header.Get("Docker-Content-Digest"); strings.HasPrefix(said, image.DigestPrefix) && said != got {
		return nil, "", fault.Integrityf("fetching manifest: the digest of its content does not match than the registry says")
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return data, strings.TrimSpace(mediaType), nil
}

// Blob opens a blob, or a manifest of an index, from where the manifest came
// from, else from elsewhere.
func (r *registrySource) Blob(ctx context.Context, d image.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	r.mu.Lock()
	chosen := r.chosen
	r.mu.Unlock()
	order := []*endpoint{chosen}
	for _, e := range r.endpoints {
		if e != chosen {
			order = append(order, e)
		}
	}
	var lastErr error
	for _, e := range order {
		body, at, err := r.blobFrom(ctx, e, d, offset)
		if err == nil {
			return body, at, nil
		}
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		var temporary *fault.Temporary
		if lastErr == nil || !errors.As(lastErr, &temporary) {
			lastErr = err // what may pass is the one to tell
		}
	}
	return nil, 0, lastErr
}

func (r *registrySource) blobFrom(ctx context.Context, e *endpoint, d image.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	path, header := "/blobs/"+d.Digest, http.Header{}
	if slices.Contains(image.ManifestTypes(), d.MediaType) {
		path, header = "/manifests/"+d.Digest, http.Header{"Accept": {d.MediaType}}
	}
	if offset > 0 {
		// With its end, although it is that of the blob: some know no other form.
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, d.Size-1))
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := r.get(ctx, e, path, header)
	if err != nil {
		cancel()
		return nil, 0, err
	}
	at := int64(0)
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(offset, 10)+"-"):
		at = offset
	default:
		defer cancel()
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable || resp.StatusCode == http.StatusPartialContent {
			return r.blobFrom(ctx, e, d, 0) // it does not go on in the middle
		}
		return nil, 0, r.statusError(e, resp, "blob "+d.Digest)
	}
	return &idleReader{body: resp.Body, cancel: cancel, timer: time.AfterFunc(idleTimeout, cancel)}, at, nil
}

// An idleReader ends a request whose body has brought nothing for idleTimeout.
type idleReader struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func newIdleReader(body io.ReadCloser, cancel context.CancelFunc) *idleReader {
	return &idleReader{body: body, cancel: cancel, timer: time.AfterFunc(idleTimeout, cancel)}
}

func (r *idleReader) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if err != nil {
		r.timer.Stop()
		err = hide(err)
	} else {
		r.timer.Reset(idleTimeout)
	}
	return n, err
}

func (r *idleReader) Close() error {
	r.timer.Stop()
	err := r.body.Close()
	r.cancel()
	return err
}

// get asks an endpoint, and logs in when it wants that.
func (r *registrySource) get(ctx context.Context, e *endpoint, path string, header http.Header) (*http.Response, error) {
	for first := true; ; first = false {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base+path, nil)
		if err != nil {
			return nil, fault.Invalidf("contacting registry %s: %w", e.registry, err)
		}
		for k, v := range header {
			req.Header[k] = v
		}
		e.mu.Lock()
		auth := e.auth
		e.mu.Unlock()
		resp, err := r.do(req, auth)
		if err != nil {
			return nil, r.netError(ctx, e.registry, err)
		}
		// Only the endpoint itself can ask for credentials, not who it sent us to.
		if resp.StatusCode != http.StatusUnauthorized || !first || resp.Request.URL.Host != req.URL.Host {
			return resp, nil
		}
		challenges := resp.Header.Values("WWW-Authenticate")
		drain(resp)
		if err := r.login(ctx, e, auth, challenges); err != nil {
			return nil, err
		}
	}
}

func (r *registrySource) do(req *http.Request, auth string) (*http.Response, error) {
	req.Header.Set("User-Agent", r.fetcher.opt.UserAgent)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	_ = fault.Move(req.Context())
	return r.client.Do(req)
}

func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxErrorReply)
	_ = resp.Body.Close()
}

// login finds out what the endpoint wants to see: stale is what it has refused.
func (r *registrySource) login(ctx context.Context, e *endpoint, stale string, challenges []string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.auth != stale {
		return nil // another request has logged in meanwhile
	}
	if e.cred == nil {
		c, err := r.fetcher.credentials(ctx, e.registry, r.ref.Repository)
		if err != nil {
			return err
		}
		e.cred = &c
	}
	for _, ch := range challenges {
		scheme, params := parseChallenge(ch)
		switch scheme {
		case "bearer":
			token, err := r.token(ctx, e, params)
			if err != nil {
				return err
			}
			e.auth = "Bearer " + token
			return nil
		case "basic":
			if e.cred.username == "" && e.cred.password == "" {
				return r.denied(e)
			}
			req := http.Request{Header: http.Header{}}
			req.SetBasicAuth(e.cred.username, e.cred.password)
			e.auth = req.Header.Get("Authorization")
			return nil
		}
	}
	return r.denied(e)
}

func (r *registrySource) denied(e *endpoint) error {
	return sandpit.WithHint(fault.NotFoundf("registry %s denies access to %s: it does not exist, or needs other credentials", e.registry, r.ref.Repository),
		"check the name, or log in with \"docker login "+e.registry+"\" or \"podman login "+e.registry+"\"")
}

// token gets a token from where the registry says.
func (r *registrySource) token(ctx context.Context, e *endpoint, params map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Host == "" || (realm.Scheme != "https" && (realm.Scheme != "http" || !e.plain)) {
		return "", fault.Kind{Err: fmt.Errorf("logging in to %s: its token service %q is not an https URL", e.registry, fault.Clip(params["realm"])), Kind: sandpit.ErrForbidden}
	}
	q := realm.Query()
	if s := params["service"]; s != "" {
		q.Set("service", s)
	}
	scope := "repository:" + r.ref.Repository + ":pull"
	method, body := http.MethodGet, io.Reader(nil)
	if e.cred.identityToken != "" {
		// OAuth2 (distribution.github.io/distribution/spec/auth/oauth).
		form := url.Values{
			"grant_type": {"refresh_token"}, "refresh_token": {e.cred.identityToken},
			"service": {params["service"]}, "scope": {scope}, "client_id": {"sandpit"},
		}
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	} else {
		q.Set("scope", scope)
		realm.RawQuery = q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, realm.String(), body)
	if err != nil {
		return "", fault.Invalidf("logging in to %s: %w", e.registry, err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		// A redirect must not carry the secret of a POST body on.
		req.GetBody = nil
	} else if e.cred.username != "" {
		req.SetBasicAuth(e.cred.username, e.cred.password)
	}
	resp, err := r.do(req, "")
	if err != nil {
		return "", r.netError(ctx, realm.Host, err)
	}
	defer drain(resp)
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusBadRequest:
		return "", r.denied(e)
	case resp.StatusCode != http.StatusOK:
		return "", r.statusError(e, resp, "token")
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenReply))
	if err != nil {
		return "", fault.Temporaryf(0, "logging in to %s: %w", e.registry, hide(err))
	}
	var reply struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return "", fault.Kind{Err: fmt.Errorf("logging in to %s: the response is not valid JSON", e.registry), Kind: sandpit.ErrUnavailable}
	}
	token := reply.Token
	if token == "" {
		token = reply.AccessToken
	}
	if token == "" || strings.ContainsAny(token, "\r\n\x00") {
		return "", fault.Kind{Err: fmt.Errorf("logging in to %s: the response contains no token", e.registry), Kind: sandpit.ErrUnavailable}
	}
	return token, nil
}

// parseChallenge reads a WWW-Authenticate header (RFC 9110, section 11.6.1):
// the scheme in lower case, and its parameters.
func parseChallenge(s string) (scheme string, params map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), " ")
	params = make(map[string]string)
	for rest != "" && len(params) < 32 {
		rest = strings.TrimLeft(rest, " \t,")
		key, after, ok := strings.Cut(rest, "=")
		if !ok {
			break
		}
		var value string
		if quoted, ok := strings.CutPrefix(after, `"`); ok {
			var b strings.Builder
			i := 0
			for ; i < len(quoted) && quoted[i] != '"'; i++ {
				if quoted[i] == '\\' && i+1 < len(quoted) {
					i++
				}
				b.WriteByte(quoted[i])
			}
			value, rest = b.String(), quoted[min(i+1, len(quoted)):]
		} else {
			value, rest, _ = strings.Cut(after, ",")
		}
		params[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(value)
	}
	return strings.ToLower(scheme), params
}

// netError says why a registry could not be asked.
func (r *registrySource) netError(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the URL, which may hold a signature
	}
	if errors.Is(err, sandpit.ErrForbidden) {
		return fmt.Errorf("contacting registry %s: %w", host, err)
	}
	hint := "check the network and the registry's name, or use a stored image"
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return sandpit.WithHint(fault.Kind{Err: fmt.Errorf("contacting registry %s: it does not use TLS", host), Kind: sandpit.ErrUnavailable},
			"add --plain-http if this registry has no TLS and you trust the network to it")
	}
	if err = hide(err); errors.Is(err, errNoSuchHost) {
		return sandpit.WithHint(fault.Kind{Err: fmt.Errorf("contacting registry %s: %w", host, err), Kind: sandpit.ErrUnavailable}, hint)
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return sandpit.WithHint(fault.Kind{Err: fmt.Errorf("contacting registry %s: %w", host, err), Kind: sandpit.ErrUnavailable},
			"add the registry's certificate authority to those of this machine")
	}
	return sandpit.WithHint(fault.Temporaryf(0, "contacting registry %s: %w", host, err), hint)
}

// statusError says why a registry did not give what it was asked for.
func (r *registrySource) statusError(e *endpoint, resp *http.Response, what string) error {
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound:
		if what == "manifest" {
			return sandpit.WithHint(fault.NotFoundf("registry %s has no image %s", e.registry, r.ref.Familiar()), "check its name and tag")
		}
		return fault.NotFoundf("registry %s has no %s", e.registry, what)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return r.denied(e)
	case code == http.StatusTooManyRequests:
		return sandpit.WithHint(fault.Temporaryf(retryAfter(resp), "fetching from registry %s: %s: too many requests", e.registry, what),
			"try again later, or log in to the registry")
	case code >= 500 || code == http.StatusRequestTimeout:
		return sandpit.WithHint(fault.Temporaryf(retryAfter(resp), "fetching from registry %s: %s: it responded with %s", e.registry, what, fault.Clip(resp.Status)), "try later")
	default:
		return fault.Kind{Err: fmt.Errorf("fetching from registry %s: %s: it responded with %s", e.registry, what, fault.Clip(resp.Status)), Kind: sandpit.ErrUnavailable}
	}
}

func retryAfter(resp *http.Response) time.Duration {
	n, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(min(n, 86400)) * time.Second
}
