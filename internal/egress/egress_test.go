package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com": "example.com", "example.com.": "example.com", "a": "a", "_dmarc.example.com": "_dmarc.example.com",
		"bücher.example": "xn--bcher-kva.example", "BÜCHER.example": "xn--bcher-kva.example", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"1.example": "1.example", "0x7f.example": "0x7f.example", "127.0.0.1.nip.io": "127.0.0.1.nip.io", strings.Repeat("a", 63) + ".b": strings.Repeat("a", 63) + ".b",
	} {
		if got, err := Name(in); got != want || err != nil {
			t.Errorf("Name(%q) is %q, %v; want %q", in, got, err, want)
		}
	}
}

// Anything that one program reads as another name than another program, or as an address, is
// refused. (F6)
func TestAttackF6NamesThatAreReadDifferently(t *testing.T) {
	for _, in := range []string{
		"", ".", "..", ".example.com", "example..com", "example.com..", "-a.example", "a-.example", "*.example.com", "exa mple.com", " example.com", "example.com ",
		"evil.com\x00.allowed.com", "evil.com\n.allowed.com", "evil.com\r\n", "allowed.com\t", "allowed.com\x7f", "allowed.com\xff", "allowed@evil.com", "allowed.com@evil.com", "allowed.com:80",
		"allowed.com/x", "allowed.com?x", "allowed.com#x", `allowed.com\@evil.com`, "allowed.com%2eevil.com", "allowed.com%00", "[::1]", "::1", "fe80::1%eth0", "::ffff:169.254.169.254",
		"127.0.0.1", "127.1", "127.0.0.1.", "2130706433", "0x7f000001", "0x7f.1", "0X7F.0x1", "017700000001", "0177.0.0.1", "1.2.3.0x", "example.0x", "example.0x0", "example.255",
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518",
		"１２７.０.０.１", "127。0。0。1", "①.②.③.④", // digits and full stops of other scripts
		"xn--", "xn--a", "xn--example", "xn--a-ecp.ru", "xn--zz--.example", "xn--80ak6aa92e\x00.com",
		"a\u200db.example", "\u202eexample.com", "exam\u0000ple.com",
		strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "aa", strings.Repeat("ü", 60) + ".example", strings.Repeat("x", 5000),
	} {
		if got, err := Name(in); err == nil {
			t.Errorf("Name(%q) is %q", in, got)
		} else if !errors.Is(err, sandpit.ErrInvalid) || len(err.Error()) > 300 {
			t.Errorf("Name(%q): %v", in, err)
		}
	}
	rules := compile(t, sandpit.Egress{Allow: []string{"allowed.com", "*.wild.example"}})
	for _, host := range []string{"allowed.com.evil.com", "xallowed.com", "sub.allowed.com", "allowed.com.evil", "wild.example", "xwild.example", "wild.example.evil.com", "evil.com"} {
		if d := rules.Decide(Destination{Protocol: TCP, Host: host, Port: 443}); d.Allowed {
			t.Errorf("%s is allowed by %q", host, d.Rule)
		}
	}
	if d := compile(t, sandpit.Egress{}).Decide(Destination{Protocol: TCP, Host: "example.com", Port: 443}); d.Allowed {
		t.Error("an empty list allows something")
	}
}

