package openapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/api"
	"github.com/sandpit-dev/sandpit/internal/api/openapi"
)

var update = flag.Bool("update", false, "write the files anew")

// What is served is what the routes say.
func TestUpToDate(t *testing.T) {
	for name, make := range map[string]func() ([]byte, error){"openapi.json": openapi.JSON, "docs.html": openapi.Page} {
		want, err := make()
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the routes say: run go test ./internal/api/openapi -update", name)
		}
	}
}

// Every route is in the document, once, with all that it takes and gives.
func TestEveryRouteIsDocumented(t *testing.T) {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI string
		Tags    []struct{ Name, Description string }
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Parameters  []struct{ Name, In string }
			RequestBody *struct{ Content map[string]any }
			Responses   map[string]struct {
				Description string
				Content     map[string]any
			}
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", doc.OpenAPI)
	}
	for _, tag := range doc.Tags {
		if tag.Description == "" {
			t.Errorf("the tag %s has no description", tag.Name)
		}
	}
	seen, ids := 0, map[string]bool{}
	for _, r := range api.Routes() {
		op, ok := doc.Paths[r.Path][strings.ToLower(r.Method)]
		if !ok || op.OperationID != r.ID || op.Summary == "" || ids[r.ID] {
			t.Errorf("%s %s is not there as %s", r.Method, r.Path, r.ID)
			continue
		}
		ids[r.ID] = true
		seen++
		if want := len(r.Query) + len(r.Headers) + len(openapi.PathParams(r.Path)); len(op.Parameters) != want {
			t.Errorf("%s has %d parameters, want %d", r.ID, len(op.Parameters), want)
		}
		if (op.RequestBody != nil) != (r.In != nil || r.Raw != "") {
			t.Errorf("%s: whether it takes a body is not said", r.ID)
		}
		for status := range op.Responses {
			n, err := strconv.Atoi(status)
			if succeeds := n == r.Status || slices.Contains(r.Also, n) || r.Upgrade && n == http.StatusOK; err != nil || r.Answers()[n] == nil && !succeeds {
				t.Errorf("%s answers %s", r.ID, status)
			}
		}
		for status, codes := range r.Answers() {
			if got := op.Responses[strconv.Itoa(status)]; !strings.HasSuffix(got.Description, ": "+strings.Join(codes, ", ")) || got.Content["application/json"] == nil {
				t.Errorf("%s: %d is %+v", r.ID, status, got)
			}
		}
	}
	// That of a server which makes no sandboxes any more, or one that ends.
	health, err := json.Marshal(doc.Paths["/healthz"]["get"].Responses["503"].Content["application/json"])
	if want := `{"schema":{"oneOf":[{"$ref":"#/components/schemas/Health"},{"$ref":"#/components/schemas/Error"}]}}`; err != nil || string(health) != want {
		t.Errorf("/healthz with 503 is %s, %v", health, err)
	}
	for path, all := range doc.Paths {
		seen -= len(all)
		if !strings.HasPrefix(path, "/") {
			t.Errorf("the path %q", path)
		}
	}
	if seen != 0 {
		t.Error("the document has operations that no route is for")
	}
	// Every reference leads somewhere.
	for _, part := range strings.Split(string(text), `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("there is no schema %s", name)
		}
	}
}

// Clients that are generated from the document ignore fields that a later server sends. Of requests,
// the document says that the server refuses unknown fields.
func TestResponsesAreOpen(t *testing.T) {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct{ Content map[string]any }
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	sent := map[string]bool{}
	var visit func(v any, object func(schema map[string]any))
	visit = func(v any, object func(schema map[string]any)) {
		switch v := v.(type) {
		case []any:
			for _, part := range v {
				visit(part, object)
			}
		case map[string]any:
			if v["type"] == "object" {
				object(v)
			}
			if ref, ok := v["$ref"].(string); ok && !sent[ref] {
				sent[ref] = true
				visit(doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")], object)
			}
			for _, part := range v {
				visit(part, object)
			}
		}
	}
	for path, all := range doc.Paths {
		for method, op := range all {
			for status, resp := range op.Responses {
				visit(resp.Content, func(s map[string]any) {
					if s["additionalProperties"] == false {
						t.Errorf("%s %s: a response %s has a closed object: %v", method, path, status, s)
					}
				})
			}
		}
	}
	for _, name := range []string{"Spec", "Exec", "Change"} {
		if s := doc.Components.Schemas[name].(map[string]any); s["additionalProperties"] != false || sent["#/components/schemas/"+name] {
			t.Errorf("the request %s is open", name)
		}
	}
}

// The headers that a client needs are described where they are sent.
func TestHeadersAreDocumented(t *testing.T) {
	doc := openapi.Document()
	for _, tt := range []struct{ path, method, status, header string }{
		{"/v1/sandboxes", "post", "201", "Location"},
		{"/v1/sandboxes", "post", "201", "Idempotent-Replayed"},
		{"/v1/sandboxes", "post", "409", "Retry-After"},
		{"/v1/sandboxes", "get", "429", "Retry-After"},
		{"/v1/sandboxes", "get", "200", "X-Request-Id"},
		{"/v1/sandboxes", "get", "401", "X-Request-Id"},
		{"/v1/sandboxes", "post", "409", "X-Request-Id"},
		{"/v1/sandboxes/{sb}/files", "get", "206", "Content-Range"},
		{"/v1/sandboxes/{sb}/files", "get", "206", "X-Sandpit-Mode"},
		{"/v1/sandboxes/{sb}/files", "get", "200", "X-Sandpit-Mode"},
	} {
		op := doc.Paths[tt.path].Get
		if tt.method == "post" {
			op = doc.Paths[tt.path].Post
		}
		if h := op.Responses[tt.status].Headers[tt.header]; h == nil || h.Ref != "#/components/headers/"+tt.header || doc.Components.Headers[tt.header] == nil {
			t.Errorf("%s %s does not say that %s has %s", tt.method, tt.path, tt.status, tt.header)
		}
	}
}

// The page is read with nothing but its own style sheet.
func TestPageStandsAlone(t *testing.T) {
	page, err := os.ReadFile("docs.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "style=", "src=", "@import", "onclick"} {
		if bytes.Contains(page, []byte(bad)) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, r := range api.Routes() {
		if !bytes.Contains(page, []byte(`id="`+r.ID+`"`)) {
			t.Errorf("the page does not have %s", r.ID)
		}
		_, entry, _ := bytes.Cut(page, []byte(`<section id="`+r.ID+`"`))
		entry, _, _ = bytes.Cut(entry, []byte("</section>"))
		if r.In != nil && !bytes.Contains(entry, []byte("Takes ")) || r.Out != nil && !bytes.Contains(entry, []byte(" with <a ")) {
			t.Errorf("the page does not say what %s takes and returns", r.ID)
		}
	}
}

// Each limit says what it may be.
func TestLimitsSayTheirBounds(t *testing.T) {
	for _, r := range api.Routes() {
		for _, p := range r.Query {
			if p.Name == "limit" && p.Most == 0 {
				t.Errorf("%s %s: the limit has no bound", r.Method, r.Path)
			}
		}
	}
}
