package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Network is what the interfaces of sandboxes lead to. All methods are safe for concurrent use.
type Network interface {
	// Join gives a sandbox egress. The file is what driver.Linker returns; Join takes it
	// over, also when it fails. Errors about the terms match sandpit.ErrInvalid.
	Join(ctx context.Context, file *os.File, t Terms) (Joined, error)

	// Authority makes Terms.CA for a new sandbox, if the other terms need one; else it is nil.
	// Programs in the sandbox have to trust, in PEM and without keys, its own certificate, that
	// of CA, and those of the operator, which are the same for all sandboxes.
	Authority(t Terms) (ca, own, operators []byte, err error)

	// Own returns the addresses of this machine that e names: see Terms.Own.
	Own(e sandpit.Egress) ([]netip.Addr, error)

	// Excess is a policy.Excess.
	Excess(e sandpit.Egress, allowed, addresses []string) (part, what string, err error)

	// Narrows reports whether e allows nothing that was did not allow. Both are valid.
	Narrows(e, was sandpit.Egress) bool

	// Within is a policy.Within, for rules that name no address.
	Within(rules, allowed []string) (within, others []string, err error)

	// Decide says whether the terms allow a destination: see sandpit.Egresser.
	Decide(t Terms, destination string) (sandpit.EgressDecision, error)
}

// Terms are what a sandbox may reach, and with which secrets.
type Terms struct {
	Egress sandpit.Egress

	// Own are the addresses of this machine that Egress named when it was granted. One that the
	// machine got later is not reached, although a rule names it: it was then another machine's.
	Own []netip.Addr

	Secrets []Secret

	// CA is the certificate and the key, in PEM, with which the sandbox's TLS is intercepted,
	// for the hosts of Secrets and of rules with a method or path. nil: nothing is
	// intercepted, and such terms are refused.
	CA []byte

	// Renew renews the value of a renewable secret, because an origin has refused it with 401. When it
	// returns, the present value was Set. nil: nothing is renewed.
	Renew func(ctx context.Context, name string) error `json:"-"`
}

// Secret is put into requests to some hosts in place of its placeholder, which is all that the
// sandbox has of it.
type Secret struct {
	Name        string
	Placeholder string
	Value       []byte
	Hosts       []string // as in rules
	Query, Body bool     // put it there, too, not only into headers
	Sign        bool     // it is not put anywhere: it signs requests that are signed with the placeholder
	Renewable   bool     // Terms.Renew may get another value
}

// Joined is the network of one sandbox. All methods are safe for concurrent use.
type Joined interface {
	// Set changes what the sandbox may reach. Open connections that are no longer allowed
	// end. After an error nothing has changed.
	Set(ctx context.Context, t Terms) error

	// Log returns the last connections and denials.
	Log(ctx context.Context) (sandpit.EgressLog, error)

	// Traffic returns what was counted so far, which may be some 100 ms old. It may wait for
	// another process for a second. After Close it returns the last counts, as Denials does.
	Traffic() Traffic

	// Denials returns the denials since the last call, as in sandpit.EgressLog.
	Denials() []sandpit.EgressDenial

	// Close ends all connections and closes the file. It is idempotent. Set and Log fail with
	// sandpit.ErrClosed from then on.
	Close() error
}

// Traffic counts what a sandbox, or several, did on the network.
type Traffic struct {
	Connections int64 // that were made
	Denials     int64 // of connections, datagrams and names
	Sent        int64 // bytes
	Received    int64 // bytes
}

// Add adds u.
func (t *Traffic) Add(u Traffic) {
	t.Connections += u.Connections
	t.Denials += u.Denials
	t.Sent += u.Sent
	t.Received += u.Received
}

// since returns what was counted after u. It is never negative: u may have been asked for later, and
// got earlier.
func (t Traffic) since(u Traffic) Traffic {
	return Traffic{max(0, t.Connections-u.Connections), max(0, t.Denials-u.Denials), max(0, t.Sent-u.Sent), max(0, t.Received-u.Received)}
}

// Moved returns the number of bytes both ways.
func (t Traffic) Moved() int64 { return t.Sent + t.Received }

var _ sandpit.Egresser = (*Sandbox)(nil)