func compile(t *testing.T, e sandpit.Egress) *Rules {
	t.Helper()
	r, err := Compile(e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRules(t *testing.T) {
	for _, bad := range []string{
		"", "*", "*.", "*.com", "*.co.uk", "*.github.io", "**.example.com", "a.*.example.com", "*example.com", "*.10.0.0.1",
		"example.com:", "example.com:0", "example.com:65536", "example.com:http", "example.com:+80", "example.com:080", "example.com:80:80", "example.com:-1",
		"http://example.com", "https://example.com", "example.com/24", "1.2.3.4/33", "1.2.3.4/24", "1.2.3.0/024", "::ffff:1.2.3.4/128", "::1%lo", "[::1", "[::1]80", "[example.com]:80", "[::1]:", "::/200",
		"udp:", "ping:", "ping:example.com:7", "tcp:example.com", "icmp:example.com", "udp:udp:example.com", "udp:package-registries", "Package-Registries", "package-registry",
		"GET:http://example.com/", "get:https://example.com/", "GET:https:///x", "GET:https://10.0.0.1/", "GET:https://example.com/a*b", "GET:https://example.com/../x", "GET:https://example.com/%2e",
		"GET:https://example.com/?q", "GET:https://user@example.com/", ":https://example.com/", "G T:https://example.com/",
	} {
		if rules, err := ParseRule(bad); err == nil {
			t.Errorf("ParseRule(%q) is %+v", bad, rules)
		} else if err != nil && !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("ParseRule(%q): %v", bad, err)
		}
	}
	for _, c := range []struct {
		egress  sandpit.Egress
		allowed string // destinations, by a space
		denied  string
	}{
		{sandpit.Egress{Allow: []string{"example.com"}}, "example.com example.com:1 EXAMPLE.com.:443", "www.example.com udp:example.com ping:example.com 93.184.216.34"},
		{sandpit.Egress{Allow: []string{"example.com:443"}}, "example.com:443 example.com", "example.com:80"},
		{sandpit.Egress{Allow: []string{"*.example.com:22"}}, "a.example.com:22 a.b.example.com:22", "example.com:22 a.example.com:23 xexample.com:22"},
		{sandpit.Egress{Allow: []string{"udp:example.com:53"}}, "udp:example.com:53", "example.com:53 udp:example.com:54"},
		{sandpit.Egress{Allow: []string{"ping:example.com"}}, "ping:example.com", "example.com udp:example.com"},
		{sandpit.Egress{Allow: []string{"192.0.2.0/24", "[2001:db8::1]:80"}}, "192.0.2.7:1 192.0.2.7 [2001:db8::1]:80", "192.0.3.1 example.com [2001:db8::1]:81 2001:db8::2"},
		{sandpit.Egress{Allow: []string{"example.com"}, Deny: []string{"example.com:25"}}, "example.com:80", "example.com:25"},
		{sandpit.Egress{Preset: "public", Deny: []string{"*.example.com", "1.2.3.0/24"}}, "example.com:9 1.2.4.1:80 other.test", "a.example.com 1.2.3.4:80 10.0.0.1 127.0.0.1 169.254.169.254 udp:1.2.4.1 ping:1.2.4.1"},
		{sandpit.Egress{Preset: "all"}, "10.0.0.1:80 1.2.3.4 [fd12::1]:80", "127.0.0.1 169.254.169.254 100.100.100.200 168.63.129.16 fd00:ec2::254 ::1 fe80::1 0.0.0.0 224.0.0.1"},
		{sandpit.Egress{Preset: "registries"}, "pypi.org:443 github.com:22 deb.debian.org:80", "pypi.org:22 example.com:443 1.1.1.1:443 api.openai.com:443"},
		{sandpit.Egress{Allow: []string{"llm-apis"}}, "api.openai.com:443", "api.openai.com:80 pypi.org:443"},
		{sandpit.Egress{Allow: []string{"0.0.0.0/0", "::/0"}}, "1.2.3.4:80 2606:4700::1", "127.0.0.1 10.0.0.1 169.254.169.254 ::1 fd12::1 fd00:ec2::254 100.64.0.1"},
		{sandpit.Egress{Allow: []string{"127.0.0.0/8", "169.254.169.254", "fc00::/7"}}, "127.0.0.1 127.9.9.9:1 169.254.169.254 fd12::1", "169.254.169.253 10.0.0.1"},
		{sandpit.Egress{Allow: []string{"1.1.1.1", "dns.google:443", "example.com:853"}, Preset: "public"}, "1.1.1.1:853 dns.google:443 example.com:853", "1.0.0.1:443 example.org:853 8.8.8.8:53 example.org:53 cloudflare-dns.com:443 dns.google:53"},
	} {
		for _, destination := range strings.Fields(c.allowed) {
			if d, err := decide(c.egress, destination); !d.Allowed || d.Rule == "" || err != nil {
				t.Errorf("%+v, %s: %+v, %v", c.egress, destination, d, err)
			}
		}
		for _, destination := range strings.Fields(c.denied) {
			if d, err := decide(c.egress, destination); d.Allowed || d.Why == "" || err != nil {
				t.Errorf("%+v, %s: %+v, %v", c.egress, destination, d, err)
			}
		}
	}
}

func TestBadEgress(t *testing.T) {
	for _, e := range []sandpit.Egress{
		{Preset: "everything"},
		{Allow: []string{"*.com"}},
		{Deny: []string{"a b"}},
		{Resolve: []string{"example.com"}},
		{Resolve: []string{"example.com:localhost"}},
		{Resolve: []string{"*.example.com:1.2.3.4"}},
		{Resolve: []string{"1.2.3.4:1.2.3.4"}},
		{Resolve: []string{"example.com:127.1"}},
		{DNS: []string{"dns.google"}},
		{DNS: []string{"8.8.8.8:0"}},
		{DNS: []string{"fe80::1%eth0"}},
		{DNS: make([]string, MaxServers+1)},
		{Allow: make([]string, sandpit.MaxEgressRules+1)},
	} {
		if _, err := Compile(e); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("Compile(%.100v): %v", e, err)
		}
	}
}

