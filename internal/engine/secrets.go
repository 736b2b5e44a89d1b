package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Secrets has the secrets that sandboxes may use. All methods are safe for concurrent use.
type Secrets interface {
	// FindSecret returns what the use of a secret by a namespace means. With a Value it is a sandbox's
	// own, and no other is looked for. It returns ErrNotFound if neither the namespace nor the server has one of that name, ErrInvalid if the use makes no
	// sense, and ErrForbidden for hosts that the secret is not bound to. Errors never have the value.
	FindSecret(ctx context.Context, namespace string, use sandpit.Secret) (FoundSecret, error)

	// RenewSecret renews the value of a secret that FindSecret finds and that is renewable, because an
	// origin has refused it with 401. When it returns, SecretChanged was called, unless the value is
	// too new or can't be renewed. Any number of callers may ask at once, and often.
	RenewSecret(ctx context.Context, namespace, name string) error
}

// FoundSecret is a secret as a sandbox uses it.
type FoundSecret struct {
	Variables   []string // which get the placeholder or the value
	Hosts       []string // rules with which they may be reached; at least one, unless the sandbox is to have the value
	Prefix      string   // of the placeholder
	Query, Body bool     // see Secret
	Value       string
	Given       map[string]string // of Variables that get a part of the value: the part, or "" for none
	Sign        bool              // see Secret
	Shared      bool              // it is the server's, and not the namespace's
	Renewable   bool              // see Secrets.RenewSecret
}

// maxSecrets bounds the secrets that one sandbox uses.
const maxSecrets = 32

// checkSecrets checks uses of secrets as far as no stored one needs to be known.
func checkSecrets(uses []sandpit.Secret) error {
	if len(uses) > maxSecrets {
		return fault.Invalidf("%d secrets exceed the limit of %d for one sandbox", len(uses), maxSecrets)
	}
	names := map[string]bool{}
	for _, u := range uses {
		if err := notation.CheckSecretName(u.Name); err != nil {
			return err
		}
		switch {
		case names[u.Name]:
			return fault.Invalidf("the secret %q is given twice", u.Name)
		case u.Env && len(u.Hosts) > 0:
			return sandpit.WithHint(fault.Invalidf("the secret %q can't be both bound to hosts and in the environment", u.Name), "omit one of them")
		}
		names[u.Name] = true
	}
	return nil
}

// secretUses are the secrets that a sandbox uses. Its record has all but the values of stored ones.
type secretUses struct {
	uses         []sandpit.Secret     // without values
	placeholders map[string]string    // by name, of those that are bound to hosts
	own          map[string]OwnSecret // Made.Own; replaced, and never changed

	bound    []Secret // with the present values; those that were removed are missing
	recalled bool     // those are not known yet, nor charged
}

// madeOf are the uses of secrets as a new sandbox is made with them.
type madeOf struct {
	secretUses
	env []string      // variables with placeholders, or with values
	gap []sandpit.Gap // says which values the sandbox has
}

// secretCopies are those of a bound value: here, in the network's process, and there as a former value.
const secretCopies = 3

// cost is the size of the secrets in memory.
func (u *secretUses) cost() int64 {
	n := u.boundCost(u.bound)
	for name, own := range u.own {
		n += int64(len(name)) + 128 + (1+secretCopies)*int64(len(own.Value))
	}
	return n
}

// boundCost is the size of bound secrets. The values of own ones are not in it.
func (u *secretUses) boundCost(bound []Secret) (n int64) {
	for _, b := range bound {
		n += int64(len(b.Name)+len(b.Placeholder)) + 256
		for _, host := range b.Hosts {
			n += secretCopies * (int64(len(host)) + ledger.StringCost)
		}
		if _, own := u.own[b.Name]; !own {
			n += secretCopies * int64(len(b.Value))
		}
	}
	return n
}

