package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// What ends a context from within.
var (
	errClosed   = fault.Errorf(sandpit.ErrState, "the client is closed")
	errSilent   = errors.New("no response for a minute")
	errDetached = fault.Errorf(sandpit.ErrState, "detached from the process")
)

// remoteError is what a server has said.
type remoteError struct {
	code string
	kind error // nil: none that is known here
	text string
	id   string // of the request
	path string // of a file error

	status int // of the answer; 0 when it came otherwise
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// RequestID returns the ID of the request that failed with err, which is in the
// server's log, or "".
func RequestID(err error) string {
	var e *remoteError
	if errors.As(err, &e) {
		return e.id
	}
	return ""
}

// Bounds of what is read and shown of a server's error, in bytes.
const (
	maxError = 64 << 10
	maxShown = 4 << 10
)

// refusal makes an error of an answer that is not a success.
func refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	return refusalOf(resp, b)
}

func refusalOf(resp *http.Response, body []byte) error {
	if service := resp.Header.Get(v1.ServiceHeader); service != "" {
		return sandpit.WithHint(&remoteError{kind: sandpit.ErrInvalid, text: printable("this address of the server is for clients of " + strconv.Quote(fault.Clip(service)) + ", and not for Sandpit's own API")},
			"use an address that 'sandpit serve --listen' has, or that server.yaml has without a service; on the server's machine, SANDPIT_SERVER=local")
	}
	var e v1.Error
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		// Not Sandpit's: a proxy on the way, or no Sandpit at all.
		r := &remoteError{kind: statusKind(resp.StatusCode), text: printable("the server responded with " + resp.Status), status: resp.StatusCode}
		return retrying(resp, sandpit.WithHint(r, "check the address: a server with TLS needs https, and another program may be listening there"))
	}
	r := told(e)
	if r.status = resp.StatusCode; r.kind == nil {
		r.kind = statusKind(r.status) // the code may be one of a later version
	}
	return retrying(resp, hinted(r, e.Hint))
}

// told makes an error of one in JSON, without its hint.
func told(e v1.Error) *remoteError {
	r := &remoteError{code: e.Code, kind: e.Kind(), text: printable(e.Message), id: e.RequestID, path: e.Path}
	if r.text == "" {
		r.text = "the server reported " + printable(e.Code)
	}
	var start *sandpit.StartError
	if errors.As(r.kind, &start) {
		start.Reason = r.text
	}
	if r.kind == context.Canceled || r.kind == context.DeadlineExceeded {
		r.kind = sandpit.ErrUnavailable // the server's context, not the caller's
	}
	return r
}

// hinted adds a hint; none is none.
func hinted(err error, hint string) error {
	if hint == "" {
		return err
	}
	return sandpit.WithHint(err, printable(hint))
}

// retrying adds when to try again.
func retrying(resp *http.Response, err error) error {
	if n, e := strconv.Atoi(resp.Header.Get("Retry-After")); e == nil && n > 0 && n < 1<<20 {
		return &sandpit.RetryError{Err: err, After: time.Duration(n) * time.Second}
	}
	return err
}

// statusKind is what a status means when the body does not tell.
func statusKind(status int) error {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return sandpit.ErrInvalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return sandpit.ErrForbidden
	case http.StatusTooManyRequests:
		return sandpit.ErrRateLimited
	case http.StatusInsufficientStorage:
		return sandpit.ErrDiskFull
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return sandpit.ErrUnavailable
	case http.StatusNotImplemented, http.StatusNotFound, http.StatusMethodNotAllowed:
		return sandpit.ErrUnsupported // no Sandpit, or an older one
	}
	return nil
}

// failed makes an error of a request that got no answer, or not the whole.
func (c *Client) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errClosed), errors.Is(cause, errDetached):
			return fmt.Errorf("calling the server: %w", cause)
		case errors.Is(cause, errSilent):
			return fault.Errorf(sandpit.ErrUnavailable, "calling the server at %s: %w", c.endpoint.shown, errSilent)
		default:
			return fmt.Errorf("calling the server: %w", ctx.Err())
		}
	}
	var r *remoteError
	if errors.As(err, &r) {
		return err
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, sandpit.ErrForbidden) { // unixsock: another user's program listens there
		return fmt.Errorf("calling the server: %w", err)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnavailable, "calling the server at %s: %w", c.endpoint.shown, opaque{err}), wayOut(err))
}

// wayOut is what can be done about a request that got no answer.
func wayOut(err error) string {
	var (
		stranger *tls.CertificateVerificationError
		plain    tls.RecordHeaderError
	)
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return "check the server's address"
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return "start the server with 'sandpit serve', or check its address"
	case errors.Is(err, fs.ErrPermission):
		return "this server belongs to another user: use your own server, or connect over TCP with a key"
	case errors.As(err, &stranger):
		return "check the address; if it is correct, set SSL_CERT_FILE to the server's certificate"
	case errors.As(err, &plain):
		return "check the address: this server does not use TLS"
	}
	return "check that the server is running, and read its log"
}

// opaque is an error that keeps its text and what the system said, but is not
// taken for the end of a caller's context or of a file.
type opaque struct{ err error }

func (o opaque) Error() string { return printable(o.err.Error()) }

func (o opaque) Unwrap() error {
	if errors.Is(o.err, context.Canceled) || errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, fs.ErrNotExist) || errors.Is(o.err, fs.ErrPermission) {
		return nil
	}
	return o.err
}

// badAnswer is the error of an answer that no Sandpit gives.
func badAnswer(what string) error {
	return &remoteError{kind: sandpit.ErrUnavailable, text: "unexpected response from the server: " + printable(what)}
}

// pathError makes err the error of an operation on a path, as a sandbox
// in-process has it.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var r *remoteError
	if errors.As(err, &r) {
		for _, p := range []string{path, r.path} {
			// The server may have failed at a step that it calls otherwise.
			if step, rest, ok := strings.Cut(r.text, " "+p+": "); ok && !strings.Contains(step, " ") {
				r.text = rest
				break
			}
		}
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// printable makes a text of the server's fit to be shown.
func printable(s string) string { return notation.Printable(s, maxShown) }
