package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	guest "github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestMain makes the test binary the guest, too, and looks for goroutines that
// are left behind.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		os.Exit(guest.Main(os.Args))
	}
	if path := os.Getenv(askEnv); path != "" {
		os.Exit(ask(path))
	}
	if spec := os.Getenv(serveEnv); spec != "" {
		os.Exit(serveE2B(spec))
	}
	if os.Getenv(activatedEnv) != "" {
		names, err := server.Activated()
		fmt.Print(strings.Join(names, " "))
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testkit.Main(m))
}

const patience = testkit.Patience

func long() bool { return os.Getenv("SANDPIT_TEST_LONG") != "" }

// served is a server in this process, and what is known of it.
type served struct {
	t        testing.TB
	home     string
	settings server.Settings
	tcp      string // HOST:PORT, if it listens there
	key      string // the first one, which may do everything
	said     []string
	roots    *x509.CertPool
	log      *testkit.Buffer
	lookup   func(string) (string, bool) // of variables of the environment
	reload   chan struct{}
	stop     func() error // once; waits
	failed   error        // why it has ended

	removeOrphans bool
	change        func(*server.Options) // what is different; or nil
	endsBadly     bool                  // its end may be an error
}

// newServed returns a server that is not started yet, with a data directory of
// its own.
func newServed(t testing.TB) *served {
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
	return &served{t: t, home: home, log: new(testkit.Buffer), lookup: func(string) (string, bool) { return "", false }, reload: make(chan struct{}, 1), settings: server.Settings{
		Memory: 1 << 42, CPUs: 1000, // promises: the tests use little of them
		PolicyFile: "",
	}}
}

// overTCP has it listen on loopback, with TLS.
func (s *served) overTCP() {
	s.t.Helper()
	s.tcp = testkit.Address(s.t)
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: s.tcp}, Service: server.DefaultService})
	s.settings.Cert, s.settings.Key = filepath.Join(s.home, "cert.pem"), filepath.Join(s.home, "key.pem")
	s.roots = x509.NewCertPool()
	s.roots.AddCert(testkit.Certificate(s.t, s.home, s.tcp))
}

// policy writes its policy file, which it need not have read yet.
func (s *served) policy(text string) {
	s.t.Helper()
	tmp := filepath.Join(s.home, "policy.new")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(s.home, "policy.yaml")); err != nil {
		s.t.Fatal(err)
	}
}

// options are those of the server.
func (s *served) options() server.Options {
	opt := server.Options{
		Home: s.home, Version: "test", Lookup: s.lookup, Settings: s.settings, Reload: s.reload, RemoveOrphans: s.removeOrphans,
		Driver: linux.New(linux.Options{Dir: filepath.Join(s.home, "guest"), Guest: embedded.Guest(), GuestDigest: embedded.Digest(embedded.Guest()), KeepDir: server.KeepDir(s.home)}),
		Images: image.Open(filepath.Join(s.home, "images"), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})}),
		Say: func(text string) {
			s.said = append(s.said, text)
			if strings.HasPrefix(text, "the first key") {
				_, s.key, _ = strings.Cut(text, "\n")
			}
		},
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	if s.change != nil {
		s.change(&opt)
	}
	return opt
}

// start starts it, and returns when it answers. Its sandboxes end with the test.
func (s *served) start() *served {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, before := make(chan struct{}), len(s.log.String())
	go func() {
		defer close(ended)
		s.failed = server.Run(ctx, s.options())
	}()
	s.stop = sync.OnceValue(func() error {
		cancel()
		<-ended
		return s.failed
	})
	for end := time.Now().Add(patience); !strings.Contains(s.log.String()[before:], "msg=listening"); time.Sleep(2 * time.Millisecond) {
		select {
		case <-ended:
			s.t.Fatalf("the server has ended: %v\n%s", s.failed, s.log)
		default:
		}
		if time.Now().After(end) {
			s.t.Fatalf("the server does not answer\n%s", s.log)
		}
	}
	stop := s.stop
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(s.log.String())
		}
		select {
		case <-ended: // the test has ended it
		default:
			s.clean()
		}
		if err := stop(); err != nil && !s.endsBadly {
			s.t.Errorf("serving: %v", err)
		}
		if strings.Contains(s.log.String(), "panic") {
			s.t.Error(s.log)
		}
	})
	return s
}

