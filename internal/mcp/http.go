package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Handler serves streamable HTTP. Callers must have been admitted, and bodies bounded, before.
//
// Clients of versions of the protocol before 2026-07-28 have sessions, by which they cancel a call in progress. Later ones close
// the connection for that. For both, a call ends with the HTTP request that has made it. A session holds nothing else: sandboxes
// belong to the caller, and survive it. There is no stream of messages that no request has asked for: GET is not served.
//
// Its methods are safe for concurrent use.
type Handler struct {
	opt                 Options
	stateful, stateless http.Handler

	mu      sync.Mutex
	callers map[string]*caller // by identity; guarded by mu
}

// caller is what an identity has. It is guarded by the mutex of the handler.
type caller struct {
	server   *sdk.Server
	sessions map[string]*session // by ID; some of those of the server, and some that have ended
}

// session is a session as far as this package knows it. It is guarded by the mutex of the handler.
type session struct {
	used  time.Time                       // when its last request began or ended
	calls map[*Request]context.CancelFunc // requests in progress
	ended chan struct{}                   // nil: it goes on. Closed when it has ended and no request is in progress
}

// Request is a request of streamable HTTP.
type Request struct {
	Host Host

	// Identity is whose sessions the request may use.
	Identity string

	ended context.Context // of the work; set by Serve

	mu   sync.Mutex
	code string // guarded by mu
}

// Bounds of sessions.
const (
	maxSessions    = 64 // of an identity: then the one that has been idle longest ends
	sessionTimeout = 30 * time.Minute
)

// statelessSince is the first version of the protocol without sessions.
const statelessSince = "2026-07-28"

// Headers of the protocol.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// NewHandler returns a handler, which offers everything. Close it.
func NewHandler(version string, log *slog.Logger) *Handler {
	h := &Handler{opt: Options{Version: version, Log: log}, callers: map[string]*caller{}}
	// The gate has checked hosts and origins, and bounded the body.
	with := sdk.StreamableHTTPOptions{SessionTimeout: sessionTimeout, DisableLocalhostProtection: true, MaxRequestBodyBytes: -1, PropagateRequestCancellation: true}
	h.stateful = known(sdk.NewStreamableHTTPHandler(h.server, &with))
	with.Stateless = true
	h.stateless = known(sdk.NewStreamableHTTPHandler(h.server, &with))
	return h
}

type requestKey struct{}

// known has the SDK pass a Request on to the tools, and compare the identity of a session with that of each request to it.
func known(h http.Handler) http.Handler {
	return auth.RequireBearerToken(func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		r := ctx.Value(requestKey{}).(*Request)
		return &auth.TokenInfo{UserID: r.Identity, Extra: map[string]any{extraRequest: r}}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
}

// extraRequest is the key of the request in auth.TokenInfo.Extra.
const extraRequest = "request"

// Serve answers a request, once. When the context of hr or the session ends, what it has in progress is called off.
func (h *Handler) Serve(w http.ResponseWriter, hr *http.Request, r *Request) error {
	id, next := hr.Header.Get(headerSession), h.stateful
	ended, cancel := context.WithCancel(hr.Context())
	defer cancel()
	r.ended = ended
	switch {
	case hr.Header.Get(headerVersion) >= statelessSince:
		next = h.stateless
	case hr.Method == http.MethodDelete:
		h.end(hr.Context(), r.Identity, id)
	case id == "":
		if err := h.makeRoom(r.Identity); err != nil {
			return err
		}
		defer func() { h.note(r.Identity, w.Header().Get(headerSession)) }()
	default:
		done, err := h.begin(r, id, cancel)
		if err != nil {
			return err
		}
		defer done()
	}
	hr = hr.WithContext(context.WithValue(hr.Context(), requestKey{}, r))
	hr.Header = hr.Header.Clone()
	hr.Header.Set("Authorization", "Bearer admitted") // in place of the key, which nothing here needs
	next.ServeHTTP(w, hr)
	return nil
}

// session returns a session of an identity, or nil. h.mu is held.
func (h *Handler) session(identity, id string) *session {
	c := h.callers[identity]
	if c == nil || id == "" {
		return nil
	}
	if s := c.sessions[id]; s != nil {
		return s
	}
	if c.open()[id] == nil {
		return nil
	}
	s := &session{used: time.Now(), calls: map[*Request]context.CancelFunc{}}
	c.sessions[id] = s
	return s
}

// begin notes a request of a session, which cancel ends, until done is called. Sessions that the identity does not have
// are for the SDK to refuse.
func (h *Handler) begin(r *Request, id string, cancel context.CancelFunc) (done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.session(r.Identity, id)
	if s == nil {
		return func() {}, nil
	}
	if s.ended != nil {
		return nil, sandpit.WithHint(fault.NotFoundf("the session of the Model Context Protocol has ended"), "initialize another one")
	}
	s.used = time.Now()
	s.calls[r] = cancel
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		s.used = time.Now()
		delete(s.calls, r)
		if s.ended != nil && len(s.calls) == 0 {
			close(s.ended)
		}
	}, nil
}

