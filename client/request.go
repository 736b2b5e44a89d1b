package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// patience is how long a server may take for what takes it no time, and how
// long a stream may be silent: the server gives a sign of life every 20 s.
const patience = time.Minute

// maxAnswer bounds the JSON of an answer, in bytes. The largest are lists of
// 10,000 files.
const maxAnswer = 64 << 20

// request is what is asked of the server.
type request struct {
	method string
	path   string // may have a query when query is nil
	query  url.Values
	header http.Header
	body   []byte  // JSON, or nil
	stream *source // content, or nil
	accept string  // default application/json

	maxEvent int // bytes of an event; 0: maxEvent
}

// send sends a request and returns the answer, which is a success. When ctx
// ends, reading the body fails.
func (c *Client) send(ctx context.Context, r request) (resp *http.Response, err error) {
	err = c.inTurn(ctx, func() (again bool, err error) {
		resp, err = c.sendOnce(ctx, r)                     //nolint:bodyclose // the caller closes it
		return r.stream == nil || !r.stream.touched(), err // what has been read is gone
	})
	return resp, err
}

// inTurn makes a request, and if it can be made again, does so as long as the
// server says that it has not even looked at it, because this key asks too often.
func (c *Client) inTurn(ctx context.Context, ask func() (again bool, err error)) error {
	for until := time.Now().Add(away); ; {
		again, err := ask()
		var r *remoteError
		if !again || !errors.As(err, &r) || r.code != errcode.RateLimited {
			return err
		}
		after := max(sandpit.RetryAfter(err), time.Second)
		if time.Now().Add(after).After(until) {
			return err
		}
		timer := time.NewTimer(after/2 + rand.N(after))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return c.failed(ctx, ctx.Err())
		}
	}
}

func (c *Client) sendOnce(ctx context.Context, r request) (*http.Response, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	switch {
	case r.body != nil:
		body = bytes.NewReader(r.body)
	case r.stream != nil:
		// Not the caller's context, of which ctx may hear a little later: what is
		// made of the error is asked of ctx.
		r.stream.ctx, body = ctx, r.stream
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			r.stream.conn, _ = info.Conn.(holder)
		}})
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("calling the server: %w: %w", sandpit.ErrInvalid, err)
	}
	maps.Copy(req.Header, c.header)
	maps.Copy(req.Header, r.header)
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	} else if r.stream != nil {
		if req.Header.Get("Content-Type") == "" {
			req.Header.Set("Content-Type", "application/octet-stream")
		}
		if c.opts.Key != "" {
			// A server that refuses does so before the content is sent.
			req.Header.Set("Expect", "100-continue")
		}
	}
	accept := r.accept
	if accept == "" {
		accept = "application/json"
	}
	req.Header.Set("Accept", accept)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return resp, nil
}

// under returns a context that ends with ctx and with the client.
func (c *Client) under(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(errClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// call sends a request and reads the JSON of the answer into out, unless out is
// nil. It takes as long as it takes.
func (c *Client) call(ctx context.Context, r request, out any) error {
	ctx, cancel := c.under(ctx)
	defer cancel()
	resp, err := c.send(ctx, r) //nolint:bodyclose // drain closes it
	if err != nil {
		return err
	}
	defer drain(resp.Body)
	if out == nil {
		return nil
	}
	if resp.StatusCode == http.StatusNoContent {
		return badAnswer("nothing")
	}
	b, err := readAll(resp.Body, resp.ContentLength)
	if err != nil {
		return c.failed(ctx, err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return badAnswer("unreadable JSON: " + err.Error())
	}
	return nil
}

// quick is call for what takes the server no time.
func (c *Client) quick(ctx context.Context, r request, out any) error {
	return c.within(ctx, patience, r, out)
}

// within is call that gives up after a time.
func (c *Client) within(ctx context.Context, limit time.Duration, r request, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSilent)
	defer cancel()
	return c.call(ctx, r, out)
}

// readAll reads an answer of at most maxAnswer.
func readAll(r io.Reader, length int64) ([]byte, error) {
	if length > maxAnswer {
		return nil, badAnswer("a response that is too large")
	}
	buf := bytes.NewBuffer(make([]byte, 0, max(length, 0)+bytes.MinRead))
	n, err := buf.ReadFrom(io.LimitReader(r, maxAnswer+1))
	if err == nil && n > maxAnswer {
		err = badAnswer("a response that is too large")
	}
	return buf.Bytes(), err
}

// drain ends an answer so that its connection can be used again, unless much
// is left of it.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10)
	_ = body.Close()
}

// isType reports whether an answer is of a media type.
func isType(resp *http.Response, want string) bool {
	got, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(got), want)
}
