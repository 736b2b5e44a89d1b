package gate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// echo returns a whole dialect, whose keys come in a header of their own and whose errors
// are a line of text.
func echo(header, id string, handle func(*gate.Call, []byte) error) gate.Dialect {
	return gate.Dialect{
		Routes: []gate.Route{{
			Method: http.MethodPost, Path: "/boxes/{box}/" + id, ID: "echo." + id, Guarded: true,
			Target: func(r *http.Request) string { return r.PathValue("box") },
			Handle: func(c *gate.Call) error {
				text, err := io.ReadAll(c.Body(100, 0))
				if err != nil {
					return err
				}
				return handle(c, text)
			},
		}},
		Credential: func(r *http.Request) (string, bool) { return r.Header.Get(header), false },
		KeyHint:    "send " + header,
		Fail: func(c *gate.Call, f gate.Failure) {
			c.W.WriteHeader(f.Status)
			fmt.Fprintf(c.W, "no: %s (%s)", f.Code, f.Hint)
		},
	}
}

// say answers with what was sent.
func say(c *gate.Call, text []byte) error {
	_, err := c.W.Write(text)
	return err
}

// keyring is keys in memory, by secret.
type keyring map[string]gate.Caller

func (k keyring) Verify(_ context.Context, secret string) (gate.Caller, error) {
	c, ok := k[secret]
	if !ok {
		return c, sandpit.ErrForbidden
	}
	return c, nil
}

// journal is an audit in memory, which can be made to fail.
type journal struct {
	mu      sync.Mutex
	entries []audit.Record // guarded by mu
	err     error          // guarded by mu
}

func (j *journal) Append(_ context.Context, e audit.Record) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.entries = append(j.entries, e)
	}
	return audit.MaxEntry, j.err
}

func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

// of returns the entries of an action.
func (j *journal) of(action string) (found []audit.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		if e.Action == action {
			found = append(found, e)
		}
	}
	return found
}

// served is a gate with dialects on a server each.
type served struct {
	t       *testing.T
	gate    *gate.Gate
	journal *journal
}

