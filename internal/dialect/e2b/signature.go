package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A URL of a file can be signed with an access token, for those who have no token. SDKs that use one URL for all
// sandboxes do not name the sandbox in it. Then the signature is compared with those of all tokens, for which a
// client needs no right: so a comparison costs little, one search runs at a time, and each address has a bound.
// The bound is not one of all addresses, which a stranger could use up for everybody.

// Bounds of the comparisons for one address.
const (
	searchRate  = 250_000 // per second, which take about a tenth of a CPU
	searchBurst = 500_000
	maxClients  = 4096 // addresses whose use is known
)

// errSignature is the error of every signature that is not valid. A stranger must not find out why.
var errSignature = &gate.Refusal{Code: errcode.Unauthenticated, Message: "the signature of the URL is not valid, or has expired", Hint: "ask for a new URL"}

// signers finds out who has signed a URL. Its methods are safe for concurrent use.
type signers struct {
	mu      sync.Mutex
	known   map[string]signer              // by the ID of the sandbox; guarded by mu
	clients map[netip.Prefix]*rate.Limiter // comparisons; guarded by mu
}

// signer is a sandbox with the tokens that may sign for it.
type signer struct {
	data   string // of the dialect, from which the tokens were made
	tokens []keyToken
}

// keyToken is the access token of a key.
type keyToken struct{ key, token string }

// clientOf returns the network that counts as one client: in IPv6 the 64 bits that every customer gets. Unix sockets
// have none, and are one client.
func clientOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := at.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits) // of an address that is valid
	return network
}

// budget returns how many comparisons a client may still cause, which may be negative. Precondition: s.mu is held.
func (s *signers) budget(client netip.Prefix, now time.Time) *rate.Limiter {
	b := s.clients[client]
	if b != nil {
		return b
	}
	if len(s.clients) >= maxClients {
		maps.DeleteFunc(s.clients, func(_ netip.Prefix, b *rate.Limiter) bool { return b.TokensAt(now) >= searchBurst })
	}
	for other := range s.clients {
		if len(s.clients) < maxClients {
			break
		}
		delete(s.clients, other) // any
	}
	if s.clients == nil {
		s.clients = map[netip.Prefix]*rate.Limiter{}
	}
	b = rate.NewLimiter(searchRate, searchBurst)
	s.clients[client] = b
	return b
}

// errSearches is the error of clients that cause too many comparisons.
var errSearches = &gate.Refusal{Code: errcode.RateLimited, Message: "too many signed URLs that name no sandbox came from this address", Hint: "send the header E2b-Sandbox-Id, or try again in a moment", After: time.Second}

// search finds the sandbox and key of a signature for a client that has a budget for that.
func (s *signers) search(ctx context.Context, tokens *dialect.Tokens, client netip.Prefix, now time.Time, all []engine.Box, text *signedText, given []byte) (in engine.Box, key string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	budget, n := s.budget(client, now), 0
	if budget.TokensAt(now) <= 0 {
		return nil, "", errSearches
	}
	defer func() { budget.ReserveN(now, min(n, searchBurst)) }()
	for _, sb := range all {
		for _, t := range s.tokens(ctx, tokens, sb) {
			if n++; hmac.Equal(given, text.sum(t.token)) {
				return sb, t.key, nil
			}
		}
	}
	s.forget(all)
	return nil, "", errSignature
}

// tokens returns the tokens of a sandbox, which are made once. Precondition: s.mu is held.
func (s *signers) tokens(ctx context.Context, tokens *dialect.Tokens, sb engine.Box) []keyToken {
	id, data := sb.ID(), sb.Dialect(Name)
	if one, ok := s.known[id]; ok && one.data == string(data) {
		return one.tokens
	}
	if s.known == nil {
		s.known = map[string]signer{}
	}
	one := signer{string(data), tokensOf(ctx, tokens, sb)}
	s.known[id] = one
	return one.tokens
}

// tokensOf returns the tokens that may sign for a sandbox.
func tokensOf(ctx context.Context, tokens *dialect.Tokens, sb engine.Box) (all []keyToken) {
	for _, key := range stateOf(sb).Keys {
		if token, _, err := tokens.Of(ctx, key, sb.ID()); err == nil {
			all = append(all, keyToken{key, token})
		}
	}
	return all
}

// forget forgets sandboxes that are gone, when there are many. Precondition: s.mu is held.
func (s *signers) forget(all []engine.Box) {
	if len(s.known) <= 2*len(all)+100 {
		return
	}
	known := make(map[string]signer, len(all))
	for _, sb := range all {
		known[sb.ID()] = s.known[sb.ID()]
	}
	s.known = known
}

// proveSignature proves a URL that was signed with an access token.
func (a *api) proveSignature(c *gate.Call) (who gate.Caller, ok bool, err error) {
	given := gate.TakeQuery(c.R, "signature")
	if len(given) != 1 || len(given[0]) > 64 {
		return who, false, nil
	}
	text, _ := strings.CutPrefix(given[0], signatureVersion)
	sum, err := base64.RawStdEncoding.Strict().DecodeString(text)
	if err != nil || len(text) == len(given[0]) {
		return who, false, errSignature
	}
	q := c.R.URL.Query()
	operation := "read"
	if c.R.Method != http.MethodGet && c.R.Method != http.MethodHead {
		operation = "write"
	}
	expires := q.Get("signature_expiration")
	if expires != "" {
		if at, err := strconv.ParseInt(expires, 10, 64); err != nil || time.Now().Unix() > at {
			return who, false, errSignature
		}
	}
	signed := newSignedText(q.Get("path"), operation, q.Get("username"), expires)
	var sandbox, key string
	if c.Target == "" {
		found, by, err := a.signers.search(c.Ctx, a.Tokens, clientOf(c.R), time.Now(), a.Sandboxes(), signed, sum)
		if err != nil {
			return who, false, err
		}
		sandbox, key = found.ID(), by
	} else if sb := a.Sandbox(c.Target); sb != nil {
		for _, t := range tokensOf(c.Ctx, a.Tokens, sb) {
			if hmac.Equal(sum, signed.sum(t.token)) {
				sandbox, key = sb.ID(), t.key
			}
		}
	}
	if _, who, err = a.Tokens.Of(c.Ctx, key, sandbox); err != nil { // the key may have ended
		return gate.Caller{}, false, errSignature
	}
	c.Target = sandbox
	return who, true, nil
}

// signatureVersion begins signatures.
const signatureVersion = "v1_"

// signedText is what is signed for a transfer of a file, but for the token. One goroutine at a time may use it.
type signedText struct {
	hash  hash.Hash
	begun []byte // the state of the hash before the token
	end   string
	buf   []byte // of the token and what follows it
	out   [sha256.Size]byte
}

// newSignedText returns the text for a transfer. expires is in seconds since 1970; "" is never.
func newSignedText(path, operation, user, expires string) *signedText {
	s := &signedText{hash: sha256.New()}
	fmt.Fprintf(s.hash, "%s:%s:%s:", path, operation, user)
	s.begun, _ = s.hash.(encoding.BinaryMarshaler).MarshalBinary() // which never fails
	if expires != "" {
		s.end = ":" + expires
	}
	return s
}

// sum returns the signature by a token, until the next call.
func (s *signedText) sum(token string) []byte {
	_ = s.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(s.begun) // its own
	s.buf = append(append(s.buf[:0], token...), s.end...)
	s.hash.Write(s.buf)
	return s.hash.Sum(s.out[:0])
}
