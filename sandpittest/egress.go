package sandpittest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var egressProperties = []property{
	{"without Egress there is a loopback, and nothing is reached", testNoEgress},
	{"an allowed name is reached; another name, the address and a wrong Host are not", testEgress},
	{"SetEgress changes what is reached while programs run", testSetEgress},
	{"ChangeEgress changes some rules, and no change is lost", testChangeEgress},
	{"a rule that is none is ErrInvalid, and changes nothing", testBadEgress},
	{"what can't have egress is refused, and says why", testEgressUnsupported},
}

// egresser returns the egress of a sandbox.
func egresser(t *testing.T, sb sandpit.Sandbox) sandpit.Egresser {
	t.Helper()
	e, ok := sb.(sandpit.Egresser)
	if !ok {
		t.Fatalf("%T is not an Egresser", sb)
	}
	return e
}

// origin is a server of this machine that sandboxes reach by the names good.test and bad.test.
func origin(t *testing.T, e *env) (port string) {
	t.Helper()
	e.need(t, feature.Egress)
	e.needLocal(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// allowing returns an Egress that allows names of the origin.
func allowing(port string, names ...string) sandpit.Egress {
	e := sandpit.Egress{Resolve: []string{"good.test:127.0.0.1", "bad.test:127.0.0.1"}}
	for _, name := range names {
		e.Allow = append(e.Allow, name+":"+port)
	}
	return e
}

// fetched reports whether a sandbox gets what the origin gives, at an address, with a Host.
func fetched(t *testing.T, sb sandpit.Sandbox, address, host string) bool {
	t.Helper()
	// Whatever the image has; bash speaks TCP by itself.
	out := run(t, sb, sandpit.Command{Argv: []string{"sh", "-c", `if command -v curl >/dev/null; then
	curl -sS --max-time 60 -H "Host: $2" "http://$1/"
else
	bash -c 'exec 3<>"/dev/tcp/${1%:*}/${1##*:}" && printf "GET / HTTP/1.1\r\nHost: $2\r\nConnection: close\r\n\r\n" >&3 && tail -n 1 <&3' sh "$1" "$2"
fi`, "sh", address, host}})
	return strings.HasSuffix(string(out.Stdout), "hello\n")
}

func testNoEgress(t *testing.T, e *env) {
	port := origin(t, e)
	sb := e.sandbox(t, sandpit.Spec{})
	if is, err := egresser(t, sb).Egress(guarded(t)); err != nil || !is.IsZero() {
		t.Errorf("it has %+v, %v", is, err)
	}
	if got := shell(t, sb, "cut -s -d: -f1 /proc/net/dev"); strings.TrimSpace(got) != "lo" {
		t.Errorf("it has the interfaces %q", got)
	}
	for _, address := range []string{"good.test:" + port, "127.0.0.1:" + port, "198.19.0.1:" + port} {
		if fetched(t, sb, address, address) {
			t.Errorf("it reaches %s", address)
		}
	}
	if log, err := egresser(t, sb).EgressLog(guarded(t)); err != nil || len(log.Flows) > 0 {
		t.Errorf("the log has %+v, %v", log, err)
	}
}

func testEgress(t *testing.T, e *env) {
	port := origin(t, e)
	want := allowing(port, "good.test")
	sb := e.sandbox(t, sandpit.Spec{Egress: want})
	is, err := egresser(t, sb).Egress(guarded(t))
	if err != nil || !slices.Equal(is.Allow, want.Allow) || !slices.Equal(is.Resolve, want.Resolve) {
		t.Errorf("it has %+v, %v", is, err)
	}
	good, bad := "good.test:"+port, "bad.test:"+port
	if !fetched(t, sb, good, good) {
		t.Error("what is allowed is not reached")
	}
	for address, host := range map[string]string{bad: bad, "127.0.0.1:" + port: good, good: bad} {
		if fetched(t, sb, address, host) {
			t.Errorf("%s is reached as %s", address, host)
		}
	}
	for destination, allowed := range map[string]bool{good: true, bad: false, "127.0.0.1:" + port: false, "good.test:1": false, "udp:" + good: false} {
		d, err := egresser(t, sb).CheckEgress(guarded(t), destination)
		if err != nil || d.Allowed != allowed || d.Why == "" && !allowed {
			t.Errorf("checking %s: %+v, %v", destination, d, err)
		}
	}
	var log sandpit.EgressLog
	eventually(t, "the log has what was allowed and denied", func() bool {
		if log, err = egresser(t, sb).EgressLog(guarded(t)); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(log.Flows, func(f sandpit.Flow) bool { return f.Host == "good.test" && f.Allowed && f.Received > 0 }) &&
			slices.ContainsFunc(log.Denials, func(d sandpit.EgressDenial) bool {
				return strings.Contains(d.Destination, "bad.test") && d.Count > 0
			})
	})
}

func testSetEgress(t *testing.T, e *env) {
	port := origin(t, e)
	sb := e.sandbox(t, sandpit.Spec{})
	for _, names := range [][]string{{"good.test"}, {"bad.test"}, nil, {"good.test", "bad.test"}} {
		if err := egresser(t, sb).SetEgress(guarded(t), allowing(port, names...)); err != nil {
			t.Fatalf("allowing %q: %v (hint: %s)", names, err, sandpit.Hint(err))
		}
		for _, name := range []string{"good.test", "bad.test"} {
			if got := fetched(t, sb, name+":"+port, name+":"+port); got != slices.Contains(names, name) {
				t.Errorf("with %q allowed, that %s is reached is %v", names, name, got)
			}
		}
	}
}

func testChangeEgress(t *testing.T, e *env) {
	e.need(t, feature.Egress)
	sb := egresser(t, e.sandbox(t, sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"a.test:1"}, Deny: []string{"b.test"}, Bounds: sandpit.EgressBounds{Connections: 7}}}))
	want := sandpit.Egress{Preset: sandpit.EgressRegistries, Resolve: []string{"c.test:203.1.113.1"}, Bounds: sandpit.EgressBounds{Connections: 7}}
	var all sync.WaitGroup
	for i := range 10 {
		rule := fmt.Sprintf("n%d.test:443", i)
		want.Allow = append(want.Allow, rule)
		all.Go(func() {
			add := sandpit.EgressRules{Allow: []string{rule, rule}, Resolve: want.Resolve}
			if err := sb.ChangeEgress(guarded(t), sandpit.EgressChange{Add: add}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	remove := sandpit.EgressRules{Allow: []string{"a.test:1", "none.test"}, Deny: []string{"b.test"}}
	if err := sb.ChangeEgress(guarded(t), sandpit.EgressChange{Preset: sandpit.EgressRegistries, Remove: remove}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, sb.ChangeEgress(guarded(t), sandpit.EgressChange{Add: sandpit.EgressRules{Allow: []string{"no such host"}}}), sandpit.ErrInvalid)
	got, err := sb.Egress(guarded(t))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got.Allow)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func testBadEgress(t *testing.T, e *env) {
	port := origin(t, e)
	sb := e.sandbox(t, sandpit.Spec{Egress: allowing(port, "good.test")})
	for _, bad := range []sandpit.Egress{{Allow: []string{"no such host"}}, {Preset: "no-such"}, {Resolve: []string{"x"}, Allow: []string{"x.test"}}} {
		wantKind(t, egresser(t, sb).SetEgress(guarded(t), bad), sandpit.ErrInvalid)
		e.refused(t, sandpit.Spec{Egress: bad}, sandpit.ErrInvalid)
	}
	if !fetched(t, sb, "good.test:"+port, "good.test:"+port) {
		t.Error("what is allowed is no longer reached")
	}
}

func testEgressUnsupported(t *testing.T, e *env) {
	if e.opt.Features[feature.Egress] {
		t.Skip("needs a driver without the feature egress")
	}
	some := sandpit.Egress{Allow: []string{"good.test"}}
	e.refused(t, sandpit.Spec{Egress: some}, sandpit.ErrUnsupported)
	wantKind(t, egresser(t, e.sandbox(t, sandpit.Spec{})).SetEgress(guarded(t), some), sandpit.ErrUnsupported)
}
