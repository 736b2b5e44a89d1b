// Package server runs a Sandpit server. It puts the engine, its state, keys, policies, the audit
// and the HTTP API together and listens. The next server can adopt everything that it leaves.
//
// # What outlives what
//
//   - Records of sandboxes, keys, responses to repeatable requests, webhooks, previews and secrets
//     (package state): kill -9 and a power cut.
//   - The audit: kill -9; a power cut except for the last second, or completely with
//     sync-audit.
//   - Output of processes (package logstore): kill -9, except for what was being written.
//   - Events, waiting webhook deliveries, metrics: nothing.
//   - Files and processes of sandboxes, in the machine's memory: kill -9 of the server, but
//     not a restart of the machine.
//
// # Callers and connections
//
// A key belongs to a namespace and names a policy. A caller at the unix socket is the
// server's own user, by the credentials that the kernel gives, in the server's own user and
// pid namespaces (SO_PEERPIDFD, and what /proc says about that process). Such a caller has
// the namespace "local" and may do what it may do without a server.
//
// A TCP connection is a stranger's until a request on it has a valid key. Strangers share
// a part of all connections, and each address has a part of that. Past one of the two
// bounds, a new connection replaces the oldest of its address, or of the address with the
// most connections. Connections of keys are counted separately, by namespace. So a few
// addresses can't keep out a caller, which is a stranger until its key has arrived.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/otlp"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/policy/file"
	"github.com/sandpit-dev/sandpit/internal/preview"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/state"
	"github.com/sandpit-dev/sandpit/internal/upstream"
	"github.com/sandpit-dev/sandpit/internal/webhook"
)

// Options configure a server.
type Options struct {
	Home     string // data directory
	Settings Settings
	Driver   driver.Driver
	Images   *image.Store
	Acquire  image.AcquireOptions
	Version  string

	// Background says that a command started the server and waits at descriptor 3 to hear
	// that it answers.
	Background bool

	// RemoveOrphans destroys sandboxes that run without a record in the state. Otherwise
	// the server does not start beside them.
	RemoveOrphans bool

	// Lookup looks up environment variables of the service manager and of OpenTelemetry.
	Lookup func(string) (string, bool)

	// Reload receives a value for each request to read the policies again.
	Reload <-chan struct{}

	// Leave receives a value for each request to end if no requests are in progress. See LeaveSignal.
	Leave <-chan struct{}

	// Patience says how long to wait for operations that may hang.
	Patience engine.Patience

	// Network gives sandboxes egress; nil: none have any.
	Network engine.Network

	// Dialects are the wire APIs of other projects that addresses may serve.
	Dialects []dialect.Dialect

	// Way is how the server reaches providers of logins and the collector of traces, and which certificates it trusts there and in
	// receivers of webhooks; nil: directly.
	Way *upstream.Way

	// Say shows the operator a message, once.
	Say func(string)

	Log *slog.Logger
}

// Directories and files under the data directory.
const (
	stateDir  = "state"
	auditDir  = "audit"
	boxesDir  = "sandboxes"
	runDir    = "run"
	imagesDir = "images"
)

// KeepDir returns the directory of the sockets of sandboxes that outlive the server of a
// data directory: linux.Options.KeepDir.
func KeepDir(home string) string { return filepath.Join(home, runDir) }

// AuditDir returns the directory of the audit in a data directory.
func AuditDir(home string) string { return filepath.Join(home, auditDir) }

// drainTime is the time that requests in progress have when the server ends.
const drainTime = 10 * time.Second

// Run runs a server until ctx ends or the server has been idle for long enough, and returns
// when it has drained. Its sandboxes keep running. The error says why it could not start,
// or what went wrong while it ended.
func Run(ctx context.Context, opt Options) error {
	s := &server{opt: opt}
	started := make(chan error, 1)
	go func() { started <- s.start(ctx) }()
	var err error
	select {
	case err = <-started:
	case <-hangsAfter(ctx, ending):
		// What it has opened, it uses. The process ends, and nothing counts on how.
		err = fault.Errorf(sandpit.ErrUnavailable, "starting: the disk of the data directory does not respond")
		s.announce(err)
		return err
	}
	s.announce(err)
	if err != nil {
		return errors.Join(err, s.close())
	}
	served := s.serve(ctx)
	return errors.Join(served, s.close())
}

