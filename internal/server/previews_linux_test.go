package server_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A sandbox that waits for capacity has no previews: they would outlive it if it is never made.
func TestPreviewsNeedASandbox(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.settings.Sandboxes = 1
	s.start()
	c := s.unix()
	defer c.Close()
	create(t, c, "first")
	created := make(chan error, 1)
	go func() {
		_, err := c.Create(t.Context(), small("waiter"))
		created <- err
	}()
	testkit.Until(t, "it waits", func() bool { return s.waiting() == 1 })
	err := c.Call(t.Context(), "POST", "/v1/sandboxes/waiter/ports/80/previews", v1.NewPreview{}, nil)
	if !errors.Is(err, sandpit.ErrState) || !strings.Contains(err.Error(), `sandbox "waiter" is creating`) {
		t.Errorf("got %v", err)
	}
	if err := c.Remove(t.Context(), "waiter"); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err == nil {
		t.Error("a sandbox that was removed was made")
	}
}

// Previews of a server follow the policy, also once they exist, survive a restart, and end with the
// key that made them. One that the server's user makes at the unix socket leads to the TCP address.
func TestPreviews(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy("policies:\n  brief: {previews: 10m}\n  none: {previews: false}\n")
	s.overTCP()
	s.settings.Domain = "box.example"
	s.start()
	call := func(key, method, path string, in, out any) error {
		c := s.with(key)
		defer c.Close()
		return c.Call(t.Context(), method, path, in, out)
	}
	use := func(text string) (int, string) {
		t.Helper()
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || !strings.HasSuffix(u.Host, ".box.example"+s.tcp[strings.LastIndex(s.tcp, ":"):]) {
			t.Fatalf("%q, %v", text, err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.tcp+"/?"+u.RawQuery, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = u.Host
		resp, err := s.http().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	const path = "/v1/sandboxes/box"
	for _, policy := range []string{"brief", "none"} {
		c := s.with(s.keyOf(policy, policy))
		create(t, c, "box")
		c.Close()
	}
	var made, local v1.Preview
	key := s.makeKey(v1.NewKey{Namespace: "brief", Policy: "brief"})
	if err := call(s.keyOf("none", "none"), "POST", path+"/ports/80/previews", v1.NewPreview{}, nil); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "none.previews") {
		t.Errorf("without the right: %v", err)
	}
	if err := call(key.Secret, "POST", path+"/ports/80/previews", v1.NewPreview{Expires: new(601.0)}, nil); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "brief.previews") {
		t.Errorf("for too long: %v", err)
	}
	if err := call(key.Secret, "POST", path+"/ports/80/previews", v1.NewPreview{}, &made); err != nil || made.ExpiresAt.Sub(made.CreatedAt).Minutes() != 10 {
		t.Fatalf("%+v, %v", made, err)
	}
	short := s.makeKey(v1.NewKey{Namespace: "brief", Policy: "brief", Expires: 60})
	var brief v1.Preview
	if err := call(short.Secret, "POST", path+"/ports/80/previews", v1.NewPreview{}, &brief); err != nil || !brief.ExpiresAt.Equal(*short.ExpiresAt) {
		t.Errorf("of a key that expires at %v: %+v, %v", short.ExpiresAt, brief, err)
	}
	here := s.unix()
	defer here.Close()
	sb := create(t, here, "mine")
	if err := here.Call(t.Context(), "POST", "/v1/sandboxes/"+sb.ID()+"/ports/80/previews", v1.NewPreview{}, &local); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			s.start()
		}
		for name, p := range map[string]v1.Preview{"of a key": made, "of the server's user": local} {
			if status, body := use(p.URL); status != http.StatusServiceUnavailable || !strings.Contains(body, "nothing answers at this port") {
				t.Errorf("%s (restarted: %v): %d %s", name, restart, status, body)
			}
		}
	}
	s.policy("policies:\n  brief: {previews: 9m}\n")
	s.reload <- struct{}{}
	testkit.Until(t, "the policy allows less", func() bool { status, _ := use(made.URL); return status == http.StatusForbidden }, func() string { return "" })
	s.policy("policies:\n  brief: {previews: 10m}\n")
	s.reload <- struct{}{}
	testkit.Until(t, "the policy allows it", func() bool { status, _ := use(made.URL); return status == http.StatusServiceUnavailable }, func() string { return "" })
	if err := call("", "DELETE", "/v1/keys/"+key.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if status, body := use(made.URL); status != http.StatusForbidden || !strings.Contains(body, "preview_invalid") {
		t.Errorf("after the end of the key: %d %s", status, body)
	}
	var other v1.Preview
	gone := create(t, here, "gone")
	if err := here.Call(t.Context(), "POST", "/v1/sandboxes/gone/ports/80/previews", v1.NewPreview{}, &other); err != nil {
		t.Fatal(err)
	}
	if err := gone.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, body := use(other.URL); status != http.StatusForbidden || !strings.Contains(body, "preview_invalid") {
		t.Errorf("after the end of the sandbox: %d %s", status, body)
	}
	if err := here.Call(t.Context(), "DELETE", "/v1/sandboxes/mine/previews/"+local.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if status, _ := use(local.URL); status != http.StatusForbidden {
		t.Errorf("after its end: %d", status)
	}
}

// A policy that allows less ends what previews have opened that it does not allow.
func TestPreviewsEndWithTheirPolicy(t *testing.T) {
	t.Parallel()
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	s.policy("policies:\n  some: {previews: 10m}\n")
	s.overTCP()
	s.settings.Domain = "box.example"
	s.start()
	c := s.with(s.keyOf("a", "some"))
	defer c.Close()
	sb := create(t, c, "box")
	const program = `
import socket
l = socket.socket(); l.bind(("127.0.0.1", 8080)); l.listen(9)
kept = []
while True:
    c, _ = l.accept()
    c.recv(65536); c.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegin"); kept.append(c)
`
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"python3", "-c", program}}); err != nil {
		t.Fatal(err)
	}
	open := func(life int) (body io.Reader) {
		var p v1.Preview
		if err := c.Call(t.Context(), "POST", "/v1/sandboxes/box/ports/8080/previews", v1.NewPreview{Expires: new(float64(life))}, &p); err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(p.URL)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "it listens", func() bool {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.tcp+"/?"+u.RawQuery, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = u.Host
			resp, err := s.http().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = resp.Body.Close() })
			body = resp.Body
			return resp.StatusCode == http.StatusOK
		}, func() string { return "" })
		if _, err := io.ReadFull(body, make([]byte, len("begin"))); err != nil {
			t.Fatal(err)
		}
		return body
	}
	long, short := open(600), open(60)
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, short); close(ended) }()
	s.policy("policies:\n  some: {previews: 5m}\n")
	s.reload <- struct{}{}
	_, _ = io.Copy(io.Discard, long)
	select {
	case <-ended:
		t.Error("one that is allowed ended, too")
	default:
	}
}

// Without a domain there are previews only if browsers reach the server at the names below localhost,
// which are 127.0.0.1 and ::1 for them.
func TestPreviewsNeedAnAddress(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.overTCP()
	if strings.HasPrefix(s.tcp, "127.0.0.1:") {
		t.Fatalf("%s is reached", s.tcp)
	}
	s.start()
	for name, c := range map[string]*client.Client{"at the socket": s.unix(), "with a key": s.with(s.keyOf("a", ""))} {
		sb := create(t, c, "box")
		_, err := sb.(sandpit.Previewer).Preview(t.Context(), 80, 0)
		const want = "use 'sandpit forward NAME PORT', or restart it with --listen 127.0.0.1:7878"
		if !errors.Is(err, sandpit.ErrUnsupported) || !strings.HasPrefix(sandpit.Hint(err), want) {
			t.Errorf("%s: %v, %s", name, err, sandpit.Hint(err))
		}
		_ = c.Close()
	}
}
