package intercept

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/engine"
)

// Of secrets that were replaced, the latest are kept.
func TestFormerSecretsAreBounded(t *testing.T) {
	var ss secrets
	for i := range 3 * maxFormer {
		next, err := compileSecrets([]engine.Secret{{Name: "a", Placeholder: "sandpit-the-placeholder", Value: fmt.Append(nil, i), Hosts: []string{"good.test"}}})
		if err != nil {
			t.Fatal(err)
		}
		ss = next.with(ss)
	}
	if len(ss) != 1+maxFormer || string(ss[1].Value) != fmt.Sprint(3*maxFormer-2) {
		t.Errorf("%d are kept, the latest is %s", len(ss), ss[1].Value)
	}
}

// Large former values are bounded by their size.
func TestFormerSecretsAreSmall(t *testing.T) {
	const size = 64 << 10
	value := func(i int) []byte { return append(make([]byte, size), fmt.Sprint(i)...) }
	var ss secrets
	for i := range maxFormer {
		ss = secrets{{Secret: engine.Secret{Value: value(i)}}}.with(ss)
	}
	if len(ss) != 1+maxFormerSize/size-1 || !bytes.Equal(ss[1].Value, value(maxFormer-2)) {
		t.Errorf("%d secrets are kept", len(ss))
	}
}

// closes counts how often a body is closed.
type closes struct {
	io.Reader
	n int
}

func (c *closes) Close() error { c.n++; return nil }

// A body may be closed while another goroutine reads its end, as transports of HTTP/2 do. It is closed, too, if it
// has ended.
func TestBodiesAreClosedWhileTheyEnd(t *testing.T) {
	ended := 0
	body := &closes{Reader: strings.NewReader("body")}
	b := newEnding(body, func() error { ended++; return nil })
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	text, err := io.ReadAll(b)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n, again := b.Read(make([]byte, 1)); string(text) != "body" || err != nil || n != 0 || !errors.Is(again, io.EOF) {
		t.Errorf("%q, %v, then %d, %v", text, err, n, again)
	}
	if b.Close() != nil || ended != 1 || body.n != 2 {
		t.Errorf("ended %d times, closed %d times", ended, body.n)
	}
}