// joinNetwork gives the sandbox its interface, or attaches to it, and puts e in force. It is
// called after an adoption, or to give a running sandbox egress.
func (s *Sandbox) joinNetwork(ctx context.Context, e granted) error {
	linker, err := s.permitPing(ctx, e.Egress)
	if err != nil {
		return err
	}
	file, err := linker.Link(ctx, link())
	if err != nil {
		return err
	}
	enter(driver.ProgressOf(ctx), "network")
	return s.join(ctx, file, e)
}

// permitPing returns what links the sandbox, once its programs may ping if e says so. Where the requests can't
// be sent on any more, programs may not, and the gap says so.
func (s *Sandbox) permitPing(ctx context.Context, e sandpit.Egress) (driver.Linker, error) {
	linker, ok := s.instance.(driver.Linker)
	if !ok || s.engine.opts.Network == nil {
		return nil, errNoEgress(s.info.Driver)
	}
	// The engine that a sandbox is adopted from may have died while it changed this.
	lack := s.mayPing(ctx, e)
	s.lackPing(lack)
	if ping := feature.Pings(e) && lack == nil; ping || s.linked {
		if err := linker.AllowPing(ctx, ping); err != nil && (ping || !errors.Is(err, sandpit.ErrUnsupported)) {
			return nil, err
		}
	}
	return linker, nil
}

// mayPing returns why echo requests that e allows can't be sent on from this machine.
func (s *Sandbox) mayPing(ctx context.Context, e sandpit.Egress) error {
	if !feature.Pings(e) {
		return nil
	}
	_, _, err := s.engine.opts.Driver.Probe(ctx).Negotiate([]feature.Feature{feature.Ping}, &sandpit.Limits{})
	return err
}

// lackPing notes why rules that allow echo requests are not kept, or with nil that they are.
func (s *Sandbox) lackPing(err error) {
	var gaps []sandpit.Gap
	if err != nil {
		gaps = []sandpit.Gap{{What: string(feature.Ping), Why: err.Error(), Fix: sandpit.Hint(err) + "; then set its egress again (sandpit network)"}}
	}
	s.replaceGaps(string(feature.Ping), gaps)
}

// joining is the network of a new sandbox, which it joins while the rest of it is made.
type joining struct {
	sandbox *Sandbox
	cancel  context.CancelFunc
	linked  chan bool     // gets once whether the interface was made
	done    chan struct{} // closed when err is valid
	err     error
}

// joinAhead makes the interface in the blank of a new sandbox, and joins the network with it, beside
// what follows. It returns nil if it is to be made later.
func (s *Sandbox) joinAhead(ctx context.Context, l *driver.Link) *joining {
	if s.blank == nil || l == nil {
		return nil
	}
	linker, ok := s.blank.Blank.(driver.BlankLinker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	wait, err := linker.Link(ctx, *l)
	if err != nil { // which the making of the rest, or of another interface, says again
		cancel()
		return nil
	}
	s.blank.linked = true
	return s.startJoining(ctx, cancel, wait)
}

// startJoining joins the network with the interface that link returns. cancel ends ctx.
func (s *Sandbox) startJoining(ctx context.Context, cancel func(), link func() (*os.File, error)) *joining {
	j := &joining{sandbox: s, cancel: cancel, linked: make(chan bool, 1), done: make(chan struct{})}
	e := s.egress
	go func() {
		defer close(j.done)
		defer cancel()
		file, err := link()
		j.linked <- err == nil
		if err == nil {
			err = s.join(ctx, file, e)
		}
		j.err = err
	}()
	return j
}

// wait returns when the sandbox has joined, or why it can't.
func (j *joining) wait() error {
	<-j.done
	return j.err
}

// undo ends what has come about. It is idempotent, and a no-op for nil.
func (j *joining) undo() {
	if j != nil {
		j.cancel()
		_ = j.wait()
		j.sandbox.leaveNetwork()
	}
}

// join puts e in force at the interface, and takes over its file. It may run while the guest is greeted.
func (s *Sandbox) join(ctx context.Context, file *os.File, e granted) error {
	s.joining.Lock()
	defer s.joining.Unlock()
	if err := s.findSecrets(ctx, nil); err != nil { // they may have changed since the sandbox was known
		_ = file.Close()
		return err
	}
	joined, err := s.engine.opts.Network.Join(ctx, file, s.terms(e))
	if err != nil {
		return err
	}
	s.mu.Lock()
	abandoned := s.left || s.state == sandpit.StateFailed // then leaveNetwork was called before
	if !abandoned {
		s.network = &member{Joined: joined}
	}
	s.mu.Unlock()
	s.lackHosts(e)
	if abandoned {
		_ = joined.Close()
		return s.closedError()
	}
	return nil
}

// link describes the interface of every sandbox with egress.
func link() driver.Link {
	return driver.Link{MTU: netaddr.MTU, IPv4: netaddr.Inside4(), IPv6: netaddr.Inside6()}
}

// rejoinNetwork attaches to the interface of a sandbox that is adopted. If that fails, the
// sandbox reaches nothing, until its egress is changed; the gap says so.
func (s *Sandbox) rejoinNetwork(ctx context.Context, patience time.Time) []sandpit.Gap {
	e, whole := s.settings().egress, context.WithoutCancel(ctx) // also if its time is over
	err := s.joinNetwork(whole, e)
	for errors.Is(err, sandpit.ErrExists) && time.Now().Before(patience) && ctx.Err() == nil {
		// The processes of a killed engine may still have the interface open.
		time.Sleep(ownerRetry)
		err = s.joinNetwork(whole, e)
	}
	return append(s.lackEgress(err), s.gaps(feature.Ping)...)
}

// lackEgress notes why the sandbox has no network, or with nil that it has what it should.
func (s *Sandbox) lackEgress(err error) (gaps []sandpit.Gap) {
	if err != nil {
		fix := cmp.Or(sandpit.Hint(err), "set its egress again (sandpit network)")
		gaps = []sandpit.Gap{{What: string(feature.Egress), Why: "it reaches nothing: " + err.Error(), Fix: fix}}
	}
	s.replaceGaps(string(feature.Egress), gaps)
	return gaps
}

// gaps returns the gaps of one kind.
func (s *Sandbox) gaps(of feature.Feature) []sandpit.Gap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.info.NotEnforced), func(g sandpit.Gap) bool { return g.What != string(of) })
}

