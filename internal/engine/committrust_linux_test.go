package engine_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// Certificates that a sandbox was made with are not in an image of it, whatever it may reach by then. Where a sandbox
// got none, a program's own file of that name is.
func TestCommitOfCertificates(t *testing.T) {
	testkit.NeedRoot(t, "to give sandboxes networks")
	needGuest(t)
	ca, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	way, err := upstream.New(upstream.Settings{Roots: authority.Certificate(ca)})
	if err != nil {
		t.Fatal(err)
	}
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}), Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(), Network: network.InProcess{Way: way},
	})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	const state = "cd /etc/ssl/certs; ls | sort | cksum; cat ca-certificates.crt 2>/dev/null | cksum; ls /etc/sandpit 2>/dev/null"
	plain := create(t, e, sandpit.Spec{User: "root"})
	must(t, plain, "mkdir -p /etc/ssl/certs")
	want, _ := shell(t, plain, state)

	intercepted := create(t, e, sandpit.Spec{User: "root", Egress: sandpit.Egress{Allow: []string{"GET:https://good.test/*"}}})
	if got, _ := shell(t, intercepted, state); got == want {
		t.Fatal("it got no certificates")
	}
	if err := egresser(t, intercepted).SetEgress(t.Context(), sandpit.Egress{}); err != nil {
		t.Fatal(err)
	}
	commit(t, intercepted, sandpit.Commit{Name: "intercepted"})
	if got, _ := shell(t, create(t, e, sandpit.Spec{User: "root", Image: "saved:intercepted"}), "mkdir -p /etc/ssl/certs; "+state); got != want {
		t.Errorf("a sandbox of the image has %q, want %q", got, want)
	}

	must(t, plain, "echo own >/etc/ssl/certs/ca-certificates.crt")
	commit(t, plain, sandpit.Commit{Name: "plain"})
	if got, _ := shell(t, create(t, e, sandpit.Spec{User: "root", Image: "saved:plain"}), "cat /etc/ssl/certs/ca-certificates.crt"); got != "own\n" {
		t.Errorf("the program's own file is %.40q", got)
	}
}
