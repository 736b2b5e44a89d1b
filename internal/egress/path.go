package egress

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Paths returns the paths that an origin may take the path of a request for: what it says
// without percent-encoding, and if it has encoded slashes, which some origins decode and others
// don't, both. Rules have to allow all of them. Whatever an origin could read as yet another path
// (dot segments, empty segments, backslashes, what is encoded twice or is not UTF-8) is refused with an error
// that matches sandpit.ErrInvalid.
func Paths(raw string) ([]string, error) {
	bad := func(why string) ([]string, error) {
		return nil, fault.Invalidf("the path %q can be read in more than one way: %s", fault.Clip(raw), why)
	}
	if !strings.HasPrefix(raw, "/") {
		return bad("it does not begin with '/'")
	}
	decoded, err := url.PathUnescape(raw)
	if err != nil {
		return bad("its percent-encoding is not valid")
	}
	if !utf8.ValidString(decoded) {
		return bad("it is not UTF-8")
	}
	for i := range len(decoded) {
		switch c := decoded[i]; {
		case c < ' ' || c == 0x7f:
			return bad("it has a control character")
		case c == '\\', c == '?', c == '#':
			return bad("it has the character " + quoteByte(c))
		case c == '%' && len(decoded) > i+2 && isHex(decoded[i+1]) && isHex(decoded[i+2]):
			return bad("it is encoded twice")
		}
	}
	segments := strings.Split(decoded[1:], "/")
	for i, segment := range segments {
		name, _, _ := strings.Cut(segment, ";") // some servers leave parameters out
		switch last := i == len(segments)-1; {
		case name == "" && (!last || segment != ""):
			return bad("it has an empty segment")
		case name == "." || name == "..":
			return bad("it has a dot segment")
		}
	}
	const slash = "%2F"
	kept, err := url.PathUnescape(strings.ReplaceAll(strings.ReplaceAll(raw, "%2f", slash), slash, "%252F"))
	if err != nil || kept == decoded {
		return []string{decoded}, nil
	}
	return []string{decoded, kept}, nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