// hangsAfter returns a channel that is closed so long after the end of ctx.
func hangsAfter(ctx context.Context, d time.Duration) <-chan struct{} {
	over := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { close(over) }) })
	return over
}

// server is a server that is being put together, or runs.
type server struct {
	opt       Options
	state     *state.Store
	ring      *keys.Ring
	policies  *file.Live
	named     atomic.Int64 // policies that the file names
	journal   *audit.Log
	sender    *webhook.Sender
	book      *ledger.Ledger
	previews  *preview.Book
	known     secret.Services
	found     foundSecrets
	engine    *engine.Engine
	runs      runs
	denials   denials
	tracer    *otlp.Exporter // or nil
	gate      *gate.Gate
	backend   *backend
	services  map[string]service
	api       api.Options
	handlers  map[string]http.Handler // by service
	listeners []listener
	conns     *connections
	servers   map[string]servers // by service
	idle      idleness
	manager   supervisor
}

// start puts the server together. What it has opened when it fails, close closes.
func (s *server) start(ctx context.Context) error {
	opt := &s.opt
	if err := cmp.Or(opt.Settings.check(), s.findServices()); err != nil {
		return err
	}
	if err := os.MkdirAll(opt.Home, 0o700); err != nil {
		return fmt.Errorf("creating the data directory: %w", err)
	}
	if err := checkHome(opt.Home); err != nil {
		return err
	}
	s.manager = newSupervisor(opt.Lookup)
	var err error
	// The state is locked: of two servers of one data directory the second ends here.
	if err = s.openState(ctx); err != nil {
		return err
	}
	if s.journal, err = audit.Open(AuditDir(opt.Home), opt.Settings.auditOptions()); err != nil {
		return err
	}
	policyFile, asked := opt.Settings.PolicyFile, true
	if policyFile == "" {
		policyFile, asked = filepath.Join(opt.Home, "policy.yaml"), false
	}
	if s.policies, err = file.Open(policyFile, asked); err != nil {
		return err
	}
	s.named.Store(int64(s.policies.Set().Named))
	if s.ring, err = keys.Open(ctx, s.state); err != nil {
		return err
	}
	if err := s.startEngine(ctx); err != nil {
		return err
	}
	if err := s.startAPI(); err != nil {
		return err
	}
	return s.listen(ctx)
}

// ending is how long a server may take to end: what close does takes moments
// but for drainTime and lastAnswers, and for what hangs.
const ending = drainTime + lastAnswers + 4*time.Second + stuckTime

// stuckTime is how long a server that ends waits at most for what hangs, in
// sandboxes first, and then in its parts.
const stuckTime = 10*time.Second + 6*partTime

