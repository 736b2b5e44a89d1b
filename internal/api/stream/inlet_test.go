package stream

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// broken is a process whose input panics.
type broken struct{ reader }

func (p *broken) Stdin() io.WriteCloser { return p }

func (*broken) Write([]byte) (int, error) { panic("on purpose") }

// anyone is all keys and an audit that takes everything.
type anyone struct{}

func (anyone) Verify(context.Context, string) (gate.Caller, error) {
	return gate.Caller{Key: "k", Namespace: "n"}, nil
}

func (anyone) Append(context.Context, audit.Record) (int, error) { return audit.MaxEntry, nil }

// A panic while input is passed on ends the call, and not the server.
func TestInletPanics(t *testing.T) {
	log := new(testkit.Buffer)
	g := gate.New(gate.Options{Keys: anyone{}, Audit: anyone{}, Log: slog.New(slog.NewTextHandler(log, nil))})
	h := g.Handler(gate.Dialect{
		Routes: []gate.Route{{Method: http.MethodPost, Path: "/run", ID: "run", Handle: func(c *gate.Call) error {
			in := newInlet(c, new(broken), v1.Window, func(byte, []byte) {})
			if err := in.put([]byte("input"), false); err != nil {
				t.Error(err)
			}
			<-in.done
			return context.Cause(c.Ctx)
		}}},
		Credential: func(*http.Request) (string, bool) { return "k", false },
		Fail:       func(c *gate.Call, f gate.Failure) { c.W.WriteHeader(f.Status) },
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/run", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(log.String(), `msg="passing input on panicked"`) {
		t.Errorf("%d\n%s", w.Code, log)
	}
}
