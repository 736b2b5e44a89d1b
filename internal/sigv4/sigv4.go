// Package sigv4 signs requests to AWS and to services that speak like it again, with other
// credentials than their client had: Signature Version 4, in the header, in the query, and in the
// chunks of a body.
//
// What a client signs is its own choice: which headers, and how the path is encoded. So its
// signature is verified first, with the credentials that it has, which shows that the same is
// read here as was signed there. Then the same is signed again. Nothing else is ever signed.
//
// The formats are those of "Create a signed AWS API request" in the IAM User Guide, and of
// "Signature calculations for the Authorization header: transferring a payload in multiple
// chunks" in the Amazon S3 API Reference.
package sigv4

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// HashHeader says the hash of the body, or after Streaming, how the body is signed.
const (
	HashHeader = "X-Amz-Content-Sha256"
	Streaming  = "STREAMING-"
)

const (
	algorithm   = "AWS4-HMAC-SHA256"
	terminator  = "aws4_request"
	timeFormat  = len("20060102T150405Z")
	tokenHeader = "X-Amz-Security-Token"
	maxSigned   = 128 // headers
)

// Values of HashHeader for bodies that are not hashed as a whole.
const (
	unsigned        = "UNSIGNED-PAYLOAD"
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	signedChunks    = algorithm + "-PAYLOAD" // after "STREAMING-"
	signedTrailer   = algorithm + "-TRAILER" // and in what is signed of it
)

// Credentials sign requests.
type Credentials struct {
	KeyID, Secret string
	Token         string // of a session, or ""
}

// Read reads credentials as KEYID:SECRET or KEYID:SECRET:TOKEN, or as the JSON that
// "aws configure export-credentials" writes. Errors match sandpit.ErrInvalid, and never have the
// text.
func Read(text string) (c Credentials, err error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var process struct{ AccessKeyId, SecretAccessKey, SessionToken string }
		err = json.Unmarshal([]byte(text), &process)
		c = Credentials{process.AccessKeyId, process.SecretAccessKey, process.SessionToken}
	} else {
		c.KeyID, c.Secret, _ = strings.Cut(text, ":")
		c.Secret, c.Token, _ = strings.Cut(c.Secret, ":")
	}
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if err != nil || c.KeyID == "" || c.Secret == "" || strings.ContainsFunc(c.KeyID+c.Secret+c.Token, odd) || strings.ContainsAny(c.KeyID, "/,") {
		return Credentials{}, sandpit.WithHint(fault.Invalidf("the value is not credentials of AWS"), "write KEYID:SECRET or KEYID:SECRET:TOKEN, or the JSON of 'aws configure export-credentials'")
	}
	return c, nil
}

// A Signer has what a signature depends on besides the request.
type Signer struct {
	was, now Credentials
	date     string // of the request, as timeFormat
	scope    string // DATE/REGION/SERVICE/aws4_request
	last     string // signature
}

// Request is a request with a signature.
type Request struct {
	Signer
	r       *http.Request
	inQuery bool
	query   query
	headers []string // that are signed, in lower case
}

