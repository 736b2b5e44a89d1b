package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// TestNestedNamespaces has callers whose namespaces have names that resemble each other. Sandboxes of
// nested namespaces count as their owner's, and are nobody else's.
func TestNestedNamespaces(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.policy("policies:\n  three:\n    sandboxes: 3\n")
	s.start()
	team := s.keyOf("team", "three")
	inA, inB := s.in(team, "a"), s.in(team, "b")
	defer inA.Close()
	defer inB.Close()
	box := create(t, inA, "box")
	create(t, inB, "box")
	both := s.in(team, sandpit.AllNamespaces)
	defer both.Close()

	// Nothing leads to them from another namespace, whatever its name, and whatever it asks for.
	for _, namespace := range []string{"a", "tea", "team-a", "teama", "team.a"} {
		key := s.keyOf(namespace, "")
		for _, nested := range []string{"", "a", "team", sandpit.AllNamespaces} {
			c := s.in(key, nested)
			for _, name := range []string{"box", box.ID()} {
				if _, err := c.Get(t.Context(), name); !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("%s in %q: %v", namespace, nested, err)
				}
				if err := c.Remove(t.Context(), name); !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("%s in %q removes: %v", namespace, nested, err)
				}
			}
			if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) > 0 {
				t.Errorf("%s in %q lists %+v, %v", namespace, nested, page, err)
			}
			for i, err := range c.RemoveAll(t.Context(), sandpit.ListQuery{}) {
				t.Errorf("%s in %q removes %v, %v", namespace, nested, i, err)
			}
			_ = c.Close()
		}
	}

	// They share the bounds of their owner.
	own := s.with(team)
	defer own.Close()
	create(t, own, "box")
	inC := s.in(team, "c")
	defer inC.Close()
	for _, c := range []sandpit.Client{own, inA, inC} {
		if _, err := c.Create(t.Context(), small("")); !errors.Is(err, sandpit.ErrQuota) {
			t.Errorf("a fourth sandbox: %v", err)
		}
	}

	// What is not the name of a namespace is refused, and the audit has the name.
	for _, nested := range []string{"", "a/b", "../team", "a b", "-a", strings.Repeat("a", 64), "**"} {
		if status, body, _ := s.get("GET", "http://sandpit/v1/sandboxes", team, "", "X-Sandpit-Namespace", nested); status != http.StatusBadRequest || !strings.Contains(body, "X-Sandpit-Namespace is not") {
			t.Errorf("%q: %d %s", nested, status, body)
		}
	}
	entries := func(namespace string) (all []string) {
		_, body, _ := s.get("GET", "http://sandpit/v1/audit?limit=1000&action=createSandbox&namespace="+namespace, "", "")
		var list v1.AuditList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		for _, e := range list.Entries {
			if e.Phase == "end" && e.Status == http.StatusCreated {
				all = append(all, e.Namespace)
			}
		}
		return all
	}
	for namespace, want := range map[string][]string{"team": {"team/a", "team/b", "team"}, "team/b": {"team/b"}, "tea": nil} {
		if got := entries(namespace); !slices.Equal(got, want) {
			t.Errorf("the audit of %s has %q, want %q", namespace, got, want)
		}
	}

	// An Idempotency-Key of one is not answered with what is in another.
	for nested, want := range map[string]int{"a": http.StatusOK, "b": http.StatusUnprocessableEntity} {
		header := []string{"Idempotency-Key", "key-" + nested, "X-Sandpit-Namespace", "a"}
		if status, body, _ := s.get("POST", "http://sandpit/v1/sandboxes/box/exec", team, `{"argv":["true"]}`, header...); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		header[3] = nested
		if status, body, _ := s.get("POST", "http://sandpit/v1/sandboxes/box/exec", team, `{"argv":["true"]}`, header...); status != want {
			t.Errorf("a repeated request in %s: %d %s", nested, status, body)
		}
	}

	// The next server has them where they were.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	page, err := both.List(t.Context(), sandpit.ListQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range page.Sandboxes {
		got = append(got, i.Namespace+"/"+i.Name)
	}
	if want := []string{"a/box", "b/box", "/box"}; !slices.Equal(got, want) {
		t.Errorf("after a restart there are %q, want %q", got, want)
	}
	if found, err := inA.Get(t.Context(), "box"); err != nil || found.ID() != box.ID() {
		t.Errorf("got %v, %v", found, err)
	}
	removed := 0
	for _, err := range inA.RemoveAll(t.Context(), sandpit.ListQuery{}) {
		if removed++; err != nil {
			t.Error(err)
		}
	}
	if page, err := both.List(t.Context(), sandpit.ListQuery{}); err != nil || removed != 1 || len(page.Sandboxes) != 2 {
		t.Errorf("removing all of a nested one removes %d, and leaves %+v, %v", removed, page, err)
	}
}
