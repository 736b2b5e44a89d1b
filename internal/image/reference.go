package image

import (
	"net/netip"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A Reference is the name of an image in a registry, in full.
type Reference struct {
	Registry   string // "docker.io", "localhost:5000"
	Repository string // "library/debian"
	Tag        string // "13"; empty when Digest is set
	Digest     string // "sha256:…", or empty
}

// String returns the canonical form: "docker.io/library/debian:13".
func (r Reference) String() string {
	if r.Digest != "" {
		return r.Registry + "/" + r.Repository + "@" + r.Digest
	}
	return r.Registry + "/" + r.Repository + ":" + r.Tag
}

// isScheme reports whether the part of a reference before its first colon says where the image is, so
// that the rest is not a name of a registry. See Store.Acquire.
func isScheme(kind string) bool {
	switch kind {
	case "dir", "oci", "oci-archive", "docker-archive", "sha256", SavedScheme:
		return true
	}
	return false
}

// Familiar returns the form that people type: "debian:13".
func (r Reference) Familiar() string {
	s := r.String()
	if rest, ok := strings.CutPrefix(s, "docker.io/library/"); ok {
		if kind, _, _ := strings.Cut(rest, ":"); isScheme(kind) {
			return s
		}
		return rest
	}
	if rest, ok := strings.CutPrefix(s, "docker.io/"); ok {
		return rest
	}
	return s
}

// Longest parts of a reference, in bytes.
const (
	maxRepository = 255 // distribution-spec v1.1, "Pulling manifests": clients may limit the name with the host to that
	maxTag        = 128 // the same: a tag is at most 128 characters
)

// ParseReference reads a reference as Docker does: "debian" is
// "docker.io/library/debian:latest". With both a tag and a digest, the tag is
// dropped, because the digest alone says which image it is. Errors match
// sandpit.ErrInvalid.
func ParseReference(s string) (Reference, error) {
	bad := func(why string) (Reference, error) {
		if len(s) > 300 {
			s = s[:300] + "…"
		}
		hint := "write an image like debian:13, ghcr.io/org/app:tag or name@sha256:…, or host"
		if strings.HasPrefix(s, "/") || strings.HasPrefix(s, ".") || strings.HasSuffix(s, "/") {
			hint = "write a directory as dir:" + s + ", and an archive as oci-archive:" + s + " or docker-archive:" + s
		}
		return Reference{}, sandpit.WithHint(fault.Invalidf("reading image reference %q: %s", s, why), hint)
	}
	if s == "" {
		return bad("it is empty")
	}
	if len(s) > maxRepository+maxTag+100 {
		return bad("it is too long")
	}
	var ref Reference
	rest, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		if !ValidDigest(digest) {
			return bad("its digest is not sha256: and 64 lower-case hexadecimal digits")
		}
		ref.Digest = digest
	}
	// A colon after the last slash starts a tag; one before it a port.
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		ref.Tag, rest = rest[i+1:], rest[:i]
		if !validTag(ref.Tag) {
			return bad("its tag is not made of letters, digits, '_', '.' and '-'")
		}
	}
	host, repo, ok := strings.Cut(rest, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost" || strings.ToLower(host) != host) {
		ref.Registry, ref.Repository = host, repo
	} else {
		ref.Registry, ref.Repository = "docker.io", rest
	}
	if ref.Registry == "index.docker.io" || ref.Registry == "registry-1.docker.io" {
		ref.Registry = "docker.io"
	}
	if !validHost(ref.Registry) {
		return bad("its registry is not a host name with an optional port")
	}
	if ref.Registry == "docker.io" && !strings.Contains(ref.Repository, "/") {
		ref.Repository = "library/" + ref.Repository
	}
	if len(ref.Registry)+1+len(ref.Repository) > maxRepository {
		return bad("it is too long")
	}
	for c := range strings.SplitSeq(ref.Repository, "/") {
		if !validComponent(c) {
			return bad("its name is not made of lower-case letters and digits, with '.', '_' or '-' between them")
		}
	}
	switch {
	case ref.Digest != "":
		ref.Tag = ""
	case ref.Tag == "":
		ref.Tag = "latest"
	}
	return ref, nil
}

// DigestPrefix is the algorithm of every digest.
const DigestPrefix = "sha256:"

// ValidDigest reports whether s is "sha256:" and 64 lower-case hexadecimal
// digits. No other algorithm is in use.
func ValidDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, DigestPrefix)
	return ok && validHex(hex)
}

func validHex(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// validTag: [A-Za-z0-9_][A-Za-z0-9._-]{0,127} (distribution-spec v1.1).
func validTag(s string) bool {
	if s == "" || len(s) > maxTag || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// validComponent: [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)* (distribution-spec v1.1).
func validComponent(s string) bool {
	lower := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	if s == "" || !lower(s[0]) || !lower(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		if lower(s[i]) {
			i++
			continue
		}
		j := i
		for j < len(s) && s[j] == s[i] {
			j++
		}
		switch n := j - i; {
		case s[i] == '-', s[i] == '.' && n == 1, s[i] == '_' && n <= 2:
		default:
			return false
		}
		if !lower(s[j]) { // there is one: the last byte is of the alphabet
			return false
		}
		i = j
	}
	return true
}

// validHost reports whether s is a host name or address, with or without a port.
func validHost(s string) bool {
	if strings.HasPrefix(s, "[") {
		if a, err := netip.ParseAddrPort(s); err == nil {
			return a.Addr().Is6() && a.Addr().Zone() == ""
		}
		a, err := netip.ParseAddr(strings.TrimSuffix(s[1:], "]"))
		return err == nil && strings.HasSuffix(s, "]") && a.Is6() && a.Zone() == ""
	}
	host, port, hasPort := strings.Cut(s, ":")
	if hasPort {
		if port == "" || len(port) > 5 {
			return false
		}
		for i := range len(port) {
			if port[i] < '0' || port[i] > '9' {
				return false
			}
		}
	}
	if host == "" || len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || !isAlnum(label[0]) || !isAlnum(label[len(label)-1]) {
			return false
		}
		for i := range len(label) {
			if !isAlnum(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

// A platform is an operating system and architecture.
type platform struct{ os, arch, variant string }

func (p platform) String() string {
	s := p.os + "/" + p.arch
	if p.variant != "" {
		s += "/" + p.variant
	}
	return s
}

// parsePlatform reads "os/architecture[/variant]"; empty is this machine's.
func parsePlatform(s string) (platform, error) {
	if s == "" {
		s = DefaultPlatform()
	}
	parts := strings.Split(s, "/")
	ok := len(parts) == 2 || len(parts) == 3
	for _, p := range parts {
		ok = ok && validComponent(p) && len(p) < 32
	}
	if !ok {
		if len(s) > 100 {
			s = s[:100] + "…"
		}
		return platform{}, sandpit.WithHint(fault.Invalidf("reading platform %q: it does not have the form OS/ARCHITECTURE", s),
			"write it like linux/amd64 or linux/arm64")
	}
	p := platform{os: parts[0], arch: parts[1]}
	if len(parts) == 3 {
		p.variant = parts[2]
	}
	switch p.arch {
	case "x86_64":
		p.arch = "amd64"
	case "aarch64":
		p.arch = "arm64"
	}
	if p.arch == "arm64" && p.variant == "v8" {
		p.variant = "" // the only one there is
	}
	return p, nil
}
