package network

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// sandboxed is a sandbox that trusts an authority.
type sandboxed struct {
	*Network
	t       *testing.T
	trusted *x509.CertPool
	dial    func(ctx context.Context, host string, port int) (net.Conn, error)
}

func newSandboxed(t *testing.T, terms engine.Terms) *sandboxed {
	t.Helper()
	return sandboxedIn(t, joinOn(t, terms), terms)
}

func sandboxedIn(t *testing.T, in *inside, terms engine.Terms) *sandboxed {
	b := &sandboxed{Network: in.net, t: t, trusted: x509.NewCertPool()}
	b.trusted.AppendCertsFromPEM(authority.Certificate(terms.CA))
	b.dial = func(_ context.Context, host string, port int) (net.Conn, error) {
		return in.dial(net.JoinHostPort(host, strconv.Itoa(port)))
	}
	return b
}

// client returns a client inside whose connections go to a host, whatever requests say.
func (b *sandboxed) client(host string, port int, http2 bool) *http.Client {
	transport := &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return b.dial(ctx, host, port) },
		TLSClientConfig:       &tls.Config{RootCAs: b.trusted},
		Protocols:             new(http.Protocols),
		ExpectContinueTimeout: time.Minute, DisableCompression: true,
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// originCA is the authority of all origins.
var originCA = sync.OnceValue(func() []byte {
	ca, err := authority.New()
	if err != nil {
		panic(err)
	}
	return ca
})

func originRoots() []byte { return authority.Certificate(originCA()) }

// origin is a server that speaks TLS, with a certificate for good.test and other.test.
type origin struct {
	*httptest.Server
	port   int
	hellos chan struct{} // of the first handshakes
}

func newOrigin(t *testing.T, http2 bool, h http.Handler) *origin {
	t.Helper()
	issuer, err := authority.Read(originCA())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = http2
	o := &origin{Server: server, hellos: make(chan struct{}, 1)}
	server.TLS = &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		select {
		case o.hellos <- struct{}{}:
		default:
		}
		return issuer.Issue(h.ServerName)
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	o.port = server.Listener.Addr().(*net.TCPAddr).Port
	return o
}

// terms allow what rules say to be reached at an origin.
func (o *origin) terms(t *testing.T, secrets []engine.Secret, allow ...string) engine.Terms {
	t.Helper()
	ca, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	for i := range allow {
		allow[i] = strings.ReplaceAll(allow[i], "PORT", fmt.Sprint(o.port))
	}
	terms := granted(t, sandpit.Egress{Allow: allow, Resolve: []string{"good.test:127.0.0.1", "other.test:127.0.0.1"}})
	terms.Secrets, terms.CA = secrets, ca
	return terms
}

func (o *origin) host(name string) string { return fmt.Sprintf("%s:%d", name, o.port) }

func (o *origin) url(path string) string { return "https://" + o.host("good.test") + path }

