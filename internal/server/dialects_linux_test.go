package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// toy is a small dialect. Its paths are those of /v1.
func toy() dialect.Dialect {
	fail := func(f gate.Failure) []byte { return fmt.Appendf(nil, "{\"toy\":%q}", f.Code) }
	return dialect.Dialect{Name: "toy", Title: "Toy", KeyFormat: keys.E2B, Error: fail, Settings: func(url string) []dialect.Setting {
		return []dialect.Setting{{Name: "TOY_URL", Value: url + "/x"}, {Name: "TOY_KEY", Key: true}}
	}, New: func(s dialect.Server) gate.Dialect {
		return gate.Dialect{
			Credential: func(r *http.Request) (string, bool) { return r.Header.Get("X-Toy"), false },
			Fail: func(c *gate.Call, f gate.Failure) {
				c.W.WriteHeader(f.Status)
				_, _ = c.W.Write(fail(f))
			},
			Routes: []gate.Route{
				{Method: "GET", Path: "/healthz", ID: "toy.health", Open: true, Handle: func(c *gate.Call) error {
					_, err := io.WriteString(c.W, "toy "+s.Version)
					return err
				}},
				{Method: "POST", Path: "/v1/sandboxes", ID: "toy.create", Guarded: true, Handle: func(c *gate.Call) error {
					body, err := io.ReadAll(c.Body(1<<10, time.Minute))
					if err != nil {
						return err
					}
					spec := small("")
					if spec.Image, err = s.Image(c.R.URL.Query().Get("template")); err != nil {
						return err
					}
					sb, err := s.Tenant(c.Caller).CreateFor(c.Ctx, spec, "toy", body)
					if err != nil {
						return err
					}
					token, _, err := s.Tokens.Of(c.Ctx, c.Caller.Key, sb.ID())
					if err != nil {
						return err
					}
					_, err = io.WriteString(c.W, sb.ID()+" "+token)
					return err
				}},
				{
					Method: "GET", Path: "/open/{sb}", ID: "toy.open",
					Proof: func(c *gate.Call) (who gate.Caller, ok bool, err error) {
						sandbox, who, err := s.Tokens.Verify(c.Ctx, c.R.Header.Get("X-Toy-Token"))
						if err == nil && sandbox != c.R.PathValue("sb") {
							err = dialect.ErrTokenEnded
						}
						return who, err == nil, err
					},
					Handle: func(c *gate.Call) error {
						if _, err := s.Tenant(c.Caller).Get(c.Ctx, c.R.PathValue("sb")); err != nil {
							return err
						}
						_, err := fmt.Fprintf(c.W, "open to %s, admin %v", c.Caller.Name, c.Caller.Admin)
						return err
					},
				},
				{Method: "GET", Path: "/v1/sandboxes/{sb}", ID: "toy.get", Target: func(r *http.Request) string { return r.PathValue("sb") }, Handle: func(c *gate.Call) error {
					sb, err := s.Tenant(c.Caller).Get(c.Ctx, c.Target)
					if err != nil {
						return err
					}
					_, err = c.W.Write(sb.(interface{ Dialect(string) json.RawMessage }).Dialect("toy"))
					return err
				}},
			},
		}
	}}
}

// withToy has the server serve the toy dialect, and returns its URL.
func (s *served) withToy() string {
	s.t.Helper()
	at := testkit.Address(s.t)
	if host, _, err := net.SplitHostPort(s.tcp); err == nil { // its certificate is for that
		_, port, _ := net.SplitHostPort(at)
		at = net.JoinHostPort(host, port)
	}
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: at}, Service: "toy"})
	s.change = func(o *server.Options) { o.Dialects = []dialect.Dialect{toy()} }
	return "://" + at
}

