package notation

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxName is the most bytes of a name, as of a DNS label (RFC 1035, section 2.3.4).
const maxName = 63

// NameHint says what a name may be.
const NameHint = "use letters, digits, '_', '.' and '-', starting with a letter or digit, at most 63"

// IsName reports whether s can be the name of a sandbox, a namespace or a
// policy: ASCII letters, digits, '_', '.' and '-', starting with a letter or
// digit, 1 to 63.
func IsName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// CheckSecretName checks the name of a secret. Errors match sandpit.ErrInvalid.
func CheckSecretName(name string) error {
	if !IsName(name) {
		return sandpit.WithHint(fault.Invalidf("%q is not a valid name of a secret", fault.Clip(name)), NameHint)
	}
	return nil
}