// openState opens the state. A server in the background is started when none
// answers; if the state is in use, it is of one that is about to end, whose
// place it takes. Another server takes the place of one in the background, and
// of one that does not answer once that has ended.
func (s *server) openState(ctx context.Context) (err error) {
	openWith := state.Open
	if s.opt.Settings.SecretKey == KeyInKeyring {
		openWith = state.OpenWithKeyring
	}
	dir := filepath.Join(s.opt.Home, stateDir)
	var asked predecessor
	var told bool
	for until := time.Now().Add(ending); ; {
		s.state, err = openWith(ctx, dir)
		if err == nil && asked.pid > 0 {
			s.opt.Say(fmt.Sprintf("this server takes the place of the one that a command started, process %d", asked.pid))
		}
		if !errors.Is(err, state.ErrInUse) || time.Now().After(until) {
			return err
		}
		holder := state.Holder(dir)
		stays := !s.opt.Background && !asked.leaves(holder)
		if stays || s.opt.Background || asked.late() {
			// One that ends closes its socket first.
			switch answers, _ := (Background{Home: s.opt.Home}).Answers(ctx); {
			case answers && !stays && !s.opt.Background:
				return asked.stays()
			case answers:
				return err // it was about to begin
			case stays && !told:
				s.opt.Say(fmt.Sprintf("another server, process %d, is ending, or just starting; waiting for it", holder))
				told = true
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// checkHome refuses a data directory that others may have filled, or a part of
// it. The store of images and the state look at theirs themselves.
func checkHome(home string) error {
	err := datadir.CheckHome(home)
	for _, part := range []string{AuditDir(home), filepath.Join(home, boxesDir), KeepDir(home), filepath.Join(home, imagesDir)} {
		if err == nil {
			err = datadir.CheckPart(part)
		}
	}
	return err
}

// startEngine opens the engine and takes over what lives.
func (s *server) startEngine(ctx context.Context) error {
	opt := &s.opt
	files := openFiles()
	opt.Settings.fillCapacity(machineMemory(), files)
	s.conns = newConnections(opt.Settings, files, opt.Log)
	book := ledger.New(ledger.Bounds{Total: opt.Settings.KeptMemory})
	s.book = book
	s.sender = webhook.NewSender(webhook.Options{Private: opt.Settings.PrivateWebhooks, TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: opt.Way.Roots()}, Log: opt.Log, Memory: book})
	kept, err := s.state.Webhooks(ctx)
	if err != nil {
		return err
	}
	for _, hook := range kept {
		if err := s.sender.Add(hook); err != nil {
			opt.Log.Error("a webhook could not be loaded", "webhook", hook.ID, "error", err)
		}
	}
	previews, err := s.state.Previews(ctx)
	if err != nil {
		return err
	}
	s.previews = preview.New(s.state.PreviewSecret(), s.state, previews)
	if s.known, err = secret.BuiltIn().With(opt.Settings.Services...); err != nil {
		return fmt.Errorf("reading services of the settings: %w", err)
	}
	s.found.store, s.found.services = s.state, s.known
	if s.found.configured, err = readSecrets(ctx, opt.Settings.Secrets, s.known); err != nil {
		return err
	}
	s.found.renewer = newRenewer(s)
	s.engine = engine.New(engine.Options{
		Driver: opt.Driver, Images: opt.Images, Acquire: opt.Acquire, Policy: policy.Default(),
		Store: s.state, Dir: filepath.Join(opt.Home, boxesDir), Logs: logstore.Bounds{Total: opt.Settings.Logs, Each: opt.Settings.LogsPerNamespace},
		Capacity: engine.Capacity{Memory: opt.Settings.Memory, CPUs: opt.Settings.CPUs, Sandboxes: opt.Settings.Sandboxes},
		Memory:   book,
		Pool:     s.pool(),
		NotHeld: func(h engine.Held, err error) {
			opt.Log.Warn("no sandbox can be held ready", logged(err, "image", h.Image, "policy", h.Policy.Name)...)
		},
		Observe:  s.observe,
		Denied:   s.denials.add,
		Patience: opt.Patience, Hangs: opt.logStuck, Network: opt.Network, Secrets: s.found,
	})
	s.found.renewer.engine = s.engine
	s.runs = newRuns(opt, s.poolSize(), book)
	if opt.RemoveOrphans {
		removed, err := s.engine.RemoveOrphans(ctx)
		for _, id := range removed {
			opt.Log.Warn("removing a sandbox that has no record", "sandbox", id)
		}
		if err != nil {
			return err
		}
	}
	report, err := s.engine.Adopt(ctx)
	if err != nil {
		return fmt.Errorf("adopting sandboxes: %w", err)
	}
	opt.Log.Info("adopted sandboxes", "adopted", report.Adopted, "processes", report.Processes, "gone", report.Gone, "expired", report.Expired, "incomplete", report.Incomplete, "failed", report.Failed)
	for name, dir := range report.Exposed {
		opt.Log.Warn("a mount of a sandbox exposes a data directory with sockets of servers and guests: create the sandbox again", "sandbox", name, "directory", dir)
	}
	for _, err := range report.Refused {
		opt.Log.Error("a sandbox could not be adopted", logged(err)...)
	}
	for _, err := range report.Lacking {
		opt.Log.Warn("an adopted sandbox lacks a protection or its network", logged(err)...)
	}
	return nil
}

// logged returns the attributes of an error in the log, after others: the error, and what to do if that is known.
func logged(err error, attrs ...any) []any {
	attrs = append(attrs, "error", err)
	if fix := sandpit.Hint(err); fix != "" {
		attrs = append(attrs, "fix", fix)
	}
	return attrs
}

// observe is engine.Options.Observe.
func (s *server) observe(namespace string, e sandpit.Event) {
	if e.Kind == sandpit.EventRemoved {
		s.previews.RemoveSandbox(e.Sandbox)
	}
	s.sender.Send(namespace, e)
}

// defaultPool is how many sandboxes are held ready when the policies don't say.
const defaultPool = 4

// pool returns what the policy file says of the warm pool.
func (s *server) pool() engine.Pool {
	p := engine.Pool{Size: s.poolSize()}
	set := s.policies.Set()
	for _, w := range set.Warm {
		if policy, err := set.Policy(w.Policy); err == nil {
			p.Held = append(p.Held, engine.Held{Image: w.Image, Policy: policy, RootInside: w.RootInside, Language: w.Language, Modules: w.Modules, Size: w.Size})
		}
	}
	return p
}

func (s *server) poolSize() int {
	if n := s.policies.Set().Pool; n >= 0 {
		return n
	}
	return defaultPool
}

// startAPI makes the gate and the API of the engine behind it.
func (s *server) startAPI() error {
	opt := &s.opt
	s.backend = &backend{engine: s.engine, driver: opt.Driver, images: opt.Images, acquire: opt.Acquire, egress: opt.Network != nil, policies: s.policies, journal: s.journal, runs: s.runs}
	domains := []string(nil)
	if opt.Settings.Domain != "" {
		domains = []string{opt.Settings.Domain}
	}
	var err error
	if s.tracer, err = otlp.FromEnvironment(opt.Lookup, opt.Way.Transport()); err != nil {
		return err
	}
	ring := keyring{s.ring, s.policies}
	s.gate = gate.New(gate.Options{
		Keys: ring, Audit: s.journal, DataDir: opt.Home, Hosts: s.hosts(), Origins: opt.Settings.Origins,
		Limits: opt.Settings.limits(), Log: opt.Log, Tracer: s.tracer,
	})
	s.api = api.Options{
		Gate: s.gate, Backend: s.backend, Keys: ring, Policies: policyShower{s.backend, s.ring}, Audit: journal{AuditDir(opt.Home), s.engine},
		Idempotency: repeats{s.state}, Webhooks: hooks{s.state, s.sender}, Secrets: secrets{s.found, s.engine, s.policies},
		Version: opt.Version, Domains: domains, Connections: s.conns.counts, Web: s.web, Previews: s.previews, Dialects: s.dialects,
	}
	s.handlers = map[string]http.Handler{}
	for name, service := range s.services {
		s.handlers[name] = s.gate.Handler(service.dialect())
	}
	s.handlers[DefaultService] = s.byHost(s.handlers[DefaultService])
	return nil
}

// web is api.Options.Web: of the first TCP address, or, if the server has no domain, the first
// that browsers use for names below localhost.
func (s *server) web() (scheme, port string, err error) {
	scheme = "http"
	if s.opt.Settings.Cert != "" {
		scheme = "https"
	}
	for _, l := range s.listeners {
		a, tcp := l.Addr().(*net.TCPAddr)
		if !tcp || l.service != DefaultService {
			continue
		}
		if ip := a.IP; s.opt.Settings.Domain != "" || ip.IsUnspecified() || ip.Equal(net.IPv4(127, 0, 0, 1)) || ip.Equal(net.IPv6loopback) {
			return scheme, strconv.Itoa(a.Port), nil
		}
	}
	fix := "restart it with --listen 127.0.0.1:7878; its sandboxes keep running"
	if s.opt.Background {
		fix = "run 'sandpit serve --listen 127.0.0.1:7878', which takes its place; its sandboxes keep running"
	}
	return "", "", sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "the server has no TCP address that a browser can use"), "use 'sandpit forward NAME PORT', or "+fix)
}

// hosts are the names under which the server may be called: its addresses, and
// what the settings add.
func (s *server) hosts() []string {
	all := append([]string(nil), s.opt.Settings.Hosts...)
	for _, a := range s.opt.Settings.Listen {
		if host, _, err := net.SplitHostPort(a.Host); err == nil && a.Network == "tcp" && host != "" {
			if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
				all = append(all, host)
			}
		}
	}
	return all
}