// Find returns a request that is signed with was, and is to be signed with now, or nil if it names
// other credentials or none. Errors match sandpit.ErrForbidden.
func Find(r *http.Request, was, now Credentials) (*Request, error) {
	values, header := r.Header["Authorization"], ""
	if len(values) == 1 {
		header = values[0]
	}
	inHeader := slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, was.KeyID) })
	inQuery := strings.Contains(r.URL.RawQuery, was.KeyID)
	switch {
	case !inHeader && !inQuery:
		return nil, nil
	case inHeader && inQuery, inHeader && header == "":
		return nil, refuse("it names its credentials twice")
	}
	s := &Request{r: r, inQuery: inQuery}
	s.was, s.now = was, now
	var err error
	if s.query, err = parseQuery(r.URL.RawQuery); err != nil {
		return nil, err
	}
	kind, list, _ := strings.Cut(header, " ")
	field := func(name string) string { return fieldOf(list, name) }
	s.date = r.Header.Get("X-Amz-Date")
	if inQuery {
		field = func(name string) string { return s.query.get("X-Amz-" + name) }
		kind, s.date = field("Algorithm"), field("Date")
	}
	if kind != algorithm {
		return nil, refuse("it is not signed with %s", algorithm)
	}
	key, scope, _ := strings.Cut(field("Credential"), "/")
	parts := strings.Split(scope, "/")
	s.scope, s.headers, s.last = scope, strings.Split(field("SignedHeaders"), ";"), field("Signature")
	switch {
	case key != was.KeyID, len(parts) != 4, parts[len(parts)-1] != terminator, slices.Contains(parts, ""):
		return nil, refuse("its credential is not KEYID/DATE/REGION/SERVICE/%s", terminator)
	case len(s.date) != timeFormat, !strings.HasPrefix(s.date, parts[0]+"T"):
		return nil, refuse("X-Amz-Date is missing, or not of the day of its credential")
	case len(s.headers) > maxSigned, !slices.IsSorted(s.headers), !slices.Contains(s.headers, "host"):
		return nil, refuse("its signed headers are not in order, too many, or without host")
	}
	return s, nil
}

// fieldOf returns a field of NAME=VALUE, NAME=VALUE that is there once, else "".
func fieldOf(list, name string) (value string) {
	n := 0
	for field := range strings.SplitSeq(list, ",") {
		if k, v, _ := strings.Cut(strings.TrimSpace(field), "="); k == name {
			value = v
			n++
		}
	}
	if n != 1 {
		return ""
	}
	return value
}

func refuse(format string, args ...any) error {
	return fault.Errorf(sandpit.ErrForbidden, "the request can't be signed again: "+format, args...)
}

// NeedsBody reports whether the signature depends on a body of which the request does not say the
// hash.
func (s *Request) NeedsBody() bool {
	return s.r.Header.Get(HashHeader) == "" && !s.inQuery
}

// Sign signs the request again. The body is what NeedsBody asks for. It returns the signer of
// the chunks of the body if they are signed, else nil. Errors match sandpit.ErrForbidden; after
// them the request is as it was, and not to be sent.
func (s *Request) Sign(body []byte) (chunks *Signer, err error) {
	hash := s.r.Header.Get(HashHeader)
	kind, streaming := strings.CutPrefix(hash, Streaming)
	hashes := []string{hash}
	switch {
	case streaming && hash != unsignedTrailer && kind != signedChunks && kind != signedChunks+"-TRAILER":
		return nil, refuse("a body of %q can't be", fault.Clip(hash))
	case hash == "" && s.inQuery:
		hashes = []string{unsigned, hashOf("")}
	case hash == "":
		hashes = []string{hashOf(body)}
	}
	path, hash, ok := s.verify(hashes)
	if !ok {
		return nil, refuse("its signature is not that of its credentials")
	}
	s.replace()
	s.last = s.signature(s.now, path, hash)
	scope := s.now.KeyID + "/" + s.scope
	if s.inQuery {
		s.query.set("X-Amz-Credential", scope)
		s.query.set("X-Amz-Signature", s.last)
		u := *s.r.URL
		u.RawQuery = s.query.String()
		s.r.URL = &u
	} else {
		s.r.Header.Set("Authorization", algorithm+" Credential="+scope+", SignedHeaders="+strings.Join(s.headers, ";")+", Signature="+s.last)
	}
	if streaming && hash != unsignedTrailer {
		return &s.Signer, nil
	}
	return nil, nil
}

// Signature returns the signature that the request has.
func (s *Request) Signature() string { return s.last }

// verify finds the form of the path and the hash that the client has signed. S3 signs the path as
// it is sent; all other services encode it once more.
func (s *Request) verify(hashes []string) (path, hash string, ok bool) {
	sent := cmp.Or(s.r.URL.EscapedPath(), "/")
	plain, err := url.PathUnescape(sent)
	if err != nil {
		return "", "", false
	}
	for _, path := range []string{sent, encode(plain, true), encode(sent, true), encode(encode(plain, true), true)} {
		for _, hash := range hashes {
			if hmac.Equal([]byte(s.signature(s.was, path, hash)), []byte(s.last)) {
				return path, hash, true
			}
		}
	}
	return "", "", false
}

