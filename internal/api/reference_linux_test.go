package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// reference is what the test reads of the OpenAPI document.
type reference struct {
	Paths      map[string]map[string]*operation
	Components struct{ Schemas map[string]*schema }
}

type operation struct {
	OperationID string
	Parameters  []struct {
		Name, In string
		Required bool
		Schema   *schema
	}
	RequestBody *struct {
		Content map[string]struct{ Schema *schema }
	}
	Responses map[string]struct{ Description string }
	Security  []any // of an operation that needs no key
}

type schema struct {
	Ref                  string          `json:"$ref"`
	Type                 json.RawMessage // a string, or a list of them
	Format               string
	ContentEncoding      string
	Enum                 []any
	Items                *schema
	Properties           map[string]*schema
	AdditionalProperties json.RawMessage // a schema, or a boolean
	OneOf                []*schema
	Required             []string
}

// maker makes requests by the document. Those of one seed are always the same.
type maker struct {
	*rand.Rand
	doc *reference
	sb  string // a sandbox
}

// texts are strings that parsers stumble over, and some that mean something.
var texts = []string{"", "x", "true", "/tmp", "/tmp/a", "no/such", "../../x", "a\x00b", "ü\u202e", "%2e%2e", "p1", "1", "-1", "0755", "a=b", "2026-01-02T03:04:05Z", "*", strings.Repeat("n", 300), `"`, "\\"}

func (m *maker) text() string { return texts[m.IntN(len(texts))] }

// value returns a value of a schema, named for the field that has it.
func (m *maker) value(name string, s *schema, depth int) any {
	if s.Ref != "" {
		s = m.doc.Components.Schemas[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]]
	}
	if len(s.OneOf) > 0 {
		s = s.OneOf[m.IntN(len(s.OneOf))]
	}
	switch {
	case len(s.Enum) > 0:
		return s.Enum[m.IntN(len(s.Enum))]
	case name == "image": // no registry is asked
		return []string{"", "host", "!!", "localhost:1/x:y"}[m.IntN(4)]
	case name == "source":
		return "/no/such"
	case name == "url":
		return "http://127.0.0.1:1/"
	case s.ContentEncoding == "base64":
		return []byte(m.text())
	case s.Format == "date-time":
		return "2026-01-02T03:04:05Z"
	}
	switch kind := string(s.Type); {
	case strings.Contains(kind, "array"):
		list := []any{}
		for range m.IntN(3) {
			list = append(list, m.value(name, s.Items, depth+1))
		}
		return list
	case strings.Contains(kind, "integer"):
		return []int64{0, 1, 2, 100, 1 << 20, 1 << 28, -1, 1<<63 - 1}[m.IntN(8)]
	case strings.Contains(kind, "number"):
		return []float64{0, 0.001, 0.01, 1e-9, -1, 1e300}[m.IntN(6)] // of seconds, too: nothing waits long
	case strings.Contains(kind, "boolean"):
		return m.IntN(2) == 0
	case strings.Contains(kind, "object"):
		object := map[string]any{}
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			if slices.Contains(s.Required, field) || m.IntN(4) == 0 && depth < 4 {
				object[field] = m.value(field, s.Properties[field], depth+1)
			}
		}
		if each := new(schema); json.Unmarshal(s.AdditionalProperties, each) == nil {
			object[m.text()] = m.value(name, each, depth+1)
		}
		return object
	}
	return m.text()
}

// damage makes JSON that the server must refuse, and says how.
func (m *maker) damage(body []byte) (broken []byte, how string) {
	body = bytes.TrimSpace(body)
	switch m.IntN(6) {
	case 0:
		return body[:len(body)-1], "cut"
	case 1:
		return append([]byte(`{"no_such_field":1`), bytes.Replace(body, []byte("{"), []byte(","[:min(1, len(body)-2)]), 1)...), "unknown field"
	case 2:
		return []byte(`[` + string(body) + `]`), "list"
	case 3:
		return append(body, body...), "two objects"
	case 4:
		return bytes.Replace(body, []byte("{"), []byte("{\"\xff\":1,"), 1), "not UTF-8"
	}
	return []byte(strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)), "deep"
}

