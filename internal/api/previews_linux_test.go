package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/browsertest"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// preview makes a preview, and returns it with its parsed URL.
func (s *service) preview(key string, sb v1.Sandbox, port int) (v1.Preview, *url.URL) {
	s.t.Helper()
	var made v1.Preview
	h := s.want(201, &made, ask{method: "POST", path: fmt.Sprintf("/v1/sandboxes/%s/ports/%d/previews", sb.ID, port), key: key, body: v1.NewPreview{}})
	u, err := url.Parse(made.URL)
	if err != nil || h.Get("Cache-Control") != "no-store" || made.ExpiresAt.Sub(made.CreatedAt) != time.Hour || int(made.Port) != port {
		s.t.Fatalf("%+v, %v", made, err)
	}
	return made, u
}

// at is a request without a key to the host of a URL.
func at(u *url.URL, path string, more ...string) ask {
	a := ask{method: "GET", path: path, key: "none", header: map[string]string{"Host": u.Host}}
	for i := 0; i+1 < len(more); i += 2 {
		a.header[more[i]] = more[i+1]
	}
	return a
}

// once makes a request and follows no redirect.
func (s *service) once(a ask) (int, string, http.Header) {
	s.t.Helper()
	inner := *s
	inner.tcp = &http.Client{Transport: s.tcp.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	status, body, h := inner.get(a)
	return status, string(body), h
}

// The URL of a preview opens the port that it was made for, without a key. Browsers get a cookie in
// exchange for the token, and others are answered at once. The sandbox, the log and the audit get
// neither.
func TestPreviews(t *testing.T) {
	s := serve(t, nil)
	sb, other := s.create(aliceKey, v1.Spec{Name: "web"}), s.create(aliceKey, v1.Spec{})
	s.python(sb, aliceKey, mirror, 1)
	p, u := s.preview(aliceKey, sb, 8080)
	const page = "text/html,*/*;q=0.8"
	token := u.Query().Get("sandpit-preview")

	status, body, _ := s.once(at(u, "/v1/keys?a=1&"+u.RawQuery+"&b=%20"))
	if status != 200 || !strings.HasPrefix(body, "GET /v1/keys?a=1&b=%20 HTTP/1.1") || strings.Contains(body, token) {
		t.Errorf("without cookies: %d %s", status, body)
	}
	status, _, h := s.once(at(u, "/a//b?x=1&"+u.RawQuery, "Accept", page, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"))
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	if status != 303 || h.Get("Location") != "/a//b?x=1" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-store" ||
		cookie != "sandpit-preview="+token || !strings.HasSuffix(h.Get("Set-Cookie"), "; HttpOnly; SameSite=Lax") || strings.Contains(h.Get("Set-Cookie"), "Domain") {
		t.Errorf("a browser: %d %v", status, h)
	}
	_, _, h = s.once(at(u, "//evil.example/?"+u.RawQuery, "Accept", page, "X-Forwarded-Proto", "https"))
	if h.Get("Location") != "/.//evil.example/" || !strings.HasPrefix(h.Get("Set-Cookie"), "__Host-sandpit-preview="+token+"; Path=/; ") || !strings.Contains(h.Get("Set-Cookie"), "; Secure") {
		t.Errorf("behind TLS: %v", h)
	}
	status, body, _ = s.once(at(u, "/c", "Accept", page, "Cookie", "mine=1; "+strings.Repeat("sandpit-preview=old; ", 20)+"__Host-sandpit-preview=old; Sandpit-Preview=old; "+cookie+"; yours=2", "Authorization", "Bearer app"))
	if status != 200 || !strings.Contains(body, "Cookie: mine=1; yours=2\r\n") || strings.Contains(strings.ToLower(body), "sandpit-preview") || !strings.Contains(body, "Authorization: Bearer app") {
		t.Errorf("with the cookie: %d %s", status, body)
	}
	for _, others := range []string{cookie, "__host-" + cookie, "__Host-Sandpit-Preview=" + token} { // which pages of other hosts can add
		s.refused(403, "preview_invalid", at(u, "/c", "Cookie", "__Host-sandpit-preview=x; "+others, "X-Forwarded-Proto", "https"))
	}
	if _, body, _ = s.once(at(u, "/c", "Cookie", cookie+"; __Host-"+cookie, "X-Forwarded-Proto", "https")); !strings.Contains(body, "X-Forwarded-Proto: https\r\n") {
		t.Errorf("behind TLS the sandbox gets %s", body)
	}
	if status, _, _ = s.once(at(u, "/c", "Cookie", "sandpit-preview=old", "X-Sandpit-Key", aliceKey)); status != 200 {
		t.Errorf("with a key and an old cookie: %d", status)
	}

	// What a preview is not for.
	for name, host := range map[string]string{"another port": "3000-" + sb.ID + ".localhost", "another sandbox": "8080-" + other.ID + ".localhost", "the name": "8080-" + sb.Name + ".localhost"} {
		foreign := *u
		foreign.Host = host
		s.refused(403, "preview_invalid", at(&foreign, "/?"+u.RawQuery))
		if status, body, _ := s.once(at(&foreign, "/", "Cookie", cookie, "Accept", page)); status != 403 || !strings.Contains(body, "<h1>This preview is not available") || strings.Contains(body, sb.ID) || strings.Contains(body, "web") {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	s.refused(401, "unauthenticated", at(u, "/"))
	s.refused(401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes?" + u.RawQuery, key: "none"})
	s.refused(400, "invalid", at(u, "/?"+u.RawQuery+"&"+u.RawQuery))
	s.refused(400, "invalid", at(u, "/?a="+token, "Cookie", cookie))
	s.refused(403, "forbidden", at(u, "/sw.js", "Cookie", cookie, "Service-Worker", "script"))
	for _, from := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}} {
		if status, _, _ := s.once(at(u, "/", append(from, "Cookie", cookie)...)); status != 403 {
			t.Errorf("%v: %d", from, status)
		}
	}
	s.refused(403, "forbidden", ask{method: "POST", path: "/v1/sandboxes/" + s.create(bobKey, v1.Spec{}).ID + "/ports/1/previews", key: bobKey, body: v1.NewPreview{}})
	s.refused(403, "forbidden", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/ports/1/previews", key: aliceKey, body: v1.NewPreview{Expires: new(25 * 3600.0)}})
	s.refused(403, "forbidden", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/ports/1/previews", key: aliceKey, body: v1.NewPreview{Expires: new(1e300)}})
	for _, bad := range []string{"-1", "0", "null", "1e-10", "-1e-10"} {
		if e := s.refused(400, "invalid", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/ports/1/previews", key: aliceKey, body: `{"expires":` + bad + `}`}); !strings.Contains(e.Message, `"expires"`) || e.Hint == "" {
			t.Errorf("%s: %+v", bad, e)
		}
	}
	if e := s.refused(401, "unauthenticated", at(u, "/")); !strings.Contains(e.Hint, "X-Sandpit-Key") {
		t.Errorf("without a key or preview: %+v", e)
	}
	if e := s.refused(403, "origin_refused", at(u, "/", "Cookie", cookie, "Sec-Fetch-Site", "cross-site")); !strings.Contains(e.Hint, "open the address itself") {
		t.Errorf("from another page: %+v", e)
	}
	s.refused(501, "unsupported", ask{method: "POST", path: "/v1/sandboxes/" + s.create("", v1.Spec{}).ID + "/ports/1/previews", body: v1.NewPreview{}})
	s.refused(404, "not_found", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/ports/1/previews", key: bobKey, body: v1.NewPreview{}})
	s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/sandboxes/" + other.ID + "/previews/" + p.ID, key: aliceKey})

	_, second := s.preview(aliceKey, sb, 8081)
	if status, body, _ := s.once(at(second, "/?"+second.RawQuery)); status != 503 || !strings.Contains(body, "nothing answers at this port") || strings.Contains(body, sb.ID) || strings.Contains(body, "web") {
		t.Errorf("nobody listens: %d %s", status, body)
	}
	var list v1.PreviewList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/previews", key: aliceKey})
	if len(list.Previews) != 2 || list.Previews[0].ID != p.ID || list.Previews[0].URL != "" || list.Next != "" {
		t.Errorf("%+v", list)
	}

	// They end with their sandbox and key.
	_, third := s.preview(aliceKey, other, 8080)
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + other.ID, key: aliceKey})
	s.refused(403, "preview_invalid", at(third, "/?"+third.RawQuery))
	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/alice", key: adminKey})
	s.refused(403, "preview_invalid", at(u, "/", "Cookie", cookie))
	if err := s.gate.Close(context.Background()); err != nil {
		t.Error(err)
	}
	audit := fmt.Sprintf("%+v", s.audit.all())
	if text := s.log.String() + audit; strings.Contains(text, "pv_") {
		t.Errorf("a token was written down: %s", text)
	}
	for _, want := range []string{"Action:createPreview", "Detail:port 8080 preview " + p.ID, "Action:proxy"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit has no %q", want)
		}
	}
}

// Revoking a preview ends what it has opened, and nothing else. A preview counts as its key, and is
// no administrator's.
func TestPreviewsAreRevoked(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(adminKey, v1.Spec{})
	s.python(sb, adminKey, socketServer, 1)
	p, u := s.preview(adminKey, sb, 8080)
	_, kept := s.preview(adminKey, sb, 8080)
	open := func(u *url.URL) *bufio.Reader {
		conn := s.dial()
		fmt.Fprintf(conn, "GET /?%s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%[2]s\r\nSec-Fetch-Site: same-origin\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", u.RawQuery, u.Host)
		br := bufio.NewReader(conn)
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, %v", resp, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return br
	}
	ends, stays := open(u), open(kept)
	ended := make(chan error, 1)
	go func() { _, err := stays.ReadByte(); ended <- err }()
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + p.ID, key: adminKey})
	if _, err := io.Copy(io.Discard, ends); err != nil {
		t.Logf("it ended with %v", err)
	}
	s.refused(403, "preview_invalid", at(u, "/?"+u.RawQuery))
	s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + p.ID, key: adminKey})
	select {
	case err := <-ended:
		t.Errorf("the other ended, too: %v", err)
	default:
	}
	for _, e := range s.audit.all() {
		if e.Action == "proxy" && (e.Key != "admin" || e.Namespace != "local") && e.Status != 403 {
			t.Errorf("it counts for another: %+v", e)
		}
	}
}

