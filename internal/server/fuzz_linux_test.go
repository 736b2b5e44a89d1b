package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestEveryRequestHasADocumentedAnswer generates requests from the API's own
// document, good and bad ones: none is an error of the server, and each answer
// is as the document says. SANDPIT_TEST_SEED gives the generator another seed; the long form
// takes a new one each time.
func TestEveryRequestHasADocumentedAnswer(t *testing.T) {
	t.Parallel()
	rounds, seed := 12, uint64(1)
	if long() {
		rounds, seed = 600, uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("SANDPIT_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	s := newServed(t)
	// What is generated shall not wait for registries, nor for room.
	s.policy("policies:\n  fuzz:\n    images: [host]\n    maximum: {memory: 1g, life: 1h}\n    sandboxes: 4\n")
	s.start()
	_, text, _ := s.get("GET", "http://sandpit/v1/openapi.json", "", "")
	f := &fuzzer{t: t, s: s}
	if err := json.Unmarshal([]byte(text), &f.doc); err != nil {
		t.Fatal(err)
	}
	// Many keys, so that no key's rate is reached.
	for range 20 {
		f.keys = append(f.keys, s.keyOf("fuzz", "fuzz"))
	}
	f.admin = s.makeKey(v1.NewKey{Namespace: "fuzz", Policy: "fuzz", Admin: true}).Secret
	c := s.with(f.keys[0])
	defer c.Close()
	f.targets = map[string]target{}
	testkit.Made(t, f.revive(c))
	var all sync.WaitGroup
	work := make(chan func())
	for range 8 {
		all.Go(func() {
			for do := range work {
				do()
			}
		})
	}
	asked := uint64(0)
	for range rounds {
		if err := f.revive(c); err != nil {
			t.Logf("preparing a round: %v", err) // by what the last one still does
		}
		for _, path := range slices.Sorted(maps.Keys(f.doc.Paths)) {
			for _, method := range slices.Sorted(maps.Keys(f.doc.Paths[path])) {
				op := f.doc.Paths[path][method]
				r := rand.New(rand.NewPCG(seed, asked)) // of each request, as their order varies
				asked++
				work <- func() { f.ask(r, strings.ToUpper(method), path, op) }
			}
		}
	}
	close(work)
	all.Wait()
	counts := map[int]int{}
	f.mu.Lock()
	for _, c := range f.seen {
		for status, n := range c {
			counts[status] += n
		}
	}
	for op, c := range f.seen {
		if len(c) == 1 && c[http.StatusUnauthorized] > 0 {
			t.Errorf("nothing but 401 was seen of %s", op)
		}
	}
	f.mu.Unlock()
	t.Logf("answers by status: %v", counts)
	if log := s.log.String(); strings.Contains(log, "a request failed") || strings.Contains(log, "panic") {
		for line := range strings.Lines(log) {
			if strings.Contains(line, "a request failed") || strings.Contains(line, "panic") {
				t.Error(line)
			}
		}
	}
	// It serves as before.
	sb := create(t, s.unix(), "after")
	if out, err := sandpit.Exec(t.Context(), sb, "echo", "well"); err != nil || string(out.Stdout) != "well\n" {
		t.Errorf("%q %v", out.Stdout, err)
	}
}

// document is of an API what the generator uses.
type document struct {
	Paths      map[string]map[string]operation
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
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 string
	Format               string
	Enum                 []string
	Properties           map[string]*schema
	Required             []string
	Items                *schema
	AdditionalProperties json.RawMessage
	OneOf                []*schema
}

type fuzzer struct {
	t     *testing.T
	s     *served
	doc   document
	keys  []string
	admin string // a key for reading

	mu      sync.Mutex
	seen    map[string]map[int]int // operation to status to count
	targets map[string]target      // by name
}

// target is a running sandbox with a process, for the requests of a round.
type target struct{ id, process, pid string }

// revive makes the targets again that are gone, and removes what else was made.
func (f *fuzzer) revive(c sandpit.Client) error {
	running := map[string]bool{}
	page, err := c.List(f.t.Context(), sandpit.ListQuery{})
	if err != nil {
		return err
	}
	for _, info := range page.Sandboxes {
		if info.State == sandpit.StateRunning && f.targets[info.Name].id == info.ID {
			running[info.Name] = true
		} else if err := c.Remove(f.t.Context(), info.ID); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			return err
		}
	}
	for _, name := range []string{"fuzz-a", "fuzz-b"} {
		if running[name] {
			continue
		}
		sb, err := c.Create(f.t.Context(), small(name))
		if err != nil {
			return err
		}
		p, err := sb.Start(f.t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.targets[name] = target{sb.ID(), p.ID(), strconv.Itoa(p.PID())}
		f.mu.Unlock()
	}
	return nil
}

// target returns one of the targets.
func (f *fuzzer) target(r *rand.Rand) (name string, t target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name = pick(r, "fuzz-a", "fuzz-b")
	return name, f.targets[name]
}

func (f *fuzzer) resolve(s *schema) *schema {
	for s != nil && s.Ref != "" {
		s = f.doc.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// odd is text that is handled wrongly somewhere.
func odd(r *rand.Rand) string {
	return pick(r, "", " ", ".", "..", "/", "a", "fuzz-a", "/tmp", "/tmp/x", "/etc/passwd", "/proc/self/mem", "/nowhere/at/all", "../../etc/shadow", "-1", "0", "1", "9223372036854775808", "1e308", "NaN",
		"true", "null", "x=y", "=", "host", "dir:/", "2020-01-01T00:00:00Z", "2020-13-45", "0777", "99999", "tar", "zip", "a\x00b", "\xff\xfe", "ü", "\u202e", "a\nb", "%00", "%2e%2e%2f", strings.Repeat("a", 64), strings.Repeat("/a", 600), strings.Repeat("x", 5000))
}

// value is JSON for a schema, or for none.
func (f *fuzzer) value(r *rand.Rand, name string, s *schema, depth int) any {
	s = f.resolve(s)
	if s == nil || depth > 6 || r.IntN(12) == 0 {
		return pick[any](r, nil, true, -1, 0, 1.5, 1e300, "", odd(r), []any{}, []any{nil}, map[string]any{}, map[string]any{"a": map[string]any{"b": nil}})
	}
	if len(s.OneOf) > 0 {
		s = f.resolve(pick(r, s.OneOf...))
	}
	if len(s.Enum) > 0 && r.IntN(4) > 0 {
		return pick(r, s.Enum...)
	}
	switch s.Type {
	case "object":
		out := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(s.Properties)) {
			if slices.Contains(s.Required, k) && r.IntN(10) > 0 || r.IntN(4) == 0 {
				out[k] = f.value(r, k, s.Properties[k], depth+1)
			}
		}
		if r.IntN(10) == 0 || len(s.Properties) == 0 {
			out[odd(r)] = odd(r)
		}
		return out
	case "array":
		out := []any{}
		for range r.IntN(4) {
			out = append(out, f.value(r, name, s.Items, depth+1))
		}
		return out
	case "boolean":
		return r.IntN(2) == 0
	case "integer":
		return pick[any](r, 0, 1, 2, 9, 15, 64, 80, 1000, 64<<20, -1, math.MaxInt32, math.MaxInt64, json.Number("9223372036854775808"))
	case "number":
		return pick[any](r, 0, 0.01, 0.5, 1, 60, -1, 1e18, 1e-300, json.Number("1e400"))
	}
	switch name {
	case "image":
		return pick(r, "", "host", "host", "dir:/etc", "no such image", "debian:13", odd(r)) // none but the host's is allowed
	case "argv":
		return pick(r, "true", "echo", "sh", "-c", odd(r))
	case "script":
		return pick(r, "true", "echo out; echo err >&2", "exit 3", "kill -9 $$", odd(r))
	case "mode":
		return pick(r, "0644", "644", "7777", "x", odd(r))
	case "url":
		return pick(r, "http://127.0.0.1:1/", "https://example.invalid/", "file:///etc/passwd", odd(r))
	}
	return odd(r)
}

// text is the value of a parameter.
func (f *fuzzer) text(r *rand.Rand, param string, s *schema, name string, at target) string {
	s = f.resolve(s)
	if r.IntN(5) == 0 || s == nil {
		return odd(r)
	}
	if len(s.Enum) > 0 {
		return pick(r, s.Enum...)
	}
	switch param {
	case "sb":
		return pick(r, name, at.id)
	case "p":
		return pick(r, at.process, at.pid)
	case "path", "from", "to":
		return pick(r, "/tmp", "/tmp/x", "/", "/etc/passwd", "/tmp/new/dir", "x")
	case "timeout":
		return pick(r, "0", "0.01", "0.1")
	}
	switch s.Type {
	case "boolean":
		return pick(r, "true", "false", "1", "")
	case "integer", "number":
		return pick(r, "0", "1", "10", "22", "1000", "-1")
	}
	return odd(r)
}

// form is a multipart body for a schema, in any order.
func (f *fuzzer) form(r *rand.Rand, s *schema, header http.Header) []byte {
	var body bytes.Buffer
	parts := multipart.NewWriter(&body)
	header.Set("Content-Type", parts.FormDataContentType())
	s = f.resolve(s)
	names := slices.Sorted(maps.Keys(s.Properties))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		if r.IntN(10) == 0 {
			name = odd(r)
		}
		text := []byte(odd(r))
		if p := s.Properties[name]; p != nil && p.Format != "binary" {
			text, _ = json.Marshal(f.value(r, name, p, 1))
		}
		_ = parts.WriteField(name, string(text)) // to memory
	}
	if r.IntN(8) > 0 {
		_ = parts.Close()
	}
	return body.Bytes()
}

// spared are operations that would take away what the others work with: they
// get what is not there.
func spared(id string) bool {
	return slices.Contains([]string{"removeSandbox", "killProcess", "signalProcess"}, id)
}

func (f *fuzzer) ask(r *rand.Rand, method, path string, op operation) {
	query, route, header := url.Values{}, path, http.Header{}
	name, at := f.target(r)
	for _, p := range op.Parameters {
		value := f.text(r, p.Name, p.Schema, name, at)
		switch p.In {
		case "path":
			if spared(op.OperationID) && r.IntN(4) > 0 && p.Name == "sb" {
				value = "nobody"
			}
			if value == "." || value == ".." {
				value = "..." // those are no part of a path (RFC 3986, 5.2.4)
			}
			route = strings.ReplaceAll(route, "{"+p.Name+"}", url.PathEscape(value))
		case "query":
			if p.Required && r.IntN(10) > 0 || r.IntN(3) == 0 {
				query.Add(p.Name, value)
			}
		case "header":
			if r.IntN(3) == 0 && !strings.ContainsAny(value, "\x00\n") && utf8.ValidString(value) {
				header.Set(p.Name, value)
			}
		}
	}
	if r.IntN(20) == 0 {
		query.Add(odd(r), odd(r))
	}
	var body io.Reader
	if op.RequestBody != nil && r.IntN(15) > 0 {
		kind := pick(r, slices.Sorted(maps.Keys(op.RequestBody.Content))...)
		header.Set("Content-Type", kind)
		data := []byte(odd(r))
		switch schema := op.RequestBody.Content[kind].Schema; kind {
		case "multipart/form-data":
			data = f.form(r, schema, header)
		case "application/json":
			data, _ = json.Marshal(f.value(r, "", schema, 0))
			switch r.IntN(20) {
			case 0:
				data = data[:r.IntN(len(data)+1)]
			case 1:
				data = append(data, data...)
			case 2:
				data = []byte(strings.Repeat("[", 20000))
			case 3:
				header.Set("Content-Type", odd(r)[:0]+"text/plain")
			}
		}
		body = strings.NewReader(string(data))
	}
	if r.IntN(8) == 0 {
		header.Set("Accept", pick(r, "text/event-stream", "application/x-ndjson", "image/png", "*/*", ";;;"))
	}
	raw := "http://sandpit" + route
	if len(query) > 0 {
		raw += "?" + query.Encode()
	}
	// What follows, or waits, is given up.
	ctx, cancel := context.WithTimeout(f.t.Context(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, raw, body)
	if err != nil {
		return // net/http itself does not send that
	}
	req.Header = header
	// Never the machine's owner, who may do too much to it.
	key := "sp_aaaaaaaa_" + strings.Repeat("a", 40)
	switch n := r.IntN(20); {
	case method == http.MethodGet && n < 5:
		key = f.admin
	case n > 0:
		key = pick(r, f.keys...)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	f.send(req, op)
}

// givenUp stands for the status of an answer that was not waited for.
const givenUp = 0

func (f *fuzzer) note(op operation, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[string]map[int]int{}
	}
	if f.seen[op.OperationID] == nil {
		f.seen[op.OperationID] = map[int]int{}
	}
	f.seen[op.OperationID][status]++
}

func (f *fuzzer) send(req *http.Request, op operation) {
	resp, err := f.s.http().Do(req)
	if err != nil {
		if req.Context().Err() == nil {
			f.t.Errorf("%s %.200s: %v", req.Method, req.URL, err)
		}
		f.note(op, givenUp)
		return
	}
	defer resp.Body.Close()
	f.note(op, resp.StatusCode)
	what := func() string {
		return fmt.Sprintf("%s %.200s: %s", req.Method, req.URL, resp.Status)
	}
	if resp.StatusCode == http.StatusInternalServerError {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		f.t.Errorf("%s %s", what(), text)
		return
	}
	documented, ok := op.Responses[strconv.Itoa(resp.StatusCode)]
	if !ok {
		if documented, ok = op.Responses["default"]; !ok || resp.StatusCode < 400 {
			if resp.StatusCode != http.StatusMovedPermanently && resp.StatusCode != http.StatusTemporaryRedirect || !strings.Contains(req.URL.EscapedPath(), "/.") && !strings.Contains(req.URL.EscapedPath(), "//") {
				f.t.Errorf("%s is not documented", what())
			}
			return
		}
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	media, ok := documented.Content[kind]
	switch {
	case resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusSwitchingProtocols:
		return
	case !ok:
		f.t.Errorf("%s: %q is not documented, but %v", what(), kind, slices.Sorted(maps.Keys(documented.Content)))
		return
	case kind != "application/json":
		_, _ = io.Copy(io.Discard, io.LimitReader(bufio.NewReader(resp.Body), 1<<20))
		return
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		if req.Context().Err() == nil {
			f.t.Errorf("%s: %v", what(), err)
		}
		return
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		f.t.Errorf("%s: %v: %.300s", what(), err, text)
		return
	}
	if why := f.check(v, media.Schema, "answer"); why != "" {
		f.t.Errorf("%s: %s: %.500s", what(), why, text)
	}
}

// check says in what a value is not what a schema says, or nothing.
func (f *fuzzer) check(v any, s *schema, at string) string {
	s = f.resolve(s)
	if s == nil {
		return ""
	}
	wrong := func() string { return fmt.Sprintf("%s is %.100v and no %s", at, v, s.Type) }
	if len(s.OneOf) > 0 {
		why := ""
		for _, form := range s.OneOf {
			if why = f.check(v, form, at); why == "" {
				break
			}
		}
		return why
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, fmt.Sprint(v)) {
		return fmt.Sprintf("%s is %v, of %v", at, v, s.Enum)
	}
	switch s.Type {
	case "object":
		fields, ok := v.(map[string]any)
		if !ok {
			return wrong()
		}
		for _, name := range s.Required {
			if _, ok := fields[name]; !ok {
				return at + " has no " + name
			}
		}
		var others *schema
		_ = json.Unmarshal(s.AdditionalProperties, &others) // not of a boolean
		for name, field := range fields {
			p, known := s.Properties[name]
			if !known {
				if others == nil && string(s.AdditionalProperties) != "true" { // clients must allow it, but nothing may be undocumented
					return at + " has " + name
				}
				p = others
			}
			if why := f.check(field, p, at+"."+name); why != "" {
				return why
			}
		}
	case "array":
		items, ok := v.([]any)
		if !ok {
			return wrong()
		}
		for i, item := range items {
			if why := f.check(item, s.Items, at+"["+strconv.Itoa(i)+"]"); why != "" {
				return why
			}
		}
	case "string":
		if _, ok := v.(string); !ok {
			return wrong()
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return wrong()
		}
	case "integer", "number":
		n, ok := v.(float64)
		if !ok || s.Type == "integer" && n != math.Trunc(n) {
			return wrong()
		}
	}
	return ""
}