// do sends a request, and returns the status and the body of the answer.
func do(t *testing.T, c *http.Client, method, url string, body io.Reader, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func both(t *testing.T, test func(t *testing.T, inside, outside bool)) {
	t.Helper()
	for _, inside := range []bool{false, true} {
		for _, outside := range []bool{false, true} {
			t.Run(fmt.Sprintf("HTTP2 inside %t outside %t", inside, outside), func(t *testing.T) { test(t, inside, outside) })
		}
	}
}

// Requests over HTTPS are decided one by one: by method and path, however they are encoded.
func TestRulesAboutRequests(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s %d", r.Method, r.URL.RequestURI(), r.ProtoMajor)
		}))
		b := newSandboxed(t, o.terms(t, nil, "GET:https://good.test:PORT/a/*", "*:https://good.test:PORT/b", "GET:https://*.good.test:PORT/*"))
		c := b.client("good.test", o.port, inside)
		version := 1
		if inside && outside { // only HTTP/1.1 can change to another protocol
			version = 2
		}
		for _, r := range []struct {
			method, path string
			header       []string
			want         int
		}{
			{"GET", "/a/x?q=1;r=%zz&&", nil, 200},
			{"GET", "/a/x%20%41", nil, 200},
			{"GET", "/a/x%2Fy", nil, 200},
			{"DELETE", "/b", nil, 200},
			{"POST", "/a/x", nil, 403},
			{"GET", "/", nil, 403},
			{"GET", "/c", nil, 403},
			{"GET", "/b/", nil, 403},
			{"GET", "/a", nil, 403},
			{"GET", "/a/../c", nil, 403},
			{"GET", "/a/%2e%2e/c", nil, 403},
			{"GET", "/a/..%2fc", nil, 403},
			{"GET", "/a/..;x/c", nil, 403},
			{"GET", "/a/%252e%252e/c", nil, 403},
			{"GET", "/a//c", nil, 403},
			{"GET", `/a/%5c..%5cc`, nil, 403},
			{"GET", "/a%2Fx", nil, 403},
			{"GET", "/a/%00", nil, 403},
			{"GET", "/a/%c0%ae%c0%ae/c", nil, 403},
			{"GET", "/a/%C3%A9", nil, 200},
			{"GET", "/a/x", []string{"X-HTTP-Method-Override", "DELETE"}, 403},
			{"GET", "/a/x", []string{"X-Original-URL", "/c"}, 403},
			{"GET", "/a/x", []string{"X_HTTP_Method-Override", "DELETE"}, 403},
			{"GET", "/a/x", []string{"X-Original-Uri", "/c"}, 403},
			{"GET", "/a/x", []string{"X-Forwarded-Prefix", "/c"}, 403},
			{"GET", "/a/x", []string{"X-Forwarded-Host", "other.test"}, 403},
			{"GET", "/a/x", []string{"Host", "other.test"}, 403},
			{"GET", "/a/x", []string{"Host", "x.good.test"}, 403}, // also what a rule allows elsewhere
		} {
			status, text := do(t, c, r.method, o.url(r.path), nil, r.header...)
			if status != r.want || status == 403 && !strings.HasPrefix(text, "sandpit: ") {
				t.Errorf("%s %s %v: %d %s", r.method, r.path, r.header, status, text)
			}
			if want := fmt.Sprintf("%s %s %d", r.method, r.path, version); status == 200 && text != want {
				t.Errorf("the origin got %q, not %q", text, want)
			}
		}
		if l := b.Log(); len(l.Denials) == 0 {
			t.Error("the log has no denial")
		}
	})
}

// Where requests are decided, nothing else passes: not plain HTTP, other protocols, other names,
// nor an origin without a certificate for the name.
func TestOnlyRequestsPass(t *testing.T) {
	o := newOrigin(t, true, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	b := newSandboxed(t, o.terms(t, nil, "*:https://good.test:PORT/*", "*:https://other.test:PORT/*"))
	for _, first := range []string{"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01\x00\x05hello"} {
		conn, err := b.dial(t.Context(), "good.test", o.port)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, first); err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(conn); len(text) > 0 {
			t.Errorf("%q was answered with %q", first, text)
		}
		conn.Close()
	}
	conn, err := b.dial(t.Context(), "good.test", o.port)
	if err != nil {
		t.Fatal(err)
	}
	if err := tls.Client(conn, &tls.Config{ServerName: "other.test", RootCAs: b.trusted}).Handshake(); err == nil {
		t.Error("another server name was accepted")
	}
	conn.Close()

	terms := o.terms(t, nil, "*:https://good.test:PORT/*")
	b = sandboxedIn(t, joinBy(t, terms, nil), terms)
	if status, text := do(t, b.client("good.test", o.port, false), "GET", o.url("/"), nil); status != http.StatusBadGateway || !strings.Contains(text, "certificate") {
		t.Errorf("an origin without a trusted certificate: %d %s", status, text)
	}
}

const (
	value       = "s3cret/value+of=a\"service"
	placeholder = "sandpit-placeholder-0123456789abcdef"
	otherValue  = "another value that is secret"
	otherHolder = "sandpit-placeholder-fedcba9876543210"
)

func (o *origin) twoSecrets(query, body bool) []engine.Secret {
	return []engine.Secret{
		{Name: "mine", Placeholder: placeholder, Value: []byte(value), Hosts: []string{o.host("good.test")}, Query: query, Body: body},
		{Name: "its", Placeholder: otherHolder, Value: []byte(otherValue), Hosts: []string{o.host("other.test")}},
	}
}

