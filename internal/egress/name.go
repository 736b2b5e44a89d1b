package egress

import (
	"net/netip"
	"strings"

	"golang.org/x/net/idna"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxName is the length of the longest host name in bytes, without a final dot (RFC 1035,
// section 2.3.4).
const maxName = 253

// Name returns the one form of a host name that rules, DNS, TLS and HTTP are compared in:
// lower case, ASCII (IDNA 2008, RFC 5891), without the final dot. Anything that some
// program could take for an address, or for another name, is refused with an error that
// matches sandpit.ErrInvalid. Addresses are not names: see Addr.
func Name(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fault.Invalidf("%q is not a host name: %s", fault.Clip(s), why)
	}
	name := strings.TrimSuffix(s, ".")
	switch {
	case name == "":
		return bad("it is empty")
	case len(name) > 4*maxName: // UTF-8 that becomes ASCII
		return bad("it is too long")
	}
	ascii := true
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 0x80:
			ascii = false
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return bad("it has the character " + quoteByte(c))
		}
	}
	if !ascii {
		var err error
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return bad("it is not a valid international name")
		}
	}
	name = strings.ToLower(name)
	if len(name) > maxName {
		return bad("it is too long")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return bad("it has an empty label")
		case len(label) > 63:
			return bad("a label is longer than 63 bytes")
		case label[0] == '-', label[len(label)-1] == '-':
			return bad("a label begins or ends with '-'")
		case strings.HasPrefix(label, "xn--"):
			if u, err := idna.Lookup.ToUnicode(label); err != nil || u == label {
				return bad("a label is not valid Punycode")
			}
		}
		last = label
	}
	// inet_aton(3) and browsers read 2130706433, 0x7f.1 and 017700000001 as addresses.
	if isNumber(last) {
		return bad("its last label is a number")
	}
	return name, nil
}

func quoteByte(c byte) string {
	if c == ' ' || c > ' ' && c < 0x7f {
		return "'" + string(rune(c)) + "'"
	}
	const hex = "0123456789abcdef"
	return `'\x` + string(hex[c>>4]) + string(hex[c&15]) + "'"
}

// isNumber reports whether a label ends a host that is an address (WHATWG URL, "ends in a
// number").
func isNumber(label string) bool {
	digits := "0123456789"
	if rest, hex := strings.CutPrefix(label, "0x"); hex {
		label, digits = rest, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// Addr returns an address that is written in its usual form: dotted decimal without leading
// zeros, or IPv6 without a zone. IPv4 addresses in IPv6 become IPv4 addresses.
func Addr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}
