package client

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestWaysOut asks servers that can't be asked: each time it is said what to do.
func TestWaysOut(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	dir := t.TempDir()
	for address, want := range map[string]string{
		"unix://" + filepath.Join(dir, "none"):           "start the server",
		"http://" + testkit.Address(t):                   "start the server",
		secure.URL:                                       "SSL_CERT_FILE",
		"http" + strings.TrimPrefix(secure.URL, "https"): "a server with TLS needs https",
		"https" + strings.TrimPrefix(plain.URL, "http"):  "does not use TLS",
		plain.URL: "another program",
	} {
		c, err := New(Options{Address: address, Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.List(t.Context(), sandpit.ListQuery{})
		if hint := sandpit.Hint(err); !strings.Contains(hint, want) {
			t.Errorf("%s: got %v, hint %q, want %q", address, err, hint, want)
		}
		_, host, _ := strings.Cut(address, "://")
		if strings.HasPrefix(address, "http") && strings.Count(err.Error(), host) > 1 {
			t.Errorf("the address is there twice: %v", err)
		}
		_ = c.Close()
	}
	if got := wayOut(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}); !strings.Contains(got, "another user") {
		t.Errorf("a socket of somebody else: %q", got)
	}
}