// A value replaces its placeholder in headers and basic authentication, and elsewhere on request.
func TestSecretsArePutIn(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		type request struct {
			*http.Request
			body string
		}
		var last atomic.Pointer[request]
		o := newOrigin(t, outside, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			last.Store(&request{r, string(text)})
		}))
		b := newSandboxed(t, o.terms(t, o.twoSecrets(true, true), "good.test:PORT"))
		c := b.client("good.test", o.port, inside)
		basic, _ := http.NewRequest("GET", o.url("/"), nil)
		basic.SetBasicAuth("user", placeholder)
		status, text := do(t, c, "POST", o.url("/"+placeholder+"?k="+placeholder+"&l=%2b"), strings.NewReader(`{"k":"`+placeholder+`"}`),
			"Authorization", basic.Header.Get("Authorization"), "X-Api-Key", "key "+placeholder, "Content-Type", "application/json")
		if status != 200 {
			t.Fatal(status, text)
		}
		got := last.Load()
		if user, password, _ := got.BasicAuth(); user != "user" || password != value {
			t.Errorf("basic authentication as %q with %q", user, password)
		}
		if v := got.Header.Get("X-Api-Key"); v != "key "+value {
			t.Errorf("the header has %q", v)
		}
		if v := got.URL.Query().Get("k"); v != value || got.URL.Path != "/"+placeholder {
			t.Errorf("the URL is %s", got.URL)
		}
		if want := `{"k":"s3cret/value+of=a\"service"}`; got.body != want || got.ContentLength != int64(len(want)) {
			t.Errorf("the body is %d bytes: %s", got.ContentLength, got.body)
		}
		// A large body is a stream.
		large := strings.Repeat("x", 16<<10-3) // no multiple of what is read at once
		if status, text = do(t, c, "PUT", o.url("/"), strings.NewReader(strings.Repeat(large+placeholder, 40))); status != 200 || last.Load().body != strings.Repeat(large+value, 40) {
			t.Errorf("a large body: %d %s, %d bytes", status, text, len(last.Load().body))
		}

		b = newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		c = b.client("good.test", o.port, inside)
		status, text = do(t, c, "POST", o.url("/?k="+placeholder), strings.NewReader(placeholder))
		if got := last.Load(); status != 200 || got.body != placeholder || got.URL.RawQuery != "k="+placeholder {
			t.Errorf("not asked for: %d %s, query %s, body %s", status, text, got.URL.RawQuery, got.body)
		}
	})
}

// The placeholder of a secret for other hosts denies a request, wherever it is.
func TestMisplacedPlaceholders(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		c := b.client("good.test", o.port, inside)
		basic, _ := http.NewRequest("GET", o.url("/"), nil)
		basic.SetBasicAuth("user", otherHolder)
		for name, r := range map[string]struct {
			path   string
			body   io.Reader
			header []string
		}{
			"header":     {"/", nil, []string{"X-Key", otherHolder}},
			"name":       {"/", nil, []string{"X-" + otherHolder, "x"}},
			"basic":      {"/", nil, []string{"Authorization", basic.Header.Get("Authorization")}},
			"query":      {"/?" + otherHolder, nil, nil},
			"path":       {"/" + otherHolder, nil, nil},
			"body":       {"/", strings.NewReader("a" + otherHolder), nil},
			"large body": {"/", strings.NewReader(strings.Repeat("x", 1<<20) + otherHolder), nil},
			"stream":     {"/", io.MultiReader(strings.NewReader(otherHolder[:5]), strings.NewReader(otherHolder[5:])), nil},
		} {
			if status, text := do(t, c, "POST", o.url(r.path), r.body, r.header...); status != http.StatusForbidden || !strings.Contains(text, `secret "its"`) {
				t.Errorf("%s: %d %s", name, status, text)
			}
		}
		if l := b.Log(); len(l.Denials) != 1 || l.Denials[0].Count != 8 {
			t.Errorf("denials: %+v", l.Denials)
		}
	})
}

// Nothing is put into plain HTTP, not even for the secret's own hosts.
func TestPlainHTTPGetsNoSecret(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("got %v", r.Header) }))
	defer plain.Close()
	o := &origin{port: plain.Listener.Addr().(*net.TCPAddr).Port}
	b := newSandboxed(t, o.terms(t, o.twoSecrets(true, true), "good.test:PORT"))
	url := fmt.Sprintf("http://good.test:%d/", o.port)
	if status, text := do(t, b.client("good.test", o.port, false), "GET", url, nil, "X-Key", placeholder); status != http.StatusForbidden || !strings.Contains(text, "over HTTPS") {
		t.Errorf("%d %s", status, text)
	}
}

