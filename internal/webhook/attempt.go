package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// message is the body of a request.
type message struct {
	Type      sandpit.EventKind `json:"type"`
	Timestamp time.Time         `json:"timestamp"` // of the event
	Data      sandpit.Event     `json:"data"`
	Lost      uint64            `json:"lost,omitempty"` // events given up since the last that arrived
}

func encode(e sandpit.Event, lost uint64) ([]byte, error) {
	return json.Marshal(message{e.Kind, e.Time.UTC(), e, lost})
}

// attempt sends an event once. On an error, again is the least time to wait
// that the receiver asks for; less than 0: it wants no further attempt.
func (s *Sender) attempt(ctx context.Context, q *queue, suffix string, body []byte) (status int, again time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.hook.URL, bytes.NewReader(body))
	if err != nil {
		return 0, -1, err
	}
	id := q.hook.ID + "_" + suffix
	now := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("content-type", "application/json")
	req.Header.Set("user-agent", "sandpit-webhook/1")
	req.Header.Set(headerID, id)
	req.Header.Set(headerTime, now)
	req.Header.Set(headerSignature, sign(q.key, id, now, body))
	res, err := s.client.Do(req)
	if err != nil {
		return 0, 0, shorten(err)
	}
	defer res.Body.Close()
	// What it says is of no use to anyone; a little is read, so that the
	// connection can be used again.
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10)
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return res.StatusCode, 0, nil
	case res.StatusCode == http.StatusGone:
		return res.StatusCode, -1, errGone
	}
	if seconds, err := strconv.Atoi(res.Header.Get("retry-after")); err == nil && seconds > 0 && seconds < 1<<20 {
		again = time.Duration(seconds) * time.Second
	}
	return res.StatusCode, again, fmt.Errorf("it responded with status %d", res.StatusCode)
}

// shorten leaves out what the owner of the hook knows, its URL, and what the
// owner must not know: addresses of this machine and of its name server.
func shorten(err error) error {
	if errors.Is(err, errPrivate) {
		return errPrivate
	}
	var (
		u  *url.Error
		op *net.OpError
	)
	if errors.As(err, &u) {
		if u.Timeout() {
			return errors.New("it did not respond in time")
		}
		err = u.Err
	}
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
		return errors.New("the name in its URL can't be resolved")
	}
	if errors.As(err, &op) {
		err = op.Err
	}
	const limit = 200
	if text := err.Error(); len(text) > limit {
		return errors.New(text[:limit] + "…")
	}
	return err
}

// delay is the time after the n-th attempt, from 0: by chance between half of
// its bound and all, so that what failed together does not come again together.
func (s *Sender) delay(n int) time.Duration {
	d := s.opt.MaxDelay
	if n < 30 {
		d = min(d, s.opt.FirstDelay<<n)
	}
	if d <= 0 { // shifted over
		d = s.opt.MaxDelay
	}
	return d/2 + rand.N(d/2+1)
}
