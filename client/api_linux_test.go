package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// TestMain makes the test binary the guest, too.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		os.Exit(server.Main(os.Args))
	}
	os.Exit(m.Run())
}

// testKey is the one key of the servers of these tests.
const testKey = "sp_test_0123456789"

// served is the API over an engine, without what outlives it.
type served struct {
	engine *engine.Engine
	unix   string
	tls    string
	roots  *x509.CertPool
	stop   func()
}

// serve runs the API over an engine on a unix socket, and on TCP with TLS.
func serve(t testing.TB) *served {
	t.Helper()
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest(), GuestDigest: embedded.Digest()}),
		Images: image.Open(images, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})}),
		Policy: policy.Default(),
	})
	b := &backend{engine: e, answers: map[string]*api.Earlier{}}
	a := api.New(api.Options{
		Backend: b, Keys: b, Policies: b, Audit: b, Idempotency: b, Webhooks: b, Version: "test",
		Limits: api.Limits{Rate: 100_000, Burst: 100_000},
	})
	s := &served{engine: e, unix: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", s.unix)
	if err != nil {
		t.Fatal(err)
	}
	plain := &http.Server{ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
		return api.WithPeer(ctx, api.Caller{Name: "peer", Admin: true})
	}}
	a.Configure(plain)
	var serving sync.WaitGroup
	serving.Go(func() { _ = plain.Serve(l) })
	secure := httptest.NewUnstartedServer(nil)
	a.Configure(secure.Config)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	s.tls = secure.URL
	s.roots = x509.NewCertPool()
	s.roots.AddCert(secure.Certificate())
	s.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = a.Close(ctx)
		_ = plain.Close()
		secure.CloseClientConnections()
		secure.Close()
		serving.Wait()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// overUnix returns a client on the unix socket.
func (s *served) overUnix(t testing.TB) *client.Client {
	return connect(t, client.Options{Address: "unix://" + s.unix})
}

// overTLS returns a client over TCP with TLS and a key.
func (s *served) overTLS(t testing.TB) *client.Client {
	return connect(t, client.Options{Address: s.tls, Key: testKey, TLS: &tls.Config{RootCAs: s.roots}})
}

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

// backend is what the API stands on.
type backend struct {
	engine *engine.Engine

	mu      sync.Mutex
	answers map[string]*api.Earlier
}

func (b *backend) Client(c api.Caller) sandpit.Client {
	return b.engine.As(c.Namespace, policy.Default())
}

func (b *backend) Capabilities(context.Context) (v1.Capabilities, error) {
	return v1.Capabilities{}, nil
}
func (b *backend) Images(context.Context, api.Caller) ([]v1.Image, error) { return nil, nil }
func (b *backend) PullImage(context.Context, api.Caller, string, sandpit.PullPolicy) (v1.Image, error) {
	return v1.Image{}, sandpit.ErrUnsupported
}

func (b *backend) RemoveImage(context.Context, api.Caller, string) error {
	return sandpit.ErrUnsupported
}
func (b *backend) Stats(context.Context, int) (api.Stats, error) { return api.Stats{}, nil }

func (b *backend) Verify(_ context.Context, secret string) (api.Caller, error) {
	if secret != testKey {
		return api.Caller{}, sandpit.ErrForbidden
	}
	return api.Caller{Name: "test", Key: "sp_test", Admin: true}, nil
}

func (b *backend) CreateKey(context.Context, api.Caller, v1.NewKey) (v1.Key, error) {
	return v1.Key{}, sandpit.ErrUnsupported
}
func (b *backend) ListKeys(context.Context) ([]v1.Key, error) { return nil, nil }
func (b *backend) RevokeKey(context.Context, string) error    { return sandpit.ErrUnsupported }
func (b *backend) Policy(context.Context, api.Caller) (v1.Policy, error) {
	return v1.Policy{Name: "test"}, nil
}
func (b *backend) Append(context.Context, v1.Audit) error { return nil }
func (b *backend) Search(context.Context, api.AuditQuery) iter.Seq2[v1.Audit, error] {
	return func(func(v1.Audit, error) bool) {}
}

func (b *backend) Begin(_ context.Context, r api.Repeatable) (*api.Earlier, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.answers[r.Key]; e != nil {
		return e, nil
	}
	b.answers[r.Key] = &api.Earlier{Resource: r.Resource}
	return nil, nil
}

func (b *backend) Finish(_ context.Context, _, key string, status int, response []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.answers[key]
	if e == nil {
		return errors.New("no such request")
	}
	e.Answered, e.Status, e.Response = true, status, response
	return nil
}

func (b *backend) Abandon(_ context.Context, _, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.answers, key)
	return nil
}

func (b *backend) CreateWebhook(context.Context, api.Caller, v1.NewWebhook) (v1.Webhook, error) {
	return v1.Webhook{}, sandpit.ErrUnsupported
}

func (b *backend) ListWebhooks(context.Context, api.Caller) ([]v1.Webhook, error) { return nil, nil }

func (b *backend) DeleteWebhook(context.Context, api.Caller, string) error {
	return sandpit.ErrUnsupported
}