// An origin that echoes a value does not bring it into the sandbox.
func TestEchoedSecrets(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://elsewhere.test/?k="+r.Header.Get("X-Key"))
			w.Header().Set("Trailer", "X-Last")
			w.WriteHeader(http.StatusFound)
			_ = r.Header.Write(w)
			_ = http.NewResponseController(w).Flush()
			w.Header().Set("X-Last", r.Header.Get("X-Key"))
		}))
		b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		c := b.client("good.test", o.port, inside)
		r, _ := http.NewRequestWithContext(t.Context(), "GET", o.url("/"), nil)
		r.Header.Set("X-Key", placeholder)
		r.SetBasicAuth("user", placeholder)
		r.Header.Set("Accept-Encoding", "gzip")
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var all bytes.Buffer
		if _, err := io.Copy(&all, res.Body); err != nil {
			t.Fatal(err)
		}
		_ = res.Header.Write(&all)
		_ = res.Trailer.Write(&all)
		sent, _, _ := strings.Cut(all.String(), "\r\n\r\n")
		if !strings.Contains(sent, "X-Key: sandpit-placeholder-01234") || res.Trailer.Get("X-Last") == "" {
			t.Fatalf("the answer is %s", all.String())
		}
		encoded := r.Header.Get("Authorization")
		for _, v := range []string{value, "dXNlcjpzM2Ny"} {
			if strings.Contains(all.String(), v) || strings.Contains(encoded, v) {
				t.Errorf("%q came back: %s", v, all.String())
			}
		}
	})
}

// An origin that answers with something else than HTTP does not bring a value into the error.
func TestErrorsTellNoSecret(t *testing.T) {
	o := newOrigin(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %s%s\r\n\r\n", r.Header.Get("Authorization"), r.Header.Get("X-Key"))
	}))
	b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
	c := b.client("good.test", o.port, false)
	basic, _ := http.NewRequest("GET", o.url("/"), nil)
	basic.SetBasicAuth("user", placeholder)
	for name, v := range map[string]string{"X-Key": placeholder, "Authorization": basic.Header.Get("Authorization")} {
		status, text := do(t, c, "GET", o.url("/"), nil, name, v)
		if status != http.StatusBadGateway || !strings.Contains(text, "sandpit-placeholder") || strings.Contains(text, "s3cret") || strings.Contains(text, "dXNlcjpzM2Ny") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}

// A value that an origin has stored does not come back in a later request: neither compressed nor in parts.
func TestStoredSecrets(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		var stored string
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") != "" {
				t.Error("a range is asked for")
			}
			switch {
			case r.Method == "PUT":
				stored = r.Header.Get("X-Key")
			case strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, stored)
				_ = z.Close()
			default:
				http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader(stored))
			}
		}))
		b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		c := b.client("good.test", o.port, inside)
		if status, text := do(t, c, "PUT", o.url("/"), nil, "X-Key", placeholder); status != 200 || stored != value {
			t.Fatal(status, text, stored)
		}
		for _, header := range [][]string{{"Accept-Encoding", "gzip"}, {"Range", "bytes=0-9"}, {"Range", "bytes=10-", "If-Range", `"x"`}} {
			if status, text := do(t, c, "GET", o.url("/"), nil, header...); status != 200 || text != placeholder[:len(value)] {
				t.Errorf("%s: %d %q", header, status, text)
			}
		}
	})
}

// Placeholders in the trailer of a request are those of its header.
func TestSecretsInTrailers(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		all := make(chan string, 2)
		o := newOrigin(t, outside, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			all <- fmt.Sprint(r.Trailer.Get("X-Key"), err)
		}))
		b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		send := func(method, body, name, text string) *http.Response {
			r, _ := http.NewRequestWithContext(t.Context(), method, o.url("/"), io.MultiReader(strings.NewReader(body)))
			r.TransferEncoding = []string{"chunked"}
			r.Trailer = http.Header{name: {text}}
			res, err := b.client("good.test", o.port, inside).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			return res
		}
		for _, method := range []string{"POST", "GET"} {
			for _, body := range []string{"body", ""} {
				res := send(method, body, "X-Key", placeholder)
				if got := <-all; res.StatusCode != http.StatusOK || got != value+"<nil>" {
					t.Errorf("%s with %q: %s, the origin got %q", method, body, res.Status, got)
				}
			}
		}
		for name, text := range map[string]string{"X-Key": otherHolder, "X-" + otherHolder: "x"} {
			res := send("POST", "body", name, text)
			if got := <-all; res.StatusCode != http.StatusForbidden || strings.Contains(got, otherHolder) || strings.Contains(got, otherValue) {
				t.Errorf("another's in %s: %s, the origin got %q", name, res.Status, got)
			}
		}
	})
}

