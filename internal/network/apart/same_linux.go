package apart

import (
	"errors"
	"reflect"
	"slices"

	"github.com/sandpit-dev/sandpit/internal/engine"
)

// same says what of a sandbox's terms stays as it is. A change of one secret is small then, however many and large
// the others are.
type same struct {
	Rules   bool     // all but Secrets
	Secrets []string // names of all, in their order: those that were not sent stay
}

// difference returns what has to be sent of terms that replace others.
func difference(was, now engine.Terms) (sent engine.Terms, s *same) {
	sent, s = now, &same{}
	sent.Secrets = nil
	for _, x := range now.Secrets {
		s.Secrets = append(s.Secrets, x.Name)
		if i := secretIn(was.Secrets, x.Name); i < 0 || !reflect.DeepEqual(was.Secrets[i], x) {
			sent.Secrets = append(sent.Secrets, x)
		}
	}
	rules := func(t engine.Terms) engine.Terms {
		t.Secrets, t.Renew = nil, nil
		return t
	}
	if s.Rules = reflect.DeepEqual(rules(was), rules(now)); s.Rules {
		sent = engine.Terms{Secrets: sent.Secrets}
	}
	return sent, s
}

// whole is the reverse of difference.
func (s *same) whole(was, sent engine.Terms) (engine.Terms, error) {
	now := sent
	if s.Rules {
		now = was
	}
	now.Secrets = nil
	for _, name := range s.Secrets {
		from := sent.Secrets
		i := secretIn(from, name)
		if i < 0 {
			from = was.Secrets
			i = secretIn(from, name)
		}
		if i < 0 {
			return now, errors.New("a secret was not sent")
		}
		now.Secrets = append(now.Secrets, from[i])
	}
	return now, nil
}

func secretIn(all []engine.Secret, name string) int {
	return slices.IndexFunc(all, func(x engine.Secret) bool { return x.Name == name })
}
