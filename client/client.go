package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Options are the options of New.
type Options struct {
	// Address is the server's address: "unix:///run/sandpit.sock",
	// "https://host:port", or "http://host:port" on this machine's loopback. The
	// default port is that of the scheme.
	Address string

	// Key authenticates every request. It is not needed for a unix socket, where
	// the kernel identifies the user.
	Key string

	// Namespace is a namespace nested in that of the caller. The client then creates and sees
	// sandboxes in it alone, which have names of their own there; it need not be created. With
	// sandpit.AllNamespaces, lists, events and removals by filter cover the caller's own and all
	// nested ones. Secrets, webhooks, images and all limits are those of the caller.
	Namespace string

	// TLS is the configuration for https, for example trusted roots or a client
	// certificate. Default: the roots of the system.
	TLS *tls.Config

	// InsecureHTTP allows plain HTTP beyond the loopback. Everyone on the network
	// path can then read and change all traffic, including the key.
	InsecureHTTP bool

	// Dial creates connections instead of net.Dialer, for example through a tunnel.
	// The network is "unix" or "tcp".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// UserAgent is the User-Agent header. Default: "sandpit-go".
	UserAgent string
}

// Client is a client of a server. It implements sandpit.Client.
type Client struct {
	opts     Options
	base     string // of every URL
	endpoint endpoint
	http     *http.Client
	header   http.Header

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	work   sync.WaitGroup // goroutines; grows under mu while not closed
}

var (
	_ sandpit.Client  = (*Client)(nil)
	_ sandpit.Watcher = (*Client)(nil)
)

// Idle connections are given up before the server does, so that a request is
// not sent on one that is just being closed.
const idleConn = 30 * time.Second

// expect is how long a server may take to say whether it wants the content of a
// request, before it is sent anyway.
const expect = 10 * time.Second

// New returns a client, which connects on first use. It returns sandpit.ErrInvalid
// if the address is not valid or needs Options.InsecureHTTP.
func New(opt Options) (*Client, error) {
	at, err := parseAddress(opt.Address, opt.InsecureHTTP)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(opt.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "using the key: it contains a character that keys never have"),
			"give the key as 'sandpit key create' printed it")
	}
	at.dialer = opt.Dial
	if at.secure {
		at.tls = opt.TLS.Clone()
		if at.tls == nil {
			at.tls = &tls.Config{}
		}
		if at.tls.ServerName == "" {
			at.tls.ServerName = at.name
		}
		at.tls.MinVersion = max(at.tls.MinVersion, tls.VersionTLS12)
		at.tls.NextProtos = []string{"http/1.1"} // HTTP/2 has no Upgrade
	}
	c := &Client{opts: opt, base: at.base, endpoint: at, header: http.Header{}}
	agent := opt.UserAgent
	if agent == "" {
		agent = "sandpit-go"
	}
	c.header.Set("User-Agent", agent)
	if opt.Key != "" {
		c.header.Set("Authorization", "Bearer "+opt.Key)
	}
	if opt.Namespace != "" {
		if opt.Namespace != sandpit.AllNamespaces && !isName(opt.Namespace) {
			return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "using the namespace: %.80q is not a valid name", opt.Namespace), notation.NameHint)
		}
		c.header.Set("X-Sandpit-Namespace", opt.Namespace)
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return listening(at.connect(ctx)) },
			DialTLSContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return listening(at.connectTLS(ctx)) },
			DisableCompression:    true,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       idleConn,
			ExpectContinueTimeout: expect,
			ReadBufferSize:        16 << 10,
			WriteBufferSize:       16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// listening makes a connection one on which an answer comes before the failure to
// send what it answers.
func listening(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return httpconn.HearAnswer(httpconn.New(conn)), nil
}

// goWork runs work that Close waits for. It is false when the client is closed.
func (c *Client) goWork(work func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.work.Go(work)
	return true
}

// open returns an error once the client is closed.
func (c *Client) open() error {
	if c.ctx.Err() != nil {
		return fmt.Errorf("calling the server: %w", errClosed)
	}
	return nil
}

// Close closes the client. Calls and streams in progress fail, and the server kills
// the client's foreground processes. Sandboxes and background processes stay. One
// Write of a Stdout or Stderr may be in progress or about to begin then; none follows.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel(errClosed)
	c.work.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// Create creates a sandbox. See sandpit.Client.
func (c *Client) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	body, err := encodeSpec(spec)
	if err != nil {
		return nil, fmt.Errorf("creating a sandbox: %w", err)
	}
	// With the key, a request that has to be sent twice makes one sandbox. The
	// server needs a name to find it by, and gives it one if it has none.
	r := request{method: http.MethodPost, path: "/v1/sandboxes", body: body}
	if spec.Name != "" {
		r.header = once()
	}
	do := func(ctx context.Context) (*sandbox, error) {
		var made v1.Sandbox
		if err := c.call(ctx, r, &made); err != nil {
			return nil, err
		}
		if !isName(made.ID) {
			return nil, badAnswer("a sandbox without an id")
		}
		return c.sandbox(made.ID, made.Name), nil
	}
	sb, err := orUndo(ctx, c, do, func(ctx context.Context, sb *sandbox) { _ = sb.Remove(ctx) })
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// once returns the header of a request that must be carried out once. With it, net/http sends the
// request again if its connection turns out to be closed.
func once() http.Header { return http.Header{"Idempotency-Key": {rand.Text()}} }