// useSecrets finds the secrets of a Spec.
func (e *Engine) useSecrets(ctx context.Context, namespace string, p policy.Policy, spec *sandpit.Spec) (m madeOf, err error) {
	if len(spec.Secrets) == 0 {
		return m, nil
	}
	if err := checkSecrets(spec.Secrets); err != nil {
		return m, err
	}
	if e.opts.Secrets == nil {
		return m, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "using the secret %q: this program stores no secrets", spec.Secrets[0].Name), "create the sandbox at a server: 'sandpit create --secret'")
	}
	m.placeholders = map[string]string{}
	taken := map[string]string{} // variables, and what sets them
	for _, entry := range spec.Env {
		name, _, _ := strings.Cut(entry, "=")
		taken[name] = "env"
	}
	var exposed []string
	for _, use := range spec.Secrets {
		failed := func(err error) error { return fmt.Errorf("using the secret %q: %w", use.Name, err) }
		if use.Value == "" { // the caller needs no permission for what it has
			if err := p.AllowSecret(use.Name); err != nil {
				return m, err
			}
		}
		found, err := e.opts.Secrets.FindSecret(ctx, namespace, use)
		if errors.Is(err, sandpit.ErrNotFound) {
			return m, sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "no secret is named %q", use.Name), "run 'sandpit secret set "+use.Name+"' first, or give the sandbox its own with --secret-from")
		} else if err != nil {
			return m, failed(err)
		}
		if use.Env {
			if err := p.AllowSecretEnv(use.Name, found.Shared); err != nil {
				return m, err
			}
		}
		if len(found.Hosts) > 0 {
			if _, err := e.allowEgress(granted{}, nil, true, found.Hosts, p); errors.Is(err, sandpit.ErrForbidden) {
				return m, sandpit.WithHint(fmt.Errorf("reaching the hosts of the secret %q: %w", use.Name, err), "ask the operator to allow them in the policy")
			}
		}
		value := found.Value
		if use.Env {
			exposed = append(exposed, use.Name)
		} else {
			value = placeholder(found.Prefix)
			m.placeholders[use.Name] = value
			m.bound = append(m.bound, bind(use.Name, value, found))
			if use.Value != "" {
				if m.own == nil {
					m.own = map[string]OwnSecret{}
				}
				m.own[use.Name] = OwnSecret{strings.Clone(use.Value), time.Now().UTC()}
			}
		}
		for _, variable := range found.Variables {
			if by, ok := taken[variable]; ok {
				return m, sandpit.WithHint(failed(fault.Invalidf("its variable %s is set by %s, too", variable, by)), "name another variable, as in --secret NAME=VARIABLE")
			}
			taken[variable] = "the secret " + use.Name
			given, part := found.Given[variable]
			if !part {
				given = value
			}
			if given != "" {
				m.env = append(m.env, variable+"="+given)
			}
		}
		use.Value = ""
		m.uses = append(m.uses, use)
	}
	spec.Secrets = m.uses
	if len(exposed) > 0 {
		m.gap = []sandpit.Gap{{
			What: feature.GapSecretEnv, Why: "everything in the sandbox can read the values of these secrets, because it was asked for: " + strings.Join(exposed, ", "),
			Fix: "bind them to hosts (--secret)",
		}}
	}
	return m, nil
}

func bind(name, placeholder string, f FoundSecret) Secret {
	return Secret{Name: name, Placeholder: placeholder, Value: []byte(f.Value), Hosts: f.Hosts, Query: f.Query, Body: f.Body, Sign: f.Sign, Renewable: f.Renewable}
}

// placeholder returns a new placeholder: random, so that no sandbox knows that of another, after the
// beginning by which clients check the form of a value.
func placeholder(prefix string) string {
	return prefix + "sandpit" + strings.ToLower(rand.Text()) // 130 bits
}