// end calls off what a session has in progress, and waits for the answers, since the SDK waits for calls and loses those.
func (h *Handler) end(ctx context.Context, identity, id string) {
	h.mu.Lock()
	s := h.session(identity, id)
	if s == nil || s.ended != nil {
		h.mu.Unlock()
		return
	}
	s.ended = make(chan struct{})
	for _, cancel := range s.calls {
		cancel()
	}
	if len(s.calls) == 0 {
		close(s.ended)
	}
	h.mu.Unlock()
	select {
	case <-s.ended:
	case <-ctx.Done():
	}
}

// Code returns the code of the error that a tool has returned, or "".
func (r *Request) Code() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.code
}

// server returns the server of a request. It makes one for the first request of an identity.
func (h *Handler) server(hr *http.Request) *sdk.Server {
	r := hr.Context().Value(requestKey{}).(*Request)
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.callers[r.Identity]; c != nil {
		return c.server
	}
	for id, c := range h.callers {
		if len(c.open()) == 0 {
			delete(h.callers, id)
		}
	}
	s, err := newServer(h.opt)
	if err != nil {
		panic("mcp: everything can't be offered: " + err.Error())
	}
	s.AddReceivingMiddleware(bound)
	h.callers[r.Identity] = &caller{server: s, sessions: map[string]*session{}}
	return s
}

// note notes a session from its beginning on.
func (h *Handler) note(identity, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.session(identity, id)
}

// makeRoom makes room for a session of an identity. If it has as many as it may, it ends that of those without a request in
// progress that has been idle for the longest time: it holds nothing, and its client opens another one.
func (h *Handler) makeRoom(identity string) error {
	h.mu.Lock()
	c := h.callers[identity]
	if c == nil {
		h.mu.Unlock()
		return nil
	}
	open := c.open()
	maps.DeleteFunc(c.sessions, func(id string, _ *session) bool { return open[id] == nil })
	if len(open) < maxSessions {
		h.mu.Unlock()
		return nil
	}
	var idle *session
	var idleID string
	for id, s := range c.sessions { // not those that are being initialized
		if s.ended == nil && len(s.calls) == 0 && (idle == nil || s.used.Before(idle.used)) {
			idle, idleID = s, id
		}
	}
	if idle == nil {
		h.mu.Unlock()
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "%d sessions of the Model Context Protocol have requests in progress", maxSessions), "end some with DELETE, or wait for the requests")
	}
	idle.ended = make(chan struct{})
	close(idle.ended)
	h.mu.Unlock()
	return open[idleID].Close()
}

// open returns the sessions of the server by their IDs, without those of single requests, which have none.
func (c *caller) open() map[string]*sdk.ServerSession {
	open := map[string]*sdk.ServerSession{}
	for s := range c.server.Sessions() {
		if s.ID() != "" {
			open[s.ID()] = s
		}
	}
	return open
}

// Close ends all sessions.
func (h *Handler) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.callers {
		for _, session := range c.open() {
			go session.Close() // waits for what is in progress
		}
	}
}