// replaceGaps replaces the gaps of one kind.
func (s *Sandbox) replaceGaps(what string, gaps []sandpit.Gap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(s.info.NotEnforced), func(g sandpit.Gap) bool { return g.What == what })
	s.info.NotEnforced = append(others, gaps...)
}

// hasEgress reports whether the sandbox has a network if it is granted e. One with a secret that is bound to
// hosts has one, also while the secret is removed.
func (p *prepared) hasEgress(e granted) bool { return e.Asked() || len(p.placeholders) > 0 }

// granted is what a sandbox may reach beside the hosts of its secrets. Its fields are in the record.
type granted struct {
	sandpit.Egress
	Own    []netip.Addr `json:"own,omitempty"`    // see Terms
	Learns bool         `json:"learns,omitempty"` // EgressLearn was asked for, which the policy may replace

	// Within are the rules of the policy that granted it. Hosts that a secret gets later are
	// reached if they are within these.
	Within []string `json:"within,omitempty"`
}

// asking returns what a caller asks for, who is not granted it yet.
func asking(e sandpit.Egress) granted {
	return granted{Egress: e, Learns: e.Preset == sandpit.EgressLearn}
}

// allowEgress returns what is asked for with what the policy adds, if it is valid and allowed together
// with the hosts of secrets. The caller says whether there are secrets. What replaces the grant of before, if there
// is one, and only narrows it, is allowed also where the policy was tightened meanwhile. What allows nothing at all
// needs no denials, for which there may be no room.
func (e *Engine) allowEgress(g granted, was *granted, secrets bool, hosts []string, p policy.Policy) (granted, error) {
	g.Within = nil
	if g.IsZero() && !secrets {
		return g, nil
	}
	if e.opts.Network == nil {
		return g, errNoEgress(e.opts.Driver.Name())
	}
	nothing := !g.Asked() && !secrets
	if nothing {
		p = p.WithoutDenials()
	}
	added := sandpit.Egress{Allow: g.Allow}
	if was != nil {
		added.Allow = missing(was.Allow, g.Allow)
		p.LowerTraffic(&g.Bounds, was.Bounds)
	}
	err := p.RefuseDenied(added, e.opts.Network.Within)
	if err != nil {
		return g, err
	}
	g.Egress, err = p.Egress(g.Egress, func(asked sandpit.Egress, allowed, addresses []string) (part, what string, err error) {
		if g.Own, err = e.opts.Network.Own(asked); err != nil { // before: an address that comes now was not checked
			return "", "", err
		}
		if g.Within = allowed; p.Rules == nil {
			g.Within = []string{string(sandpit.EgressAll)}
		}
		part, what, err = e.opts.Network.Excess(withRules(asked, hosts), allowed, addresses)
		if part != "" && was != nil && (nothing || e.opts.Network.Narrows(withRules(p.WithDenied(g.Egress), hosts), withRules(was.Egress, hosts))) {
			g.Own, g.Within, part = was.Own, was.Within, ""
		}
		return part, what, err
	})
	return g, err
}