// A value that is put in force while a response comes in does not come back in it.
func TestLaterValuesAreMasked(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		told := make(chan string)
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/put" {
				told <- r.Header.Get("X-Key")
				return
			}
			for range 2 {
				_ = http.NewResponseController(w).Flush()
				_, _ = io.WriteString(w, <-told+"\n")
			}
		}))
		terms := o.terms(t, o.twoSecrets(false, false), "good.test:PORT")
		b := newSandboxed(t, terms)
		c := b.client("good.test", o.port, inside)
		stream, err := c.Get(o.url("/stream"))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Body.Close()
		lines := bufio.NewReader(stream.Body)
		for _, v := range []string{value, "rotated-and-new"} {
			if v != value {
				terms.Secrets[0].Value = []byte(v)
				if err := b.Set(terms); err != nil {
					t.Fatal(err)
				}
			}
			if status, text := do(t, b.client("good.test", o.port, inside), "PUT", o.url("/put"), nil, "X-Key", placeholder); status != 200 {
				t.Fatal(status, text)
			}
			if line, err := lines.ReadString('\n'); err != nil || line != placeholder[:len(v)]+"\n" {
				t.Errorf("%q, %v", line, err)
			}
		}
	})
}

// Values don't come back in informational responses, nor in the names of fields.
func TestEchoedSecretsInHeads(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</"+r.Header.Get("X-Key")+">")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-"+r.Header.Get("X-Key"), "x")
			w.Header().Set("Trailer", "Y-"+r.Header.Get("X-Key"))
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			w.Header().Set("Y-"+r.Header.Get("X-Key"), "y")
		}))
		secrets := o.twoSecrets(false, false)
		secrets[0].Value = []byte("Secret-Value-Of-A-Service")
		b := newSandboxed(t, o.terms(t, secrets, "good.test:PORT"))
		var all bytes.Buffer
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints++
			return http.Header(h).Write(&all)
		}})
		r, _ := http.NewRequestWithContext(ctx, "GET", o.url("/"), nil)
		r.Header.Set("X-Key", placeholder)
		res, err := b.client("good.test", o.port, inside).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(&all, res.Body); err != nil {
			t.Fatal(err)
		}
		_ = res.Header.Write(&all)
		_ = res.Trailer.Write(&all)
		if hints != 1 || !strings.Contains(all.String(), "Link: </sandpit-placeholder") {
			t.Errorf("%d informational responses: %s", hints, all.String())
		}
		if strings.Contains(strings.ToLower(all.String()), "secret-value") {
			t.Errorf("it came back: %s", all.String())
		}
	})
}

// The handshake with the origin does not wait for a request, but begins with that of the sandbox. What
// it has brought serves the first request.
func TestHandshakesAreBesideEachOther(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
		b := newSandboxed(t, o.terms(t, nil, "GET:https://good.test:PORT/*"))
		conn, err := b.dial(t.Context(), "good.test", o.port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		config := &tls.Config{ServerName: "good.test", RootCAs: b.trusted}
		if inside {
			config.NextProtos = []string{"h2", "http/1.1"}
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-o.hellos
		if inside {
			return // its requests are frames
		}
		r := bufio.NewReader(secure)
		var from []string
		for range 2 {
			fmt.Fprint(secure, "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s, %v", res.Status, text, err)
			}
			from = append(from, string(text))
		}
		if from[0] != from[1] || b.Traffic().Connections != 1 {
			t.Errorf("requests came from %v, in %d connections", from, b.Traffic().Connections)
		}
	})
}

// echoStream answers a request as its body comes, with a trailer for a trailer.
func echoStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-End")
	_ = http.NewResponseController(w).EnableFullDuplex()
	w.WriteHeader(200)
	_ = http.NewResponseController(w).Flush()
	buf := make([]byte, 100)
	for {
		n, err := r.Body.Read(buf)
		_, _ = w.Write(buf[:n])
		_ = http.NewResponseController(w).Flush()
		if err != nil {
			break
		}
	}
	w.Header().Set("X-End", r.Trailer.Get("X-Begun"))
}