// hangingStore keeps no previews, and hangs while it deletes one.
type hangingStore struct {
	began, release chan struct{}
	bounded        bool // the context ended with the client
}

func (h *hangingStore) PutPreview(context.Context, preview.Preview) error { return nil }

func (h *hangingStore) DeletePreview(ctx context.Context, _ string) error {
	h.bounded = ctx.Done() != nil
	close(h.began)
	<-h.release
	return nil
}

// storeFunc calls a function while it stores a preview.
type storeFunc func()

func (f storeFunc) PutPreview(context.Context, preview.Preview) error { f(); return nil }
func (storeFunc) DeletePreview(context.Context, string) error         { return nil }

// A preview that is created while its sandbox is removed does not stay, where it would count.
func TestPreviewsDoNotOutliveTheirSandbox(t *testing.T) {
	var remove func()
	book := preview.New([]byte("secret"), storeFunc(func() { remove() }), nil)
	s := serve(t, func(o *options) { o.Previews = book })
	sb := s.create(aliceKey, v1.Spec{})
	remove = func() { s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID, key: aliceKey}) }
	s.refused(404, "not_found", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/ports/80/previews", key: aliceKey, body: v1.NewPreview{}})
	if all := book.All(); len(all) > 0 {
		t.Errorf("there are %+v", all)
	}
}