// listen opens the listeners, and begins to serve them.
func (s *server) listen(ctx context.Context) error {
	opt := &s.opt
	given, err := activated(opt.Lookup)
	if err != nil {
		return err
	}
	for _, l := range given {
		if _, ok := s.services[l.service]; !ok {
			l.service = DefaultService
		}
		s.listeners = append(s.listeners, l)
	}
	for _, a := range append([]Listen{{Address: SocketIn(opt.Home)}}, opt.Settings.Listen...) {
		// The service manager may listen there already.
		if i := slices.IndexFunc(given, func(l listener) bool { return l.Addr().Network() == a.Network && l.Addr().String() == a.Host }); i >= 0 {
			if a.Service != "" {
				s.listeners[i].service = a.Service
			}
			continue
		}
		l, err := listen(ctx, a.Address)
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, listener{l, a.service()})
	}
	config, err := s.tlsConfig()
	if err != nil {
		return err
	}
	uid := uint32(os.Geteuid())
	base := func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	s.servers = map[string]servers{}
	for service, handler := range s.handlers {
		plain := &http.Server{
			BaseContext: base,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return s.peer(s.connContext(ctx, c), c, uid)
			},
			ConnState: s.connState,
		}
		s.gate.Configure(plain, handler)
		secure := &http.Server{BaseContext: base, ConnContext: s.connContext, ConnState: s.connState, TLSConfig: config.Clone()} // which each server changes
		s.gate.Configure(secure, handler)
		s.servers[service] = servers{plain, secure}
	}
	for _, l := range s.listeners {
		if _, ok := l.Addr().(*net.TCPAddr); !ok {
			continue
		}
		if config == nil && !opt.Settings.PlainHTTP && !loopbackListener(l) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "serving %s without TLS would send keys unencrypted", l.Addr()),
				"set tls-cert and tls-key, or plain-http behind a proxy that provides TLS")
		}
		if err := s.firstKey(ctx); err != nil {
			return err
		}
	}
	s.sayDialects()
	return nil
}

