package network

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/intercept"
)

// The log keeps little of what a sandbox writes into its requests, and nothing that a terminal obeys.
func TestLongRequests(t *testing.T) {
	a := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	const size = intercept.MaxHead / 2
	for _, host := range []string{"good.test:" + strings.Repeat("a", size), "good.test." + strings.Repeat("a", size)} {
		if got := request(t, in.must(at("good.test", a)), "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); got != http.StatusForbidden {
			t.Errorf("%.20q is answered with %d", host, got)
		}
	}
	for _, f := range in.net.Log().Flows {
		if len(f.Why) > maxText+len("…") {
			t.Errorf("%d bytes of a reason are kept: %.300q", len(f.Why), f.Why)
		}
	}
	var fs flows
	if d := fs.begin(egress.Destination{}).decide(sandpit.EgressDecision{Why: "a\x1b[2J"}); d.Why != "a?[2J" {
		t.Errorf("the reason is noted as %q", d.Why)
	}
}
