package webhook

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// A test sends one signed message, tells its outcome, and leaves the queue and status alone.
func TestATestIsSentOnce(t *testing.T) {
	r := receive(t, func(n int, w http.ResponseWriter) {
		if n > 0 {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	s := sender(t, r, Options{Private: true})
	h := hookOf(r)
	if err := s.Add(h); err != nil {
		t.Fatal(err)
	}
	again := func() { // as if its time were over
		s.mu.Lock()
		clear(s.tested)
		s.mu.Unlock()
	}
	if got, err := s.Test(t.Context(), h.Namespace, h.ID); err != nil || got.Err != nil || got.Status != 200 || len(r.got) != 1 || r.got[0].Type != KindTest {
		t.Errorf("got %+v, %v; the receiver %+v", got, err, r.got)
	}
	_, err := s.Test(t.Context(), h.Namespace, h.ID)
	if !errors.Is(err, sandpit.ErrRateLimited) || sandpit.RetryAfter(err) <= 0 || sandpit.RetryAfter(err) > testEvery {
		t.Errorf("two tests at once: %v, again after %v", err, sandpit.RetryAfter(err))
	}
	again()
	if got, err := s.Test(t.Context(), h.Namespace, h.ID); err != nil || got.Err == nil || got.Status != http.StatusTeapot {
		t.Errorf("got %+v, %v", got, err)
	}
	if n := len(r.ids); n != 2 || r.ids[0] == r.ids[1] {
		t.Errorf("the receiver got %q", r.ids)
	}
	if st := s.Status(h.ID); st != (Status{}) {
		t.Errorf("the status is %+v", st)
	}
	again()
	for namespace, id := range map[string]string{"other": h.ID, h.Namespace: "none"} {
		if _, err := s.Test(t.Context(), namespace, id); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s in %s: %v", id, namespace, err)
		}
	}
}

// A test reaches no address that an event does not reach.
func TestATestReachesNoPrivateAddress(t *testing.T) {
	r := receive(t, ok)
	s := sender(t, r, Options{})
	h := hookOf(r)
	h.URL = "https://localhost" + r.URL[strings.LastIndexByte(r.URL, ':'):]
	if err := s.Add(h); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Test(t.Context(), h.Namespace, h.ID); err != nil || got.Err == nil || !strings.Contains(got.Err.Error(), "not public") || got.Status != 0 || r.n != 0 {
		t.Errorf("got %+v, %v; %d requests came through", got, err, r.n)
	}
	if got, err := s.Test(t.Context(), h.Namespace, h.ID); err == nil {
		t.Errorf("a second test at once: %+v", got)
	}
}
