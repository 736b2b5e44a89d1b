package portproxy

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// ForStranger removes from a failure what callers without a key must not learn: names, limits and other details of the sandbox.
func ForStranger(c *gate.Call, f *gate.Failure) {
	if c.Caller.Preview == "" {
		return
	}
	switch f.Code {
	case errcode.Unavailable:
		if c.BrokenOff() == nil {
			f.Message, f.Hint, f.Path = "nothing answers at this port of the sandbox", "try again when its server has started", ""
		}
	case errcode.Closed, errcode.State:
		f.Message, f.Hint, f.Path = "the sandbox is not running", "ask its owner to start it", ""
	case errcode.PreviewInvalid, errcode.Invalid, errcode.RateLimited, errcode.Overloaded, errcode.TooManyStreams, errcode.TooManyConnections, errcode.Draining, errcode.HostRefused, errcode.OriginRefused:
	default:
		f.Message, f.Hint, f.Path = "the sandbox can't serve this request", "try again later, or ask its owner", ""
	}
}

// WantsPage reports whether a browser opens a page. Without TLS, most say that only in Accept.
func WantsPage(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// ShowPage answers with a page for people. title and text are HTML.
func ShowPage(c *gate.Call, status int, title, text string) {
	h := c.W.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	c.W.WriteHeader(status)
	if c.R.Method != http.MethodHead {
		_, _ = fmt.Fprintf(c.W, "<!doctype html>\n<meta name=viewport content=\"width=device-width\">\n<title>%[1]s</title>\n<h1>%[1]s</h1>\n<p>%s</p>\n<p>Request %s</p>\n", title, text, c.ID)
	}
}