// learnt returns what was granted to one that asked for some rules, less the rules about ping that only EgressLearn
// brought from the policy, where ping can't be allowed.
func (g granted) learnt(asked []string, caps driver.Capabilities) granted {
	if !g.Learns || caps.Features[feature.Ping] {
		return g
	}
	own := setOf(asked)
	g.Allow = slices.DeleteFunc(slices.Clone(g.Allow), func(rule string) bool {
		return !own[rule] && feature.Pings(sandpit.Egress{Allow: []string{rule}})
	})
	return g
}

// withRules returns an Egress that allows more.
func withRules(e sandpit.Egress, rules []string) sandpit.Egress {
	e.Allow = appendMissing(e.Allow, rules)
	return e
}

// appendMissing appends the texts that a list does not have, and leaves the list as it is. There may be
// millions: of a caller, before anything has counted them.
func appendMissing(list, texts []string) []string {
	return append(slices.Clip(list), missing(list, texts)...)
}

// missing returns the texts that a list does not have, each once.
func missing(list, texts []string) (others []string) {
	has := setOf(list)
	for _, text := range texts {
		if !has[text] {
			has[text] = true
			others = append(others, text)
		}
	}
	return others
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, text := range list {
		set[text] = true
	}
	return set
}

func errNoEgress(driver string) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "reaching the network: this program, or its driver %s, gives sandboxes no network", driver),
		"in a program of your own, set local.Options.Network: see package local/network")
}

// leaveNetwork ends all connections of the sandbox. Its network namespace lives as long as the
// interface is open.
func (s *Sandbox) leaveNetwork() {
	s.mu.Lock()
	joined := s.network
	s.network = nil
	s.mu.Unlock()
	if joined == nil {
		return
	}
	_ = joined.Close()
	s.countTraffic(joined)
	s.tellDenials(joined)
}

// member is a sandbox in its network.
type member struct {
	Joined
	counted Traffic // that is in the total of its namespace, guarded by traffic.mu
	noticed int64   // bytes that had moved when noticeTraffic looked last, guarded by Sandbox.mu
}

// traffic has the totals of all namespaces.
type traffic struct {
	mu sync.Mutex         // taken after all others
	by map[string]Traffic // by namespace, guarded by mu
}

// countTraffic adds what the sandbox did on the network since the last call to the total of its
// namespace. It returns what m has counted in all.
func (s *Sandbox) countTraffic(m *member) Traffic {
	now := m.Traffic()
	all := &s.engine.traffic
	all.mu.Lock()
	defer all.mu.Unlock()
	more := now.since(m.counted)
	m.counted.Add(more)
	more.Add(all.by[s.namespace])
	all.by[s.namespace] = more
	return m.counted
}

// Traffic returns what the sandboxes of each namespace that had egress did on the network, since the
// engine exists.
func (e *Engine) Traffic() map[string]Traffic {
	for _, s := range e.Sandboxes() {
		if joined := s.joined(); joined != nil {
			s.countTraffic(joined)
		}
	}
	e.traffic.mu.Lock()
	defer e.traffic.mu.Unlock()
	return maps.Clone(e.traffic.by)
}

// TellDenials calls Options.Denied.
func (e *Engine) TellDenials() {
	for _, s := range e.Sandboxes() {
		if joined := s.joined(); joined != nil {
			s.tellDenials(joined)
		}
	}
}

func (s *Sandbox) tellDenials(joined *member) {
	if denied := s.engine.opts.Denied; denied != nil {
		if d := joined.Denials(); len(d) > 0 {
			denied(s.namespace, s.ID(), d)
		}
	}
}

func (s *Sandbox) joined() *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network
}

// Egress returns what the sandbox may reach. See sandpit.Egresser.
func (s *Sandbox) Egress(ctx context.Context) (sandpit.Egress, error) {
	return s.settings().egress.Egress, ctx.Err()
}

