package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
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
		`{` + denied + rule("allow", domain("db"), `,"ports":[{"start":5432,"end":5432}]`) + `]}}`:                          {Allow: []string{"db.:5432"}},
		`{` + denied + rule("allow", domain("git-hosts"), "") + `]}}`:                                                       {Allow: []string{"git-hosts."}}, // no set
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
	two := rule("allow", `{"cidr":"10.0.0.0/8","domain":"example.com"}`, "") // fields
	for text, want := range map[string]error{
		`{` + denied + two + `]}}`:                                                  sandpit.ErrInvalid,
		`{"max_connections":0}`:                                                     sandpit.ErrInvalid,
		`{"policy":{"default_egress":"maybe"}}`:                                     sandpit.ErrInvalid,
		`{` + denied + rule("maybe", `"any"`, "") + `]}}`:                           sandpit.ErrInvalid,
		`{` + denied + `{"direction":"up","action":"allow","destination":"any"}]}}`: sandpit.ErrInvalid,
		`{` + denied + rule("allow", `{}`, "") + `]}}`:                              sandpit.ErrInvalid,
		// What is more in Sandpit's own notation: ports, protocols, requests, names below a name.
		`{` + denied + rule("allow", `{"cidr":"a.com"}`, "") + `]}}`:                                sandpit.ErrInvalid,
		`{` + denied + rule("allow", `{"cidr":"192.0.2.1:80"}`, "") + `]}}`:                         sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("*.a.com"), "") + `]}}`:                                 sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("10.0.0.0/8"), "") + `]}}`:                              sandpit.ErrInvalid,
		`{` + denied + rule("allow", `{"domain_suffix":"a.com:80"}`, "") + `]}}`:                    sandpit.ErrInvalid,
		`{` + allowed + rule("deny", domain("udp:a.com"), `,"protocols":["tcp"]`) + `]}}`:           sandpit.ErrInvalid,
		`{` + allowed + rule("deny", domain("GET:https://a.com/x"), `,"protocols":["tcp"]`) + `]}}`: sandpit.ErrInvalid,
		`{` + denied + rule("allow", domain("a.com"), `,"protocols":["sctp"]`) + `]}}`:              sandpit.ErrInvalid,

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

// A secret for one host does not become one for the hosts below it.
func TestSecretHosts(t *testing.T) {
	for host, ok := range map[hostPattern]bool{
		{"exact", "a.com"}: true, {"wildcard", "*.a.com"}: true,
		{"exact", "*.a.com"}: false, {"wildcard", "a.com"}: false, {"any", ""}: false, {"any", "*.a.com"}: false,
	} {
		s := secrets{Entries: []secretEntry{{Variable: "K", Value: "v", Substitution: substitution{Headers: true}, Hosts: []hostPattern{host}}}}
		if got, err := s.uses(); (err == nil) != ok {
			t.Errorf("%+v: %+v, %v", host, got, err)
		}
	}
}

// Sandboxes that have ended are found by their namespace alone, and their number is bounded, without loss for those who have few.
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
	e.add("few", sandbox{ID: "kept"})
	for i := range 2 * maxAllEnded {
		e.add(fmt.Sprint("many", i%100), sandbox{ID: fmt.Sprint(i)})
	}
	if _, ok := e.find("few", "kept", false); !ok || len(e.all) != maxAllEnded {
		t.Errorf("that of a namespace with few is remembered: %v, and %d in all", ok, len(e.all))
	}
}

