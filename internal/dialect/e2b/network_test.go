package e2b

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// What E2B's network settings allow, the egress allows, and nothing else. What can't be said so is refused.
func TestNetwork(t *testing.T) {
	public := sandpit.Egress{Preset: sandpit.EgressPublic}
	for body, want := range map[string]*sandpit.Egress{
		`{}`:                                  &public,
		`{"allow_internet_access":true}`:      &public,
		`{"allow_internet_access":false}`:     {},
		`{"network":{"denyOut":["8.8.8.8"]}}`: {Preset: sandpit.EgressPublic, Deny: []string{"8.8.8.8"}},
		`{"network":{"denyOut":["0.0.0.0/0"],"allowOut":["pypi.org","*.x.org","1.1.1.0/24"]}}`: {Allow: []string{"pypi.org", "*.x.org", "1.1.1.0/24"}},
		`{"allow_internet_access":false,"network":{"allowOut":["pypi.org"]}}`:                  {Allow: []string{"pypi.org"}},
		`{"network":{"allowOut":["0.0.0.0/0"]}}`:                                               &public,
		`{"network":{"allowOut":["pypi.org"]}}`:                                                &public,
		`{"network":{"allowOut":["pypi.org"],"denyOut":["1.2.3.4"]}}`:                          nil,
		`{"network":{"rules":{"a":[{}]}}}`:                                                     nil,
		`{"network":{"egressProxy":{"address":"a:1"}}}`:                                        nil,
		`{"network":{"httpsPorts":[1]}}`:                                                       nil,
		`{"network":{"maskRequestHost":"a"}}`:                                                  nil,
	} {
		var in newSandbox
		if err := json.Unmarshal([]byte(body), &in); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got, err := in.Network.egress(in.AllowInternet)
		switch {
		case (err == nil) != (want != nil):
			t.Errorf("%s: %v", body, err)
		case want != nil && !cmp.Equal(got, *want):
			t.Errorf("%s is %+v, want %+v", body, got, *want)
		}
	}
	for _, entry := range []string{"", "nonsense", "package-registries", "pypi.org:443", "300.1.1.1", "1.2.3.4/33", "*", "a..b", "https://x.org/", "x.org;", "*.*.x.org"} {
		for name, n := range map[string]*networkConfig{"allowOut": {AllowOut: []string{entry}}, "denyOut": {DenyOut: []string{entry}}} {
			_, err := n.egress(nil)
			if want := fmt.Sprintf("network.%s: %q is not an IP address, CIDR block or host name", name, entry); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %q: %v, want %s", name, entry, err, want)
			}
		}
	}
	for _, entry := range []string{"::1", "2001:db8::/32", "10.0.0.0/8", "a_b.x-y.org", "*.x.org", "x.org.", "xn--bcher-kva.example"} {
		if !isDestination(entry) {
			t.Errorf("%q is not a destination", entry)
		}
	}
	var in newSandbox
	if err := json.Unmarshal([]byte(`{"network":{"allowout":[],"more":1}}`), &in); err == nil {
		t.Error("an unknown field of network is taken")
	}
}

// What clients asked for is told, also if it allows no more than is allowed in any case.
func TestNetworkIsTold(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                       `null`,
		`{"denyOut":["8.8.8.8"]}`:  `{"denyOut":["8.8.8.8"]}`,
		`{"allowOut":["8.8.8.8"]}`: `{"allowOut":["8.8.8.8"]}`,
		`{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}`:  `{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}`,
		`{"allowOut":["0.0.0.0/0"],"denyOut":["0.0.0.0/0"]}`: `{"allowOut":["0.0.0.0/0"]}`,
	} {
		n := new(networkConfig)
		if err := json.Unmarshal([]byte(body), n); err != nil {
			t.Fatal(err)
		}
		e, err := n.egress(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(networkOf(e, state{AllowOut: n.redundant(e)})); err != nil || string(got) != want {
			t.Errorf("%s is told as %s, %v", body, got, err)
		}
	}
}

// An AllowOut that adds nothing is bounded, and its entries are checked as those of closed egress are.
func TestRedundantAllowOutIsChecked(t *testing.T) {
	names := func(count, length int) []string {
		out := make([]string, count)
		for i := range out {
			out[i] = fmt.Sprintf("%0*d.example.com", length-len(".example.com"), i)
		}
		return out
	}
	for about, c := range map[string]struct {
		allow []string
		want  string // "": it is taken
	}{
		"valid":                 {[]string{"8.8.8.8", "pypi.org", "*.x.org", "1.1.1.0/24"}, ""},
		"all traffic":           {[]string{allTraffic, "pypi.org"}, ""},
		"as many as possible":   {names(sandpit.MaxEgressRules, 20), ""},
		"too many":              {names(sandpit.MaxEgressRules+1, 20), "network.allowOut has 1025 entries, and may have 1024"},
		"too many bytes":        {names(sandpit.MaxEgressRules, 48), "bytes, and may have 32768"},
		"not a host":            {[]string{"not a host !!", "8.8.8.8"}, `network.allowOut: "not a host !!" is not an IP address, CIDR block or host name`},
		"with all traffic":      {[]string{allTraffic, "not a host !!"}, `network.allowOut: "not a host !!" is not an IP address, CIDR block or host name`},
		"too many, all traffic": {append(names(sandpit.MaxEgressRules, 20), allTraffic), "network.allowOut has 1025 entries"},
	} {
		_, err := (&networkConfig{AllowOut: c.allow}).egress(nil)
		if c.want == "" && err != nil || c.want != "" && (errcode.Of(err) != errcode.Invalid || !strings.Contains(err.Error(), c.want) || sandpit.Hint(err) == "") {
			t.Errorf("%s: %v, want %q", about, err, c.want)
		}
	}
}