// connContext is for http.Server.ConnContext.
func (s *server) connContext(ctx context.Context, c net.Conn) context.Context {
	return gate.WithAdmission(gate.WithConn(ctx, c), connectionOf(c).admit)
}

// connState is for http.Server.ConnState.
func (s *server) connState(c net.Conn, state http.ConnState) {
	s.conns.noteState(c, state)
	s.idle.connection(c, state)
}

func loopbackListener(l net.Listener) bool {
	a, ok := l.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// tlsConfig returns how TLS is spoken, or nil without a certificate. The files
// are read again when they have changed, so that a certificate can be renewed.
func (s *server) tlsConfig() (*tls.Config, error) {
	if s.opt.Settings.Cert == "" {
		return nil, nil
	}
	pair := &certificate{cert: s.opt.Settings.Cert, key: s.opt.Settings.Key}
	if _, err := pair.get(nil); err != nil {
		return nil, sandpit.WithHint(fmt.Errorf("reading the certificate: %w", err), "set tls-cert and tls-key to PEM files of a certificate and its key")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// errElsewhere says that the program at the other end of a unix socket could
// not be shown to be in the user and pid namespaces of the server.
var errElsewhere = errors.New("not in the namespaces of the server")

// peer notes who is at the other end of a unix socket. Only the server's user
// and root, outside of every sandbox and container, are trusted.
func (s *server) peer(ctx context.Context, c net.Conn, owner uint32) context.Context {
	beneath := httpconn.Find(c)
	if beneath == nil {
		return ctx
	}
	conn, ok := beneath.Conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	uid, err := peerUID(conn)
	switch {
	case errors.Is(err, errElsewhere):
		return gate.WithRefusedPeer(ctx)
	case err != nil || uid != owner && uid != 0:
		return ctx
	}
	connectionOf(c).admitPeer()
	return gate.WithPeer(ctx, gate.Caller{Name: fmt.Sprintf("uid %d", uid), Namespace: localNamespace, Admin: true})
}

// firstKey makes a key, and shows it once, when a server that can be reached
// over TCP has none.
func (s *server) firstKey(ctx context.Context) error {
	if len(s.ring.List()) > 0 {
		return nil
	}
	token, _, err := s.ring.Create(ctx, keys.Key{Namespace: defaultPolicy, Policy: defaultPolicy, Admin: true, Label: "first key"})
	if err != nil {
		return fmt.Errorf("creating the first key: %w", err)
	}
	s.opt.Say("the first key, which is shown only once and has all permissions:\n" + token)
	return nil
}

// announce tells who waits for it that the server answers, or why it does not.
func (s *server) announce(err error) {
	if err == nil {
		for _, l := range s.listeners {
			s.opt.Log.Info("listening", "address", l.Addr().String())
		}
		if err := s.manager.tell("READY=1"); err != nil {
			s.opt.Log.Warn("notifying the service manager failed", "error", err)
		}
	}
	if s.opt.Background {
		TellStarter(err)
	}
}

// serve serves until ctx ends, a listener fails, or nothing has happened for
// long enough.
func (s *server) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, l := range s.listeners {
		to := s.servers[l.service]
		start, full := to.plain.Serve, s.services[l.service].full()
		if _, ok := l.Addr().(*net.TCPAddr); ok && to.secure.TLSConfig != nil {
			start, full = func(l net.Listener) error { return to.secure.ServeTLS(l, "", "") }, ""
		}
		go func() {
			if err := start(s.conns.listener(l.Listener, full)); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("serving %s: %w", l.Addr(), err))
			}
		}()
	}
	go s.manager.watchdog(ctx)
	go s.policies.Watch(ctx, 2*time.Second, func(err error) { s.policyChanged(ctx, err) })
	go s.upkeep(ctx)
	s.found.renewer.start()
	go s.reload(ctx)
	go s.leaveWhenAsked(ctx, cancel)
	if s.opt.Settings.IdleExit > 0 {
		go s.leaveWhenIdle(ctx, cancel)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, errIdle) {
		return err
	}
	return nil
}

