package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	auditlog "github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/preview"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestMain makes the test binary the guest, too, and looks for goroutines that
// are left behind.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		os.Exit(server.Main(os.Args))
	}
	os.Exit(testkit.Main(m))
}

// keys are keys in memory.
type keys struct {
	mu       sync.Mutex
	all      map[string]gate.Caller // by secret
	verified map[string]int         // how often, by secret
	err      error                  // of a store that fails
}

func (k *keys) Verify(_ context.Context, secret string) (gate.Caller, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return gate.Caller{}, k.err
	}
	c, ok := k.all[secret]
	if !ok {
		return c, sandpit.ErrForbidden
	}
	if k.verified == nil {
		k.verified = map[string]int{}
	}
	k.verified[secret]++
	return c, nil
}

func (k *keys) Holder(_ context.Context, id string) (gate.Caller, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.all {
		if c.Key == id {
			return c, nil
		}
	}
	return gate.Caller{}, sandpit.ErrNotFound
}

// asked is how many requests were let in with a secret.
func (k *keys) asked(secret string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.verified[secret]
}

func (k *keys) In(text string) bool { return strings.Contains(text, "secret-") }

func (k *keys) CreateKey(_ context.Context, _ gate.Caller, n v1.NewKey) (v1.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := fmt.Sprintf("key%d", len(k.all))
	k.all["secret-"+id] = gate.Caller{Name: n.Name, Key: id, Namespace: id, Admin: n.Admin}
	return v1.Key{ID: id, Name: n.Name, Namespace: id, Admin: n.Admin, CreatedAt: time.Now(), Secret: "secret-" + id}, nil
}

func (k *keys) ListKeys(context.Context) ([]v1.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []v1.Key
	for _, c := range k.all {
		out = append(out, v1.Key{ID: c.Key, Name: c.Name, Namespace: c.Namespace, Admin: c.Admin, CreatedAt: time.Now()})
	}
	return out, nil
}

func (k *keys) RevokeKey(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for secret, c := range k.all {
		if c.Key == id {
			delete(k.all, secret)
			return nil
		}
	}
	return fmt.Errorf("key %q: %w", id, sandpit.ErrNotFound)
}

// audit is an audit in memory, which can be made to fail.
type audit struct {
	mu           sync.Mutex
	entries      []v1.Audit
	err          error
	undocumented []string // answers that the reference does not have
}

// documented returns what is wrong with the answer that an entry is about, or "".
func documented(e *v1.Audit) string {
	all := api.Routes()
	i := slices.IndexFunc(all, func(r api.Route) bool { return r.ID == e.Action })
	// Nobody reads the answer to a client that has left.
	if i < 0 || e.Phase != auditlog.PhaseEnd || e.Code == errcode.Canceled {
		return ""
	}
	r := &all[i]
	known := e.Status == r.Status || slices.Contains(r.Also, e.Status) || r.Upgrade && e.Status == http.StatusOK
	if e.Code != "" {
		known = slices.Contains(r.Answers()[e.Status], e.Code)
	}
	if known {
		return ""
	}
	return fmt.Sprintf("%s answers %d %q, which is not in the reference", e.Action, e.Status, e.Code)
}

func (a *audit) Append(_ context.Context, r auditlog.Record) (int, error) {
	e := v1.Audit{
		Time: r.Time, RequestID: r.RequestID, Phase: r.Phase, Caller: r.Caller, Key: r.Key, Namespace: r.Namespace, Remote: r.Remote,
		Action: r.Action, Sandbox: r.Sandbox, Detail: r.Detail, Allowed: r.Allowed, Rule: r.Rule,
		Status: r.Status, Code: r.Code, Took: r.Took, Bytes: r.Bytes,
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if what := documented(&e); what != "" {
		a.undocumented = append(a.undocumented, what)
	}
	if a.err != nil {
		return 0, a.err
	}
	e.Seq = uint64(len(a.entries)) + 1
	a.entries = append(a.entries, e)
	data, err := json.Marshal(e)
	return len(data), err
}

func (a *audit) Search(_ context.Context, q api.AuditQuery) (found []v1.Audit, err error) {
	for _, e := range a.all() {
		if e.Seq > q.After && (q.Action == "" || q.Action == e.Action) && (!q.Denied || !e.Allowed) && len(found) < q.Limit {
			found = append(found, e)
		}
	}
	return found, nil
}

func (a *audit) all() []v1.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]v1.Audit(nil), a.entries...)
}

