package server_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The spans of the last requests are sent before the server ends.
func TestLastSpansAreSent(t *testing.T) {
	got := new(testkit.Buffer)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(got, r.Body) }))
	defer collector.Close()
	s := newServed(t)
	s.lookup = func(name string) (string, bool) { return collector.URL, name == "OTEL_EXPORTER_OTLP_ENDPOINT" }
	s.start()
	s.get(http.MethodGet, "http://sandpit/v1/version", "", "")
	s.clean()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if text := got.String(); !strings.Contains(text, "getVersion") {
		t.Errorf("the collector has got %q", text)
	}
	// A variable that is wrong is named.
	s.lookup = func(name string) (string, bool) { return "nowhere", name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" }
	if err := server.Run(context.Background(), s.options()); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
		t.Errorf("got %v", err)
	}
}
