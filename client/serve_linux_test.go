package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/local"
)

// TestMain makes the test binary the guest, too.
func TestMain(m *testing.M) {
	local.Guest()
	os.Exit(m.Run())
}

// served is a server with a unix socket, and TCP with TLS.
type served struct {
	home    string
	address server.Address // of TCP
	key     string         // of TCP; set by the first start
	roots   *x509.CertPool
	stop    func()
}

// serve starts a server, whose sandboxes end with the test.
func serve(t testing.TB) *served {
	t.Helper()
	// Short: the names of sockets have to be.
	home, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	s := &served{home: home}
	s.address = server.Address{Network: "tcp", Host: testkit.Address(t)}
	s.roots = x509.NewCertPool()
	s.roots.AddCert(testkit.Certificate(t, home, s.address.Host))
	s.start(t)
	t.Cleanup(func() {
		s.clean(t)
		s.stop()
	})
	return s
}

// start starts the server, and returns when it answers.
func (s *served) start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	var mu sync.Mutex
	var failed error
	ended.Go(func() {
		err := server.Run(ctx, server.Options{
			Home: s.home, Version: "test", Lookup: func(string) (string, bool) { return "", false },
			Settings: server.Settings{
				Listen: []server.Listen{{Address: s.address}}, Cert: filepath.Join(s.home, "cert.pem"), Key: filepath.Join(s.home, "key.pem"),
				Domain: "box.example", Memory: 1 << 42, CPUs: 1000, // promises: the tests use little of them
			},
			Driver: linux.New(linux.Options{Dir: filepath.Join(s.home, "guest"), Guest: embedded.Guest(), GuestDigest: embedded.Digest(embedded.Guest()), KeepDir: server.KeepDir(s.home)}),
			Images: image.Open(filepath.Join(s.home, "images"), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})}),
			Say: func(text string) {
				mu.Lock()
				defer mu.Unlock()
				_, s.key, _ = strings.Cut(text, "\n")
			},
			Log:     logTo(t),
			Network: network.InProcess{},
		})
		mu.Lock()
		defer mu.Unlock()
		failed = err
		if err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		ended.Wait()
	})
	c := s.overUnix(t)
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(5 * time.Millisecond) {
		_, err := c.List(t.Context(), sandpit.ListQuery{})
		if err == nil {
			return
		}
		mu.Lock()
		over := failed
		mu.Unlock()
		if over != nil || time.Now().After(end) {
			t.Fatalf("the server does not answer: %v, %v", over, err)
		}
	}
}

// clean removes what is left of sandboxes: they outlive their server.
func (s *served) clean(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for _, opt := range []client.Options{s.unixOptions(), s.tlsOptions()} {
		opt.Namespace = sandpit.AllNamespaces
		c, err := client.New(opt)
		if err != nil {
			t.Error(err)
			return
		}
		page, err := c.List(ctx, sandpit.ListQuery{Limit: 1000})
		if err != nil {
			t.Error(err)
		}
		for _, i := range page.Sandboxes {
			// Its life may have ended meanwhile.
			if err := c.Remove(ctx, i.ID); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
				t.Errorf("removing %s: %v", i.Name, err)
			}
		}
		_ = c.Close()
	}
}

func (s *served) unixOptions() client.Options {
	return client.Options{Address: server.SocketIn(s.home).String()}
}

func (s *served) tlsOptions() client.Options {
	return client.Options{Address: "https://" + s.address.Host, Key: s.key, TLS: &tls.Config{RootCAs: s.roots}}
}

// overUnix returns a client on the unix socket.
func (s *served) overUnix(t testing.TB) *client.Client { return connect(t, s.unixOptions()) }

// overTLS returns a client over TCP with TLS and a key.
func (s *served) overTLS(t testing.TB) *client.Client { return connect(t, s.tlsOptions()) }

func connect(t testing.TB, opt client.Options) *client.Client {
	t.Helper()
	c, err := client.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// logTo gives a test what a server has to say of errors.
func logTo(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}
