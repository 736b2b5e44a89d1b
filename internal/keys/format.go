package keys

import (
	"cmp"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
)

// Format is a form of tokens, for clients that check it. Each has the prefix and the secret of the key in it, and
// is valid wherever a key is.
type Format string

// Formats of tokens.
const (
	Plain        Format = ""             // sp_…
	E2B          Format = "e2b"          // e2b_ and 60 hexadecimal digits
	Microsandbox Format = "microsandbox" // msb_ and a JWT with exp, iat and namespace
)

// Formats returns the names of all formats but Plain.
func Formats() []string { return []string{string(E2B), string(Microsandbox)} }

// hint says what tokens look like.
const hint = "use the whole key: sp_ and 8 characters, then _ and 40 more; or e2b_ and 60 hexadecimal digits; or msb_ and a JWT"

const (
	e2bScheme = "e2b_"
	msbScheme = "msb_"
	rawLen    = (prefixLen + secretLen) * 5 / 8 // bytes of prefix and secret
	maxToken  = 512                             // bytes
)

// claims are those of a JWT of microsandbox. Its signature is the key itself: the server checks no other.
type claims struct {
	Expires   int64  `json:"exp"` // Unix seconds
	Issued    int64  `json:"iat"`
	Namespace string `json:"namespace"`
}

// neverExpires is the claim of keys that do not expire, in Unix seconds: the end of the year 9999.
const neverExpires = 253402300799

func lower32() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

// Token returns a plain token of the key in a format. It returns "" for unknown formats, and what is not a token.
func (k Key) Token(plain string, f Format) string {
	prefix, ok := prefixOf(plain)
	if !ok {
		return ""
	}
	raw, err := lower32().DecodeString(prefix + plain[tokenLen-secretLen:])
	if err != nil {
		return ""
	}
	switch f {
	case Plain:
		return plain
	case E2B:
		return e2bScheme + hex.EncodeToString(raw)
	case Microsandbox:
		c := claims{Expires: neverExpires, Issued: k.CreatedAt.Unix(), Namespace: k.Namespace}
		if !k.ExpiresAt.IsZero() {
			c.Expires = k.ExpiresAt.Unix()
		}
		payload, _ := json.Marshal(c) // of numbers and a name, which never fails
		url := base64.RawURLEncoding
		return msbScheme + url.EncodeToString([]byte(`{"typ":"JWT","alg":"HS256"}`)) + "." + url.EncodeToString(payload) + "." + url.EncodeToString(raw)
	}
	return ""
}

// Reformat returns a plain token in a format that has nothing else in it, such as the claims of a JWT. It returns any
// other text as it is.
func Reformat(token string, f Format) string {
	if f == E2B {
		return cmp.Or(Key{}.Token(token, f), token)
	}
	return token
}

// plainOf returns the plain form of what has the form of a token, and its format. The claims of a JWT are not
// looked at.
func plainOf(token string) (plain string, f Format, ok bool) {
	var raw []byte
	var err error
	if len(token) > maxToken {
		return "", "", false
	}
	switch {
	case strings.HasPrefix(token, e2bScheme):
		f = E2B
		if text := token[len(e2bScheme):]; text == strings.ToLower(text) {
			raw, err = hex.DecodeString(text)
		}
	case strings.HasPrefix(token, msbScheme):
		f = Microsandbox
		parts := strings.Split(token, ".")
		raw, err = base64.RawURLEncoding.Strict().DecodeString(parts[len(parts)-1])
	default:
		_, ok = prefixOf(token)
		return token, Plain, ok
	}
	if err != nil || len(raw) != rawLen {
		return "", "", false
	}
	text := lower32().EncodeToString(raw)
	return scheme + text[:prefixLen] + "_" + text[prefixLen:], f, true
}

// ID returns the public prefix of the key of a token, in any format.
func ID(token string) (prefix string, ok bool) {
	plain, _, ok := plainOf(token)
	if !ok {
		return "", false
	}
	return prefixOf(plain)
}

// inFormat matches what has the form of a token that is not plain. A JWT has a signature of rawLen bytes.
var inFormat = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`e2b_[0-9a-f]{60}|msb_[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{40}`)
})
