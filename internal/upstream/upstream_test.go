package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// TestSilentProxy checks that a proxy that accepts a connection and says nothing fails the dial
// when its time is over, with one line.
func TestSilentProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, scheme := range []string{"http", "https", "socks5"} {
		way, err := upstream.New(upstream.Settings{Proxy: scheme + "://bert:hush@" + l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Read(make([]byte, 1)) // it has begun
				cancel()
				defer c.Close()
				<-t.Context().Done()
			}
		}()
		conn, err := way.Dial(ctx, "good.test:443")
		if err == nil {
			conn.Close()
			t.Fatal("there is a connection")
		}
		if text := err.Error(); !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(text, "did not answer") || !strings.Contains(text, "no-proxy") || strings.ContainsAny(text, "\n") || strings.Contains(text, "hush") {
			t.Errorf("%s: %v", scheme, err)
		}
		cancel()
	}
}

// TestBadProxy checks that the address of a proxy is refused without its password.
func TestBadProxy(t *testing.T) {
	for _, text := range []string{
		"proxy", "proxy:3128", "ftp://u:hush@proxy", "http://u:hush@proxy:port", "http://u:hush@", "http://u:hush@proxy/path",
		"http://u:hush@proxy?q", "http://u:hush%zz@proxy", "socks5://u:hush@proxy:99999", "http://u:hush@proxy:0", "http://hush@p\x7f",
	} {
		_, err := upstream.New(upstream.Settings{Proxy: text})
		if !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" || strings.Contains(err.Error()+sandpit.Hint(err), "hush") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestBadNoProxy checks that what can't be a host, a domain, an address or a CIDR is refused by name, and that
// all else is taken.
func TestBadNoProxy(t *testing.T) {
	for _, good := range []string{
		"", "*", "localhost", "a.test,.b.test, *.c.test ,", "a.test:8080", ".b.test:443", "10.0.0.0/8,fd00::/8", "10.0.0.1", "10.0.0.1:80", "::1", "[fd00::1]:80", "x_y.test", "bücher.test", "a.test.", "3com.test",
	} {
		if _, err := upstream.New(upstream.Settings{NoProxy: good}); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"http://a.test", "a.test b.test", "a.test;b.test", "a..test", ".", "*.", "*a.test", "a.*.test", "10.0.0.0/33", "10.0.0.0/8:80", "10.0.0", "10.0.0.256", "10.*", "a.test:", "a.test:0", "a.test:99999", "a.test:http",
		":80", "[fd00::1]", "fe80::1%eth0", "a/b", "user@a.test", "~/x",
	} {
		_, err := upstream.New(upstream.Settings{NoProxy: "good.test," + bad})
		if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(fmt.Sprint(err), strconv.Quote(bad)) || sandpit.Hint(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestBadRoots checks that a file that is not one of certificates alone is refused by name.
func TestBadRoots(t *testing.T) {
	ca, err := authority.New() // a certificate and its key
	if err != nil {
		t.Fatal(err)
	}
	good := authority.Certificate(ca)
	for name, text := range map[string]string{
		"empty": "", "not PEM": "hello", "with a key": string(ca), "malformed": strings.Replace(string(good), "MI", "MM", 1), "large": strings.Repeat(string(good), 3000),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := upstream.ReadRoots(file); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), file) || sandpit.Hint(err) == "" {
				t.Errorf("err = %v", err)
			}
		})
	}
	if _, err := upstream.ReadRoots("/nonexistent"); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("err = %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte("# a comment\n"+string(good)), 0o600); err != nil {
		t.Fatal(err)
	}
	if roots, err := upstream.ReadRoots(file); err != nil || string(roots) != string(good) {
		t.Errorf("%s, %v", roots, err)
	}
}
