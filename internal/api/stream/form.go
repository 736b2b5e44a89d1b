package stream

import (
	"errors"
	"io"
	"mime/multipart"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// maxPartHead is the maximum of the head of a part, in bytes. The read-ahead of package multipart counts, too.
const maxPartHead = 16 << 10

// Form reads a multipart body (RFC 7578) part by part. What is between the contents of parts is bounded: package multipart
// holds heads of 10 MiB. The setting multipartmaxheaders of go.mod bounds the number of their lines.
//
// A Form serves one goroutine at a time.
type Form struct {
	body    io.Reader
	parts   *multipart.Reader
	part    *multipart.Part // the last, or nil
	bounded bool
	left    int // bytes, if it is bounded
}

// NewForm returns the form that a body has.
func NewForm(body io.Reader, boundary string) *Form {
	f := &Form{body: body}
	f.parts = multipart.NewReader(formReader{f}, boundary)
	return f
}

// Continue makes the form read its rest from body.
func (f *Form) Continue(body io.Reader) { f.body = body }

// Next skips the rest of the present part and returns the next one, or io.EOF at the end of the form. The content is as it
// was sent, unless its Content-Transfer-Encoding is quoted-printable. Errors are refusals that callers may read.
func (f *Form) Next() (*multipart.Part, error) {
	if f.part != nil {
		if _, err := io.Copy(io.Discard, f.part); err != nil {
			return nil, BadForm(err)
		}
	}
	f.bounded, f.left = true, maxPartHead
	part, err := f.parts.NextPart()
	f.bounded = false
	f.part = part
	switch {
	case err == io.EOF: //nolint:errorlint // a body that ends too early wraps it
		return nil, err
	case errors.Is(err, multipart.ErrMessageTooLarge):
		return nil, errPartHead
	case err != nil:
		return nil, BadForm(err)
	}
	return part, nil
}

// errPartHead is the error of a head beyond the bounds.
var errPartHead error = &gate.Refusal{Code: errcode.TooLarge, Message: "the head of a part of the multipart body is too long", Hint: "send only the headers that a part needs"}

// BadForm returns the error of a form whose content can't be read.
func BadForm(err error) error {
	var r *gate.Refusal
	if errors.As(err, &r) {
		return err // of the client's connection
	}
	return gate.Invalid("the multipart body is not valid: "+strings.TrimPrefix(err.Error(), "multipart: "), "let your HTTP library make the body")
}

// formReader is the body of a form as package multipart reads it.
type formReader struct{ f *Form }

// Read reads a part of the body.
func (r formReader) Read(p []byte) (int, error) {
	f := r.f
	if f.bounded && len(p) > f.left {
		if p = p[:f.left]; len(p) == 0 {
			return 0, errPartHead
		}
	}
	n, err := f.body.Read(p)
	f.left -= n
	return n, err
}