// Streams pass without delay, both ways at once, with trailers; and so do WebSockets.
func TestInterceptedStreams(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		o := newOrigin(t, outside, streams())
		b := newSandboxed(t, o.terms(t, o.twoSecrets(false, false), "good.test:PORT"))
		// Of which some end with what may be the beginning of a value or a placeholder.
		bothWays(t, b.client("good.test", o.port, inside), o.url("/echo"), "one", "yes", "s3c", "sandpit-placeholder")
		if inside != outside {
			b := newSandboxed(t, o.terms(t, o.twoSecrets(true, true), "good.test:PORT"))
			bothWays(t, b.client("good.test", o.port, inside), o.url("/echo"), "yes")
		}
		if !inside {
			conn, err := b.dial(t.Context(), "good.test", o.port)
			if err != nil {
				t.Fatal(err)
			}
			secure := tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: b.trusted})
			config, _ := websocket.NewConfig(strings.Replace(o.url("/websocket"), "https", "wss", 1), o.url("/"))
			config.Header.Set("X-Key", placeholder)
			ws, err := websocket.NewClient(config, secure)
			if err != nil {
				t.Fatal(err)
			}
			var text string
			if err := websocket.Message.Receive(ws, &text); err != nil || len(text) != len(value) || text == value {
				t.Errorf("a value that comes back: %q, %v", text, err)
			}
			_ = websocket.Message.Send(ws, "hello")
			if err := websocket.Message.Receive(ws, &text); err != nil || text != "hello" {
				t.Errorf("%q, %v", text, err)
			}
			ws.Close()
		}
		// Expect: 100-continue, whose body is only sent once it is wanted. Also if the origin answers before.
		if status, text := do(t, b.client("good.test", o.port, inside), "PUT", o.url("/whole"), strings.NewReader("body"), "Expect", "100-continue"); status != 200 || text != "body" {
			t.Errorf("100-continue: %d %q", status, text)
		}
		if status, text := do(t, b.client("good.test", o.port, inside), "PUT", o.url("/echo"), strings.NewReader("body"), "Expect", "100-continue"); status != 200 || text != "body" {
			t.Errorf("100-continue with an early answer: %d %q", status, text)
		}
	})
}

// streams serves what does not end at once.
func streams() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", echoStream)
	mux.HandleFunc("/whole", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		_, _ = w.Write(text)
	})
	mux.Handle("/websocket", websocket.Handler(func(c *websocket.Conn) {
		_, _ = io.WriteString(c, c.Request().Header.Get("X-Key"))
		_, _ = io.Copy(c, c)
	}))
	return mux
}

// Bodies pass whole in plain HTTP, too, if the origin answers before they end.
func TestPlainStreams(t *testing.T) {
	plain := httptest.NewServer(streams())
	defer plain.Close()
	o := &origin{port: plain.Listener.Addr().(*net.TCPAddr).Port}
	b := newSandboxed(t, o.terms(t, nil, "good.test:PORT"))
	bothWays(t, b.client("good.test", o.port, false), "http://"+o.host("good.test")+"/echo", "one", "two")
}

