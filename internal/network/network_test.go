package network

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnections(t *testing.T) {
	a := listen(t, echo)
	in := join(t, sandpit.Egress{Allow: []string{at("good.test", a)}, Resolve: []string{"good.test:127.0.0.1", "other.test:127.0.0.1"}})
	if err := roundTrip(in.must(at("good.test", a))); err != nil {
		t.Fatal(err)
	}
	if _, err := in.lookup("other.test"); err == nil {
		t.Error("another name of the same address is resolved")
	}
	in.refuses("10.0.0.1:1", "10.0.0.1:1", "not public")
	in.refuses("93.184.216.34:80", "93.184.216.34:80", "no rule allows it")
	in.refuses("good.test:1", "good.test:1", "no rule allows it")
}
