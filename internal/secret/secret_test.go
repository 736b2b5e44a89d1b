package secret

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestCheck(t *testing.T) {
	valid := Secret{Namespace: "a", Name: "x", Value: "v"}
	for name, change := range map[string]func(*Secret){
		"no name":                   func(s *Secret) { s.Name = "" },
		"a path as name":            func(s *Secret) { s.Name = "../x" },
		"no value":                  func(s *Secret) { s.Value = "" },
		"a long value":              func(s *Secret) { s.Value = strings.Repeat("v", MaxValue+1) },
		"a NUL":                     func(s *Secret) { s.Value = "a\x00b" },
		"not UTF-8":                 func(s *Secret) { s.Value = "\xff" },
		"an address":                func(s *Secret) { s.Hosts = []string{"192.0.2.1"} },
		"a set":                     func(s *Secret) { s.Hosts = []string{"llm-apis"} },
		"UDP":                       func(s *Secret) { s.Hosts = []string{"udp:example.com"} },
		"a path":                    func(s *Secret) { s.Hosts = []string{"GET:https://example.com/"} },
		"a public suffix":           func(s *Secret) { s.Hosts = []string{"*.co.uk"} },
		"many hosts":                func(s *Secret) { s.Hosts = slices.Repeat([]string{"example.com"}, maxHosts+1) },
		"a variable with =":         func(s *Secret) { s.Variables = []string{"A=B"} },
		"a variable with a digit":   func(s *Secret) { s.Variables = []string{"1A"} },
		"the server's, for no host": func(s *Secret) { s.Namespace = "" },
	} {
		s := valid
		change(&s)
		err := s.Check()
		if !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		} else if s.Value != "" && s.Value != "v" && strings.Contains(err.Error(), s.Value) {
			t.Errorf("%s: the error has the value", name)
		}
	}
	if err := valid.Check(); err != nil {
		t.Error(err)
	}
}

func TestResolve(t *testing.T) {
	bound := Secret{Name: "x-y", Value: "v", Binding: Binding{Hosts: []string{"api.example.com", "*.example.org", "example.net:8443"}}}
	free := Secret{Name: "free", Value: "v"}
	for _, c := range []struct {
		about  string
		secret Secret
		use    sandpit.Secret
		hosts  []string
		kind   error
	}{
		{"its hosts", bound, sandpit.Secret{}, bound.Hosts, nil},
		{"one of them", bound, sandpit.Secret{Hosts: []string{"api.example.com"}}, []string{"api.example.com"}, nil},
		{"in capital letters", bound, sandpit.Secret{Hosts: []string{"API.example.com:443"}}, []string{"API.example.com:443"}, nil},
		{"below a wildcard", bound, sandpit.Secret{Hosts: []string{"a.b.example.org"}}, []string{"a.b.example.org"}, nil},
		{"another", bound, sandpit.Secret{Hosts: []string{"evil.example"}}, nil, sandpit.ErrForbidden},
		{"another port", bound, sandpit.Secret{Hosts: []string{"api.example.com:8443"}}, nil, sandpit.ErrForbidden},
		{"the wildcard's parent", bound, sandpit.Secret{Hosts: []string{"example.org"}}, nil, sandpit.ErrForbidden},
		{"a wider wildcard", bound, sandpit.Secret{Hosts: []string{"*.example.com"}}, nil, sandpit.ErrForbidden},
		{"another behind one of them", bound, sandpit.Secret{Hosts: []string{"api.example.com", "evil.example"}}, nil, sandpit.ErrForbidden},
		{"of one without", free, sandpit.Secret{Hosts: []string{"example.com"}}, []string{"example.com"}, nil},
		{"none at all", free, sandpit.Secret{}, nil, sandpit.ErrInvalid},
		{"as env", free, sandpit.Secret{Env: true}, nil, nil},
	} {
		r, err := c.secret.Resolve(c.use)
		switch {
		case c.kind != nil:
			if !errors.Is(err, c.kind) {
				t.Errorf("%s: %v", c.about, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.about, err)
		default:
			if diff := cmp.Diff(c.hosts, r.Hosts); diff != "" {
				t.Errorf("%s: %s", c.about, diff)
			}
		}
	}
	if r, err := bound.Resolve(sandpit.Secret{}); err != nil || !slices.Equal(r.Variables, []string{"X_Y"}) ||
		!slices.Equal(r.Rules(), []string{"api.example.com:443", "*.example.org:443", "example.net:8443"}) {
		t.Errorf("got %+v, %v", r, err)
	}
	lines := Secret{Name: "x", Value: "a\r\nHost: evil", Binding: bound.Binding}
	if _, err := lines.Resolve(sandpit.Secret{}); !errors.Is(err, sandpit.ErrInvalid) || strings.Contains(err.Error(), "evil") {
		t.Errorf("a value with lines in a header: %v", err)
	}
	if _, err := lines.Resolve(sandpit.Secret{Env: true}); err != nil {
		t.Errorf("a value with lines in the environment: %v", err)
	}
	if _, err := (&Secret{Name: "1x", Value: "v"}).Resolve(sandpit.Secret{Env: true}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a name that is not a variable: %v", err)
	}
}

func TestServices(t *testing.T) {
	all := BuiltIn()
	for _, s := range all {
		b := s.Binding()
		if err := b.check(); err != nil || len(s.Hosts) == 0 || len(s.Variables) == 0 || s.Header == "" {
			t.Errorf("%s: %+v, %v", s.Name, s, err)
		}
	}
	if !slices.IsSortedFunc(all, func(a, b Service) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("they are not in order")
	}
	more, err := all.With(Service{Name: "openai", Hosts: []string{"llm.example.com"}}, Service{Name: "own", Hosts: []string{"own.example.com"}})
	if err != nil || len(more) != len(all)+1 {
		t.Fatalf("%d services, %v", len(more), err)
	}
	if s, _ := more.Find("openai"); !slices.Equal(s.Hosts, []string{"llm.example.com"}) {
		t.Errorf("replaced: %+v", s)
	}
	if _, err := all.With(Service{Name: "own"}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("without hosts: %v", err)
	}
}
