package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// A cursor has a form that clients accept, and a position survives it.
func TestCursor(t *testing.T) {
	for _, seq := range []uint64{0, 1, 258, 1<<64 - 1} {
		if got, err := position(string(appendCursor(nil, seq))); err != nil || got != seq {
			t.Errorf("%d became %d, %v", seq, got, err)
		}
	}
	if got := string(appendCursor(nil, 258)); got != "AQAAAAAAAAAAAAAAAAAAAQI=" {
		t.Errorf("the cursor of 258 is %s", got)
	}
	for _, bad := range []string{"5", "AQ==", "AgAAAAAAAAAAAAAAAAAAAQI=", "x\ny"} {
		if got, err := position(bad); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q is the position %d, %v", bad, got, err)
		}
	}
}

// A network policy becomes egress that allows nothing that the policy denies. One that can't is refused.
func TestEgress(t *testing.T) {
	public := sandpit.Egress{Preset: sandpit.EgressPublic}
	dns := `{"direction":"egress","action":"allow","destination":{"group":"host"},"protocols":["udp","tcp"],"ports":[{"start":53,"end":53}]}`
	rule := func(action, destination, more string) string {
		return `{"direction":"egress","action":"` + action + `","destination":` + destination + more + `}`
	}
	denied, allowed := `"policy":{"default_egress":"deny","rules":[`, `"policy":{"default_egress":"allow","rules":[`
	domain := func(name string) string { return `{"domain":"` + name + `"}` }
	for text, want := range map[string]sandpit.Egress{
		`{}`:                       public,
		`{"enabled":false}`:        {},
		`{"max_connections":5}`:    {Preset: sandpit.EgressPublic, Bounds: sandpit.EgressBounds{Connections: 5}},
		`{` + denied + `]}}`:       {},
		`{` + denied + dns + `]}}`: {},
		`{` + allowed + `]}}`:      public,
		`{` + denied + dns + `,` + rule("allow", `{"group":"public"}`, "") + `]}}`:                                          public,
		`{` + denied + rule("allow", `"any"`, "") + `]}}`:                                                                   public,
		`{` + denied + rule("allow", domain("a.com"), `,"protocols":["tcp"],"ports":[{"start":80,"end":81}]`) + `]}}`:       {Allow: []string{"a.com:80", "a.com:81"}},
		`{` + denied + rule("allow", `{"domain_suffix":"b.com"}`, "") + `]}}`:                                               {Allow: []string{"b.com", "*.b.com"}},
		`{` + denied + rule("allow", `{"cidr":"fd00::/8"}`, `,"protocols":["udp"],"ports":[{"start":53,"end":53}]`) + `]}}`: {Allow: []string{"udp:[fd00::/8]:53"}},
		`{` + denied + rule("allow", domain("a.com"), "") + `,` + rule("deny", domain("x.com"), "") + `]}}`:                 {Allow: []string{"a.com"}},
		`{` + denied + rule("deny", domain("x.com"), "") + `,` + rule("allow", `{"group":"public"}`, "") + `]}}`:            {Preset: sandpit.EgressPublic, Deny: []string{"x.com", "udp:x.com", "ping:x.com"}},
		`{` + allowed + rule("deny", `{"group":"metadata"}`, "") + `,` + rule("allow", domain("a.com"), "") + `]}}`:         public,
		`{` + allowed + rule("deny", domain("x.com"), `,"protocols":["icmpv4","icmpv6"]`) + `]}}`:                           {Preset: sandpit.EgressPublic, Deny: []string{"ping:x.com"}},
		`{` + allowed + `{"direction":"ingress","action":"deny","destination":"any"}]}}`:                                    public,
	} {
		var n exactly[network]
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, _, err := n.is.egress()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]error{
		`{"max_connections":0}`:                                                                                                                        sandpit.ErrInvalid,
		`{"policy":{"default_egress":"maybe"}}`:                                                                                                        sandpit.ErrInvalid,
		`{` + denied + rule("maybe", `"any"`, "") + `]}}`:                                                                                              sandpit.ErrInvalid,
		`{` + denied + `{"direction":"up","action":"allow","destination":"any"}]}}`:                                                                    sandpit.ErrInvalid,
		`{` + denied + rule("allow", `{}`, "") + `]}}`:                                                                                                 sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("a.com"), `,"protocols":["sctp"]`) + `]}}`:                                                                 sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("a.com"), `,"protocols":["icmpv4"],"ports":[{"start":1,"end":1}]`) + `]}}`:                                 sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("a.com"), `,"ports":[{"start":9,"end":1}]`) + `]}}`:                                                        sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("a.com"), `,"ports":[{"start":1,"end":65535}]`) + `]}}`:                                                    sandpit.ErrUnsupported,
		`{` + denied + rule("allow", `{"group":"host"}`, "") + `]}}`:                                                                                   sandpit.ErrUnsupported,
		`{` + denied + rule("allow", `{"group":"public"}`, `,"protocols":["udp"]`) + `]}}`:                                                             sandpit.ErrUnsupported,
		`{` + denied + rule("allow", domain("a.com"), "") + `,` + rule("deny", domain("x.com"), "") + `,` + rule("allow", domain("b.com"), "") + `]}}`: sandpit.ErrUnsupported,
		`{` + allowed + rule("allow", domain("a.com"), "") + `,` + rule("deny", `{"domain_suffix":"com"}`, "") + `]}}`:                                 sandpit.ErrUnsupported,
	} {
		var n exactly[network]
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if e, _, err := n.is.egress(); !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v, want %v", text, e, err, want)
		}
	}
}

// Sandboxes that have ended are found by their namespace alone, and their number is bounded.
func TestEnded(t *testing.T) {
	e := new(ended)
	for i := range 2 * maxEnded {
		e.add("a", sandbox{ID: fmt.Sprint(i), Name: "one"})
	}
	last := fmt.Sprint(2*maxEnded - 1)
	if s, ok := e.find("a", "one", true); !ok || s.ID != last || len(e.all) != maxEnded {
		t.Errorf("%d are remembered, the last %+v", len(e.all), s)
	}
	if _, ok := e.find("a", last, false); !ok {
		t.Error("the last one is not found by its ID")
	}
	for _, other := range []struct {
		namespace, is string
		byName        bool
	}{{"b", "one", true}, {"a", "one", false}, {"a", last, true}, {"a", "0", false}} {
		if s, ok := e.find(other.namespace, other.is, other.byName); ok {
			t.Errorf("%+v is %+v", other, s)
		}
	}
}
