package portproxy

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

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