func (a *audit) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// repeats keeps answers in memory.
type repeats struct {
	mu  sync.Mutex
	all map[string]*repeat
}

type repeat struct {
	api.Repeatable
	running  bool
	answered bool
	status   int
	response []byte
}

func (r *repeats) Begin(_ context.Context, ask api.Repeatable) (*api.Earlier, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.all[ask.Namespace+"/"+ask.Key]
	switch {
	case was == nil:
		r.all[ask.Namespace+"/"+ask.Key] = &repeat{Repeatable: ask, running: true}
		return nil, nil
	case was.Hash != ask.Hash:
		return nil, sandpit.ErrInvalid
	case was.running:
		return nil, sandpit.ErrState
	}
	was.running = !was.answered
	return &api.Earlier{Resource: was.Resource, Answered: was.answered, Status: was.status, Response: was.response}, nil
}

func (r *repeats) Finish(_ context.Context, namespace, key, resource string, status int, response []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.all[namespace+"/"+key]
	was.running, was.answered, was.status, was.response = false, true, status, response
	if resource != "" {
		was.Resource = resource
	}
	return nil
}

func (r *repeats) Abandon(_ context.Context, namespace, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, namespace+"/"+key)
	return nil
}

// hooks are webhooks in memory.
type hooks struct {
	mu  sync.Mutex
	all map[string][]v1.Webhook // by namespace
}

func (h *hooks) CreateWebhook(_ context.Context, c gate.Caller, w v1.NewWebhook) (v1.Webhook, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hook := v1.Webhook{ID: fmt.Sprintf("hook%d", len(h.all[c.Namespace])), URL: w.URL, Kinds: w.Kinds, CreatedAt: time.Now()}
	h.all[c.Namespace] = append(h.all[c.Namespace], hook)
	hook.Secret = "whsec_test"
	return hook, nil
}

func (h *hooks) TestWebhook(context.Context, gate.Caller, string) (v1.WebhookTest, error) {
	return v1.WebhookTest{}, sandpit.ErrNotFound
}

func (h *hooks) ListWebhooks(_ context.Context, c gate.Caller) ([]v1.Webhook, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]v1.Webhook(nil), h.all[c.Namespace]...), nil
}

func (h *hooks) DeleteWebhook(_ context.Context, c gate.Caller, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, w := range h.all[c.Namespace] {
		if w.ID == id {
			h.all[c.Namespace] = append(h.all[c.Namespace][:i], h.all[c.Namespace][i+1:]...)
			return nil
		}
	}
	return sandpit.ErrNotFound
}

// secrets are secrets in memory, of which only the descriptions are kept.
type secrets struct {
	mu  sync.Mutex
	all map[string]map[string]v1.Secret // by namespace and name
}

func (x *secrets) SetSecret(_ context.Context, c gate.Caller, shared bool, name string, in v1.NewSecret) (v1.Secret, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	made := v1.Secret{Name: name, Scope: "namespace", Hosts: in.Hosts}
	if shared {
		c.Namespace, made.Scope = "", "server"
	}
	if x.all[c.Namespace] == nil {
		x.all[c.Namespace] = map[string]v1.Secret{}
	}
	x.all[c.Namespace][name] = made
	return made, nil
}

func (x *secrets) RotateSecret(_ context.Context, c gate.Caller, _ api.SecretScope, name, _ string) (v1.Secret, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if made, ok := x.all[c.Namespace][name]; ok {
		return made, nil
	}
	return v1.Secret{}, sandpit.ErrNotFound
}

