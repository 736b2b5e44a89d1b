package intercept

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

const (
	// maxSignedBody is the size of a body, in bytes, whose hash is signed and not said: it is
	// read whole before the request goes on. S3's clients say it.
	maxSignedBody = 8 << 20

	// maxHeld bounds what requests of one sandbox hold in all, in bytes, while secrets are put
	// into them. The others wait.
	maxHeld = 16 << 20
)

// hold waits until a request may hold what it has to, at most. The caller calls release when it
// has ended, or holds nothing any more.
func (s *Server) hold(r *http.Request, ss secrets, to egress.Destination, secure bool) (release func(), err error) {
	weight := int64(0)
	if size := r.ContentLength; 0 < size && size <= maxWholeBody {
		for _, of := range [...]func(s secret) bool{
			func(x secret) bool { return x.Renewable && x.hosts.Contain(to) },                       // it may be sent again
			func(x secret) bool { return !x.former && (x.Body || !secure || !x.hosts.Contain(to)) }, // it is looked through
		} {
			if slices.ContainsFunc(ss, of) {
				weight += size
			}
		}
	}
	if slices.ContainsFunc(ss, func(x secret) bool { return x.Sign && x.hosts.Contain(to) }) {
		switch hash := r.Header.Get(sigv4.HashHeader); {
		case hash == "" && r.ContentLength <= maxSignedBody:
			weight += max(r.ContentLength, 0)
		case strings.HasPrefix(hash, sigv4.Streaming):
			weight += sigv4.MaxChunk
		}
	}
	if err := s.held.Acquire(r.Context(), weight); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { s.held.Release(weight) }), nil
}

// sign signs a request again that is signed with the placeholder of a secret for its destination.
// If that fails, the request is denied. The response does not bring back what a service echoes, such
// as in an error about a signature: the signature, and the token of a session. Encodings and ranges
// stay as they were asked for, because they may be signed. Precondition: the header of r is its own.
func (e *exchange) sign(r *http.Request, to egress.Destination) {
	for _, s := range e.secrets {
		if !s.Sign || !s.hosts.Contain(to) {
			continue
		}
		e.hide(s, s.signs.Secret)
		e.hide(s, s.signs.Token)
		e.hide(s, url.QueryEscape(s.signs.Token))
		if isWebSocket(r.Header) {
			r.Header.Del("Sec-Websocket-Extensions")
		}
	}
	for _, s := range e.secrets {
		if !s.Sign || s.former || !s.hosts.Contain(to) {
			continue
		}
		was := sigv4.Credentials{KeyID: s.Placeholder, Secret: s.Placeholder, Token: s.Placeholder}
		again, err := sigv4.Find(r, was, s.signs)
		if err == nil && again == nil {
			continue
		}
		if err == nil {
			err = e.signAgain(r, s, again)
		}
		if err != nil {
			_ = e.deny("secret "+s.Name, "secret %q: %v", s.Name, err)
		}
		return
	}
}

func (e *exchange) signAgain(r *http.Request, s secret, again *sigv4.Request) (err error) {
	var body []byte
	if again.NeedsBody() && r.ContentLength != 0 {
		if r.ContentLength < 0 || r.ContentLength > maxSignedBody {
			return errors.New("the request can't be signed again: its body is longer than 8 MiB, or of unknown length")
		}
		body, err = io.ReadAll(r.Body)
		r.Body = &readWhole{bytes.NewReader(body), err, r.Body}
		if err != nil {
			return err
		}
	}
	chunks, err := again.Sign(body)
	if err == nil {
		e.hide(s, again.Signature())
	}
	if err == nil && chunks != nil {
		r.Body = &denying{chunks.Chunks(r.Body), e, s.Name}
	}
	return err
}

// denying is a body that can't be signed again after all.
type denying struct {
	io.ReadCloser
	exchange *exchange
	name     string
}

func (b *denying) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, sandpit.ErrForbidden) {
		err = b.exchange.deny("secret "+b.name, "secret %q: %v", b.name, err)
	}
	return n, err
}