// SetEgress changes it, as Options.Policy allows. See sandpit.Egresser.
func (s *Sandbox) SetEgress(ctx context.Context, e sandpit.Egress) error {
	return s.setEgress(ctx, replacing(e), s.engine.opts.Policy)
}

// ChangeEgress changes a part of it, as Options.Policy allows. See sandpit.Egresser.
func (s *Sandbox) ChangeEgress(ctx context.Context, c sandpit.EgressChange) error {
	return s.setEgress(ctx, applying(c), s.engine.opts.Policy)
}

// egressEdit returns what an Egress becomes. It leaves the lists of the old one as they are.
type egressEdit func(was granted) (asked granted)

func replacing(e sandpit.Egress) egressEdit {
	return func(granted) granted { return asking(e) }
}

func applying(c sandpit.EgressChange) egressEdit {
	edit := func(list, remove, add []string) []string {
		gone := setOf(remove)
		return appendMissing(slices.DeleteFunc(slices.Clone(list), func(rule string) bool { return gone[rule] }), add)
	}
	return func(e granted) granted {
		if c.Preset != "" {
			e.Preset, e.Learns = c.Preset, c.Preset == sandpit.EgressLearn
		}
		e.Allow = edit(e.Allow, c.Remove.Allow, c.Add.Allow)
		e.Deny = edit(e.Deny, c.Remove.Deny, c.Add.Deny)
		e.Resolve = edit(e.Resolve, c.Remove.Resolve, c.Add.Resolve)
		return e
	}
}

// setEgress changes the egress as a task, because the kernel makes the interface.
func (s *Sandbox) setEgress(ctx context.Context, edit egressEdit, p policy.Policy) error {
	failed := func(err error) error {
		return fmt.Errorf("changing the egress of sandbox %q: %w", s.Name(), err)
	}
	if err := s.engine.mayTry(s.namespace); err != nil {
		return failed(err)
	}
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	if state == sandpit.StateCreated || state == sandpit.StateCreating || state == sandpit.StateFailed {
		s.ends()
		return s.stateError(state)
	}
	was := s.settings().egress
	asked := edit(was)
	asked.Within = was.Within // hosts of secrets that the former policy forbids hinder no change, nor those without room
	e, err := s.engine.allowEgress(asked, &was, len(s.placeholders) > 0, s.secretHosts(asked).within, p)
	if err == nil && feature.Pings(e.Egress) {
		e = e.learnt(asked.Allow, s.engine.opts.Driver.Probe(ctx))
		err = s.mayPing(ctx, sandpit.Egress{Allow: missing(was.Allow, e.Allow)})
	}
	if err != nil {
		s.ends()
		return failed(err)
	}
	s.touch()
	inner, cancel := context.WithCancelCause(ctx)
	t := &task{what: "changing the egress of", about: "sandbox " + s.Name(), namespace: s.namespace, sandbox: s, cancel: cancel}
	err = s.engine.start(inner, t, s.engine.opts.Patience.Create, func(ctx context.Context) error {
		defer s.ends()
		err := s.changeEgress(ctx, e)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return cause
		}
		return err
	}).wait(context.Background())
	if err != nil {
		return failed(err)
	}
	s.event(sandpit.EventUpdated, "")
	return nil
}

// changeEgress puts other rules in force, and in the record before, so that after a crash no
// more is allowed than the record says. After an error the former rules are in both.
// Precondition: s.change is held.
func (s *Sandbox) changeEgress(ctx context.Context, e granted) error {
	was := s.settings()
	next := was
	next.egress = e
	more := egressCost(e) - egressCost(was.egress)
	if more > 0 {
		if err := s.pay(more); err != nil {
			return err
		}
	}
	err := s.saveSettings(ctx, &next)
	if err != nil {
		if errors.Is(err, sandpit.ErrUnavailable) {
			s.saveLater() // what a disk that hangs has taken all the same is replaced
		}
	} else if err = s.enforceEgress(ctx, was.egress, e); err != nil {
		s.mu.Lock()
		s.egress = was.egress
		s.mu.Unlock()
		if s.save(context.WithoutCancel(ctx)) != nil {
			s.saveLater()
		}
	}
	if err != nil {
		more = -more
	}
	if more < 0 {
		s.refund(-more)
	}
	return err
}