// A dialect has listeners of its own, on which its paths mean its own operations, with the keys, policies, TLS and audit of the server.
func TestDialectHasItsListeners(t *testing.T) {
	s := newServed(t)
	s.overTCP()
	url := "https" + s.withToy()
	s.start()
	want := func(wantStatus int, wantBody, method, url, body string, headers ...string) string {
		t.Helper()
		status, got, _ := s.get(method, url, "", body, headers...)
		if status != wantStatus || !strings.Contains(got, wantBody) {
			t.Errorf("%s %s: %d %s, want %d %s", method, url, status, got, wantStatus, wantBody)
		}
		return got
	}
	want(200, "toy test", "GET", url+"/healthz", "")
	want(200, `"status"`, "GET", "https://"+s.tcp+"/healthz", "")
	want(404, `{"toy":"no_route"}`, "GET", url+"/v1/version", "")
	want(401, `{"toy":"unauthenticated"}`, "POST", url+"/v1/sandboxes", `{}`)
	want(401, `{"toy":"unauthenticated"}`, "POST", url+"/v1/sandboxes", `{}`, "Authorization", "Bearer "+s.key)
	want(401, `"unauthenticated"`, "POST", "https://"+s.tcp+"/v1/sandboxes", `{}`, "X-Toy", s.key)
	admin := s.unix()
	defer admin.Close()
	create(t, admin, "one")
	a, b := s.keyOf("team-a", ""), s.keyOf("team-b", "")
	id, _, _ := strings.Cut(want(200, " ", "POST", url+"/v1/sandboxes?template=base", `{"asked":"this"}`, "X-Toy", a), " ")
	want(200, `{"asked":"this"}`, "GET", url+"/v1/sandboxes/"+id, "", "X-Toy", a)
	want(404, `{"toy":"not_found"}`, "GET", url+"/v1/sandboxes/"+id, "", "X-Toy", b)
	c := s.with(a)
	defer c.Close()
	if _, err := c.Get(t.Context(), id); err != nil {
		t.Errorf("in /v1: %v", err)
	}
	var list v1.AuditList
	if err := admin.Call(t.Context(), "GET", "/v1/audit?action=toy.create&namespace=team-a", nil, &list); err != nil || len(list.Entries) != 2 {
		t.Errorf("the audit has %v, %v", list.Entries, err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start() // its data outlive the server
	want(200, `{"asked":"this"}`, "GET", url+"/v1/sandboxes/"+id, "", "X-Toy", a)
}

// An access token opens one sandbox in its dialect while its key is valid, also at the next server. It is not a key.
func TestAccessTokens(t *testing.T) {
	s := newServed(t)
	s.overTCP()
	url := "https" + s.withToy()
	s.start()
	admin := s.unix()
	defer admin.Close()
	create(t, admin, "one") // or skip
	open := func(want int, sandbox, token string) string {
		t.Helper()
		status, got, _ := s.get("GET", url+"/open/"+sandbox, "", "", "X-Toy-Token", token)
		if status != want {
			t.Errorf("%s with %s: %d %s, want %d", sandbox, token, status, got, want)
		}
		return got
	}
	makeOne := func(key string) (id, token string) {
		t.Helper()
		status, got, _ := s.get("POST", url+"/v1/sandboxes?template=base", "", `{}`, "X-Toy", key)
		id, token, _ = strings.Cut(got, " ")
		if status != 200 {
			t.Fatalf("%d %s", status, got)
		}
		return id, token
	}
	key := s.makeKey(v1.NewKey{Name: "ann", Namespace: "team-a", Admin: true})
	other := s.makeKey(v1.NewKey{Name: "bob", Namespace: "team-a"})
	id, token := makeOne(key.Secret)
	second, tokenOfSecond := makeOne(other.Secret)
	if got := open(200, id, token); got != "open to ann, admin false" {
		t.Errorf("got %s", got)
	}
	flipped := token[:len(token)-1] + string(token[len(token)-1]^1)
	for name, x := range map[string]struct{ sandbox, token string }{
		"of another sandbox": {second, token}, "of another key": {id, tokenOfSecond}, "changed": {id, flipped},
		"another sandbox in it": {second, strings.Replace(token, id, second, 1)}, "another key in it": {id, strings.Replace(token, key.ID, other.ID, 1)},
		"none": {id, ""}, "a key": {id, key.Secret}, "longer": {id, token + "_a"},
	} {
		if got := open(401, x.sandbox, x.token); got != `{"toy":"unauthenticated"}` {
			t.Errorf("%s: %s", name, got)
		}
	}
	if status, got, _ := s.get("GET", url+"/v1/sandboxes/"+id, "", "", "X-Toy", token); status != 401 {
		t.Errorf("as a key: %d %s", status, got)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	open(200, id, token)
	open(200, second, tokenOfSecond)
	again := s.unix()
	defer again.Close()
	if err := again.Call(t.Context(), "DELETE", "/v1/keys/"+key.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	open(401, id, token)
	open(200, second, tokenOfSecond)
	c := s.with(other.Secret)
	defer c.Close()
	if err := c.Remove(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	open(404, second, tokenOfSecond)
}

// Names of clients are images by the aliases of the policy file, which is read again when it changes. The policy decides about the image.
func TestImageAliases(t *testing.T) {
	s := newServed(t)
	url := "http" + s.withToy()
	s.policy("aliases: {base: 'alpine:3', mine: host}\npolicies: {default: {images: [host]}}\n")
	s.start()
	admin := s.unix()
	defer admin.Close()
	create(t, admin, "one") // or skip
	key := s.keyOf("team-a", "")
	want := func(status int, template, text string) {
		t.Helper()
		got, body, _ := s.get("POST", url+"/v1/sandboxes?template="+template, "", `{}`, "X-Toy", key)
		if got != status || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %d %s", template, got, body, status, text)
		}
	}
	want(200, "mine", "")
	want(200, "code-interpreter-v1", "")
	want(403, "base", "forbidden")
	want(404, "none", "not_found")
	want(404, "host", "not_found")
	s.policy("aliases: {base: host}\n")
	s.reload <- struct{}{}
	testkit.Until(t, "the file is read", func() bool {
		status, _, _ := s.get("POST", url+"/v1/sandboxes?template=base", "", `{}`, "X-Toy", key)
		return status == 200
	})
	want(404, "mine", "not_found")
}

// A key may have the form that a client of another project expects. It is an ordinary key, everywhere.
func TestKeysInFormats(t *testing.T) {
	s := newServed(t)
	s.overTCP()
	url := "https" + s.withToy()
	s.start()
	for format, start := range map[string]string{"e2b": "e2b_", "microsandbox": "msb_ey", "": "sp_"} {
		key := s.makeKey(v1.NewKey{Namespace: "team-a", Format: format, Expires: 3600})
		if !strings.HasPrefix(key.Secret, start) {
			t.Errorf("%s: %s", format, key.Secret)
		}
		if status, got, _ := s.get("GET", "https://"+s.tcp+"/v1/sandboxes", key.Secret, ""); status != 200 {
			t.Errorf("%s in /v1: %d %s", format, status, got)
		}
		if status, got, _ := s.get("GET", url+"/v1/sandboxes/none", "", "", "X-Toy", key.Secret); status != 404 {
			t.Errorf("%s in a dialect: %d %s", format, status, got)
		}
		admin := s.unix()
		defer admin.Close()
		if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+key.ID, nil, nil); err != nil {
			t.Error(err)
		}
		if status, got, _ := s.get("GET", url+"/v1/sandboxes/none", "", "", "X-Toy", key.Secret); status != 401 {
			t.Errorf("%s, revoked: %d %s", format, status, got)
		}
	}
	if status, got, _ := s.get("POST", "https://"+s.tcp+"/v1/keys", s.key, `{"format":"e3b"}`); status != 400 || !strings.Contains(got, `e3b`) {
		t.Errorf("an unknown format: %d %s", status, got)
	}
}

// Where Sandpit's own API is, a dialect answers by host name. Other names are refused as always.
func TestDialectsByHostName(t *testing.T) {
	for _, domain := range []string{"", "Sandboxes.example."} {
		s := newServed(t)
		s.overTCP()
		s.withToy()
		own := s.settings.Listen[1].Host
		s.settings.Domain = domain
		s.start()
		base := strings.ToLower(strings.TrimSuffix(cmp.Or(domain, "localhost"), "."))
		for _, x := range []struct{ at, host, want string }{
			{s.tcp, "api.toy." + base, "toy test"},
			{s.tcp, "3000-abc.toy." + base + ".:8443", "toy test"},
			{s.tcp, "TOY." + strings.ToUpper(base), "toy test"},
			{s.tcp, "localhost", `"status"`},
			{own, "api.toy." + base, "toy test"},
			{own, "localhost", "toy test"},
			{s.tcp, "xtoy." + base, `"code":"host_refused"`},
			{s.tcp, "toy." + base + ".evil.example", `"code":"host_refused"`},
			{own, "xtoy." + base, `{"toy":"host_refused"}`},
		} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+x.at+"/healthz", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = x.host
			resp, err := s.http().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !strings.Contains(string(got), x.want) {
				t.Errorf("%s as %s: %d %s %v, want %s", x.at, x.host, resp.StatusCode, got, err, x.want)
			}
		}
		// A page of another site can't use it.
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+s.tcp+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "api.toy." + base
		r.Header.Set("Origin", "https://evil.example")
		resp, err := s.http().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusForbidden {
			t.Errorf("from a page of another site: %d", resp.StatusCode)
		}
	}
}

// The server shows how clients are pointed at it: when it starts, and to each caller as that reaches it.
func TestSettingsOfClients(t *testing.T) {
	for name, x := range map[string]struct {
		dialect, domain, host, want string
	}{
		"an address":               {"127.0.0.1", "", "localhost", "http://127.0.0.1:PORT"},
		"every address":            {"0.0.0.0", "", "localhost", "http://localhost:PORT"},
		"every address, at a name": {"0.0.0.0", "", "sandpit.example:1", "http://sandpit.example:PORT"},
		"every address, at [::1]":  {"0.0.0.0", "", "[::1]:1", "http://[::1]:PORT"},
		"at the socket":            {"0.0.0.0", "", "", "http://127.0.0.1:PORT"},
		"no address":               {"", "", "localhost", ""},
		"no address, but a domain": {"", "s.example", "localhost", "http://api.toy.s.example:MAIN"},
		"an address, and a domain": {"127.0.0.1", "s.example", "localhost", "http://127.0.0.1:PORT"},
	} {
		s := newServed(t)
		main := testkit.Address(t)
		s.withToy()
		_, port, _ := net.SplitHostPort(s.settings.Listen[0].Host)
		s.settings.Listen[0].Host = net.JoinHostPort(x.dialect, port)
		if x.dialect == "" {
			s.settings.Listen = nil
		}
		s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: main}})
		s.settings.Domain, s.settings.PlainHTTP, s.settings.Hosts = x.domain, true, []string{"sandpit.example"}
		s.start()
		_, mainPort, _ := net.SplitHostPort(main)
		want := strings.NewReplacer("PORT", port, "MAIN", mainPort).Replace(x.want)
		key := s.key
		url := "http://" + main
		if x.host == "" {
			url, key = "http://sandpit", ""
		}
		r, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/dialects", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = x.host
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := s.http().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var got v1.DialectList
		err = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		of := v1.DialectList{Dialects: []v1.Dialect{{Name: "toy", Title: "Toy", KeyFormat: "e2b", URL: want}}}
		if want != "" {
			of.Dialects[0].Settings = []v1.DialectSetting{{Name: "TOY_URL", Value: want + "/x"}, {Name: "TOY_KEY", Key: true}}
		}
		if diff := gocmp.Diff(of, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		said := strings.Join(s.said, "\n")
		if has := strings.Contains(said, "for clients of Toy ('sandpit env --new-key toy' makes a key): export TOY_URL=http://") && strings.HasSuffix(said, "/x TOY_KEY=KEY"); has != (want != "") {
			t.Errorf("%s: it says\n%s", name, said)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// A client of Sandpit's own API that is given the address of a dialect is told so, with a key and without one.
func TestOwnClientAtADialect(t *testing.T) {
	s := newServed(t)
	s.withToy()
	s.start()
	for _, key := range []string{"", s.makeKey(v1.NewKey{Namespace: "a"}).Secret} {
		c, err := client.New(client.Options{Address: "http://" + s.settings.Listen[0].Host, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.List(t.Context(), sandpit.ListQuery{})
		if err == nil || !strings.Contains(err.Error(), `this address of the server is for clients of "toy", and not for Sandpit's own API`) || sandpit.Hint(err) == "" {
			t.Errorf("it lists: %v", err)
		}
	}
}

// A server does not start with a dialect that changes something without an entry in the audit, or that strangers can use.
func TestRoutesOfDialectsAreGuarded(t *testing.T) {
	none := func(*gate.Call) error { return nil }
	for name, route := range map[string]gate.Route{
		"does not begin with": {Method: "GET", Path: "/x", ID: "other.x", Handle: none},
		"the audit does not":  {Method: "POST", Path: "/x", ID: "toy.x", Handle: none},
		"audit does not":      {ID: "toy.x", Handle: none}, // of Pick
		"open to strangers":   {Method: "GET", Path: "/x/{sb}", ID: "toy.x", Open: true, Handle: none},
	} {
		bad := toy()
		bad.New = func(dialect.Server) gate.Dialect {
			d := toy().New(dialect.Server{})
			d.Routes = append(d.Routes, route)
			return d
		}
		if why := server.Checked("toy", bad); !strings.Contains(why, name) {
			t.Errorf("%s: %s", name, why)
		}
	}
	if why := server.Checked("toy", toy()); why != "" {
		t.Error(why)
	}
}

// The rules for TLS apply to listeners of dialects, and services that the program lacks are refused by name.
func TestListenersOfDialectsAreChecked(t *testing.T) {
	for name, x := range map[string]struct {
		listen server.Listen
		want   []string
	}{
		"beyond loopback without TLS": {server.Listen{Address: server.Address{Network: "tcp", Host: "0.0.0.0:1"}, Service: "toy"}, []string{"without TLS would send keys unencrypted"}},
		"an unknown service":          {server.Listen{Address: server.Address{Network: "tcp", Host: "127.0.0.1:1"}, Service: "e3b"}, []string{`listening on 127.0.0.1:1: unknown service "e3b"`, "use one of: sandpit, toy"}},
	} {
		s := newServed(t)
		s.withToy()
		s.settings.Listen = []server.Listen{x.listen}
		err := server.Run(t.Context(), s.options())
		for _, want := range x.want {
			if err == nil || !strings.Contains(err.Error()+"\n"+sandpit.Hint(err), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	}
}

// A connection to a dialect for which there is no room gets an error of its form.
func TestFullInTheFormOfTheDialect(t *testing.T) {
	s := newServed(t)
	url := s.withToy()
	s.settings.Connections, s.settings.ConnectionsPerAddress = 16, 1
	s.start()
	first, err := net.Dial("tcp", strings.TrimPrefix(url, "://"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := net.Dial("tcp", strings.TrimPrefix(url, "://"))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	got, err := io.ReadAll(first)
	if err != nil || !strings.HasSuffix(string(got), "\r\n\r\n"+`{"toy":"`+errcode.TooManyConnections+`"}`) {
		t.Errorf("%q %v", got, err)
	}
}

// activatedEnv makes the test binary print the names of the sockets that it was passed.
const activatedEnv = "SANDPIT_TEST_ACTIVATED"

// A socket of the service manager serves what its name says.
func TestSocketsAreAssignedByName(t *testing.T) {
	var files []*os.File
	for range 3 {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		file, err := l.(*net.UnixListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files = append(files, file)
	}
	for names, want := range map[string]string{"toy:http:toy": "toy http toy", "toy": "toy  ", "": "  "} {
		cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), activatedEnv+"=1", "LISTEN_FDS=3", "LISTEN_FDNAMES="+names)
		cmd.ExtraFiles = files
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: %q %v, want %q", names, out, err, want)
		}
	}
}
