package intercept

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/egress"
)

// renewTimeout bounds how long a request waits for another value of its secret.
const renewTimeout = 30 * time.Second

// attempts are the tries to send a request whose secrets can be renewed: a second one if the origin answers the
// first with 401, and there is another value by then. Without such secrets there is one try.
type attempts struct {
	s    *Server
	sent secrets // that can be renewed, and whose placeholder is in the request
	body []byte
	keep bool // the request can be sent again
	last bool // this try is the last
	more bool // another is to be made
}

// newAttempts notes what the request needs to be sent again.
func (s *Server) newAttempts(r *http.Request, terms *Terms, to egress.Destination, secure bool) *attempts {
	a := &attempts{s: s}
	if terms.renew == nil || !secure {
		return a
	}
	for _, x := range terms.secrets {
		if x.Renewable && !x.former && x.hosts.Contain(to) && isSent(r, x.Placeholder) {
			a.sent = append(a.sent, x)
		}
	}
	if len(a.sent) == 0 || len(r.Trailer) > 0 {
		return a
	}
	switch {
	case r.Body == nil, r.Body == http.NoBody, r.ContentLength == 0:
		a.keep = true
	case 0 < r.ContentLength && r.ContentLength <= maxWholeBody:
		body, err := io.ReadAll(r.Body)
		if a.keep = err == nil; a.keep {
			a.body = body
			break
		}
		r.Body = &readWhole{bytes.NewReader(body), err, r.Body}
	}
	return a
}

// isSent reports whether a placeholder is in the header or the query of a request.
func isSent(r *http.Request, placeholder string) bool {
	for _, values := range r.Header {
		for _, v := range values {
			if strings.Contains(v, placeholder) {
				return true
			}
			if scheme, credentials, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "basic") {
				plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(credentials))
				if err == nil && strings.Contains(string(plain), placeholder) {
					return true
				}
			}
		}
	}
	return strings.Contains(r.URL.RawQuery, placeholder)
}

// next returns the request of the next try.
func (a *attempts) next(r *http.Request) *http.Request {
	if a.body != nil {
		again := *r
		again.Body = &readWhole{bytes.NewReader(a.body), nil, http.NoBody}
		r = &again
	}
	return r
}

// again reports whether a response is dropped and the request sent again, with another value. Else, if the
// secret is refused, it is renewed for the next request.
func (a *attempts) again(ctx context.Context, status int) bool {
	if status != http.StatusUnauthorized || len(a.sent) == 0 || a.last {
		return false
	}
	a.last = true
	if a.changed() { // since the request was sent
		a.more = a.keep
		return a.more
	}
	if !a.keep {
		a.s.start(func() { a.renew(a.s.ctx) })
		return false
	}
	a.renew(ctx)
	a.more = a.changed()
	return a.more
}

// changed reports whether one of the secrets has another value by now.
func (a *attempts) changed() bool {
	now := a.s.terms().secrets
	for _, s := range a.sent {
		for _, o := range now {
			if !o.former && o.Placeholder == s.Placeholder && !bytes.Equal(o.Value, s.Value) {
				return true
			}
		}
	}
	return false
}

func (a *attempts) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	for _, s := range a.sent {
		if renew := a.s.terms().renew; renew != nil {
			_ = renew(ctx, s.Name) // else the origin has the last word
		}
	}
}