// What a preview has opened ends before its revocation is on disk, and the revocation is written also
// if its caller has left.
func TestPreviewsEndBeforeTheDisk(t *testing.T) {
	store := &hangingStore{began: make(chan struct{}), release: make(chan struct{})}
	s := serve(t, func(o *options) { o.Previews = preview.New([]byte("secret"), store, nil) })
	sb := s.create(aliceKey, v1.Spec{})
	s.python(sb, aliceKey, socketServer, 1)
	p, u := s.preview(aliceKey, sb, 8080)
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "GET /?%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", u.RawQuery, u.Host)
	br := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		resp, err := s.try(ctx, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + p.ID, key: aliceKey})
		if err == nil {
			_ = resp.Body.Close()
		}
		left <- err
	}()
	<-store.began
	if _, err := io.Copy(io.Discard, br); err != nil {
		t.Logf("it ended with %v", err)
	}
	s.refused(403, "preview_invalid", at(u, "/?"+u.RawQuery))
	leave()
	if err := <-left; err == nil {
		t.Error("the revocation did not wait for the store")
	}
	close(store.release)
	if err := s.gate.Close(t.Context()); err != nil || store.bounded {
		t.Errorf("the revocation ended with its caller (%v): %v", store.bounded, err)
	}
}

// Requests with previews use up a half of what their key may send and open at a time, and leave the
// rest to its owner. Owners who have used up their rate can still revoke.
func TestPreviewsCountAsTheirKey(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits = gate.Limits{Rate: 1e-6, Burst: 12, Streams: 2} })
	sb := s.create("", v1.Spec{})
	s.python(sb, "", socketServer, 1)
	p, u := s.preview(adminKey, sb, 8080)
	_, second := s.preview(adminKey, sb, 8080)
	conn := s.dial()
	defer conn.Close()
	fmt.Fprintf(conn, "GET /?%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", u.RawQuery, u.Host)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	for range 5 { // after one
		s.refused(429, "too_many_streams", at(u, "/?"+u.RawQuery))
	}
	for range 3 {
		s.refused(429, "rate_limited", at(u, "/?"+u.RawQuery))
		s.refused(429, "rate_limited", at(second, "/?"+second.RawQuery))
	}
	for range 4 { // after two
		s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes", key: adminKey})
	}
	s.refused(429, "rate_limited", ask{method: "GET", path: "/v1/sandboxes", key: adminKey})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + p.ID, key: adminKey})
	s.refused(429, "rate_limited", ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + p.ID, key: adminKey})
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes", key: bobKey})
}

