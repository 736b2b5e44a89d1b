package server_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/internal/upstream"
	"github.com/sandpit-dev/sandpit/internal/upstream/upstreamtest"
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
	t.Run("through the upstream proxy, with a ca-bundle", func(t *testing.T) {
		got := new(testkit.Buffer)
		collector := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(got, r.Body) })) // of example.com
		defer collector.Close()
		proxy := upstreamtest.Start(t, "http")
		way, err := upstream.New(upstream.Settings{Proxy: proxy.URL.String(), Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw})})
		if err != nil {
			t.Fatal(err)
		}
		s := newServed(t)
		s.lookup = func(name string) (string, bool) {
			return fmt.Sprintf("https://example.com:%d", collector.Listener.Addr().(*net.TCPAddr).Port), name == "OTEL_EXPORTER_OTLP_ENDPOINT"
		}
		s.change = func(o *server.Options) { o.Way = way }
		s.start()
		s.get(http.MethodGet, "http://sandpit/v1/version", "", "")
		s.clean()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		if text := got.String(); !strings.Contains(text, "getVersion") || !slices.Contains(proxy.Asked(), "example.com") {
			t.Errorf("the collector has got %q; the proxy was asked for %q", text, proxy.Asked())
		}
	})
	// A variable that is wrong is named.
	s.lookup = func(name string) (string, bool) { return "nowhere", name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" }
	if err := server.Run(context.Background(), s.options()); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
		t.Errorf("got %v", err)
	}
}
