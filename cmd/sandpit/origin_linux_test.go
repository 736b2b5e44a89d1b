package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readableDir returns a directory that everybody can read, also the process of the networks, which has no rights.
func readableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandpit-readable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// originOverTLS starts a server for example.com, over TLS and HTTP/2. A file in dir has its certificate.
func originOverTLS(t *testing.T, dir string, h http.HandlerFunc) (origin *httptest.Server, port, roots string) {
	t.Helper()
	origin = httptest.NewUnstartedServer(h)
	origin.EnableHTTP2 = true
	origin.StartTLS()
	t.Cleanup(origin.Close)
	_, port, _ = strings.Cut(strings.TrimPrefix(origin.URL, "https://"), ":")
	return origin, port, writePEM(t, filepath.Join(dir, "roots.pem"), "CERTIFICATE", origin.Certificate().Raw)
}

// writePEM writes a file that everybody can read, and returns its path.
func writePEM(t *testing.T, path, kind string, der []byte) string {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