func serve(t *testing.T, limits gate.Limits) *served {
	t.Helper()
	s := &served{t: t, journal: new(journal)}
	s.gate = gate.New(gate.Options{Keys: keyring{"s1": {Name: "ann", Key: "k1", Namespace: "n1"}, "s2": {Name: "bob", Key: "k2", Namespace: "n2"}}, Audit: s.journal, Limits: limits})
	t.Cleanup(func() {
		if err := s.gate.Close(context.Background()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

// server serves a dialect and returns its URL.
func (s *served) server(d gate.Dialect) string {
	server := httptest.NewUnstartedServer(nil)
	s.gate.Configure(server.Config, s.gate.Handler(d))
	server.Start()
	s.t.Cleanup(server.Close)
	return server.URL
}

// ask sends a request. Headers are names and values in turn.
func (s *served) ask(method, url, body string, header ...string) (status int, answer string, h http.Header) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

// want sends a request that must be answered in this way.
func (s *served) want(status int, answer, method, url, body string, header ...string) http.Header {
	s.t.Helper()
	got, text, h := s.ask(method, url, body, header...)
	if got != status || !strings.HasPrefix(text, answer) || h.Get("X-Request-Id") == "" {
		s.t.Errorf("%s %s %v: %d %q %v, want %d %q", method, url, header, got, text, h, status, answer)
	}
	return h
}

// A dialect of a few lines stands behind the gate with keys in a header of its own, errors
// of its own, bounds and the audit.
func TestDialect(t *testing.T) {
	s := serve(t, gate.Limits{Rate: 0.001, Burst: 6})
	url := s.server(echo("X-Echo-Key", "say", func(c *gate.Call, text []byte) error {
		switch string(text) {
		case "panic":
			panic("on purpose")
		case "lost":
			return fmt.Errorf("box %q: %w", c.Target, sandpit.ErrNotFound)
		}
		return say(c, text)
	}))
	one := url + "/boxes/b1/say"

	s.want(401, "no: unauthenticated (send X-Echo-Key)", "POST", one, "hi")
	s.want(401, "no: unauthenticated (send X-Echo-Key)", "POST", one, "hi", "Authorization", "Bearer s1")
	s.want(401, "no: unauthenticated", "POST", one, "hi", "X-Echo-Key", "s3")
	s.want(421, "no: host_refused", "POST", one, "hi", "X-Echo-Key", "s1", "Host", "rebound.example")
	s.want(403, "no: origin_refused", "POST", one, "hi", "X-Echo-Key", "s1", "Origin", "https://page.example")
	s.want(404, "no: no_route", "POST", url+"/boxes", "", "X-Echo-Key", "s1")
	s.want(404, "no: no_route", "POST", url+"/boxes//say", "", "X-Echo-Key", "s1")
	s.want(404, "no: no_route", "POST", url+"/boxes/b1/%2F/say", "", "X-Echo-Key", "s1")
	if h := s.want(405, "no: method_not_allowed (use POST)", "GET", one, "", "X-Echo-Key", "s1"); h.Get("Allow") != "POST" {
		t.Errorf("allowed is %q", h.Get("Allow"))
	}
	if n := len(s.journal.of("echo.say")); n != 3 {
		t.Errorf("of 3 refusals the audit has %d", n)
	}

	id := s.want(200, "hi", "POST", one, "hi", "X-Echo-Key", "s1").Get("X-Request-Id")
	testkit.Until(t, "the end is recorded", func() bool { return len(s.journal.of("echo.say")) == 5 })
	for i, e := range s.journal.of("echo.say")[3:] {
		phase := []string{audit.PhaseIntent, audit.PhaseEnd}[i]
		if e.Phase != phase || e.RequestID != id || e.Caller != "ann" || e.Key != "k1" || e.Namespace != "n1" || e.Sandbox != "b1" || !e.Allowed {
			t.Errorf("%s is recorded as %+v", phase, e)
		}
		if phase == audit.PhaseEnd && (e.Status != 200 || e.Bytes != 2) {
			t.Errorf("the end is recorded as %+v", e)
		}
	}
	s.want(413, "no: too_large", "POST", one, strings.Repeat("x", 101), "X-Echo-Key", "s1")
	s.want(404, "no: not_found", "POST", one, "lost", "X-Echo-Key", "s1")
	s.want(500, "no: internal", "POST", one, "panic", "X-Echo-Key", "s1")
	s.want(200, "again", "POST", one, "again", "X-Echo-Key", "s1")
	s.journal.fail(errors.New("the disk is full"))
	s.want(503, "no: audit_unavailable", "POST", one, "unrecorded", "X-Echo-Key", "s1")
	s.journal.fail(nil)
	if h := s.want(429, "no: rate_limited", "POST", one, "hi", "X-Echo-Key", "s1"); h.Get("Retry-After") == "" {
		t.Error("it does not say when to try again")
	}
	s.want(200, "hi", "POST", one, "hi", "X-Echo-Key", "s2")

	page := new(gate.Page)
	s.gate.WriteRequests(page)
	if text := page.String(); !strings.Contains(text, `sandpit_http_requests_total{operation="echo.say",status="200"} 3`) {
		t.Errorf("counted are:\n%s", text)
	}
}

// A handler that forgets to record what it does answers no success, in whatever way it answers.
func TestForgottenIntend(t *testing.T) {
	s := serve(t, gate.Limits{})
	d := echo("X-Key", "say", func(c *gate.Call, text []byte) (err error) {
		rc := http.NewResponseController(c.W)
		switch string(text) {
		case "write":
			_, err = c.W.Write([]byte("done"))
		case "status":
			c.W.WriteHeader(http.StatusCreated)
		case "continue":
			c.W.WriteHeader(http.StatusEarlyHints)
			c.W.WriteHeader(http.StatusOK)
		case "flush":
			err = rc.Flush()
		case "hijack":
			_, _, err = rc.Hijack()
		case "late, without taking the connection over":
			c.IntendLater()
			_, err = c.W.Write([]byte("done"))
		case "again": // ignores that it was refused
			c.W.WriteHeader(http.StatusOK)
			c.W.WriteHeader(http.StatusOK)
			_, _ = c.W.Write([]byte("done"))
		case "refuse":
			return sandpit.ErrNotFound
		case "late":
			c.IntendLater()
			conn, _, err := rc.Hijack()
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Request-Id: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlate")
			return err
		case "recorded":
			if err = c.Intend("it"); err == nil {
				err = say(c, text)
			}
		}
		return err
	})
	d.Routes[0].SelfAudited = true
	vital := d.Routes[0]
	vital.Path, vital.ID, vital.Vital = "/end", "echo.end", true
	d.Routes = append(d.Routes, vital)
	url := s.server(d)
	for _, how := range []string{"write", "status", "continue", "flush", "hijack", "late, without taking the connection over", "again", "nothing"} {
		status, text, _ := s.ask("POST", url+"/boxes/b/say", how, "X-Key", "s1")
		if status != 500 || !strings.HasPrefix(text, "no: internal") || strings.Contains(text, "done") {
			t.Errorf("%s: %d %q", how, status, text)
		}
	}
	s.want(404, "no: not_found", "POST", url+"/boxes/b/say", "refuse", "X-Key", "s1")
	s.want(200, "late", "POST", url+"/boxes/b/say", "late", "X-Key", "s1")
	s.want(200, "recorded", "POST", url+"/boxes/b/say", "recorded", "X-Key", "s1")
	s.want(200, "done", "POST", url+"/end", "write", "X-Key", "s1")
	s.journal.fail(errors.New("the disk is full"))
	s.want(503, "no: audit_unavailable", "POST", url+"/boxes/b/say", "recorded", "X-Key", "s1")
	s.want(500, "no: internal", "POST", url+"/boxes/b/say", "write", "X-Key", "s1")

	d.Routes = d.Routes[:1]
	d.Routes[0].ID = "echo.differently"
	d.Fail = func(c *gate.Call, f gate.Failure) { _, _ = io.WriteString(c.W, "failed") } // with status 200
	s.want(200, "failed", "POST", s.server(d)+"/boxes/b/say", "write", "X-Key", "s1")
}

// A dialect that can't work is found when its handler is made.
func TestBrokenDialectPanics(t *testing.T) {
	s := serve(t, gate.Limits{})
	s.gate.Handler(echo("X-Key", "other", say))
	for what, breaks := range map[string]func(*gate.Dialect){
		"no Credential": func(d *gate.Dialect) { d.Credential = nil },
		"no Fail":       func(d *gate.Dialect) { d.Fail = nil },
		"an ID twice": func(d *gate.Dialect) {
			d.Routes = append(d.Routes, d.Routes[0])
			d.Routes[1].Path = "/other"
		},
		"an ID of another dialect": func(d *gate.Dialect) { d.Routes[0].ID = "echo.other" },
		"no ID":                    func(d *gate.Dialect) { d.Routes[0].ID = "" },
	} {
		d := echo("X-Key", "say", say)
		breaks(&d)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the handler is made", what)
				}
			}()
			s.gate.Handler(d)
		}()
	}
}

// A dialect may pick a route by something else than the path. Its other fields are in force.
func TestPickedRoute(t *testing.T) {
	s := serve(t, gate.Limits{})
	d := echo("X-Key", "say", say)
	d.Routes = append(d.Routes, gate.Route{ID: "echo.picked", Guarded: true, Handle: func(c *gate.Call) error { return say(c, []byte("picked")) }})
	d.Pick = func(r *http.Request) string { return r.Header.Get("X-Pick") }
	url := s.server(d)
	s.want(200, "picked", "GET", url+"//any/path", "", "X-Key", "s1", "X-Pick", "echo.picked")
	s.want(401, "no: unauthenticated", "GET", url, "", "X-Pick", "echo.picked")
	s.want(200, "hi", "POST", url+"/boxes/b/say", "hi", "X-Key", "s1")
	s.want(404, "no: no_route", "GET", url, "", "X-Key", "s1")
	s.want(500, "no: internal", "GET", url, "", "X-Key", "s1", "X-Pick", "echo.none")
	if n := len(s.journal.of("echo.picked")); n < 2 {
		t.Errorf("the audit has %d entries of it", n)
	}
}

// Dialects of one gate share the bounds of a key, and the share of the audit.
func TestDialectsShareTheGate(t *testing.T) {
	s := serve(t, gate.Limits{Rate: 0.001, Burst: 2, Strangers: gate.AuditShare{Rate: 0.001, Burst: 1}})
	first := s.server(echo("X-First-Key", "first", say)) + "/boxes/b/first"
	second := s.server(echo("X-Second-Key", "second", say)) + "/boxes/b/second"
	s.want(200, "a", "POST", first, "a", "X-First-Key", "s1")
	s.want(200, "b", "POST", second, "b", "X-Second-Key", "s1")
	s.want(429, "no: rate_limited", "POST", first, "a", "X-First-Key", "s1")
	s.want(429, "no: rate_limited", "POST", second, "b", "X-Second-Key", "s1")
	s.want(200, "b", "POST", second, "b", "X-Second-Key", "s2")

	for range 10 {
		s.want(401, "no: unauthenticated", "POST", first, "a", "X-Second-Key", "s1")
		s.want(401, "no: unauthenticated", "POST", second, "a", "X-First-Key", "s1")
	}
	if err := s.gate.Summarise(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	all := s.journal.of("audit.summary")
	if len(all) != 1 || all[0].Rule != "strangers" || !strings.Contains(all[0].Detail, "echo.first (") || !strings.Contains(all[0].Detail, "echo.second (") {
		t.Errorf("summaries are %+v", all)
	}
}

// A gate that drains refuses new requests of every dialect, and waits for the others.
func TestDialectsDrain(t *testing.T) {
	s := serve(t, gate.Limits{})
	under, goOn := make(chan struct{}), make(chan struct{})
	first := s.server(echo("X-Key", "first", func(c *gate.Call, text []byte) error {
		close(under)
		<-goOn
		return say(c, text)
	})) + "/boxes/b/first"
	second := s.server(echo("X-Key", "second", say)) + "/boxes/b/second"
	var both sync.WaitGroup
	both.Go(func() { s.want(200, "a", "POST", first, "a", "X-Key", "s1") })
	<-under
	both.Go(func() {
		if err := s.gate.Close(context.Background()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	<-s.gate.Live().Done() // it drains
	s.want(503, "no: draining", "POST", first, "a", "X-Key", "s1")
	s.want(503, "no: draining", "POST", second, "b", "X-Key", "s1")
	close(goOn)
	both.Wait()
	if n := len(s.journal.of("echo.second")); n != 0 {
		t.Errorf("the audit has %d entries of what was refused", n)
	}
}

// A key that is revoked ends its calls of every dialect, and no others.
func TestRevokedKeyEndsItsCallsOfEveryDialect(t *testing.T) {
	s := serve(t, gate.Limits{})
	under := make(chan struct{})
	wait := func(c *gate.Call, _ []byte) error {
		under <- struct{}{}
		<-c.Ctx.Done()
		return c.BrokenOff()
	}
	first := s.server(echo("X-Key", "first", wait)) + "/boxes/b/first"
	second := s.server(echo("X-Key", "second", wait)) + "/boxes/b/second"
	var all, ended sync.WaitGroup
	for _, url := range []string{first, second} {
		ended.Go(func() { s.want(401, "no: unauthenticated", "POST", url, "", "X-Key", "s1") })
		all.Go(func() { s.want(503, "no: unavailable", "POST", url, "", "X-Key", "s2") })
	}
	for range 4 {
		<-under
	}
	s.gate.Revoke("k1", nil)
	ended.Wait()
	s.want(401, "no: unauthenticated", "POST", first, "", "X-Key", "s1")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.gate.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("closing with calls in progress: %v", err)
	}
	all.Wait()
}

// A detached call goes on when its client leaves, and still ends with the key and the server, also
// after that.
func TestDetachedCallsEnd(t *testing.T) {
	for name, end := range map[string]func(*gate.Gate){
		"key": func(g *gate.Gate) { g.Revoke("k1", nil) },
		"server": func(g *gate.Gate) {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = g.Close(over)
		},
	} {
		s := serve(t, gate.Limits{})
		gone, why := make(chan error), make(chan error)
		url := s.server(echo("X-Key", "detached", func(c *gate.Call, _ []byte) error {
			client := c.Ctx
			c.OutliveClient()
			gone <- nil
			<-client.Done()
			gone <- c.Ctx.Err()
			<-c.Ctx.Done()
			why <- c.BrokenOff()
			return nil
		}))
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/boxes/b/detached", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Key", "s1")
		go func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		<-gone
		leave()
		if err := <-gone; err != nil {
			t.Errorf("%s: it has ended with its client: %v", name, err)
		}
		end(s.gate)
		if err := <-why; !errors.Is(err, map[string]error{"key": gate.ErrKeyEnded, "server": gate.ErrDraining}[name]) {
			t.Errorf("%s: it ends with %v", name, err)
		}
	}
}

// The context of a detached call, and what it has started, end with its handler.
func TestDetachedCallsEndWithTheirHandler(t *testing.T) {
	s := serve(t, gate.Limits{})
	contexts := make(chan context.Context, 1)
	url := s.server(echo("X-Key", "detached", func(c *gate.Call, _ []byte) error {
		c.OutliveClient()
		contexts <- c.Ctx
		return nil
	}))
	s.want(200, "", "POST", url+"/boxes/b/detached", "", "X-Key", "s1")
	<-(<-contexts).Done()
}

// A client that stops sending is refused in the form of the dialect.
func TestStalledBodyEnds(t *testing.T) {
	s := serve(t, gate.Limits{Stall: time.Second})
	url := s.server(echo("X-Key", "say", say)) + "/boxes/b/say"
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("half")) //nolint:errcheck // it ends when the request does
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Key", "s1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout || !strings.HasPrefix(string(text), "no: body_timeout") {
		t.Errorf("%d %q %v", resp.StatusCode, text, err)
	}
}

// Between two messages of a body a client may be silent for longer than within one, until the handler reads no more.
func TestPausesBetweenMessages(t *testing.T) {
	s := serve(t, gate.Limits{Stall: 50 * time.Millisecond})
	d := echo("X-Key", "say", say)
	begun := make(chan struct{})
	d.Routes[0].Handle = func(c *gate.Call) error {
		one := make([]byte, 1)
		if _, err := c.BetweenMessages().Read(one); err != nil {
			return err
		}
		close(begun)
		if _, err := c.BetweenMessages().Read(one); err != nil { // which comes after Stall
			return err
		}
		if _, err := c.Body(-1, 0).Read(one); err == nil {
			t.Error("a silence within a message is not refused")
		}
		return nil
	}
	stopped := make(chan error, 2)
	d.Routes = append(d.Routes, gate.Route{Method: http.MethodPost, Path: "/stop", ID: "stop", Handle: func(c *gate.Call) error {
		time.AfterFunc(50*time.Millisecond, c.StopReading)
		_, err := c.BetweenMessages().Read(make([]byte, 1))
		stopped <- err
		_, err = c.Body(-1, 0).Read(make([]byte, 1))
		stopped <- err
		c.W.WriteHeader(http.StatusNoContent)
		return nil
	}})
	url := s.server(d)
	send := func(path string, status int, feed func(io.Writer)) {
		t.Helper()
		r, w := io.Pipe()
		defer w.Close()
		go feed(w)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Key", "s1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	send("/boxes/b/say", 200, func(w io.Writer) {
		_, _ = io.WriteString(w, "a")
		<-begun
		time.Sleep(200 * time.Millisecond)
		_, _ = io.WriteString(w, "b")
	})
	send("/stop", 204, func(io.Writer) {})
	for range 2 {
		if err := <-stopped; err == nil {
			t.Error("a read of a call that reads no more succeeded")
		}
	}
}

// A call whose key is revoked while its body arrives ends with that, and not as one whose client is slow.
func TestRevokedKeyEndsHalfSentBodies(t *testing.T) {
	s := serve(t, gate.Limits{})
	begun := make(chan error, 1)
	d := echo("X-Key", "say", say)
	d.Routes[0].Handle = func(c *gate.Call) error {
		body := c.Body(-1, 0)
		_, err := io.ReadFull(body, make([]byte, 4))
		begun <- err
		_, err = io.ReadAll(body)
		return err
	}
	url := s.server(d) + "/boxes/b/say"
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("half")) //nolint:errcheck // it ends when the request does
	go func() {
		if err := <-begun; err != nil {
			t.Error(err)
		}
		s.gate.Revoke("k1", nil)
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Key", "s1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(string(text), "no: unauthenticated") {
		t.Errorf("%d %q %v", resp.StatusCode, text, err)
	}
}

// A key whose calls never end can still make vital ones, of which there is a bound, too.
func TestVitalCallsBesideEndlessOnes(t *testing.T) {
	s := serve(t, gate.Limits{Calls: 20})
	under, end := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(end)
	wait := func(*gate.Call, []byte) error {
		under <- struct{}{}
		<-end
		return nil
	}
	vital := echo("X-Key", "end", wait)
	vital.Routes[0].Vital = true
	plain, vitalURL := s.server(echo("X-Key", "wait", wait))+"/boxes/b/wait", s.server(vital)+"/boxes/b/end"
	begin := func(url string, n int) {
		t.Helper()
		for range n {
			answer := make(chan int, 1)
			all.Go(func() {
				status, _, _ := s.ask("POST", url, "", "X-Key", "s1")
				answer <- status
			})
			select {
			case <-under:
			case status := <-answer:
				t.Fatalf("%s: %d", url, status)
			}
		}
		s.want(429, "no: rate_limited", "POST", url, "", "X-Key", "s1")
	}
	begin(plain, 20)
	begin(vitalURL, 2) // a tenth
}

// A dialect with rates of its own counts its requests apart, and refuses in its own form what exceeds them.
func TestDialectsHaveRates(t *testing.T) {
	const never = 1e-6 // requests per second
	s := serve(t, gate.Limits{Rate: never, Burst: 2})
	quick := echo("X-Key", "quick", say)
	quick.Rate, quick.Burst = never, 5
	for url, burst := range map[string]int{s.server(quick) + "/boxes/b/quick": 5, s.server(echo("X-Key", "usual", say)) + "/boxes/b/usual": 2} {
		for _, key := range []string{"s1", "s2"} {
			for range burst {
				s.want(200, "", "POST", url, "", "X-Key", key)
			}
			status, body, h := s.ask("POST", url, "", "X-Key", key)
			if status != http.StatusTooManyRequests || !strings.HasPrefix(body, "no: rate_limited") || h.Get("Retry-After") == "" {
				t.Errorf("%s: %d %q %v", url, status, body, h)
			}
		}
	}
}

// A panic in a goroutine of a handler ends what it does, with an error, and not the server.
func TestGoroutinesPanic(t *testing.T) {
	log := new(testkit.Buffer)
	g := gate.New(gate.Options{Keys: keyring{"a": {Key: "a", Namespace: "n"}}, Audit: &journal{}, Log: slog.New(slog.NewTextHandler(log, nil))})
	h := g.Handler(echo("Key", "say", func(c *gate.Call, _ []byte) error {
		failed := make(chan error)
		go func() {
			defer c.Protect("a part of the work", func(err error) { failed <- err })
			panic("on purpose")
		}()
		return <-failed
	}))
	r := httptest.NewRequest(http.MethodPost, "http://localhost/boxes/b/say", nil)
	r.Header.Set("Key", "a")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError || !strings.Contains(log.String(), `msg="a part of the work panicked"`) || !strings.Contains(log.String(), `panic="on purpose"`) || strings.Contains(w.Body.String(), "purpose") {
		t.Errorf("%d %s\n%s", w.Code, w.Body, log)
	}
}