// bothWays checks a request whose response begins before its body ends, as gRPC has it.
func bothWays(t *testing.T, c *http.Client, url string, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, w := io.Pipe()
	defer w.Close()
	defer context.AfterFunc(ctx, func() { w.Close() })() // for which the transport waits
	request, _ := http.NewRequestWithContext(ctx, "POST", url, r)
	request.Trailer = http.Header{"X-Begun": nil}
	res, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		_, _ = io.WriteString(w, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	request.Trailer.Set("X-Begun", "trailer")
	w.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 || res.Trailer.Get("X-End") != "trailer" {
		t.Errorf("%q, %v, trailer %v", rest, err, res.Trailer)
	}
}

// A change of secrets reaches the next request, also of an open connection. Connections that
// were not intercepted end when their requests are to be decided.
func TestTermsChangeLive(t *testing.T) {
	var got string
	o := newOrigin(t, true, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("X-Key") }))
	terms := o.terms(t, o.twoSecrets(false, false)[:1], "good.test:PORT", "other.test:PORT")
	b := newSandboxed(t, terms)
	c := b.client("good.test", o.port, true)
	if status, text := do(t, c, "GET", o.url("/"), nil, "X-Key", placeholder); status != 200 || got != value {
		t.Fatal(status, text, got)
	}
	terms.Secrets = o.twoSecrets(false, false)[:1]
	terms.Secrets[0].Value = []byte("rotated-value")
	if err := b.Set(terms); err != nil {
		t.Fatal(err)
	}
	if status, text := do(t, c, "GET", o.url("/"), nil, "X-Key", placeholder); status != 200 || got != "rotated-value" {
		t.Fatal(status, text, got)
	}
	terms.Secrets = nil
	terms.Egress.Allow = []string{fmt.Sprintf("GET:https://good.test:%d/a", o.port), fmt.Sprintf("other.test:%d", o.port)}
	if err := b.Set(terms); err != nil {
		t.Fatal(err)
	}
	if status, text := do(t, b.client("good.test", o.port, true), "GET", o.url("/"), nil); status != 403 {
		t.Fatal(status, text)
	}
	conn, err := b.dial(t.Context(), "other.test", o.port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(originRoots())
	if err := tls.Client(conn, &tls.Config{ServerName: "other.test", RootCAs: roots}).Handshake(); err != nil {
		t.Fatalf("not intercepted: %v", err)
	}
	terms.Egress.Allow = []string{fmt.Sprintf("GET:https://other.test:%d/a", o.port)}
	if err := b.Set(terms); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err == nil {
		t.Log("ended") // cleanly, or with a reset
	}
}

// A WebSocket does not begin with a secret that is replaced before the origin agrees.
func TestSecretsThatChangeInHandshakes(t *testing.T) {
	var change func()
	o := newOrigin(t, false, websocket.Server{
		Handshake: func(*websocket.Config, *http.Request) error { change(); return nil },
		Handler:   func(c *websocket.Conn) { _, _ = io.Copy(c, c) },
	})
	terms := o.terms(t, o.twoSecrets(false, false), "good.test:PORT")
	b := newSandboxed(t, terms)
	for _, next := range []string{value, "the next value of it"} {
		change = func() {
			terms.Secrets = o.twoSecrets(false, false)
			terms.Secrets[0].Value = []byte(next)
			if err := b.Set(terms); err != nil {
				t.Error(err)
			}
		}
		conn, err := b.dial(t.Context(), "good.test", o.port)
		if err != nil {
			t.Fatal(err)
		}
		config, _ := websocket.NewConfig(strings.Replace(o.url("/"), "https", "wss", 1), o.url("/"))
		config.Header.Set("X-Key", placeholder)
		ws, err := websocket.NewClient(config, tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: b.trusted}))
		if (err == nil) != (next == value) {
			t.Errorf("with %q: %v", next, err)
		}
		if err == nil {
			ws.Close()
		}
		conn.Close()
	}
}

// The value of a secret that was replaced or removed does not come back either, and a WebSocket that was
// opened with it ends.
func TestFormerSecrets(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/stored", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, value) })
	mux.Handle("/websocket", websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	o := newOrigin(t, false, mux)
	terms := o.terms(t, o.twoSecrets(false, false), "good.test:PORT")
	b := newSandboxed(t, terms)
	open := func() *websocket.Conn {
		conn, err := b.dial(t.Context(), "good.test", o.port)
		if err != nil {
			t.Fatal(err)
		}
		config, _ := websocket.NewConfig(strings.Replace(o.url("/websocket"), "https", "wss", 1), o.url("/"))
		config.Header.Set("X-Key", placeholder)
		ws, err := websocket.NewClient(config, tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: b.trusted}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ws.Close() })
		return ws
	}
	replaced := o.twoSecrets(false, false)
	replaced[0].Value = []byte("the next value of it")
	for name, secrets := range map[string][]engine.Secret{"another is removed": replaced[:1], "removed": nil} {
		terms.Secrets = replaced
		if err := b.Set(terms); err != nil {
			t.Fatal(err)
		}
		ws := open()
		terms.Secrets = secrets
		if err := b.Set(terms); err != nil {
			t.Fatal(err)
		}
		var text string
		_ = websocket.Message.Send(ws, "hello")
		if err := websocket.Message.Receive(ws, &text); (err == nil) != (len(secrets) > 0) {
			t.Errorf("%s: the WebSocket: %q, %v", name, text, err)
		}
		if _, text := do(t, b.client("good.test", o.port, false), "GET", o.url("/stored"), nil); text != placeholder[:len(value)] {
			t.Errorf("%s: the former value: %q", name, text)
		}
	}
}
