package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// RemoveAll removes more sandboxes than a server does for one request, and no others.
func TestRemoveAll(t *testing.T) {
	testkit.NeedWorkingHost(t)
	s := serve(t)
	c := s.overUnix(t)
	const many = 51 // a request removes 50
	var want []string
	var mu sync.Mutex
	var all sync.WaitGroup
	create := func(spec sandpit.Spec) string {
		sb, err := c.Create(t.Context(), spec)
		if err != nil {
			t.Error(err)
			return ""
		}
		return sb.ID()
	}
	for i := range 3 {
		all.Go(func() {
			for range many / 3 {
				id := create(sandpit.Spec{Labels: map[string]string{"team": "a", "n": fmt.Sprint(i)}})
				mu.Lock()
				want = append(want, id)
				mu.Unlock()
			}
		})
	}
	other := create(sandpit.Spec{Name: "other", Labels: map[string]string{"team": "b"}})
	all.Wait()
	if t.Failed() {
		return
	}
	remove := func(q sandpit.ListQuery) (removed []string) {
		t.Helper()
		for info, err := range c.RemoveAll(t.Context(), q) {
			if err != nil {
				t.Errorf("%+v: %v", info, err)
			}
			removed = append(removed, info.ID)
		}
		return removed
	}
	got := remove(sandpit.ListQuery{Labels: map[string]string{"team": "a"}, HasLabels: []string{"n"}, States: []sandpit.State{sandpit.StateRunning}, Limit: 1})
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d are removed", len(got), len(want))
	}
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != other {
		t.Errorf("left are %+v, %v", page.Sandboxes, err)
	}
	if got := remove(sandpit.ListQuery{}); !slices.Equal(got, []string{other}) {
		t.Errorf("without a filter %q are removed, want %s", got, other)
	}
	if got := remove(sandpit.ListQuery{}); len(got) != 0 {
		t.Errorf("of none %q are removed", got)
	}
}

// A sandbox that can't be removed is told once, and does not keep the others.
func TestRemoveAllFails(t *testing.T) {
	stuck := v1.Removed{ID: "id1", Name: "stuck", Error: &v1.Error{Code: "unavailable", Message: "the kernel does not answer", Hint: "try again later"}}
	parts := []v1.RemovedList{
		{Sandboxes: []v1.Removed{stuck}, Next: "1"}, // all of the oldest
		{Sandboxes: []v1.Removed{{ID: "id2", Name: "two"}, {ID: "id3", Name: "three"}}, Next: "3"},
		{Sandboxes: []v1.Removed{}},
	}
	uris := []string{"/v1/sandboxes?state=failed", "/v1/sandboxes?after=1&state=failed", "/v1/sandboxes?after=3&state=failed"}
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete || asked == len(parts) || r.URL.RequestURI() != uris[asked] {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(parts[asked])
		asked++
	}))
	defer server.Close()
	c, err := client.New(client.Options{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var told []string
	for info, err := range c.RemoveAll(t.Context(), sandpit.ListQuery{States: []sandpit.State{sandpit.StateFailed}}) {
		text := info.Name
		if err != nil {
			text += ": " + err.Error() + " (" + sandpit.Hint(err) + ")"
			if !errors.Is(err, sandpit.ErrUnavailable) {
				t.Errorf("%v", err)
			}
		}
		told = append(told, text)
	}
	if want := []string{"stuck: the kernel does not answer (try again later)", "two", "three"}; !slices.Equal(told, want) || asked != len(parts) {
		t.Errorf("after %d requests it told %q", asked, told)
	}
	n := 0
	for info, err := range c.RemoveAll(t.Context(), sandpit.ListQuery{}) {
		if n++; info.ID != "" || !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("of a request that is refused it tells %+v, %v", info, err)
		}
	}
	if n != 1 {
		t.Errorf("of a request that is refused it tells %d times", n)
	}
}