// clean removes the sandboxes of every namespace.
func (s *served) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := s.unix()
	clients := []*client.Client{admin, s.in("", sandpit.AllNamespaces)}
	var list v1.KeyList
	if err := admin.Call(ctx, "GET", "/v1/keys?limit=1000", nil, &list); err != nil {
		s.t.Error(err)
	}
	seen := map[string]bool{"local": true}
	for _, k := range list.Keys {
		if seen[k.Namespace] {
			continue
		}
		seen[k.Namespace] = true
		var made v1.Key
		if err := admin.Call(ctx, "POST", "/v1/keys", v1.NewKey{Namespace: k.Namespace}, &made); err != nil {
			s.t.Error(err)
			continue
		}
		c, err := client.New(client.Options{Address: server.SocketIn(s.home).String(), Key: made.Secret, Namespace: sandpit.AllNamespaces})
		if err != nil {
			s.t.Error(err)
			continue
		}
		clients = append(clients, c)
	}
	for _, c := range clients {
		page, err := c.List(ctx, sandpit.ListQuery{Limit: 1000})
		if err != nil {
			s.t.Error(err)
		}
		for _, i := range page.Sandboxes {
			// Its life may have ended meanwhile.
			if err := c.Remove(ctx, i.ID); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
				s.t.Errorf("removing %s: %v", i.Name, err)
			}
		}
		_ = c.Close()
	}
}

// unix returns a client on the unix socket, which may do everything. Close it.
func (s *served) unix() *client.Client { return s.with("") }

// with is unix with a key: the rules are those of its policy.
func (s *served) with(key string) *client.Client { return s.in(key, "") }

// in is with in a nested namespace.
func (s *served) in(key, namespace string) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Address: server.SocketIn(s.home).String(), Key: key, Namespace: namespace})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// tls returns a client over TCP with TLS. Close it.
func (s *served) tls(key string) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Address: "https://" + s.tcp, Key: key, TLS: &tls.Config{RootCAs: s.roots}})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// makeKey makes a key.
func (s *served) makeKey(k v1.NewKey) v1.Key {
	s.t.Helper()
	c := s.unix()
	defer c.Close()
	var made v1.Key
	if err := c.Call(s.t.Context(), "POST", "/v1/keys", k, &made); err != nil {
		s.t.Fatal(err)
	}
	return made
}

// keyOf makes a key of a namespace and a policy and returns its secret.
func (s *served) keyOf(namespace, policy string) string {
	s.t.Helper()
	return s.makeKey(v1.NewKey{Name: namespace, Namespace: namespace, Policy: policy}).Secret
}

// http returns a client of plain requests: over TLS to https://HOST, or to
// http://sandpit on the unix socket.
func (s *served) http() *http.Client {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: s.roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "sandpit:") {
				return server.DialHome(ctx, s.home)
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	return &http.Client{Transport: transport, Timeout: patience}
}

// get makes a request with header fields, which are names and values, and returns the answer.
func (s *served) get(method, url, key string, body string, headers ...string) (status int, answer string, header http.Header) {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, url, in)
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	resp, err := s.http().Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, url, err)
	}
	return resp.StatusCode, string(data), resp.Header
}

// figure is a value of the metrics.
func (s *served) figure(name string) int {
	s.t.Helper()
	_, body, _ := s.get("GET", "http://sandpit/metrics", "", "")
	_, text, _ := strings.Cut(body, "\n"+name+" ")
	text, _, _ = strings.Cut(text, "\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatalf("%s: %v: %s", name, err, body)
	}
	return n
}

// create makes a small sandbox, or skips where none can be made.
func create(t testing.TB, c sandpit.Client, name string) sandpit.Sandbox {
	t.Helper()
	return createOf(t, c, small(name))
}

// createOf makes a sandbox, or skips where none can be made.
func createOf(t testing.TB, c sandpit.Client, spec sandpit.Spec) sandpit.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), spec)
	testkit.Made(t, err)
	return sb
}

// small is a sandbox that many can be of.
func small(name string) sandpit.Spec {
	return sandpit.Spec{Name: name, Limits: sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64}}
}