// replace puts the new credentials where they are signed, too: the token of a session.
func (s *Request) replace() {
	if s.inQuery {
		s.query.set("X-Amz-Credential", s.now.KeyID+"/"+s.scope)
		s.query.set("X-Amz-Security-Token", s.now.Token)
		return
	}
	name := strings.ToLower(tokenHeader)
	s.headers = slices.DeleteFunc(s.headers, func(h string) bool { return h == name })
	s.r.Header.Del(tokenHeader)
	if s.now.Token != "" {
		s.r.Header.Set(tokenHeader, s.now.Token)
		s.headers = append(s.headers, name)
		slices.Sort(s.headers)
	}
}

// signature returns the signature of the request as it is now.
func (s *Request) signature(c Credentials, path, hash string) string {
	var b strings.Builder
	b.WriteString(s.r.Method + "\n" + path + "\n" + s.query.canonical() + "\n")
	for _, name := range s.headers {
		b.WriteString(name + ":" + s.header(name) + "\n")
	}
	b.WriteString("\n" + strings.Join(s.headers, ";") + "\n" + hash)
	return c.sign(s.scope, algorithm+"\n"+s.date+"\n"+s.scope+"\n"+hashOf(b.String()))
}

// header returns the value of a header as it is signed.
func (s *Request) header(name string) string {
	switch name {
	case "host":
		return s.r.Host
	case "content-length":
		return strconv.FormatInt(s.r.ContentLength, 10)
	}
	var values []string
	for _, v := range s.r.Header.Values(name) {
		values = append(values, strings.Join(strings.Fields(v), " "))
	}
	return strings.Join(values, ",")
}

// sign returns the signature of a text.
func (c *Credentials) sign(scope, text string) string {
	key := []byte("AWS4" + c.Secret)
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, text))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hashOf[T string | []byte](text T) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// encode encodes all but unreserved characters (RFC 3986, section 2.3), and '/' unless path is set.
func encode(text string, path bool) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(text))
	for i := range len(text) {
		c := text[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0, c == '/' && path:
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// query is the query of a request, in its order.
type query []parameter

type parameter struct {
	sent        string // as it stands in the URL
	name, value string
}

func parseQuery(raw string) (q query, err error) {
	if raw == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(raw, "&") {
		p := parameter{sent: part}
		name, value, _ := strings.Cut(part, "=")
		if p.name, err = url.PathUnescape(name); err == nil { // in which '+' is no space
			p.value, err = url.PathUnescape(value)
		}
		if err != nil {
			return nil, refuse("its query is not valid")
		}
		q = append(q, p)
	}
	return q, nil
}

// get returns the value of a parameter that is there once, else "".
func (q query) get(name string) (value string) {
	n := 0
	for _, p := range q {
		if p.name == name {
			value = p.value
			n++
		}
	}
	if n != 1 {
		return ""
	}
	return value
}

// set replaces a parameter, adds it, or removes it if the value is empty.
func (q *query) set(name, value string) {
	i := slices.IndexFunc(*q, func(p parameter) bool { return p.name == name })
	p := parameter{name + "=" + encode(value, false), name, value}
	switch {
	case value == "":
		*q = slices.DeleteFunc(*q, func(p parameter) bool { return p.name == name })
	case i >= 0:
		(*q)[i] = p
	default:
		*q = append(*q, p)
	}
}

func (q query) String() string {
	var parts []string
	for _, p := range q {
		parts = append(parts, p.sent)
	}
	return strings.Join(parts, "&")
}

// canonical returns the query as it is signed: encoded, in order, without the signature.
func (q query) canonical() string {
	var parts []string
	for _, p := range q {
		if p.name != "X-Amz-Signature" {
			parts = append(parts, encode(p.name, false)+"="+encode(p.value, false))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "&")
}
