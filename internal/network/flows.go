package network

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// flows has the open connections of a sandbox, and the last that ended. It is safe for
// concurrent use, and so is a flow.
type flows struct {
	mu     sync.Mutex
	live   map[*flow]struct{}
	ended  []sandpit.Flow // a ring
	oldest int            // in ended
	lost   int64
	denied Denials // all
	recent Denials // since they were last taken
	total  engine.Traffic
	last   lookup // that failed and is not half of a pair
}

// lookup is a question for a name, by its type.
type lookup struct{ name, question string }

// Denials counts denials by destination, of which it keeps the latest 64.
type Denials struct {
	kept []sandpit.EgressDenial // each destination once, the latest last
	more int64                  // denials of others, and of packets that were dropped unseen
}

// Add counts a denial, or several of one destination.
func (all *Denials) Add(d sandpit.EgressDenial) {
	if d.Destination == "" {
		all.more += d.Count
		return
	}
	if i := slices.IndexFunc(all.kept, func(o sandpit.EgressDenial) bool { return o.Destination == d.Destination }); i >= 0 {
		d.Count += all.kept[i].Count
		all.kept = slices.Delete(all.kept, i, i+1)
	} else if len(all.kept) >= maxDenied {
		all.more += all.kept[0].Count
		all.kept = slices.Delete(all.kept, 0, 1)
	}
	all.kept = append(all.kept, d)
}

// List returns what was counted. The first element has the denials of destinations that are no
// longer kept, if there are any.
func (all *Denials) List() []sandpit.EgressDenial {
	if all.more == 0 {
		return slices.Clone(all.kept)
	}
	return append([]sandpit.EgressDenial{{Why: "other destinations", Count: all.more}}, all.kept...)
}

const (
	maxEnded  = 512 // flows that are kept
	maxDenied = 64  // destinations
	maxText   = 200 // bytes of a reason, a rule or an error, of which the sandbox may have written a part
)

// flow is one connection, or an attempt to make one.
type flow struct {
	all *flows
	to  egress.Destination

	// All guarded by all.mu.
	info     sandpit.Flow
	addr     netip.Addr // that was dialled
	close    func()     // of an open one
	cause    error      // why it was closed from outside
	over     bool
	switched bool // from HTTP to another protocol
	byName   bool // the upstream proxy got the name, and knows the address
}

func (fs *flows) begin(to egress.Destination) *flow {
	f := &flow{all: fs, to: to, info: sandpit.Flow{Started: time.Now(), Open: true, Protocol: string(to.Protocol), Host: to.Host, Port: to.Port}}
	if to.Host == "" && to.Addr.IsValid() {
		f.info.Address = addressText(netip.AddrPortFrom(to.Addr, to.Port))
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.live == nil {
		fs.live = map[*flow]struct{}{}
	}
	fs.live[f] = struct{}{}
	return f
}

// decide notes a decision, and returns it as it is noted. The last one counts.
func (f *flow) decide(d sandpit.EgressDecision) sandpit.EgressDecision {
	d.Rule, d.Why = notation.Printable(d.Rule, maxText), notation.Printable(d.Why, maxText)
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.info.EgressDecision = d
	return d
}

// dialled notes the address that was dialled.
func (f *flow) dialled(a netip.AddrPort) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.addr, f.info.Address = a.Addr(), addressText(a)
}

// addressText leaves out the port of what has none.
func addressText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// leftToProxy notes that the upstream proxy resolves the name.
func (f *flow) leftToProxy() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.byName = true
}

// switchProtocol notes that no more requests follow, but another protocol.
func (f *flow) switchProtocol() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.switched = true
}

// open notes how the connection is closed. It reports false, and closes it, if the connection
// was ended meanwhile, or why returns an error.
func (f *flow) open(closeAll func(), why func() error) bool {
	f.all.mu.Lock()
	if f.cause == nil {
		f.cause = why()
	}
	ended := f.cause != nil
	f.close = closeAll
	f.all.total.Connections++
	f.all.mu.Unlock()
	if ended {
		closeAll()
		f.finish(nil)
	}
	return !ended
}

// cut ends an open connection at once, as a denial: both ends see that it was not complete.
func (f *flow) cut(why error) {
	f.all.mu.Lock()
	closeAll := f.close
	if f.over || f.cause != nil {
		closeAll = nil
	} else {
		f.cause, f.info.EgressDecision = why, sandpit.EgressDecision{Why: why.Error()}
	}
	f.all.mu.Unlock()
	if closeAll != nil {
		closeAll()
	}
}