// bound binds the work for a message to the request that has brought it.
func bound(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		extra := req.GetExtra()
		if extra == nil || extra.TokenInfo == nil {
			return next(ctx, method, req) // of the SDK itself
		}
		r := extra.TokenInfo.Extra[extraRequest].(*Request)
		ctx, cancel := context.WithCancelCause(withHost(ctx, r.Host))
		defer cancel(nil)
		defer context.AfterFunc(r.ended, func() { cancel(context.Cause(r.ended)) })()
		res, err := next(ctx, method, req)
		if t, ok := res.(*sdk.CallToolResult); ok && err == nil && t.IsError {
			said, _ := t.StructuredContent.(map[string]string)
			r.mu.Lock()
			r.code = said["code"]
			r.mu.Unlock()
		}
		return res, err
	}
}

// Subject says what a message is about, for the audit.
type Subject struct {
	Method  string
	Sandbox string // name or ID; "" if it is about none
	Detail  string // in a few words, without secrets
	Vital   bool   // it ends something

	// Memory is the maximum of what the work and the answer take, in bytes. 0: little, and the work is short.
	Memory int64
}

// Describe reads what a message is about, as the SDK reads it: keys are case-sensitive. The error, for a message that is
// not one of JSON-RPC, is a batch, or has a key twice, matches sandpit.ErrInvalid.
func Describe(body []byte) (s Subject, err error) {
	msg, err := decode(body)
	if err != nil {
		_, _, text := complaint(body, err)
		return s, fault.Invalidf("%s", text)
	}
	if _, err := members(body); err != nil {
		return s, err
	}
	r, ok := msg.(*jsonrpc.Request)
	if !ok {
		return s, nil
	}
	params, err := members(r.Params)
	if err != nil {
		return s, err
	}
	s.Method = r.Method
	s.Detail = clipped(r.Method)
	switch r.Method {
	case "notifications/cancelled":
		s.Vital = true
	case "resources/read":
		uri := text(params["uri"])
		s.Memory = 4 * maxResource
		s.Sandbox, _, _ = splitURI(uri)
		s.Detail += " " + strconv.Quote(clipped(uri))
	case "tools/call":
		args, err := members(params["arguments"])
		if err != nil {
			return s, err
		}
		name := text(params["name"])
		s.Memory = 16 * budget
		if name == "read_file" || name == "run_code" {
			s.Memory += 4 * maxPicture
		}
		s.Vital = name == "remove_sandbox" || name == "stop_process"
		s.Detail = "tool " + strconv.Quote(clipped(name)) + about(args)
		s.Sandbox = text(args["sandbox"])
	}
	s.Sandbox = clipped(s.Sandbox)
	return s, nil
}

// members returns the members of a JSON object by their exact names, or none for another value, which the SDK refuses. It refuses
// names that occur twice: which of the values counts differs between decoders.
func members(raw json.RawMessage) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, nil
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, fault.Invalidf("the message is not valid JSON")
		}
		if _, twice := all[name]; twice {
			return nil, fault.Invalidf("the message has the key %q twice", fault.Clip(name))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fault.Invalidf("the message is not valid JSON")
		}
		all[name] = value
	}
	return all, nil
}

// text returns a JSON string, or "" for another value.
func text(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s)
	return s
}

// about describes arguments. Contents may be secrets, so it has only their sizes.
func about(args map[string]json.RawMessage) string {
	var b strings.Builder
	for _, name := range [...]string{"name", "image", "network", "allow", "path", "process", "port", "language", "context"} {
		if value, ok := args[name]; ok {
			fmt.Fprintf(&b, " %s %s", name, clipped(string(value)))
		}
	}
	for _, name := range [...]string{"command", "code", "content", "stdin"} {
		if value, ok := args[name]; ok {
			fmt.Fprintf(&b, " %s of %d bytes", name, len(value))
		}
	}
	return b.String()
}

// clipped shortens a text for the audit.
func clipped(s string) string { return fault.Clip(clean(s)) }
