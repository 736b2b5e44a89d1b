package egress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func FuzzName(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.COM.", "bücher.example", "xn--bcher-kva.example", "127.1", "0x7f.1", "evil.com\x00.allowed.com", "１.２.３.４", "a\u200db.example", "ß.de", "İ.test"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := Name(s)
		if err != nil {
			return
		}
		checkName(t, s, name)
	})
}

// checkName fails if a name has another form, or if some program could take it for an address.
func checkName(t *testing.T, in, name string) {
	t.Helper()
	if again, err := Name(name); again != name || err != nil {
		t.Errorf("Name(%q) is %q, of which Name is %q, %v", in, name, again, err)
	}
	if name == "" || len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		t.Errorf("Name(%q) is %q", in, name)
	}
	if inetAton(name) {
		t.Errorf("Name(%q) is %q, which inet_aton reads as an address", in, name)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		t.Errorf("Name(%q) is %q, which is an address", in, name)
	}
}

// inetAton reports whether inet_aton(3) accepts s: at most four numbers, each decimal, octal
// or hexadecimal.
func inetAton(s string) bool {
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return false
	}
	for _, p := range parts {
		digits := "0123456789"
		if rest, hex := strings.CutPrefix(p, "0x"); hex {
			p, digits = rest, "0123456789abcdef"
		}
		if strings.Trim(p, digits) != "" {
			return false
		}
	}
	return true
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:443", "udp:[::1]:53", "10.0.0.0/8:80", "ping:a.test", "GET:https://a.test/x/*", "package-registries", "0.0.0.0/0", "::/0", "fc00::/7"} {
		f.Add(s, "127.0.0.1:80")
	}
	f.Fuzz(func(t *testing.T, text, destination string) {
		rules, err := ParseRule(text)
		if err != nil {
			return
		}
		for _, r := range rules {
			if (r.Host == "") == !r.Prefix.IsValid() {
				t.Fatalf("rule %q is about %+v", text, r)
			}
			if r.Host != "" {
				checkName(t, text, r.Host)
			}
			if !r.Includes(&r) {
				t.Errorf("rule %q does not include itself", text)
			}
		}
		// Deny wins over anything.
		to, err := ParseDestination(destination)
		if err != nil {
			return
		}
		compiled, err := Compile(sandpit.Egress{Preset: "all", Allow: []string{text}, Deny: []string{text}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.HTTP == nil && r.about(to) && compiled.Decide(to).Allowed {
				t.Errorf("%s is allowed, though the rule %q denies it", to, text)
			}
		}
	})
}

func FuzzParseDestination(f *testing.F) {
	for _, s := range []string{"example.com", "example.com:443", "udp:[::1]:53", "::1", "127.0.0.1:80", "ping:a.test", "tcp:a.test:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDestination(text)
		if err != nil {
			return
		}
		if again, err := ParseDestination(d.String()); again != d || err != nil {
			t.Errorf("%q is %+v, and as %q it is %+v, %v", text, d, d, again, err)
		}
		if d.Host != "" {
			checkName(t, text, d.Host)
		}
	})
}
