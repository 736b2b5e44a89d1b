package gate

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// A browser can send no header with a WebSocket or an EventSource, and a key in a URL would
// be kept in histories and logs. Therefore a caller that has a key can get a ticket for one
// request, and give it to a web page, which adds it to the URL as the parameter "ticket".
// A ticket serves once, for a short time and for that request. What it opens is the key's,
// and ends with it. Origins are checked as always.
const (
	// TicketTime is how long a ticket can be used.
	TicketTime = 30 * time.Second

	ticketParam  = "ticket"
	ticketScheme = "st_"
	maxTickets   = 1000   // of a namespace, or of an administrator's key
	allTickets   = 50_000 // of all namespaces; those of administrators do not count
	maxTarget    = 2048   // bytes of the path and query that a ticket is for
)

// ticket is the right to make one request. It is kept until it is used or its time is over.
type ticket struct {
	caller Caller
	target target
	until  time.Time
}

// share is what a ticket counts for: a namespace, or the key of an administrator.
type share struct {
	admin bool
	name  string
}

func (t *ticket) share() share {
	if t.caller.Admin {
		return share{true, t.caller.Key}
	}
	return share{false, t.caller.Namespace}
}

// target is the request that a ticket is for.
type target struct {
	service *service
	hash    [sha256.Size]byte // of path and query
}

// tickets are all tickets of a gate, by the hash of the secret.
type tickets struct {
	mu    sync.Mutex
	held  map[[sha256.Size]byte]*ticket // guarded by mu
	order [][sha256.Size]byte           // oldest first; used tickets stay in it for a while; guarded by mu
	count map[share]int                 // guarded by mu
	total int                           // of all namespaces; guarded by mu
}

// NewTicket returns a ticket of the caller for a GET request of the same dialect, and when it
// ends. path has the query. The route must be Ticketed.
func (c *Call) NewTicket(path string) (secret string, until time.Time, err error) {
	if path == "" {
		return "", until, Invalid(`the field "path" is missing`, "send the path and query of the stream, such as /v1/events?after=1")
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || len(path) > maxTarget || !strings.HasPrefix(path, "/") || strings.Contains(path, "#") {
		return "", until, Invalid("the path that the ticket is for is not valid", "use a path of this server with its query, such as /v1/events?after=1")
	}
	if _, values := cutQuery(u.RawQuery, ticketParam); values != nil {
		return "", until, Invalid("the path that the ticket is for has a ticket", "omit it")
	}
	to, err := targetOf(c.service, u)
	if err != nil {
		return "", until, err
	}
	if route := c.service.routeOf(c.R.Host, u); route == nil || !route.Ticketed {
		return "", until, Invalid("the path that the ticket is for is not that of a stream", "use the path of a GET request that is answered with a stream or a WebSocket")
	}
	if c.Caller.Key == "" {
		return "", until, Invalid("a ticket belongs to a key, and this request has none", "send a key; at this socket no ticket is needed")
	}
	secret = ticketScheme + strings.ToLower(rand.Text()+rand.Text())
	until = time.Now().Add(TicketTime)
	if !c.gate.tickets.add(secret, &ticket{caller: c.Caller, target: to, until: until}) {
		return "", until, &Refusal{Code: errcode.RateLimited, Message: "there are too many tickets", Hint: "use tickets that you have, or wait until they end", After: TicketTime}
	}
	return secret, until, nil
}

// add adds a ticket, unless there are too many.
func (t *tickets) add(secret string, new *ticket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for now := time.Now(); len(t.order) > 0 && (t.held[t.order[0]] == nil || now.After(t.held[t.order[0]].until)); t.order = t.order[1:] {
		t.drop(t.order[0])
	}
	of := new.share()
	if t.count[of] >= maxTickets || !of.admin && t.total >= allTickets {
		return false
	}
	if len(t.order) >= 2*allTickets {
		t.order = slices.DeleteFunc(t.order, func(hash [sha256.Size]byte) bool { return t.held[hash] == nil })
	}
	if t.held == nil {
		t.held, t.count = map[[sha256.Size]byte]*ticket{}, map[share]int{}
	}
	hash := sha256.Sum256([]byte(secret))
	t.held[hash] = new
	t.order = append(t.order, hash)
	if t.count[of]++; !of.admin {
		t.total++
	}
	return true
}

// drop forgets a ticket. Precondition: t.mu is held.
func (t *tickets) drop(hash [sha256.Size]byte) {
	old := t.held[hash]
	if old == nil {
		return
	}
	delete(t.held, hash)
	of := old.share()
	if t.count[of]--; t.count[of] == 0 {
		delete(t.count, of)
	}
	if !of.admin {
		t.total--
	}
}

// revoke forgets the tickets of a key.
func (t *tickets) revoke(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for hash, old := range t.held {
		if old.caller.Key == key {
			t.drop(hash)
		}
	}
}

// use returns the caller that a ticket is of, once. why says why it can't be used.
func (t *tickets) use(secret string, to target) (who Caller, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	hash := sha256.Sum256([]byte(secret))
	found := t.held[hash]
	if found == nil || now.After(found.until) || !found.caller.Expires.IsZero() && !now.Before(found.caller.Expires) {
		return Caller{}, "it was used, has expired or never existed, or its key has ended"
	}
	t.drop(hash) // also if it is for another request: its page has lost control of it
	if found.target != to {
		return Caller{}, "it is for another request"
	}
	return found.caller, ""
}

// redeem sets the caller if the request has a ticket, which it removes from the URL, so that
// nothing else sees it.
func (c *Call) redeem() (had bool, err error) {
	secrets := TakeQuery(c.R, ticketParam)
	switch {
	case secrets == nil:
		return false, nil
	case len(secrets) > 1:
		return true, Invalid("the request has several tickets", "send only one")
	}
	to, err := targetOf(c.service, c.R.URL)
	if err != nil {
		return true, err
	}
	who, why := c.gate.tickets.use(secrets[0], to)
	if why != "" {
		c.challenge()
		return true, &Refusal{Code: errcode.TicketInvalid, Message: "the ticket is not valid: " + why, Hint: "ask for a new ticket for each request"}
	}
	c.Caller, c.known = who, true
	return true, nil
}

// targetOf returns what a ticket for a URL is for. The order of parameters does not matter.
func targetOf(s *service, u *url.URL) (target, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return target{}, Invalid("the query string is malformed", "percent-encode special characters")
	}
	return target{s, sha256.Sum256([]byte(u.EscapedPath() + "?" + query.Encode()))}, nil
}

// routeOf returns the route of a GET request, or nil.
func (s *service) routeOf(host string, u *url.URL) *Route {
	if oddPath(u.EscapedPath()) {
		return nil
	}
	_, pattern := s.mux.Handler(&http.Request{Method: http.MethodGet, URL: u, Host: host})
	return s.routes[pattern]
}

// HasTicket reports whether a text has something in the form of a ticket, valid or not.
func HasTicket(text string) bool {
	const length = 2 * 26 // of rand.Text
	for {
		_, after, ok := strings.Cut(text, ticketScheme)
		if !ok {
			return false
		}
		if text = after; len(text) >= length && strings.Trim(text[:length], "abcdefghijklmnopqrstuvwxyz234567") == "" {
			return true
		}
	}
}
