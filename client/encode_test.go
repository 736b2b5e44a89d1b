package client

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// A request that would say something else to the server, or is too long for it, is refused.
func TestRequestsThatCannotBeSaid(t *testing.T) {
	c := against(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the server is sent %s %s", r.Method, r.RequestURI)
	})
	sb := c.sandbox("id", "name")
	long := strings.Repeat("x", v1.MaxCommand)
	_, inList := c.List(t.Context(), sandpit.ListQuery{HasLabels: []string{"a=b"}})
	_, inListOf := c.List(t.Context(), sandpit.ListQuery{Labels: map[string]string{"a=b": "c"}})
	_, withInput := sb.Start(t.Context(), sandpit.Command{Argv: []string{"echo", long}, Stdin: true})
	_, withoutInput := sb.Start(t.Context(), sandpit.Command{Argv: []string{"echo", long}})
	got := map[string]error{
		"a label's value": sb.Update(t.Context(), sandpit.Change{Labels: map[string]string{"a": "x\xffy"}}),
		"a label's name":  sb.Update(t.Context(), sandpit.Change{Labels: map[string]string{"x\xffy": "a"}}),
		"a label to go":   sb.Update(t.Context(), sandpit.Change{RemoveLabels: []string{"x\xffy"}}),
		"a name":          sb.Update(t.Context(), sandpit.Change{Name: "x\xffy"}),
		"a list":          inList, "a list of a label": inListOf,
		"a command": withoutInput, "a command with an input": withInput,
	}
	for _, err := range c.Events(t.Context(), sandpit.EventQuery{HasLabels: []string{""}}) {
		got["events"] = err
	}
	for _, err := range c.RemoveAll(t.Context(), sandpit.ListQuery{HasLabels: []string{"a=b"}}) {
		got["a removal"] = err
	}
	if len(got) != 10 {
		t.Errorf("got %d errors", len(got))
	}
	for what, err := range got {
		if !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A Stop of the longest grace is sent, and refused by the server.
func TestLongestGrace(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"code":"invalid","message":"grace is at most 600"}`)
	})
	if err := c.sandbox("id", "name").Stop(t.Context(), math.MaxInt64); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}