// reset ends an open connection in which one side has failed. The other must not see a clean end.
func (f *flow) reset() {
	f.all.mu.Lock()
	closeAll := f.close
	f.all.mu.Unlock()
	if closeAll != nil {
		closeAll()
	}
}

// wasEnded reports whether the connection was closed from outside.
func (f *flow) wasEnded() bool {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	return f.cause != nil
}

// moved counts bytes.
func (f *flow) moved(sent, received int64) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.info.Sent += sent
	f.info.Received += received
	f.all.total.Sent += sent
	f.all.total.Received += received
}

// finish ends the flow. A nil error is a clean end, or a denial that was noted.
func (f *flow) finish(err error) {
	fs := f.all
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.over {
		return
	}
	f.over = true
	delete(fs.live, f)
	f.info.Open, f.info.Took = false, time.Since(f.info.Started)
	if f.cause != nil {
		err = f.cause
	}
	if err != nil && f.info.Allowed {
		f.info.Error = notation.Printable(err.Error(), maxText)
	}
	if !f.info.Allowed {
		fs.deny(f)
	}
	if len(fs.ended) < maxEnded {
		fs.ended = append(fs.ended, f.info)
		return
	}
	fs.ended[fs.oldest] = f.info
	fs.oldest = (fs.oldest + 1) % maxEnded
	fs.lost++
}

// deny counts a denial. Precondition: fs.mu is held.
func (fs *flows) deny(f *flow) {
	d := sandpit.EgressDenial{Destination: f.to.String(), Rule: f.info.Rule, Why: f.info.Why, Count: 1}
	if f.info.Protocol == protocolDNS {
		d.Destination = f.info.Host
	}
	fs.denied.Add(d)
	fs.recent.Add(d)
	fs.total.Denials++
}

// dropped counts a packet that was dropped as one of too many refusals.
func (fs *flows) dropped() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.denied.more++
	fs.recent.more++
	fs.total.Denials++
}

// take returns the denials since the last call.
func (fs *flows) take() []sandpit.EgressDenial {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	taken := fs.recent.List()
	fs.recent = Denials{}
	return taken
}

// resume counts on from t.
func (fs *flows) resume(t engine.Traffic) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.total.Add(t)
}

// traffic returns what was counted so far.
func (fs *flows) traffic() engine.Traffic {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.total
}

// protocolDNS is the Protocol of flows that are questions about names.
const protocolDNS = "dns"

// again reports whether a question that failed is the second of a lookup: clients look a name up by two, for
// IPv4 and for IPv6.
func (fs *flows) again(name, question string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	last := fs.last
	fs.last = lookup{name, question}
	pair := last.name == name && last.question != question
	if pair {
		fs.last = lookup{}
	}
	return pair
}

// refused notes that the sandbox asked for the address of a name that is not allowed.
func (fs *flows) refused(name, question, why string) {
	if fs.again(name, question) {
		return
	}
	f := fs.begin(egress.Destination{Protocol: protocolDNS, Host: name})
	f.decide(sandpit.EgressDecision{Why: why})
	f.finish(nil)
}

// unresolved notes that the addresses of an allowed name could not be found.
func (fs *flows) unresolved(name, question string, d sandpit.EgressDecision, err error) {
	if fs.again(name, question) {
		return
	}
	f := fs.begin(egress.Destination{Protocol: protocolDNS, Host: name})
	d.Allowed = true // some destination of it is
	f.decide(d)
	f.finish(err)
}

// end closes the open flows about which why returns an error.
func (fs *flows) end(why func(*flow) error) {
	fs.mu.Lock()
	var closers []func()
	for f := range fs.live {
		if err := why(f); err != nil {
			f.cause = err
			if f.close != nil {
				closers = append(closers, f.close)
			}
		}
	}
	fs.mu.Unlock()
	for _, c := range closers {
		c()
	}
}

// log returns everything that is kept.
func (fs *flows) log() sandpit.EgressLog {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	all := append(slices.Clone(fs.ended[fs.oldest:]), fs.ended[:fs.oldest]...)
	n := len(all)
	for f := range fs.live {
		info := f.info
		info.Took = time.Since(info.Started)
		all = append(all, info)
	}
	slices.SortFunc(all[n:], func(a, b sandpit.Flow) int { return a.Started.Compare(b.Started) })
	return sandpit.EgressLog{Flows: all, Lost: fs.lost, Denials: fs.denied.List()}
}
