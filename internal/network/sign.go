package network

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

const (
	// maxSignedBody is the size of a body, in bytes, whose hash is signed and not said: it is
	// read whole before the request goes on. S3 says it.
	maxSignedBody = 8 << 20

	// maxHeld bounds what such requests of one sandbox hold in all. The others wait.
	maxHeld = 16 << 20
)

// sign signs a request again that is signed with the placeholder of a secret for its destination.
// If that fails, the request is denied. The caller calls release when the request has ended.
// Precondition: the header of r is its own.
func (n *Network) sign(r *http.Request, p *put, to egress.Destination) (release func()) {
	release = func() {}
	for _, s := range p.secrets {
		if !s.Sign || s.former || !s.hosts.Contain(to) {
			continue
		}
		was := sigv4.Credentials{KeyID: s.Placeholder, Secret: s.Placeholder, Token: s.Placeholder}
		again, err := sigv4.Find(r, was, s.signs)
		if err == nil && again == nil {
			continue
		}
		if err == nil {
			release, err = n.signAgain(r, p, s, again)
		}
		if err != nil {
			_ = p.deny("secret "+s.Name, "secret %q: %v", s.Name, err)
		}
		return release
	}
	return release
}

func (n *Network) signAgain(r *http.Request, p *put, s secret, again *sigv4.Request) (release func(), err error) {
	release = func() {}
	hold := func(size int64) error {
		if err := n.held.Acquire(r.Context(), size); err != nil {
			return context.Cause(r.Context())
		}
		release = func() { n.held.Release(size) }
		return nil
	}
	var body []byte
	if again.NeedsBody() && r.ContentLength != 0 {
		if r.ContentLength < 0 || r.ContentLength > maxSignedBody {
			return release, errors.New("the request can't be signed again: its body is longer than 8 MiB, or of unknown length")
		}
		if err := hold(r.ContentLength); err != nil {
			return release, err
		}
		body, err = io.ReadAll(r.Body)
		r.Body = &readWhole{bytes.NewReader(body), err, r.Body}
		if err != nil {
			return release, err
		}
	}
	chunks, err := again.Sign(body)
	if err != nil || chunks == nil {
		return release, err
	}
	if err := hold(sigv4.MaxChunk); err != nil {
		return release, err
	}
	r.Body = &denying{chunks.Chunks(r.Body), p, s.Name}
	return release, nil
}

// denying is a body that can't be signed again after all.
type denying struct {
	io.ReadCloser
	put  *put
	name string
}

func (b *denying) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, sandpit.ErrForbidden) {
		err = b.put.deny("secret "+b.name, "secret %q: %v", b.name, err)
	}
	return n, err
}