func (x *secrets) ListSecrets(_ context.Context, c gate.Caller, _ string) ([]v1.Secret, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(x.all[c.Namespace])), slices.Collect(maps.Values(x.all[""]))), nil
}

func (x *secrets) DeleteSecret(_ context.Context, c gate.Caller, _ api.SecretScope, name string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.all[c.Namespace][name]; !ok {
		return sandpit.ErrNotFound
	}
	delete(x.all[c.Namespace], name)
	return nil
}

func (*secrets) Services() []v1.Service { return []v1.Service{{Name: "a"}, {Name: "b"}, {Name: "c"}} }

// backend is a real engine.
type backend struct {
	engine *engine.Engine
	images *image.Store
}

func (b *backend) Client(c gate.Caller) sandpit.Client {
	return b.engine.As(c.Namespace, policy.Default()).In(c.Nested)
}

// noPreviews is a store without a next server.
type noPreviews struct{}

func (noPreviews) PutPreview(context.Context, preview.Preview) error { return nil }
func (noPreviews) DeletePreview(context.Context, string) error       { return nil }

func (b *backend) AllowPreview(c gate.Caller, life time.Duration) (time.Duration, error) {
	p := policy.Default()
	if c.Key == "bob" {
		p = policy.ServerDefault()
		p.Rules.Previews = 0
	}
	return p.AllowPreview(life)
}

func (b *backend) CreateMarked(ctx context.Context, c gate.Caller, spec sandpit.Spec, mark string) (sandpit.Sandbox, error) {
	return b.engine.As(c.Namespace, policy.Default()).In(c.Nested).CreateFor(ctx, spec, "once", json.RawMessage(strconv.Quote(mark)))
}

func (b *backend) Marked(c gate.Caller, mark string) (sandpit.Sandbox, error) {
	return b.engine.As(c.Namespace, policy.Default()).In(c.Nested).FindFor("once", json.RawMessage(strconv.Quote(mark)))
}

func (b *backend) RemoveSelected(ctx context.Context, c gate.Caller, id string, q sandpit.ListQuery) (bool, error) {
	return b.engine.As(c.Namespace, policy.Default()).In(c.Nested).RemoveSelected(ctx, id, q)
}

func (b *backend) Capabilities(context.Context) (v1.Capabilities, error) {
	return v1.Capabilities{Driver: "linux", Enforced: map[string]bool{"memory": true}}, nil
}

func (b *backend) Images(context.Context, gate.Caller) ([]v1.Image, error) {
	return []v1.Image{{Reference: "host", Size: 0}}, nil
}

func (b *backend) PullImage(_ context.Context, _ gate.Caller, ref string, _ sandpit.PullPolicy) (v1.Image, error) {
	return v1.Image{}, fmt.Errorf("pulling %s: %w", ref, sandpit.ErrUnavailable)
}

func (b *backend) TagImage(_ context.Context, _ gate.Caller, name string, _ []string) (string, error) {
	return "", fmt.Errorf("image %s: %w", name, sandpit.ErrNotFound)
}

func (b *backend) RemoveImage(_ context.Context, _ gate.Caller, ref string) error {
	return fmt.Errorf("image %s: %w", ref, sandpit.ErrNotFound)
}

func (b *backend) Namespaces() map[string]int { return b.engine.Namespaces() }

func (b *backend) Stuck() (int, bool) { return len(b.engine.Stuck()), b.engine.Blocked() }

func (b *backend) Stats(ctx context.Context, _ int) (api.Stats, error) {
	s := api.Stats{States: map[sandpit.State]int{}, Pool: map[string]int{"blank": 2}, Waiting: 3}
	page, err := b.engine.As("local", policy.Default()).List(ctx, sandpit.ListQuery{})
	for _, i := range page.Sandboxes {
		s.States[i.State]++
		s.Sandboxes = append(s.Sandboxes, api.Usage{
			ID: i.ID, Namespace: "local", Limits: sandpit.Limits{Disk: 70, Files: 80},
			Metrics: sandpit.Metrics{CPU: time.Second, Memory: 5, Pids: -1, Disk: 7, Files: 8, RxBytes: 9, TxPackets: 10},
		})
	}
	return s, err
}

