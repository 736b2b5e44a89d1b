package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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
	servers map[string]*sdk.Server // by identity; guarded by mu
}

// Request is a request of streamable HTTP.
type Request struct {
	Host Host

	// Identity is whose sessions the request may use.
	Identity string

	mu   sync.Mutex
	code string // guarded by mu
}

// Bounds of sessions.
const (
	maxSessions    = 64 // of an identity
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
	h := &Handler{opt: Options{Version: version, Log: log}, servers: map[string]*sdk.Server{}}
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
		return &auth.TokenInfo{UserID: r.Identity, Extra: map[string]any{extraRequest: r, extraContext: ctx}}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
}

// Keys of auth.TokenInfo.Extra.
const (
	extraRequest = "request"
	extraContext = "context" // of the HTTP request
)

// Serve answers a request. When the context of hr ends, what it has in progress is called off.
func (h *Handler) Serve(w http.ResponseWriter, hr *http.Request, r *Request) error {
	session, version := hr.Header.Get(headerSession), hr.Header.Get(headerVersion)
	next := h.stateful
	if version >= statelessSince {
		next = h.stateless
	} else if session == "" && hr.Method == http.MethodPost && h.sessions(r.Identity) >= maxSessions {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "%d sessions of the Model Context Protocol are open", maxSessions), "end some with DELETE, or wait until they have been idle for "+sessionTimeout.String())
	}
	hr = hr.WithContext(context.WithValue(hr.Context(), requestKey{}, r))
	hr.Header = hr.Header.Clone()
	hr.Header.Set("Authorization", "Bearer admitted") // in place of the key, which nothing here needs
	next.ServeHTTP(w, hr)
	return nil
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
	if s := h.servers[r.Identity]; s != nil {
		return s
	}
	for id, s := range h.servers {
		if count(s) == 0 {
			delete(h.servers, id)
		}
	}
	s, err := newServer(h.opt)
	if err != nil {
		panic("mcp: everything can't be offered: " + err.Error())
	}
	s.AddReceivingMiddleware(bound)
	h.servers[r.Identity] = s
	return s
}

// sessions returns the number of sessions of an identity.
func (h *Handler) sessions(identity string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.servers[identity]; s != nil {
		return count(s)
	}
	return 0
}

func count(s *sdk.Server) (n int) {
	for range s.Sessions() {
		n++
	}
	return n
}

// Close ends all sessions.
func (h *Handler) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.servers {
		for session := range s.Sessions() {
			go session.Close() // waits for what is in progress
		}
	}
}

// bound binds the work for a message to the HTTP request that has brought it.
func bound(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		extra := req.GetExtra()
		if extra == nil || extra.TokenInfo == nil {
			return next(ctx, method, req) // of the SDK itself
		}
		r, ended := extra.TokenInfo.Extra[extraRequest].(*Request), extra.TokenInfo.Extra[extraContext].(context.Context)
		ctx, cancel := context.WithCancelCause(withHost(ctx, r.Host))
		defer cancel(nil)
		defer context.AfterFunc(ended, func() { cancel(context.Cause(ended)) })()
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