// Whatever the body of a create is, it is refused as such, or stands for a sandbox whose limits are no less than nothing, whose patches are
// inside it, and of which no value of a secret or variable is kept.
func FuzzCreate(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`,
		`{"name":"a","image":{"type":"oci","reference":"x"},"resources":{"vcpus":1,"memory_mib":512,"disk_size_mib":9},"rlimits":[{"resource":"nproc","soft":1,"hard":2}]}`,
		`{"name":"a","source":"oci","reference":"x","env":[{"key":"A","value":"hunter2"}],"runtime":{"user":"nobody","workdir":"/x","scripts":{"../x":"y"}},"lifecycle":{"max_duration_secs":9,"idle_timeout_secs":-9}}`,
		`{"source":"oci","reference":"x","mounts":[{"type":"tmpfs","guest":"/t","size_mib":9223372036854775807,"options":{"readonly":false}}]}`,
		`{"source":"oci","reference":"x","patches":[{"type":"file","path":"/a","content":[1,2,255]},{"type":"text","path":"/../b","content":"c"},{"type":"symlink","target":"/etc","link":"/l"}]}`,
		`{"source":"oci","reference":"x","network":{"policy":{"default_egress":"deny","rules":[{"direction":"egress","destination":{"domain":"a.com"},"protocols":["tcp"],"ports":[{"start":1,"end":2}],"action":"allow"}]},
			"secrets":{"entries":[{"env_var":"K","value":"hunter2","substitution":{"headers":true},"allowed_hosts":[{"type":"exact","value":"a.com"}]}]}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in := new(newSandbox)
		if json.Unmarshal(body, in) != nil {
			return
		}
		refused := func(err error) bool {
			if err != nil && !errors.Is(err, sandpit.ErrInvalid) && !errors.Is(err, sandpit.ErrUnsupported) {
				t.Errorf("%T: %v", err, err)
			}
			return err != nil
		}
		spec, err := in.spec()
		if refused(err) {
			return
		}
		if l := spec.Limits; l.CPUs < 0 || l.Life < 0 || spec.Idle < 0 {
			t.Errorf("%+v", spec)
		}
		for _, m := range spec.Tmpfs {
			if m.Size < 0 {
				t.Errorf("%+v", m)
			}
		}
		size := 0
		for _, p := range append(in.Patches, scripts(in.Runtime.Scripts)...) {
			if size += len(p.Content); refused(p.check()) {
				return
			}
			if at := p.at(); !path.IsAbs(at) || path.Clean("/x"+at) != path.Join("/x", path.Clean(at)) {
				t.Errorf("the patch of %q is accepted", at)
			}
		}
		if size > 3*len(body) { // a byte that is not UTF-8 becomes three
			t.Errorf("%d bytes have become %d", len(body), size)
		}
		if _, _, err := in.Network.is.egress(); refused(err) {
			return
		}
		secrets, err := in.Network.is.Secrets.uses()
		if refused(err) {
			return
		}
		const secret = "hunter2-hunter2"
		for i := range in.Env {
			in.Env[i].Value = secret
		}
		if s := in.Network.is.Secrets; s != nil {
			for i := range s.Entries {
				s.Entries[i].Value = secret
			}
		}
		kept, err := json.Marshal(in.state())
		if err != nil || bytes.Contains(kept, []byte(secret)) && !bytes.Contains(body, []byte(secret)) {
			t.Errorf("%d secrets, and the state is %s, %v", len(secrets), kept, err)
		}
	})
}

// Whatever a path and a cursor are, they name at most one thing: a route for a sandbox by its name, and a position of a log.
func FuzzNames(f *testing.F) {
	f.Add("/v1/sandboxes/by-name/a/start", "AQAAAAAAAAAAAAAAAAAAAQI=")
	f.Add("/v1/sandboxes/by-name/%2e%2e%2fx/stop", "")
	f.Add("/v1/sandboxes/by-name//%zz", "\n")
	known := map[string]bool{"": true}
	for _, r := range sandboxRoutes() {
		known[r.id+byName] = r.named
	}
	f.Fuzz(func(t *testing.T, p, cursor string) {
		if u, err := url.ParseRequestURI(p); err == nil {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
				r := &http.Request{Method: method, URL: u}
				if id := Pick(r); !known[id] || id != "" && r.PathValue("sandbox") == "" {
					t.Errorf("%s %q is %q of %q", method, p, id, r.PathValue("sandbox"))
				}
			}
		}
		if seq, err := position(cursor); err == nil {
			if again, err := position(string(appendCursor(nil, seq))); err != nil || again != seq {
				t.Errorf("%q is %d, and then %d, %v", cursor, seq, again, err)
			}
		}
	})
}