// cancelGrace is how long what was called off waits for an answer that may be
// on its way: what was made is then undone. After it the connection is closed,
// and the server undoes what it has begun.
const cancelGrace = 250 * time.Millisecond

// orUndo makes something that must not be left behind when ctx ends first.
func orUndo[T any](ctx context.Context, c *Client, do func(context.Context) (T, error), undo func(context.Context, T)) (T, error) {
	type answer struct {
		made T
		err  error
	}
	var a answer
	if err := ctx.Err(); err != nil {
		return a.made, fmt.Errorf("calling the server: %w", err)
	}
	apart := context.WithoutCancel(ctx)
	call, cancel := context.WithCancel(apart)
	defer cancel()
	answers := make(chan answer, 1)
	ok := c.goWork(func() {
		made, err := do(call)
		answers <- answer{made, err}
	})
	if !ok {
		return a.made, fmt.Errorf("calling the server: %w", errClosed)
	}
	select {
	case a = <-answers:
		return a.made, a.err
	case <-ctx.Done():
	}
	timer := time.AfterFunc(cancelGrace, cancel)
	defer timer.Stop()
	if a = <-answers; a.err == nil {
		ctx, cancel := context.WithTimeout(apart, patience)
		defer cancel()
		undo(ctx, a.made)
	}
	var none T
	return none, fmt.Errorf("calling the server: %w", ctx.Err())
}

// Get returns a sandbox by ID or name. See sandpit.Client.
func (c *Client) Get(ctx context.Context, idOrName string) (sandpit.Sandbox, error) {
	if !isName(idOrName) {
		return nil, fault.Errorf(sandpit.ErrNotFound, "no sandbox is named %q", idOrName)
	}
	var found v1.Sandbox
	if err := c.quick(ctx, request{method: http.MethodGet, path: "/v1/sandboxes/" + idOrName}, &found); err != nil {
		return nil, err
	}
	if !isName(found.ID) {
		return nil, badAnswer("a sandbox without an id")
	}
	return c.sandbox(found.ID, found.Name), nil
}

// List returns a page of the sandboxes that are visible to this client. See
// sandpit.Client.
func (c *Client) List(ctx context.Context, q sandpit.ListQuery) (sandpit.Page, error) {
	query, err := filterQuery(q)
	if err != nil {
		return sandpit.Page{}, err
	}
	if q.After != "" {
		query.Set("after", q.After)
	}
	if q.NewestFirst {
		query.Set("order", "desc")
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var list v1.SandboxList
	if err := c.quick(ctx, request{method: http.MethodGet, path: "/v1/sandboxes", query: query}, &list); err != nil {
		return sandpit.Page{}, err
	}
	if list.Sandboxes == nil {
		return sandpit.Page{}, badAnswer("a list without sandboxes; the address may be one for clients of another project")
	}
	page := sandpit.Page{Next: list.Next, Seq: list.Seq}
	for _, s := range list.Sandboxes {
		page.Sandboxes = append(page.Sandboxes, s.Sandpit())
	}
	return page, nil
}

// filterQuery returns what a query selects as the parameters of a request.
func filterQuery(q sandpit.ListQuery) (url.Values, error) {
	query, err := labelQuery(q.Labels, q.HasLabels)
	if err != nil {
		return nil, err
	}
	for _, s := range q.States {
		query.Add("state", string(s))
	}
	setTime(query, "since", q.Since)
	setTime(query, "until", q.Until)
	return query, nil
}

// labelQuery returns a filter by label as the parameters of a request. In one, a name ends at the
// first '='.
func labelQuery(want map[string]string, has []string) (url.Values, error) {
	query := url.Values{}
	add := func(name, label string) error {
		if name == "" || strings.ContainsRune(name, '=') {
			return fault.Errorf(sandpit.ErrInvalid, "%q is not a valid label name", name)
		}
		query.Add("label", label)
		return nil
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if err := add(k, k+"="+want[k]); err != nil {
			return nil, err
		}
	}
	for _, k := range has {
		if err := add(k, k); err != nil {
			return nil, err
		}
	}
	return query, nil
}

// setTime sets a parameter that is a time, unless that is zero.
func setTime(query url.Values, name string, t time.Time) {
	if !t.IsZero() {
		query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}

// Remove destroys a sandbox. See sandpit.Client.
func (c *Client) Remove(ctx context.Context, idOrName string) error {
	if !isName(idOrName) {
		return fault.Errorf(sandpit.ErrNotFound, "no sandbox is named %q", idOrName)
	}
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/sandboxes/" + idOrName}, nil)
}

// Call sends a request for which there is no method, for example for keys, policies
// or images; the server's documentation lists them. It sends in as JSON unless in is
// nil, and decodes the response into out unless out is nil. The path starts with
// "/v1/" and may have a query.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	r := request{method: method, path: path}
	if in != nil {
		var err error
		if r.body, err = encode(in); err != nil {
			return fmt.Errorf("calling the server: %w", err)
		}
	}
	return c.call(ctx, r, out)
}

// isName reports whether a sandbox or a process may be called so, and that it
// is one element of a path as it is: letters, digits, '_', '.' and '-',
// beginning with a letter or digit.
func isName(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case i > 0 && (b == '_' || b == '.' || b == '-'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 128
}