func (s *server) policyChanged(ctx context.Context, err error) {
	if err != nil {
		s.opt.Log.Error("the policy file is invalid, so the previous policies stay in force", "error", err)
		return
	}
	s.engine.SetPool(s.pool())
	s.api.EndRefusedPreviews(ctx)
	s.backend.endOpenPorts(s.gate)
	s.opt.Log.Info("policies reloaded")
	if now := int64(s.policies.Set().Named); s.named.Swap(now) > 0 && now == 0 {
		s.opt.Log.Warn("the policy file names no policies any more: the built-in one applies to keys without a policy, and keys with another can create nothing")
	}
}

// reload reads the policies again on demand.
func (s *server) reload(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.opt.Reload:
			s.policyChanged(ctx, s.policies.Reload())
		}
	}
}

// upkeep does now and then what keeps the state small and true.
func (s *server) upkeep(ctx context.Context) {
	tick, soon := time.NewTicker(time.Minute), time.NewTicker(settleTime)
	defer tick.Stop()
	defer soon.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-soon.C:
			s.settle(ctx)
			continue
		case <-tick.C:
		}
		s.enterDenials(ctx)
		err := s.ring.Flush(ctx)
		if n++; n%60 == 1 {
			_, perr := s.ring.Prune(ctx, time.Now().Add(-keepRevoked))
			err = errors.Join(err, perr, s.state.Sweep(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.opt.Log.Warn("maintaining the state failed", "error", err)
		}
	}
}

// settleTime is how often is tried again what a full disk did not take.
const settleTime = 2 * time.Second

// settle writes down what a full disk did not take, if anything. The audit has its
// turn whatever the state does.
func (s *server) settle(ctx context.Context) {
	if err := s.gate.Summarise(ctx, false); err != nil {
		s.opt.Log.Warn("the audit log can't be written", "error", err)
	}
	if err := s.state.Settle(ctx); err != nil && ctx.Err() == nil {
		s.opt.Log.Warn("the state can't be written", "error", err)
	}
	switch n, err := s.ring.Settle(ctx); {
	case err != nil:
		s.opt.Log.Error("the revocation of a key is not on disk yet", "error", err)
	case n > 0:
		s.opt.Log.Info("revocations of keys are on disk now", "keys", n)
	}
	switch n, err := s.previews.Settle(ctx); {
	case err != nil:
		s.opt.Log.Error("the revocation of a preview is not on disk yet", "error", err)
	case n > 0:
		s.opt.Log.Info("revocations of previews are on disk now", "previews", n)
	}
}