// A rule that is written as a URL is answered with the rule that it means.
func TestRulesAreNotURLs(t *testing.T) {
	for rule, want := range map[string]string{
		"http://a.test":        "write a.test:80",
		"https://a.test/x":     "write a.test:443",
		"http://a.test:8080/x": "write a.test:8080",
		"ssh://a.test":         "write a.test",
		"udp:http://a.test":    "write a.test:80",
		"GET:http://a.test/":   "begin with METHOD:https://",
	} {
		if _, err := ParseRule(rule); !errors.Is(err, sandpit.ErrInvalid) || !strings.HasSuffix(err.Error(), want) || sandpit.Hint(err) == "" {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// The reason of a denial does not have the address: see Dialable.
// Rules that can only mean a service of this machine, and lead to the sandbox itself, are refused.
func TestRefuseLoopback(t *testing.T) {
	for _, tt := range []struct {
		egress sandpit.Egress
		hint   string // "": it is not refused
	}{
		{sandpit.Egress{Allow: []string{"127.0.0.1:8080"}}, "write --allow host:8080 --resolve host:127.0.0.1"},
		{sandpit.Egress{Allow: []string{"[::1]:8080"}}, "write --allow host:8080 --resolve host:::1"},
		{sandpit.Egress{Allow: []string{"udp:127.0.0.2:53"}}, "write --allow udp:host:53 --resolve host:127.0.0.2"},
		{sandpit.Egress{Allow: []string{"a.test", "localhost:8080"}}, "write --allow host:8080 --resolve host:127.0.0.1"},
		{sandpit.Egress{Allow: []string{"0.0.0.0/0"}}, ""},
		{sandpit.Egress{Allow: []string{"a.test", "127.0.0.1:8080"}}, ""}, // which a.test may lead to
		{sandpit.Egress{Preset: sandpit.EgressPublic, Allow: []string{"127.0.0.1:8080"}}, ""},
		{sandpit.Egress{Deny: []string{"127.0.0.1", "localhost:1"}}, ""},
		{sandpit.Egress{Allow: []string{"192.0.2.1"}}, ""},
	} {
		err := RefuseLoopback(tt.egress)
		if (err == nil) != (tt.hint == "") || !strings.Contains(sandpit.Hint(err), tt.hint) {
			t.Errorf("%v: %v, hint %q", tt.egress, err, sandpit.Hint(err))
		}
	}
}

func TestDialable(t *testing.T) {
	web := func(host string) Destination { return Destination{Protocol: TCP, Host: host, Port: 443} }
	for _, c := range []struct {
		egress  sandpit.Egress
		host    string
		allowed string
		denied  string
	}{
		{
			sandpit.Egress{Allow: []string{"a.test"}},
			"a.test", "93.184.216.34 2606:4700::1",
			"127.0.0.1 10.0.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200 168.63.129.16 224.0.0.1 0.0.0.0 255.255.255.255 ::1 :: fe80::1 fd00:ec2::254 ::ffff:127.0.0.1 ::ffff:a9fe:a9fe 64:ff9b::7f00:1 2002:7f00:1::",
		},
		{sandpit.Egress{Allow: []string{"a.test"}, Resolve: []string{"a.test:127.0.0.1", "b.test:10.0.0.1"}}, "a.test", "127.0.0.1 1.2.3.4", "127.0.0.2 10.0.0.1"},
		{sandpit.Egress{Allow: []string{"a.test", "10.0.0.0/24:443", "0.0.0.0/0"}}, "a.test", "10.0.0.5", "10.0.1.5 127.0.0.1"},
		{sandpit.Egress{Allow: []string{"a.test", "10.0.0.0/24:80"}}, "a.test", "1.2.3.4", "10.0.0.5"},
		{sandpit.Egress{Preset: "all"}, "a.test", "10.0.0.5 fd12::1", "127.0.0.1 169.254.169.254 fd00:ec2::254 100.64.0.1"},
		{sandpit.Egress{Preset: "public"}, "a.test", "1.2.3.4", "8.8.8.8 ::ffff:1.1.1.1 2620:fe::fe"},
		{sandpit.Egress{Preset: "public", Allow: []string{"a.test", "9.9.9.9"}}, "a.test", "8.8.8.8 9.9.9.9", ""},
		{sandpit.Egress{Preset: "public", Allow: []string{"9.9.9.9"}, Resolve: []string{"a.test:1.1.1.1"}}, "a.test", "9.9.9.9 1.1.1.1", "8.8.8.8"},
		{sandpit.Egress{Preset: "public", Deny: []string{"1.2.3.0/24"}}, "a.test", "1.2.4.1", "1.2.3.4 10.0.0.1"},
		{sandpit.Egress{Allow: []string{"a.test"}, Deny: []string{"10.0.0.0/8"}, Resolve: []string{"a.test:10.0.0.1"}}, "a.test", "", "10.0.0.1"},
	} {
		rules := compile(t, c.egress)
		for _, a := range strings.Fields(c.allowed) {
			if d := rules.Dialable(web(c.host), netip.MustParseAddr(a)); !d.Allowed {
				t.Errorf("%+v, %s: %s", c.egress, a, d.Why)
			}
		}
		for _, a := range strings.Fields(c.denied) {
			if d := rules.Dialable(web(c.host), netip.MustParseAddr(a)); d.Allowed || d.Why == "" {
				t.Errorf("%+v: %s may be dialled", c.egress, a)
			} else if strings.Contains(d.Why, netip.MustParseAddr(a).Unmap().String()) {
				t.Errorf("%+v: the reason names %s: %s", c.egress, a, d.Why)
			}
		}
	}
}

func TestResolvable(t *testing.T) {
	rules := compile(t, sandpit.Egress{Allow: []string{"a.test:80", "udp:b.test", "ping:c.test"}, Deny: []string{"d.test"}})
	denied := compile(t, sandpit.Egress{Allow: []string{"*.a.test:80", "b.test", "c.test:80", "udp:c.test"}, Deny: []string{"x.a.test", "y.a.test:80", "z.a.test:81", "b.test:80", "c.test"}})
	for name, want := range map[string]bool{"x.a.test": false, "y.a.test": false, "z.a.test": true, "b.test": true, "c.test": true} {
		if got := denied.Resolvable(name); got != want {
			t.Errorf("where some are denied, Resolvable(%s) is %v", name, got)
		}
	}
	public := compile(t, sandpit.Egress{Preset: "public", Allow: []string{"c.test:80"}, Deny: []string{"a.test:25", "b.test", "c.test:25"}})
	for name, want := range map[string]bool{"a.test": true, "b.test": false, "c.test": true, "d.test": true, "dns.google": false} {
		if got := public.Resolvable(name); got != want {
			t.Errorf("where the preset is public, Resolvable(%s) is %v", name, got)
		}
	}
	for name, want := range map[string]bool{"a.test": true, "b.test": true, "c.test": true, "d.test": false, "x.a.test": false, "test": false} {
		if got := rules.Resolvable(name); got != want {
			t.Errorf("Resolvable(%s) is %v", name, got)
		}
	}
}

func TestBeyondThePolicy(t *testing.T) {
	for _, c := range []struct {
		asked   sandpit.Egress
		allowed []string
		beyond  string
	}{
		{sandpit.Egress{Allow: []string{"a.test"}}, nil, "a.test"},
		{sandpit.Egress{Allow: []string{"a.test:80"}}, []string{"a.test"}, ""},
		{sandpit.Egress{Allow: []string{"a.test"}}, []string{"a.test:80"}, "a.test"},
		{sandpit.Egress{Allow: []string{"x.a.test"}}, []string{"*.a.test"}, ""},
		{sandpit.Egress{Allow: []string{"*.x.a.test"}}, []string{"*.a.test"}, ""},
		{sandpit.Egress{Allow: []string{"*.a.test"}}, []string{"x.a.test"}, "*.a.test"},
		{sandpit.Egress{Allow: []string{"a.test"}}, []string{"*.a.test"}, "a.test"},
		{sandpit.Egress{Allow: []string{"udp:a.test"}}, []string{"a.test"}, "udp:a.test"},
		{sandpit.Egress{Allow: []string{"a.test"}}, []string{"GET:https://a.test/*"}, "a.test"},
		{sandpit.Egress{Allow: []string{"GET:https://a.test/x/y"}}, []string{"*:https://a.test/x/*"}, ""},
		{sandpit.Egress{Allow: []string{"10.1.0.0/16"}}, []string{"10.0.0.0/8"}, ""},
		{sandpit.Egress{Allow: []string{"10.0.0.0/8"}}, []string{"10.1.0.0/16"}, "10.0.0.0/8"},
		{sandpit.Egress{Allow: []string{"127.0.0.1"}}, []string{"0.0.0.0/0"}, "127.0.0.1"},
		{sandpit.Egress{Preset: "registries"}, []string{"registries"}, ""},
		{sandpit.Egress{Preset: "registries"}, []string{"package-registries"}, "git-hosts"},
		{sandpit.Egress{Preset: "public"}, []string{"registries"}, "public"},
		{sandpit.Egress{Preset: "all"}, []string{"public"}, "all"},
		{sandpit.Egress{Preset: "learn"}, []string{"public"}, ""},
		{sandpit.Egress{Preset: "registries", Allow: []string{"a.test", "1.2.3.4"}}, []string{"public"}, ""},
		{sandpit.Egress{Allow: []string{"10.0.0.1"}}, []string{"public"}, "10.0.0.1"},
		{sandpit.Egress{Allow: []string{"10.0.0.1", "fd12::1"}}, []string{"all"}, ""},
		{sandpit.Egress{Allow: []string{"127.0.0.1"}}, []string{"all"}, "127.0.0.1"},
		{sandpit.Egress{Allow: []string{"fd00:ec2::254"}}, []string{"all"}, "fd00:ec2::254"},
		{sandpit.Egress{Allow: []string{"fc00::/7"}}, []string{"all"}, "fc00::/7"},
		{sandpit.Egress{Allow: []string{"0.0.0.0/0"}}, []string{"all"}, "0.0.0.0/0"},
	} {
		if _, got, err := Excess(c.asked, c.allowed, nil); got != c.beyond || err != nil {
			t.Errorf("%+v with %v: beyond is %q, %v; want %q", c.asked, c.allowed, got, err, c.beyond)
		}
	}
}

func TestNarrows(t *testing.T) {
	const get = "GET:https://a.test/x*"
	allow := func(rules ...string) sandpit.Egress { return sandpit.Egress{Allow: rules} }
	preset := func(p sandpit.EgressPreset, rules ...string) sandpit.Egress {
		return sandpit.Egress{Preset: p, Allow: rules}
	}
	for _, c := range []struct {
		was, e sandpit.Egress
		want   bool
	}{
		{allow("a.test", "b.test"), allow("b.test"), true},
		{allow("b.test"), allow("a.test", "b.test"), false},
		{allow("*.a.test"), allow("b.a.test"), false}, // only texts are compared

		{preset("all"), preset("public"), true},
		{preset("learn"), preset("public"), true},
		{preset("public"), preset("all"), false},
		{preset("public"), preset("none"), true},
		{preset("public"), preset("registries"), false}, // which names hosts
		{preset("registries"), preset(""), true},
		{preset("registries"), preset("public"), false},
		{preset("none"), preset("registries"), false},
		{preset(""), preset("public"), false},

		{sandpit.Egress{Allow: []string{"a.test"}, Deny: []string{"b.test"}}, allow("a.test"), false},
		{allow("a.test"), sandpit.Egress{Allow: []string{"a.test"}, Deny: []string{"b.test"}}, true},
		{allow("a.test"), sandpit.Egress{Allow: []string{"a.test"}, Resolve: []string{"a.test:1.2.3.4"}}, false},
		{sandpit.Egress{Allow: []string{"a.test"}, Resolve: []string{"a.test:1.2.3.4"}}, allow("a.test"), false},
		{allow("a.test"), sandpit.Egress{Allow: []string{"a.test"}, DNS: []string{"9.9.9.9"}}, false},
		{sandpit.Egress{Allow: []string{"a.test"}, DNS: []string{"9.9.9.9"}}, allow("a.test"), false},

		// A rule about requests also binds all other connections to its host.
		{allow(get), allow(), true},
		{allow("b.test", get), allow("b.test"), true},
		{allow("a.test", get), allow("a.test"), false},
		{allow("a.test:443", get), allow("a.test:443"), false},
		{allow("a.test:80", get), allow("a.test:80"), true},
		{allow("udp:a.test", get), allow("udp:a.test"), true},
		{allow("*.test.test", "GET:https://a.test.test/"), allow("*.test.test"), false},
		{allow("b.a.test", "GET:https://*.a.test/"), allow("b.a.test"), false},
		{allow("1.2.3.0/24", get), allow("1.2.3.0/24"), false},
		{allow("package-registries", "GET:https://pypi.org/x"), allow("package-registries"), false},
		{allow("package-registries", get), allow("package-registries"), true},
		{preset("public", get), preset("public"), false},
		{preset("public", get), preset("none"), true},
		{preset("registries", "GET:https://pypi.org/x"), preset("registries"), false},
		{allow("a.test", get, "POST:https://a.test/y"), allow("a.test", "POST:https://a.test/y"), true},
		{allow(get, "POST:https://a.test/y"), allow("POST:https://a.test/y"), true},
	} {
		if got := Narrows(c.e, c.was); got != c.want {
			t.Errorf("from %+v to %+v: %t", c.was, c.e, got)
		}
	}
}

// Whoever may lead an allowed name to any public address may reach all of them.
func TestAddressesOfAllowedNames(t *testing.T) {
	asked := sandpit.Egress{Allow: []string{"pypi.org:443"}, Resolve: []string{"pypi.org:93.184.216.34"}}
	server := sandpit.Egress{Allow: []string{"pypi.org:443"}, DNS: []string{"93.184.216.34"}}
	for _, c := range []struct {
		allowed, addresses []string
		granted            bool
	}{
		{[]string{"registries"}, []string{"public"}, false},
		{[]string{"pypi.org:443"}, []string{"public"}, false},
		{[]string{"pypi.org:443"}, []string{"93.184.216.0/24"}, true},
		{[]string{"public"}, []string{"public"}, true},
		{[]string{"all"}, []string{"public"}, true},
		{[]string{"public"}, nil, false},
	} {
		for want, e := range map[string]sandpit.Egress{"resolve": asked, "dns": server} {
			if part, _, err := Excess(e, c.allowed, c.addresses); (part == "") != c.granted || part != "" && part != want || err != nil {
				t.Errorf("%s with %v and %v: beyond in %q, %v", want, c.allowed, c.addresses, part, err)
			}
		}
	}
}

func TestRequests(t *testing.T) {
	rules := compile(t, sandpit.Egress{Allow: []string{"GET:https://a.test/x/*", "b.test"}, Deny: []string{"POST:https://b.test/admin"}})
	a, b := Destination{Protocol: TCP, Host: "a.test", Port: 443}, Destination{Protocol: TCP, Host: "b.test", Port: 443}
	if !rules.Intercepts(a) || !rules.Intercepts(b) || rules.Intercepts(Destination{Protocol: TCP, Host: "c.test", Port: 443}) {
		t.Error("other destinations are intercepted than those of rules with a method and path")
	}
	for _, c := range []struct {
		to           Destination
		method, path string
		want         bool
	}{
		{a, "GET", "/x/y", true},
		{a, "GET", "/x", false},
		{a, "POST", "/x/y", false},
		{a, "get", "/x/y", false},
		{b, "GET", "/admin", true},
		{b, "POST", "/admin", false},
		{b, "POST", "/admin/", true},
	} {
		if d := rules.Request(c.to, c.method, c.path); d.Allowed != c.want {
			t.Errorf("%s %s at %s: %+v", c.method, c.path, c.to, d)
		}
	}
}

// Every set and preset compiles, and no set has a host twice.
func TestSets(t *testing.T) {
	for _, set := range Sets() {
		seen := map[string]bool{}
		for _, host := range set.Hosts {
			if name, err := Name(host); name != host || err != nil || seen[host] {
				t.Errorf("set %s: %q: %v", set.Name, host, err)
			}
			seen[host] = true
		}
	}
	for _, p := range []sandpit.EgressPreset{"", "none", "registries", "public", "all", "learn"} {
		compile(t, sandpit.Egress{Preset: p})
	}
	for _, domain := range resolverDomains() {
		if name, err := Name(domain); name != domain || err != nil {
			t.Errorf("%q: %v", domain, err)
		}
	}
}

// decide says whether e allows a destination, in the form of ParseDestination.
func decide(e sandpit.Egress, destination string) (sandpit.EgressDecision, error) {
	rules, err := Compile(e)
	if err != nil {
		return sandpit.EgressDecision{}, err
	}
	to, err := ParseDestination(destination)
	if err != nil {
		return sandpit.EgressDecision{}, err
	}
	return rules.Decide(to), nil
}

// Within tells rules that are allowed as a whole from others. Too many are not read.
func TestWithin(t *testing.T) {
	rules := []string{"a.example.com:443", "example.com:443", "git-hosts", "package-registries"}
	within, others, err := Within(rules, []string{"*.example.com", "git-hosts"})
	if err != nil || !slices.Equal(within, []string{"a.example.com:443", "git-hosts"}) || !slices.Equal(others, []string{"example.com:443", "package-registries"}) {
		t.Errorf("%q and %q, %v", within, others, err)
	}
	for about, c := range map[string][2][]string{"a bad rule": {{"a b"}, nil}, "a bad allowance": {nil, {"a b"}}, "too many": {make([]string, sandpit.MaxEgressRules+1), nil}} {
		if _, _, err := Within(c[0], c[1]); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: %v", about, err)
		}
	}
}
