package e2b

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
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
