package api

import (
	_ "embed"
	"net/http"
	"strconv"
)

// What package internal/api/openapi writes from the routes.
var (
	//go:embed openapi/openapi.json
	openAPI string
	//go:embed openapi/docs.html
	docsPage string
	//go:embed openapi/style.css
	docsStyle string
)

func showOpenAPI(c *call) error { return c.show("application/openapi+json", openAPI) }

func showDocs(c *call) error { return c.show("text/html; charset=utf-8", docsPage) }

func showStyle(c *call) error { return c.show("text/css; charset=utf-8", docsStyle) }

// show sends a page, which may use its own style sheet and nothing else.
func (c *call) show(kind, content string) error {
	h := c.W.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(content)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	c.W.WriteHeader(http.StatusOK)
	_, _ = c.W.Write([]byte(content)) // a client that has gone reads nothing
	return nil
}