// enforceEgress puts rules in force in place of others.
func (s *Sandbox) enforceEgress(ctx context.Context, was, e granted) error {
	if joined := s.joined(); joined != nil {
		linker, ok := s.instance.(driver.Linker)
		pinged, lack := feature.Pings(was.Egress) && len(s.gaps(feature.Ping)) == 0, s.mayPing(ctx, e.Egress)
		ping := feature.Pings(e.Egress) && lack == nil
		changes := ok && ping != pinged
		if changes {
			// Where it can't be forbidden again, open sockets reach nothing.
			if err := linker.AllowPing(ctx, ping); err != nil && (ping || !errors.Is(err, sandpit.ErrUnsupported)) {
				return err
			}
		}
		s.joining.Lock()
		defer s.joining.Unlock()
		err := joined.Set(ctx, s.terms(e))
		if err != nil && changes {
			_ = linker.AllowPing(context.WithoutCancel(ctx), pinged) // else sockets that reach nothing
		}
		if err == nil {
			s.lackHosts(e)
			s.lackPing(lack)
		}
		return err
	}
	if !s.hasEgress(e) {
		return nil
	}
	if err := s.joinNetwork(ctx, e); err != nil {
		return err
	}
	s.lackEgress(nil)
	return nil
}

// reviewPing lets programs ping, or no longer, if this machine has become able to send their requests on, or unable.
// Precondition: s.change is held.
func (s *Sandbox) reviewPing(ctx context.Context) error {
	e := s.settings().egress
	if s.joined() == nil || (s.mayPing(ctx, e.Egress) == nil) == (len(s.gaps(feature.Ping)) == 0) {
		return nil
	}
	if err := s.enforceEgress(ctx, e, e); err != nil {
		return fmt.Errorf("starting sandbox %q: changing whether it may ping: %w", s.Name(), err)
	}
	return nil
}

// egressCost is the size of the rules in memory.
func egressCost(e granted) (n int64) {
	n = int64(len(e.Own)) * int64(unsafe.Sizeof(netip.Addr{}))
	for _, list := range [...][]string{e.Allow, e.Deny, e.Resolve, e.DNS, e.Within} {
		for _, text := range list {
			n += int64(len(text)) + ledger.StringCost
		}
	}
	return n
}

// noticeTraffic counts what connections have moved since the last call as activity.
func (s *Sandbox) noticeTraffic() {
	joined := s.joined()
	if joined == nil {
		return
	}
	moved := s.countTraffic(joined).Moved()
	s.mu.Lock()
	same := moved == joined.noticed
	joined.noticed = moved
	s.mu.Unlock()
	if same {
		return
	}
	s.touch()
	go func() { // or its guest would end it when the engine does not
		ctx, cancel := context.WithTimeout(context.Background(), guestGrace)
		defer cancel()
		if state, err := s.begins(ctx); err == nil {
			if state == sandpit.StateRunning {
				s.tellGuest(ctx)
			}
			s.ends()
		}
	}()
}

// CheckEgress says whether a destination is allowed. See sandpit.Egresser.
func (s *Sandbox) CheckEgress(ctx context.Context, destination string) (sandpit.EgressDecision, error) {
	if s.engine.opts.Network == nil {
		return sandpit.EgressDecision{}, errNoEgress(s.info.Driver)
	}
	e := s.settings().egress
	terms := s.terms(e)
	d, err := s.engine.opts.Network.Decide(terms, destination)
	if d.Allowed && !slices.Contains(e.Allow, d.Rule) {
		for _, b := range terms.Secrets {
			if slices.Contains(b.Hosts, d.Rule) {
				d.Why = fmt.Sprintf("it is a host of the secret %q", b.Name)
			}
		}
	}
	lacks := s.gaps(feature.Egress)
	if feature.Pings(sandpit.Egress{Allow: []string{d.Rule}}) {
		lacks = append(lacks, s.gaps(feature.Ping)...)
	}
	if d.Allowed && len(lacks) > 0 {
		d = sandpit.EgressDecision{Why: lacks[0].Why}
	}
	return d, cmp.Or(err, ctx.Err())
}

// EgressLog returns the last connections. See sandpit.Egresser.
func (s *Sandbox) EgressLog(ctx context.Context) (sandpit.EgressLog, error) {
	learns := s.settings().egress.Learns
	joined := s.joined()
	if joined == nil {
		return sandpit.EgressLog{Learns: learns}, ctx.Err()
	}
	log, err := joined.Log(ctx)
	log.Learns = learns
	return log, err
}
