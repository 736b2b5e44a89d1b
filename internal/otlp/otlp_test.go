package otlp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/otlp"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// A collector gets the spans as the protocol's JSON has them.
func TestSpansAreSent(t *testing.T) {
	got := make(chan string, 8)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("X-Token") + " " + string(body)
	}))
	defer collector.Close()
	e, err := otlp.FromEnvironment(env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL + "/", "OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b, none", "OTEL_SERVICE_NAME": "test"}), http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	s := e.Start("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	s.Name, s.Failed = "exec", true
	s.Attributes = []otlp.Attribute{{Key: "http.route", Text: "/x"}, {Key: "http.response.status_code", Number: 500}}
	s.End()
	e.Start("00-00000000000000000000000000000000-00f067aa0ba902b7-01").End()
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	type span struct {
		TraceID, SpanID, ParentSpanID, Name string
		StartTimeUnixNano, EndTimeUnixNano  string
		Status                              struct{ Code int }
	}
	var spans []span
	body := ""
	close(got) // in one request, or on a slow machine in two
	for text := range got {
		part, ok := strings.CutPrefix(text, "/v1/traces application/json a b ")
		var sent struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []span } }
		}
		if err := json.Unmarshal([]byte(part), &sent); err != nil || !ok {
			t.Fatalf("%v: %s", err, text)
		}
		spans = append(spans, sent.ResourceSpans[0].ScopeSpans[0].Spans...)
		body += part
	}
	if e.Dropped() != 0 || len(spans) != 2 || spans[0].TraceID != "4bf92f3577b34da6a3ce929d0e0e4736" || spans[0].ParentSpanID != "00f067aa0ba902b7" || spans[0].Status.Code != 2 || len(spans[0].SpanID) != 16 {
		t.Errorf("%s", body)
	}
	if len(spans[1].TraceID) != 32 || spans[1].ParentSpanID != "" || strings.Trim(spans[1].TraceID, "0") == "" {
		t.Errorf("%s", body)
	}
	for _, want := range []string{`{"key":"http.route","value":{"stringValue":"/x"}}`, `{"key":"http.response.status_code","value":{"intValue":"500"}}`, `{"key":"service.name","value":{"stringValue":"test"}}`} {
		if !strings.Contains(body, want) {
			t.Errorf("there is no %s in %s", want, body)
		}
	}
}

// A collector that is away costs the spans and nothing else.
func TestCollectorIsAway(t *testing.T) {
	e, err := otlp.FromEnvironment(env(map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/x"}), http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		e.Start("").End()
	}
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if e.Dropped() != 5000 {
		t.Errorf("%d are dropped", e.Dropped())
	}
}

func TestFromEnvironment(t *testing.T) {
	if e, err := otlp.FromEnvironment(env(nil), http.DefaultTransport); e != nil || err != nil {
		t.Errorf("without an endpoint: %v, %v", e, err)
	}
	for _, bad := range []string{"localhost:4318", "ftp://x", "http://", "::"} {
		if _, err := otlp.FromEnvironment(env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": bad}), http.DefaultTransport); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzTraceparent(f *testing.F) {
	for _, s := range []string{"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ff-1-2-3", "----"} {
		f.Add(s)
	}
	e, err := otlp.FromEnvironment(env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}), http.DefaultTransport)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = e.Close(context.Background()) })
	f.Fuzz(func(_ *testing.T, s string) { e.Start(s) })
}