// findSecrets finds the present values of secrets that the sandbox uses: those with some names, or with nil all.
// Those that were removed, or that are no longer bound to its hosts, are left out. Precondition: s.joining is held.
func (s *Sandbox) findSecrets(ctx context.Context, names map[string]bool) error {
	s.mu.Lock()
	was := s.secretUses
	s.mu.Unlock()
	var bound []Secret
	for _, use := range was.uses {
		if use.Env || s.engine.opts.Secrets == nil {
			continue
		}
		if names != nil && !names[use.Name] && !was.recalled {
			if i := slices.IndexFunc(was.bound, func(b Secret) bool { return b.Name == use.Name }); i >= 0 {
				bound = append(bound, was.bound[i])
			}
			continue
		}
		own, is := was.own[use.Name]
		if use.Value = own.Value; is && own.Value == "" {
			continue
		}
		found, err := s.engine.opts.Secrets.FindSecret(ctx, s.namespace, use)
		switch placeholder := was.placeholders[use.Name]; {
		case errors.Is(err, sandpit.ErrNotFound), errors.Is(err, sandpit.ErrInvalid), errors.Is(err, sandpit.ErrForbidden):
		case err != nil:
			return fmt.Errorf("finding the secret %q: %w", use.Name, err)
		case placeholder != "":
			bound = append(bound, bind(use.Name, placeholder, found))
		}
	}
	more := was.boundCost(bound) - was.boundCost(was.bound)
	if more > 0 && !was.recalled {
		if err := s.pay(more); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.bound, s.recalled = bound, false
	if was.recalled && !s.repaid { // whatever the bounds are: it is there
		s.memory.Add(more)
		s.cost += more
	}
	s.mu.Unlock()
	if more < 0 {
		s.refund(-more)
	}
	return nil
}

// hosts returns the rules with which the hosts of the bound secrets are reached.
func (u *secretUses) hosts() (rules []string) {
	for _, b := range u.bound {
		rules = append(rules, b.Hosts...)
	}
	return rules
}

// secretHosts are rules with which hosts of a sandbox's secrets are reached.
type secretHosts struct {
	within []string // that are allowed
	beyond []string // the policy does not allow them
	over   []string // the sandbox has too many rules
}

// secretHosts is Engine.secretHosts for the sandbox's own.
func (s *Sandbox) secretHosts(e granted) secretHosts {
	s.mu.Lock()
	all := s.hosts()
	s.mu.Unlock()
	return s.engine.secretHosts(all, e)
}

// secretHosts returns those of all that g does not name itself, by the policy that granted g.
func (e *Engine) secretHosts(all []string, g granted) (h secretHosts) {
	all = withRules(g.Egress, all).Allow[len(g.Allow):]
	if len(all) == 0 || e.opts.Network == nil {
		return secretHosts{within: all}
	}
	all, h.over = all[:min(len(all), sandpit.MaxEgressRules)], all[min(len(all), sandpit.MaxEgressRules):]
	var err error
	if h.within, h.beyond, err = e.opts.Network.Within(all, g.Within); err != nil {
		return secretHosts{beyond: all, over: h.over}
	}
	room := min(len(h.within), max(0, sandpit.MaxEgressRules-len(g.Allow)-len(g.Deny)-len(g.Resolve)))
	h.within, h.over = h.within[:room], slices.Concat(h.within[room:], h.over)
	return h
}

// lackHosts notes which hosts of secrets the sandbox does not reach, because e was granted before the
// secrets had them.
func (s *Sandbox) lackHosts(e granted) {
	var gaps []sandpit.Gap
	lacks := func(why string, hosts []string, fix string) {
		const shown = 8
		if n := len(hosts); n > shown {
			hosts = append(slices.Clone(hosts[:shown]), fmt.Sprintf("and %d more", n-shown))
		}
		if len(hosts) > 0 {
			gaps = append(gaps, sandpit.Gap{What: feature.GapSecretHosts, Why: why + ", to which secrets were bound since: " + strings.Join(hosts, ", "), Fix: fix})
		}
	}
	h := s.secretHosts(e)
	lacks("the policy does not allow these hosts", h.beyond, "have the policy allow them, and change the sandbox's egress (sandpit network)")
	lacks(fmt.Sprintf("a sandbox has at most %d rules, without room for these hosts", sandpit.MaxEgressRules), h.over, "bind the secrets to fewer hosts, or remove rules of the sandbox (sandpit network)")
	s.replaceGaps(feature.GapSecretHosts, gaps)
}

// terms returns the terms on which the sandbox has e.
func (s *Sandbox) terms(e granted) Terms {
	s.mu.Lock()
	now := s.prepared
	s.mu.Unlock()
	return s.termsOf(&now, e)
}

// termsOf is terms for a sandbox as p says.
func (s *Sandbox) termsOf(p *prepared, e granted) Terms {
	hosts := s.engine.secretHosts(p.hosts(), e).within
	return Terms{Egress: withRules(e.Egress, hosts), Own: e.Own, Secrets: p.bound, CA: p.ca, Renew: s.renewSecret}
}

// renewSecret is Terms.Renew.
func (s *Sandbox) renewSecret(ctx context.Context, name string) error {
	if !s.usesSecret(name) {
		return fault.NotFoundf("the sandbox uses no secret %q", fault.Clip(name))
	}
	return s.engine.opts.Secrets.RenewSecret(ctx, s.namespace, name)
}

// SecretChanged puts the present value of a secret in force in all sandboxes that use it: those of a
// namespace, or with "" all. A sandbox in which that fails reaches nothing from then on, because
// the former value must not be used any more; the error names one. Any number may change at once.
func (e *Engine) SecretChanged(ctx context.Context, namespace, name string) error {
	var all []*task
	for _, s := range e.Sandboxes() {
		if (namespace == "" || s.namespace == namespace) && s.usesSecret(name) {
			all = append(all, s.refreshLater(name))
		}
	}
	var errs []error
	for _, t := range all {
		errs = append(errs, t.wait(ctx))
	}
	return errors.Join(errs...)
}

// maxRefreshing bounds the sandboxes whose secrets change at once: one of each namespace.
const maxRefreshing = 4

// refreshes are the changes of a sandbox's secrets.
type refreshes struct {
	mu    sync.Mutex
	next  *task           // that has not begun, or nil; guarded by mu
	names map[string]bool // of the secrets that it is for, guarded by mu
}

// refreshLater has the present value of a secret put in force in its turn, together with others that change
// until then.
func (s *Sandbox) refreshLater(name string) *task {
	e, r := s.engine, &s.refreshes
	e.mu.Lock()
	own := e.space(s.namespace).refreshing
	e.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil {
		r.names[name] = true
		return r.next
	}
	r.names = map[string]bool{name: true}
	r.next = e.work("changing a secret of", s, e.opts.Patience.Create, func(ctx context.Context) error {
		for _, places := range [...]chan struct{}{own, e.refreshing} { // one that waits for its namespace keeps no other waiting
			places <- struct{}{}
			defer func() { <-places }()
		}
		r.mu.Lock()
		names := r.names
		r.next.limit(e.opts.Patience.Close)
		r.next = nil
		r.mu.Unlock()
		return s.refreshSecrets(ctx, names)
	})
	return r.next
}

// usesSecret reports whether a stored secret is bound to hosts for the sandbox.
func (s *Sandbox) usesSecret(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, own := s.own[name]; own {
		return false
	}
	return slices.ContainsFunc(s.uses, func(u sandpit.Secret) bool { return u.Name == name && !u.Env })
}

// usedSecrets describes the secrets of the sandbox.
func (s *Sandbox) usedSecrets() (used []sandpit.SecretUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uses {
		use := sandpit.SecretUse{Name: u.Name, Env: u.Env}
		if i := slices.IndexFunc(s.bound, func(b Secret) bool { return b.Name == u.Name }); i >= 0 {
			use.Hosts = slices.Clone(s.bound[i].Hosts)
		}
		used = append(used, use)
	}
	return used
}

// refreshSecrets puts the present values of some of the sandbox's secrets in force.
func (s *Sandbox) refreshSecrets(ctx context.Context, names map[string]bool) error {
	s.joining.Lock()
	defer s.joining.Unlock()
	err := s.findSecrets(ctx, names)
	joined := s.joined()
	if err == nil && joined != nil {
		e := s.settings().egress
		if err = joined.Set(ctx, s.terms(e)); err == nil {
			s.lackHosts(e)
		}
	}
	if err != nil {
		s.leaveNetwork()
		s.lackEgress(err)
		return fmt.Errorf("sandbox %q reaches nothing any more: %w", s.Name(), err)
	}
	return nil
}

// OwnSecrets is Box.OwnSecrets.
func (s *Sandbox) OwnSecrets() (uses []sandpit.Secret, since []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, use := range s.uses {
		if own := s.own[use.Name]; own.Value != "" {
			use.Hosts = slices.Clone(use.Hosts)
			uses, since = append(uses, use), append(since, own.SetAt)
		}
	}
	return uses, since
}

// SetOwnSecret is Box.SetOwnSecret.
func (s *Sandbox) SetOwnSecret(ctx context.Context, name, value string) error {
	err := s.storeOwn(ctx, name, value)
	if err != nil {
		return fmt.Errorf("changing the secret %q of sandbox %q: %w", fault.Clip(name), s.Name(), err)
	}
	return s.refreshSecrets(ctx, map[string]bool{name: true})
}

// storeOwn writes the record with another value of an own secret.
func (s *Sandbox) storeOwn(ctx context.Context, name, value string) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	own, was, i := maps.Clone(s.own), s.own[name], slices.IndexFunc(s.uses, func(u sandpit.Secret) bool { return u.Name == name })
	former, sealed := s.own, s.secret
	s.mu.Unlock()
	if was.Value == "" {
		return fault.NotFoundf("the sandbox has no secret of its own with that name that is bound to hosts")
	}
	if value != "" {
		use := s.uses[i]
		use.Value = value
		if _, err := s.engine.opts.Secrets.FindSecret(ctx, s.namespace, use); err != nil {
			return err
		}
	}
	own[name] = OwnSecret{strings.Clone(value), time.Now().UTC()}
	text := sealed
	if s.persistent {
		made, err := openMade(sealed)
		if err == nil {
			made.Own = own
			text, err = json.Marshal(made)
		}
		if err != nil {
			return err
		}
	}
	more := int64(len(text)-len(sealed)) + (1+secretCopies)*int64(len(value)-len(was.Value)) // see secretUses.cost
	if more > 0 {
		if err := s.pay(more); err != nil {
			return err
		}
	}
	set := func(own map[string]OwnSecret, text json.RawMessage) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.own, s.secret = own, text
	}
	set(own, text)
	s.newSecret = true
	err := s.put(ctx, nil)
	if err != nil {
		set(former, sealed)
		s.saveLater() // the store may have taken it all the same
		more = -more
	}
	if more < 0 {
		s.refund(-more)
	}
	return err
}
