package api

import (
	_ "embed"
	"net/http"
	"strconv"
)

// The files that package internal/api/openapi generates from the routes.
var (
	//go:embed openapi/openapi.json
	openAPI string
	//go:embed openapi/docs.html
	docsPage string
	//go:embed openapi/style.css
	docsStyle string
)

func docsRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/openapi.json", ID: "getOpenAPI", Tag: tag, Summary: "Get this reference as OpenAPI 3.1", Status: http.StatusOK, Other: []string{"application/openapi+json"}, Open: true, handle: showOpenAPI},
		{Method: http.MethodGet, Path: "/docs", ID: "getDocs", Tag: tag, Summary: "Get this reference as a web page", Status: http.StatusOK, Other: []string{html}, Open: true, handle: showDocs},
		{Method: http.MethodGet, Path: "/docs/style.css", ID: "getDocsStyle", Tag: tag, Summary: "Get the style sheet of the web page", Status: http.StatusOK, Other: []string{"text/css"}, Open: true, handle: showStyle},
	}
}

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
