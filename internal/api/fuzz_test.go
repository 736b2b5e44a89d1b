package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// Whatever a body is, it is read or refused in the shape of errors.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{}`, ``, `{"argv":["a"],"stdin_data":"YQ=="}`, `{"timeout":1e999}`, `{"limits":{"life":-1}}`, `[`, `{}{}`, "{\"name\":\"\xff\"}", strings.Repeat(`{"limits":`, 50)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{new(v1.Spec), new(v1.Exec), new(v1.Lifetime), new(v1.Signal), new(v1.Size), new(v1.Grep), new(v1.NewKey)} {
			err := codec.Parse(data, v)
			if err == nil {
				switch v := v.(type) {
				case *v1.Spec:
					_, _ = v.Sandpit()
				case *v1.Exec:
					_, _ = v.Sandpit()
					_ = programOf(&v.Command)
				}
				continue
			}
			c := &call{Call: &gate.Call{Ctx: t.Context(), ID: "id"}}
			status, e := codec.Describe(c.Call, err)
			if status != 400 || e.Code != "invalid" || e.Message == "" || len(e.Message) > gate.MaxMessage+8 {
				t.Errorf("%q is refused as %d %+v", data, status, e)
			}
		}
	})
}

// The name of a sandbox's port is taken apart only as it was made.
func FuzzSandboxHost(f *testing.F) {
	for _, s := range []string{"80-abc.localhost", "80-abc.localhost.", "80-a-b.localhost:8080", "-x.localhost", "80.localhost", "80-x.evil", "[::1]:80", "80-x.localhost.evil"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name := gate.HostName(s)
		sandbox, port, ok := portOfHost(name, []string{"localhost"})
		if ok && (port+"-"+sandbox+".localhost" != name || strings.Contains(sandbox, ".")) {
			t.Errorf("%q is %q and %q", s, sandbox, port)
		}
	})
}

// A query is read or refused, and never more than once.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"path=/a&follow=1", "follow", "limit=-1", "path=%zz", "a=b;c=d", "path=%00", "limit=1&limit=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.RawQuery = raw
		for _, route := range Routes() {
			c := &call{Call: &gate.Call{R: r, Ctx: t.Context()}, route: &route}
			q := c.query()
			q.flag("recursive", false)
			q.number("limit", sandpit.MaxPage)
			q.seconds("timeout", defaultWait, maxWait)
			q.time("since")
			q.mode("mode", 0)
		}
	})
}

// Of previews nothing is left in a request, and the redirect stays on its host.
func FuzzPreviews(f *testing.F) {
	for _, s := range [][2]string{
		{"/a?sandpit-preview=pv_x&b=1", "a=1; sandpit-preview=pv_x;Path=/"},
		{"/?%73andpit-preview=%zz&%zz=1;sandpit-preview", "__HOST-Sandpit-Preview =x;; Domain"},
		{"//evil.example/?a", "sandpit-preview"},
		{"/%5cevil.example", "=sandpit-preview; DOMAIN = x"},
		{"/\\evil.example?", "a=b,sandpit-preview=x"},
		{"*", ""},
		{"/%", ";domain=x"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, target, cookies string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{URL: u, Header: http.Header{"Cookie": {cookies}}}
		takePreviews(r)
		if len(u.Query()[previewParam]) > 0 {
			t.Errorf("the query is %q", u.RawQuery)
		}
		for _, c := range r.Cookies() {
			if preview.IsCookie(c.Name) {
				t.Errorf("the cookies are %q", r.Header["Cookie"])
			}
		}
		to := locationOf(u)
		at, err := (&url.URL{Scheme: "http", Host: "here"}).Parse(to)
		if err != nil || at.Host != "here" || to[0] != '/' || len(to) > 1 && (to[1] == '/' || to[1] == '\\') || strings.ContainsAny(strings.Split(to, "?")[0], "\t\r\n\\") {
			t.Errorf("the redirect leads to %q, %v", to, err)
		}
	})
}