// Requests with previews use up at most a half of their key's share of the audit.
func TestPreviewsLeaveAudit(t *testing.T) {
	s := serve(t, func(o *options) {
		o.Limits = gate.Limits{Rate: 1e6, Burst: 1e6, Audit: gate.AuditShare{Rate: 1e-6, Burst: 128 << 10}}
	})
	sb := s.create(aliceKey, v1.Spec{})
	_, u := s.preview(aliceKey, sb, 8080) // where nobody listens
	refused := 0
	for range 2000 {
		if status, _, _ := s.once(at(u, "/?"+u.RawQuery)); status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 || refused == 2000 {
		t.Fatalf("%d of 2000 requests were refused", refused)
	}
	s.refused(429, "audit_rate", at(u, "/?"+u.RawQuery))
	s.want(200, nil, ask{method: "POST", path: execPath(sb), key: aliceKey, body: v1.Exec{Command: v1.Command{Argv: []string{"true"}}}})
}

// A preview resumes its sandbox, and waits for one that is stopped to be started. Bodies of any size
// pass, and answers while they are made.
func TestPreviewsPassAll(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	const counter = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        n, left = 0, int(self.headers["Content-Length"])
        while left:
            b = self.rfile.read1(min(left, 65536))
            n, left = n + len(b), left - len(b)
            if n == len(b): self.wfile.write(b"5\r\nbegin\r\n")
        said = b" %d" % n
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(said), said))
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), H).serve_forever()
`
	s.python(sb, "", counter, 1)
	_, u := s.preview(adminKey, sb, 8080)
	post := func(body string) string {
		conn := s.dial()
		defer conn.Close()
		fmt.Fprintf(conn, "POST /?%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", u.RawQuery, u.Host, len(body))
		if _, err := io.WriteString(conn, body[:1]); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		begin := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, begin); err != nil { // before the rest was sent
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, body[1:]); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(begin) + string(rest)
	}
	const size = 20 << 20
	if got := post(strings.Repeat("x", size)); got != fmt.Sprint("begin ", size) {
		t.Errorf("got %q", got)
	}
	if status, _, _ := s.get(ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/pause"}); status != http.StatusNotImplemented {
		if got := post("xy"); status != http.StatusOK || got != "begin 2" {
			t.Errorf("pausing is answered with %d, and a paused one says %q", status, got)
		}
	}
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/stop", body: v1.Stop{}})
	if status, body, _ := s.once(at(u, "/?"+u.RawQuery)); status != 409 || !strings.Contains(body, "the sandbox is not running") || strings.Contains(body, sb.ID) || strings.Contains(body, "stopped") {
		t.Errorf("a stopped one: %d %s", status, body)
	}
	if status, body, _ := s.once(at(u, "/?"+u.RawQuery, "Accept", "text/html", "Sec-Fetch-Mode", "cors")); status != 409 || strings.Contains(body, "<h1>") {
		t.Errorf("to a script: %d %s", status, body)
	}
	if status, body, _ := s.once(at(u, "/", "Accept", "text/html", "Cookie", "sandpit-preview="+u.Query().Get("sandpit-preview"))); status != 409 || !strings.Contains(body, "Ask its owner to start it") {
		t.Errorf("to a browser: %d %s", status, body)
	}
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/start"})
	s.python(sb, "", counter, 1)
	if got := post("xy"); got != "begin 2" {
		t.Errorf("started again: %q", got)
	}
}

// A preview opens in a real browser, stays open when it is loaded again, and carries WebSockets. Its
// page can't read the cookie, install a service worker, or use the server. After its end the browser
// shows a page of the server.
func TestPreviewInBrowser(t *testing.T) {
	// What is not a WebSocket is answered with a page that shows the path.
	site := strings.Replace(socketServer, "    key = [", `    if b"sec-websocket-key" not in head.lower():
        path = head.split()[1]
        body = b"<!doctype html><title>app</title><h1>" + path + b"</h1>"
        kind = b"text/javascript" if path == b"/sw.js" else b"text/html"
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nSet-Cookie: mine=1; Domain=localhost; Path=/\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return c.close()
    key = [`, 1)
	s := serve(t, nil)
	browser := browsertest.Open(t, "about:blank") // it ends first, with its sockets
	sb := s.create(aliceKey, v1.Spec{})
	s.python(sb, aliceKey, site, 1)
	page, _ := s.preview(aliceKey, sb, 8080)
	var got struct{ Title, Text, Search, Cookie, Worker, API, Own string }
	look := `(async () => ({title: document.title, text: document.querySelector("h1").textContent, search: location.search, cookie: document.cookie,
		worker: await navigator.serviceWorker.register("/sw.js").then(() => "installed", () => "refused"),
		api: await fetch(%q).then(r => r.text(), () => "refused"),
		own: await fetch("/v1/version").then(r => r.text(), () => "refused")}))()`
	for range 2 {
		browser.Go(page.URL)
		browser.Eval(fmt.Sprintf(look, s.base+"/v1/version"), &got)
		if got.Title != "app" || got.Text != "/" || got.Search != "" || got.Cookie != "mine=1" || got.Worker != "refused" || got.API != "refused" || !strings.Contains(got.Own, "<h1>/v1/version</h1>") {
			t.Fatalf("%+v", got)
		}
	}
	plain, _, _ := strings.Cut(page.URL, "?")
	browser.Go(plain + "again")
	browser.Eval(`({text: document.querySelector("h1").textContent})`, &got)
	if got.Text != "/again" {
		t.Errorf("without the token: %+v", got)
	}

	const echo = `new Promise(done => {
		const ws = new WebSocket(%q)
		ws.onopen = () => ws.send("hello")
		ws.onmessage = m => { window.ended = new Promise(ok => ws.onclose = () => ok("ended")); done(m.data) }
		ws.onerror = () => done("refused")
	})`
	var said string
	if browser.Eval(fmt.Sprintf(echo, strings.Replace(plain, "http", "ws", 1)), &said); said != "hello" {
		t.Fatalf("a WebSocket: %q", said)
	}
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID + "/previews/" + page.ID, key: aliceKey})
	if browser.Eval("window.ended", &said); said != "ended" {
		t.Errorf("after the end: %q", said)
	}
	for _, to := range []string{page.URL, plain} {
		browser.Go(to)
		browser.Eval(`({title: document.title, text: document.querySelector("h1").textContent})`, &got)
		if got.Text != "This preview is not available" {
			t.Errorf("after the end: %+v", got)
		}
	}
	s.python(sb, aliceKey, strings.Replace(site, "8080", "8081", 1), 2)
	next, _ := s.preview(aliceKey, sb, 8081)
	browser.Go(next.URL)
	browser.Eval(`({title: document.title})`, &got)
	if browser.Eval(fmt.Sprintf(echo, "ws"+strings.TrimPrefix(next.URL, "http")), &said); said != "hello" || got.Title != "app" {
		t.Errorf("on the page of another port: %q, %+v", said, got)
	}
	again, _ := s.preview(aliceKey, sb, 8080)
	if browser.Eval(fmt.Sprintf(echo, strings.Replace(again.URL, "http", "ws", 1)), &said); said != "refused" {
		t.Errorf("from a page of another port: %q", said)
	}
}
