package sandpit

import (
	"context"
	"time"
)

// Egress says what a sandbox may reach outside of itself. With the zero Egress it has a
// loopback interface and nothing else.
//
// A rule is one of
//
//	HOST, HOST:PORT      a host name, which is never resolved by the sandbox itself
//	*.HOST, *.HOST:PORT  all names below HOST, but not HOST
//	ADDRESS, CIDR        addresses; with a port, IPv6 is in brackets
//	udp:RULE             the same for UDP; without it a rule is about TCP
//	ping:RULE            the same for ICMP echo, which has no ports
//	METHOD:https://HOST/PATH*  requests over HTTPS; METHOD may be *
//	SET                  package-registries, git-hosts or llm-apis
//
// A host may resolve to public addresses, to those that Resolve gives it, and to those that a
// rule allows. A rule without a port is about every port.
type Egress struct {
	// Preset allows what many sandboxes need. Default: EgressNone.
	Preset EgressPreset

	Allow []string // rules
	Deny  []string // rules, which win over Allow and Preset

	// Resolve has the addresses of names, as "HOST:ADDRESS", instead of those that a name
	// server knows. It allows nothing by itself.
	Resolve []string

	// DNS are the name servers, as "ADDRESS" or "ADDRESS:PORT", that Sandpit asks for the
	// sandbox. Default: those of the machine.
	DNS []string

	Bounds EgressBounds
}

// EgressPreset names what many sandboxes need.
type EgressPreset string

// The presets.
const (
	EgressNone       EgressPreset = "none"       // what Allow says
	EgressRegistries EgressPreset = "registries" // the sets package-registries and git-hosts
	EgressPublic     EgressPreset = "public"     // any public address and any port over TCP
	EgressAll        EgressPreset = "all"        // private addresses, too, but not the host, its links or a cloud's metadata service
	EgressLearn      EgressPreset = "learn"      // as EgressPublic, to find out which rules suffice
)

// MaxEgressRules bounds the rules of an Egress, with the addresses of Resolve. A set counts as one.
const MaxEgressRules = 1024

// Defaults of EgressBounds.
const (
	DefaultConnections    = 512
	DefaultNewConnections = 100
)

// EgressBounds bound the traffic of a sandbox. Zero means the default. Bytes are counted from
// when the sandbox got its network: its start, or its adoption by another server.
type EgressBounds struct {
	Connections    int64 // that are open at once; default DefaultConnections
	NewConnections int64 // per second, on average; default DefaultNewConnections
	Sent           int64 // bytes in all; default unlimited
	Received       int64 // bytes in all; default unlimited
	Bandwidth      int64 // bytes per second, each way; default unlimited
}

// Asked reports whether e asks for a network at all.
func (e Egress) Asked() bool {
	return e.Preset != "" && e.Preset != EgressNone || len(e.Allow) > 0
}

// IsZero reports whether e is the zero Egress.
func (e Egress) IsZero() bool {
	return e.Preset == "" && len(e.Allow)+len(e.Deny)+len(e.Resolve)+len(e.DNS) == 0 && e.Bounds == EgressBounds{}
}

// EgressChange changes a part of an Egress. The zero value changes nothing.
type EgressChange struct {
	Preset EgressPreset // replaces the other; "": it stays

	// Remove and then Add. A rule that is removed and not there, or added and there, changes
	// nothing.
	Remove, Add EgressRules
}

// EgressRules are the lists of an Egress.
type EgressRules struct {
	Allow, Deny, Resolve []string
}

// EgressDecision is the answer to whether a destination is allowed.
type EgressDecision struct {
	Allowed bool
	Rule    string // that decided; "" if no rule is about the destination
	Why     string // one line
}

// Flow is a connection that a sandbox made, or tried to make.
type Flow struct {
	Started  time.Time
	Took     time.Duration // so far, if it is open
	Open     bool
	Protocol string // "tcp", "udp", "ping" or "dns"
	Host     string // the name that it was made for; "" if it was made by address
	Address  string // with a port; "" if nothing was dialled
	Port     uint16
	EgressDecision
	Error    string // why an allowed connection failed
	Sent     int64  // bytes
	Received int64  // bytes
}

// EgressLog has the last connections of a sandbox. Those that are kept are bounded.
type EgressLog struct {
	Flows   []Flow // in the order in which they ended, then the open ones by age
	Lost    int64  // flows that are no longer kept
	Denials []EgressDenial
	Learns  bool // the egress was asked for with EgressLearn
}

// EgressDenial is a destination that was denied.
type EgressDenial struct {
	Destination string // "" for all those that are no longer kept
	Rule, Why   string // of the last denial
	Count       int64
}

// Egresser is a sandbox whose egress can be read and changed.
type Egresser interface {
	// Egress returns what the sandbox may reach.
	Egress(ctx context.Context) (Egress, error)

	// SetEgress changes what the sandbox may reach, all or nothing. Open connections
	// that are no longer allowed end. It returns ErrForbidden if the policy does not
	// allow the change, and ErrUnsupported if the sandbox can't have egress here.
	SetEgress(ctx context.Context, e Egress) error

	// ChangeEgress is SetEgress for a part of the rules. What others change at the same
	// time stays.
	ChangeEgress(ctx context.Context, c EgressChange) error

	// CheckEgress says whether a destination, as HOST, HOST:PORT or the same after
	// "udp:" or "ping:", is allowed, and by which rule. It resolves no name.
	CheckEgress(ctx context.Context, destination string) (EgressDecision, error)

	// EgressLog returns the last connections and denials.
	EgressLog(ctx context.Context) (EgressLog, error)
}
