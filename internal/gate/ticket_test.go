package gate_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// ticketed returns a dialect with tickets for one of its two GET routes. Its stream says who
// the caller is and what the handler sees of the URL, and lasts until the call ends.
func ticketed() gate.Dialect {
	d := echo("X-Key", "ticket", func(c *gate.Call, path []byte) error {
		secret, _, err := c.NewTicket(string(path))
		if err != nil {
			return err
		}
		return say(c, []byte(secret))
	})
	look := func(c *gate.Call) error {
		_, err := fmt.Fprintf(c.W, "%s %s %s\n", c.Caller.Name, c.R.URL, c.R.RequestURI)
		return err
	}
	stream := func(c *gate.Call) error {
		_ = look(c)
		_ = c.W.FlushError()
		if c.R.URL.Query().Has("stay") {
			<-c.Ctx.Done()
		}
		return nil
	}
	d.Routes = append(
		d.Routes,
		gate.Route{Method: http.MethodGet, Path: "/stream/{box}", ID: "echo.stream", Ticketed: true, Handle: stream},
		gate.Route{Method: http.MethodGet, Path: "/look", ID: "echo.look", Handle: look},
	)
	return d
}

// A ticket stands for the key once, for one GET request of its dialect, and nothing but the
// gate sees it.
func TestTickets(t *testing.T) {
	s := serve(t, gate.Limits{})
	second := ticketed()
	for i := range second.Routes {
		second.Routes[i].ID += ".second"
	}
	url, other := s.server(ticketed()), s.server(second)
	get := func(path string) string {
		t.Helper()
		status, secret, _ := s.ask("POST", url+"/boxes/b/ticket", path, "X-Key", "s1")
		if status != 200 || !gate.HasTicket("x"+secret) {
			t.Fatalf("a ticket for %s: %d %q", path, status, secret)
		}
		return secret
	}
	secret := get("/stream/a?b=2&a=1")
	s.want(200, "ann /stream/a?a=1&b=2 /stream/a?a=1&b=2\n", "GET", url+"/stream/a?a=1&ticket="+secret+"&b=2", "")
	const bad = "no: ticket_invalid"
	s.want(401, bad, "GET", url+"/stream/a?a=1&ticket="+secret+"&b=2", "")
	s.want(401, bad, "GET", url+"/stream/a?ticket=st_"+strings.Repeat("a", 52), "")
	s.want(401, bad, "GET", url+"/stream/a?ticket=", "", "X-Key", "s1")
	for _, path := range []string{"/stream/b", "/stream/a?c=1", "/stream/a?a=1&a=1"} {
		wrong := get("/stream/a")
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		s.want(401, bad, "GET", url+path+sep+"ticket="+wrong, "")
		s.want(401, bad, "GET", url+"/stream/a?ticket="+wrong, "")
	}
	s.want(401, bad, "GET", other+"/stream/a?ticket="+get("/stream/a"), "")
	s.want(400, "no: invalid", "GET", url+"/stream/a?ticket="+get("/stream/a")+"&%74icket=x", "")
	s.want(403, "no: origin_refused", "GET", url+"/stream/a?ticket="+get("/stream/a"), "", "Origin", "https://page.example")
	// It is nothing elsewhere.
	s.want(401, "no: unauthenticated", "GET", url+"/look?ticket="+get("/stream/a"), "")
	s.want(401, "", "HEAD", url+"/stream/a?ticket="+get("/stream/a"), "")
	s.want(401, "no: unauthenticated", "POST", url+"/boxes/b/ticket?ticket="+get("/stream/a"), "/stream/a")
	for _, path := range []string{"/look", "/boxes/b/ticket", "/none", "//stream/a", "/stream/../stream/a", "stream/a", "http://x/stream/a", "/stream/a?ticket=x", "/stream/a#x", "/stream/a?%", ""} {
		s.want(400, "no: invalid", "POST", url+"/boxes/b/ticket", path, "X-Key", "s1")
	}
	for _, e := range append(s.journal.of("echo.stream"), s.journal.of("echo.look")...) {
		if gate.HasTicket(fmt.Sprint(e)) {
			t.Errorf("the audit has %+v", e)
		}
	}
}

// A ticket and what it has opened end with the key.
func TestTicketsEndWithTheKey(t *testing.T) {
	s := serve(t, gate.Limits{})
	url := s.server(ticketed())
	_, used, _ := s.ask("POST", url+"/boxes/b/ticket", "/stream/a?stay", "X-Key", "s1")
	_, unused, _ := s.ask("POST", url+"/boxes/b/ticket", "/stream/a", "X-Key", "s1")
	_, others, _ := s.ask("POST", url+"/boxes/b/ticket", "/stream/a", "X-Key", "s2")
	resp, err := http.Get(url + "/stream/a?stay&ticket=" + used)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	if line, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ann ") {
		t.Fatalf("%q, %v", line, err)
	}
	s.gate.Revoke("k1", nil)
	if _, err := io.ReadAll(br); err != nil {
		t.Log(err) // it has ended
	}
	s.want(401, "no: ticket_invalid", "GET", url+"/stream/a?ticket="+unused, "")
	s.want(200, "bob ", "GET", url+"/stream/a?ticket="+others, "")
}