// request returns a request for an operation. broken says what the server must refuse about it.
func (m *maker) request(method, path string, op *operation) (a ask, broken string) {
	a = ask{method: strings.ToUpper(method), path: path, header: map[string]string{}}
	query := url.Values{}
	for _, p := range op.Parameters {
		value := fmt.Sprint(m.value(p.Name, p.Schema, 0))
		switch p.In {
		case "path":
			if p.Name == "sb" && m.IntN(4) > 0 {
				value = m.sb
			}
			a.path = strings.Replace(a.path, "{"+p.Name+"}", url.PathEscape(value), 1)
		case "query":
			if p.Required && m.IntN(8) > 0 || m.IntN(2) == 0 {
				query.Add(p.Name, value)
			}
		case "header":
			if m.IntN(2) == 0 && !strings.ContainsAny(value, "\x00\u202e") {
				a.header[p.Name] = value
			}
		}
	}
	if op.Security == nil && m.IntN(10) == 0 {
		query.Add("no_such_parameter", "1")
		broken = "unknown parameter"
	}
	if len(query) > 0 {
		a.path += "?" + query.Encode()
	}
	if op.RequestBody == nil {
		return a, broken
	}
	content, ok := op.RequestBody.Content["application/json"]
	if !ok {
		a.body = m.text()
		return a, broken
	}
	body, _ := json.Marshal(m.value("", content.Schema, 0)) // of plain values, which never fails
	if m.IntN(3) == 0 {
		body, broken = m.damage(body)
	}
	a.body, a.header["Content-Type"] = string(body), "application/json"
	return a, broken
}

// Requests that are made by the reference, valid and damaged ones, get only the answers that it
// lists; none is a failure of the server, and what is damaged is refused.
func TestRequestsByTheReference(t *testing.T) {
	rounds := 6
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		rounds = 200
	}
	s := serve(t, nil)
	doc := new(reference)
	_, text, _ := s.get(ask{method: "GET", path: "/v1/openapi.json"})
	if err := json.Unmarshal(text, doc); err != nil {
		t.Fatal(err)
	}
	mine := s.create("", v1.Spec{Name: "mine"})
	m := &maker{rand.New(rand.NewPCG(1, 2)), doc, mine.ID}
	for range rounds {
		for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
			for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
				op := doc.Paths[path][method]
				a, broken := m.request(method, path, op)
				status, body := s.headOf(a)
				answer, listed := op.Responses[strconv.Itoa(status)]
				var e v1.Error
				switch {
				case status == 404 && strings.Contains(string(body), `"no_route"`): // an odd path
				case status == 405: // a path of another operation, after an empty part
				case !listed || status == 500:
					t.Errorf("%s answers %d %.300s to %s %.300s %.300s", op.OperationID, status, body, a.method, a.path, a.body)
				case status >= 400:
					if err := json.Unmarshal(body, &e); err != nil || e.Message == "" || !slices.Contains(strings.Split(answer.Description[strings.IndexByte(answer.Description, ':')+2:], ", "), e.Code) {
						t.Errorf("%s answers %d %.300s", op.OperationID, status, body)
					}
				case broken != "":
					t.Errorf("%s takes a request that is not valid (%s): %s %.300s", op.OperationID, broken, a.path, a.body)
				}
				m.sb = s.alive(m.sb)
			}
		}
	}
}

// headOf makes a request and returns the status, and the body unless it is a stream.
func (s *service) headOf(a ask) (status int, body []byte) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	resp, err := s.try(ctx, a)
	if err != nil {
		s.t.Fatalf("%s %q: %v", a.method, a.path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		if body, err = io.ReadAll(resp.Body); err != nil {
			s.t.Fatalf("%s %q: %v", a.method, a.path, err)
		}
	}
	return resp.StatusCode, body
}

// alive returns a sandbox that runs: the given one, unless a request has ended it. Others are
// removed.
func (s *service) alive(id string) string {
	s.t.Helper()
	var all v1.SandboxList
	s.want(http.StatusOK, &all, ask{method: "GET", path: "/v1/sandboxes"})
	found := false
	for _, sb := range all.Sandboxes {
		if sb.ID == id && (sb.State == "running" || sb.State == "paused") {
			found = true
			continue
		}
		s.want(http.StatusNoContent, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + sb.ID})
	}
	if found {
		return id
	}
	return s.create("", v1.Spec{}).ID
}
