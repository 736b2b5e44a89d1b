package client

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// refuser answers every request before it has read the body, and then closes
// the connection, which resets it: what was not read is lost, and the answer is
// on its way.
func refuser(t *testing.T, l net.Listener) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 507 Insufficient Storage\r\nConnection: close\r\nContent-Length: 45\r\n\r\n"+`{"code":"no_space","message":"no space left"}`)
			}()
		}
	}()
}

// The answer is told, and not that the rest could not be sent.
func TestAnswerBeforeFailure(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (net.Listener, Options){
		"tcp": func(t *testing.T) (net.Listener, Options) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return l, Options{Address: "http://" + l.Addr().String()}
		},
		"unix": func(t *testing.T) (net.Listener, Options) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			return l, Options{Address: "unix://" + path}
		},
		"tls": func(t *testing.T) (net.Listener, Options) {
			pair, roots := selfSigned(t)
			l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
			if err != nil {
				t.Fatal(err)
			}
			return l, Options{Address: "https://" + l.Addr().String(), TLS: &tls.Config{RootCAs: roots}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, opt := open(t)
			refuser(t, l)
			c, err := New(opt)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for range 100 {
				_, err := c.sandbox("id", "name").Files().Write(t.Context(), "/f", io.LimitReader(zeros{}, 32<<20), sandpit.WriteOptions{})
				if !errors.Is(err, sandpit.ErrNoSpace) {
					t.Fatal(err)
				}
			}
		})
	}
}

// Without an answer the failure is told, at once.
func TestFailureWithoutAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_ = conn.Close()
		}
	}()
	c, err := New(Options{Address: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 20 {
		if _, err := c.sandbox("id", "name").Files().Write(t.Context(), "/f", io.LimitReader(zeros{}, 32<<20), sandpit.WriteOptions{}); !errors.Is(err, sandpit.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// selfSigned returns a certificate for 127.0.0.1.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.TLS.Certificates[0], roots
}