// policies shows one.
type policies struct{}

func (policies) Policy(_ context.Context, c gate.Caller) (v1.NamedPolicy, error) {
	return v1.NamedPolicy{Name: "default", Policy: json.RawMessage(`{}`)}, nil
}

func (policies) KeyPolicy(_ context.Context, id string) (v1.NamedPolicy, error) {
	if id != "alice" {
		return v1.NamedPolicy{}, fmt.Errorf("key %q: %w", id, sandpit.ErrNotFound)
	}
	return v1.NamedPolicy{Name: "default", Policy: json.RawMessage(`{}`)}, nil
}

// Keys of the tests.
const (
	adminKey = "secret-admin"
	aliceKey = "secret-alice"
	bobKey   = "secret-bob"
)

// options are those of an API and of the gate before it.
type options struct {
	apiOptions
	gateOptions
}

type (
	apiOptions  = api.Options
	gateOptions = gate.Options
)

// service is an API on real listeners: a unix socket and TCP on loopback.
type service struct {
	t       testing.TB
	gate    *gate.Gate
	engine  *engine.Engine
	keys    *keys
	audit   *audit
	repeats *repeats
	server  *http.Server
	unix    *http.Client // to http://sandpit
	tcp     *http.Client
	path    string // of the socket
	base    string // http://127.0.0.1:PORT
	log     *testkit.Buffer
}

// serve starts an API. change may set options.
func serve(t testing.TB, change func(*options)) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandpit-api") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	images, guests := engine.Home(dir)
	store := image.Open(images, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
	s := &service{
		t: t, log: new(testkit.Buffer), audit: new(audit), repeats: &repeats{all: map[string]*repeat{}}, path: filepath.Join(dir, "sock"),
		keys: &keys{all: map[string]gate.Caller{
			adminKey: {Name: "admin", Key: "admin", Namespace: "local", Admin: true},
			aliceKey: {Name: "alice", Key: "alice", Namespace: "alice"},
			bobKey:   {Name: "bob", Key: "bob", Namespace: "bob"},
		}},
	}
	s.engine = engine.New(engine.Options{Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}), Images: store, Policy: policy.Default(), Network: network.InProcess{}})
	opts := options{
		api.Options{
			Dialects: func(string) []v1.Dialect {
				return []v1.Dialect{{Name: "a", Title: "A"}, {Name: "b", Title: "B", URL: "http://b:1", Settings: []v1.DialectSetting{{Name: "B", Value: "x"}, {Name: "K", Key: true}}}}
			},
			Backend: &backend{s.engine, store}, Keys: s.keys, Policies: policies{}, Audit: s.audit, Idempotency: s.repeats,
			Webhooks: &hooks{all: map[string][]v1.Webhook{}}, Secrets: &secrets{all: map[string]map[string]v1.Secret{}}, Previews: preview.New([]byte("secret"), noPreviews{}, nil), Version: "test",
		},
		gate.Options{Keys: s.keys, Audit: s.audit, Log: slog.New(slog.NewTextHandler(s.log, nil)), Limits: gate.Limits{Rate: 1e6, Burst: 1e6}},
	}
	if change != nil {
		change(&opts)
	}
	s.gate = gate.New(opts.gateOptions)
	opts.Gate = s.gate
	s.server = new(http.Server)
	s.gate.Configure(s.server, s.gate.Handler(api.New(opts.apiOptions).Dialect()))
	s.server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		ctx = gate.WithConn(ctx, c)
		if c.LocalAddr().Network() == "unix" {
			return gate.WithPeer(ctx, gate.Caller{Name: "uid 0", Namespace: "local", Admin: true})
		}
		return ctx
	}
	unix, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []net.Listener{unix, tcp} {
		go func() { _ = s.server.Serve(coalescing{l}) }()
	}
	s.base = "http://" + tcp.Addr().String()
	s.unix = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.path)
	}}}
	s.tcp = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(s.close)
	return s
}

// coalescing makes an httpconn.Conn of each connection, as the server does.
type coalescing struct{ net.Listener }