// keepRevoked is the time that invalid keys stay listed.
const keepRevoked = 90 * 24 * time.Hour

// lastAnswers is the time for sending the last answers and spans at the end.
const lastAnswers = time.Second

// close drains and closes what start has opened, in reverse.
func (s *server) close() error {
	_ = s.manager.tell("STOPPING=1")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var errs []error
	for _, l := range s.listeners {
		_ = l.Close()
	}
	if s.gate != nil {
		if err := s.gate.Close(ctx); err != nil {
			s.opt.Log.Warn("requests were aborted", "error", err)
		}
	}
	if s.found.renewer != nil {
		_ = within("the renewals of secrets", func() error {
			s.found.renewer.close()
			return nil
		})
	}
	if s.engine != nil && s.journal != nil {
		_ = within("the denials of egress", func() error {
			s.enterDenials(ctx)
			return nil
		})
	}
	// Requests may have used up all of that time. What follows is bounded by within.
	ctx = context.WithoutCancel(ctx)
	if s.gate != nil {
		if err := within("the summary of requests", func() error { return s.gate.Summarise(ctx, true) }); err != nil {
			s.opt.Log.Error("counted requests are missing in the audit log", "error", err)
		}
	}
	if s.ring != nil {
		err := within("the revocations", func() error {
			_, err := s.ring.Settle(ctx)
			return err
		})
		if err != nil {
			s.opt.Log.Error("the revocation of a key is not on disk: the key will be valid again", "error", err)
		}
	}
	if s.previews != nil {
		err := within("the revocations of previews", func() error {
			_, err := s.previews.Settle(ctx)
			return err
		})
		if err != nil {
			s.opt.Log.Error("the revocation of a preview is not on disk: the preview will be valid again", "error", err)
		}
	}
	// The ends of the last answers may still be in net/http's hands.
	leaving, leave := context.WithTimeout(context.Background(), lastAnswers)
	defer leave()
	for _, of := range s.servers {
		for _, server := range []*http.Server{of.plain, of.secure} {
			if server.Shutdown(leaving) != nil {
				_ = server.Close()
			}
		}
	}
	if s.tracer != nil {
		sending, stop := context.WithTimeout(context.Background(), lastAnswers)
		defer stop()
		if s.tracer.Close(sending) != nil {
			s.opt.Log.Warn("the last spans were not sent: the collector does not respond")
		}
	}
	runsEnded := make(chan error, 1)
	go func() {
		if s.runs.engine == nil {
			runsEnded <- nil
			return
		}
		runsEnded <- s.runs.engine.Close()
	}()
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
	}
	errs = append(errs, <-runsEnded)
	if s.sender != nil {
		errs = append(errs, within("the webhooks", s.sender.Close))
	}
	if s.ring != nil {
		if err := within("the use of keys", func() error { return s.ring.Flush(ctx) }); err != nil {
			s.opt.Log.Warn("the times at which keys were last used were not recorded", "error", err)
		}
	}
	if s.journal != nil {
		errs = append(errs, within("the audit", s.journal.Close))
	}
	if s.state != nil {
		errs = append(errs, within("the state", s.state.Close))
	}
	return errors.Join(errs...)
}

// logStuck logs operations that hang, and when they end.
func (o *Options) logStuck(is engine.Stuck, over bool) {
	if over {
		o.Log.Info("no longer stuck", "what", is.What)
		return
	}
	o.Log.Error("stuck", "what", is.What, "doing", is.Doing)
}

// partTime is the time that a part of the server has to end. Its last writes take moments.
const partTime = 5 * time.Second

// within ends a part of the server. A part that hangs, for example on a dead disk, is left
// as it is: the process ends, and nothing depends on how.
func within(part string, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	timer := time.NewTimer(partTime)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fault.Errorf(sandpit.ErrUnavailable, "closing %s: it hangs", part)
	}
}

// newName returns 16 characters of [a-z2-7].
func newName() string { return strings.ToLower(rand.Text()[:16]) }
