package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestUpstreamSettings checks that a server that is started gets the settings of this program, and that a
// password is refused on the command line only.
func TestUpstreamSettings(t *testing.T) {
	const proxy = "http://bert:hush@proxy.test:3128"
	config := file(t, "config.yaml", "upstream-proxy: "+proxy+"\nno-proxy: .corp.test\nca-bundle: /etc/corp.pem\n")
	a := &App{SystemConfig: config, Environ: []string{"HOME=/nowhere"}}
	o := NewOptions(a.Lookup)
	if err := o.Configure(a.Config()); err != nil {
		t.Fatal(err)
	}
	if u, err := o.Upstream(); err != nil || u != (Upstream{proxy, ".corp.test", "/etc/corp.pem"}) {
		t.Errorf("%+v, %v", u, err)
	}
	if o.Acquire().Proxy != proxy || o.Acquire().CABundle != "/etc/corp.pem" {
		t.Errorf("%+v", o.Acquire())
	}
	want := []string{"A=b", "SANDPIT_UPSTREAM_PROXY=" + proxy, "SANDPIT_NO_PROXY=.corp.test", "SANDPIT_CA_BUNDLE=/etc/corp.pem"}
	if got := o.ServerEnviron([]string{"A=b"}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for flag, ok := range map[string]bool{proxy: false, "http://proxy.test:3128": true} {
		o := NewOptions(a.Lookup)
		if _, read := parse(o.Sections(), []string{"--upstream-proxy", flag}); !read {
			t.Fatal("it can't be read")
		}
		_, err := o.Upstream()
		if (err == nil) != ok || err != nil && (strings.Contains(err.Error()+sandpit.Hint(err), "hush") || !strings.Contains(sandpit.Hint(err), "SANDPIT_UPSTREAM_PROXY")) {
			t.Errorf("%s: %v", flag, err)
		}
		if err := o.ownWay("the server"); err == nil || !strings.Contains(err.Error(), "--upstream-proxy has no effect") {
			t.Errorf("err = %v", err)
		}
	}
}