func (l coalescing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return httpconn.New(c), nil
}

func (s *service) close() {
	s.unix.CloseIdleConnections()
	s.tcp.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := s.gate.Close(ctx); err != nil {
		s.t.Errorf("closing: %v", err)
	}
	if err := s.server.Shutdown(ctx); err != nil {
		s.t.Errorf("shutting down: %v", err)
	}
	if err := s.engine.Close(); err != nil {
		s.t.Error(err)
	}
	s.audit.mu.Lock()
	for _, what := range s.audit.undocumented {
		s.t.Error(what)
	}
	s.audit.mu.Unlock()
	if log := s.log.String(); strings.Contains(log, "panicked") {
		s.t.Error(log)
	}
}

// ask is a request and what is done with it.
type ask struct {
	method, path string
	key          string // empty: over the unix socket
	body         any    // a string is sent as it is, others as JSON
	header       map[string]string
}

// do makes a request. Close its body.
func (s *service) do(a ask) *http.Response {
	s.t.Helper()
	resp, err := s.try(context.Background(), a)
	if err != nil {
		s.t.Fatalf("%s %s: %v", a.method, a.path, err)
	}
	return resp
}

func (s *service) try(ctx context.Context, a ask) (*http.Response, error) {
	var body io.Reader
	kind := ""
	switch b := a.body.(type) {
	case nil:
	case string:
		body = strings.NewReader(b)
	case io.Reader:
		body = b
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		body, kind = bytes.NewReader(data), "application/json"
	}
	client, base := s.unix, "http://sandpit"
	if a.key != "" {
		client, base = s.tcp, s.base
	}
	r, err := http.NewRequestWithContext(ctx, a.method, base+a.path, body)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	if a.key != "" && a.key != "none" {
		r.Header.Set("Authorization", "Bearer "+a.key)
	}
	for k, v := range a.header {
		if k == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(k, v)
	}
	return client.Do(r)
}

// get makes a request and returns its answer.
func (s *service) get(a ask) (status int, body []byte, header http.Header) {
	s.t.Helper()
	resp := s.do(a)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", a.method, a.path, err)
	}
	return resp.StatusCode, body, resp.Header
}

// want makes a request that must succeed with a status, and reads its JSON.
func (s *service) want(status int, out any, a ask) http.Header {
	s.t.Helper()
	got, body, header := s.get(a)
	if got != status {
		s.t.Fatalf("%s %s: %d %s", a.method, a.path, got, body)
	}
	if out != nil {
		strict(s.t, body, out)
	}
	return header
}

// strict reads JSON that has no field which out doesn't have.
func strict(t testing.TB, body []byte, out any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
}

// refused makes a request that must fail in the one shape of errors.
func (s *service) refused(status int, code string, a ask) v1.Error {
	s.t.Helper()
	got, body, header := s.get(a)
	var e v1.Error
	strict(s.t, body, &e)
	if got != status || e.Code != code {
		s.t.Errorf("%s %s: got %d %s, want %d %s (%s)", a.method, a.path, got, e.Code, status, code, body)
	}
	if e.RequestID == "" || e.RequestID != header.Get("X-Request-Id") || e.Message == "" || header.Get("Content-Type") != "application/json" {
		s.t.Errorf("%s %s: the error is not whole: %s %v", a.method, a.path, body, header)
	}
	return e
}

// create makes a sandbox, or skips where none can be made.
func (s *service) create(key string, spec v1.Spec) v1.Sandbox {
	s.t.Helper()
	status, body, _ := s.get(ask{method: "POST", path: "/v1/sandboxes", key: key, body: spec})
	if status != http.StatusCreated {
		testkit.Made(s.t, fmt.Errorf("%d %s", status, body))
	}
	var sb v1.Sandbox
	strict(s.t, body, &sb)
	return sb
}

// eventually waits for something that must come to be.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	testkit.Until(t, what, f)
}

var errDisk = errors.New("no space left on device")

func defaultPolicy() policy.Policy { return policy.Default() }
