package network_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
)

// Terms that need the interception of TLS are refused without a certificate authority.
func TestTermsWithoutAuthority(t *testing.T) {
	for name, terms := range map[string]engine.Terms{
		"a rule about requests":         {Egress: sandpit.Egress{Allow: []string{"GET:https://example.com/a*"}}},
		"a denial of requests":          {Egress: sandpit.Egress{Preset: sandpit.EgressPublic, Deny: []string{"*:https://example.com/*"}}},
		"a secret that is put in hosts": {Egress: sandpit.Egress{Allow: []string{"example.com"}}, Secrets: []engine.Secret{{Name: "s", Value: []byte("vvvvvvvv"), Hosts: []string{"example.com"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			_, err = network.New(file, terms, nil)
			if !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(err.Error(), "not intercepted") {
				t.Fatalf("err = %v", err)
			}
		})
	}
}
