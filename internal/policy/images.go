package policy

import (
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Image is a pattern of images, in the forms of Spec.Image. In it, * matches any text; in
// the name of a registry only in its first part.
//
//	host                          this machine's toolchain
//	*                             any image of any registry
//	debian                        any tag or digest of docker.io/library/debian
//	python:3.*  ghcr.io/org/*:v1  such tags
//	*.example.com/*               any image of those registries
//	ghcr.io/org/*@sha256:*        any image there that is named by its digest
//	debian@sha256:…               only this image
//	sha256:…                      an image in the store, by its digest
//	dir:/srv/roots/*              directories, and likewise oci:, oci-archive: and docker-archive:
//
// Names are compared in full, so "debian" and "docker.io/library/debian" are the same.
type Image struct {
	text string // as written
	kind imageKind

	// Of a registry; an empty tag and digest: any.
	registry, repository, tag, digest string

	// Of a file: "dir", …, and its path. Of the store: "sha256" and the digest.
	scheme, path string
}

type imageKind int

const (
	kindHost imageKind = iota
	kindRegistry
	kindFile
	kindStored
)

func (i Image) String() string { return i.text }

// MarshalText returns the pattern as text.
func (i Image) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

const hintPattern = `write it like host, *, debian:*, ghcr.io/org/* or name@sha256:*`

// ParseImage reads a pattern. Errors match sandpit.ErrInvalid.
func ParseImage(text string) (Image, error) {
	bad := func(why string) (Image, error) {
		return Image{}, invalid(hintPattern, "%s is not an image pattern: %s", quote(text), why)
	}
	i := Image{text: text}
	if text == "" || len(text) > maxPath || !printable(text) || strings.ContainsRune(text, ' ') {
		return bad("it is empty, too long, or has spaces or control characters")
	}
	switch scheme, rest, _ := strings.Cut(text, ":"); {
	case text == "host":
		return i, nil
	case text == "*":
		i.kind, i.registry, i.repository = kindRegistry, "*", "*"
		return i, nil
	case isFileScheme(scheme):
		if !cleanAbsolute(rest) {
			return bad("its path is not absolute, or contains .. or //")
		}
		i.kind, i.scheme, i.path = kindFile, scheme, rest
		return i, nil
	case scheme == image.SavedScheme:
		return bad("saved images are allowed by saved-images")
	case scheme == "sha256":
		if rest != "*" && !image.ValidDigest(text) {
			return bad("its digest is not 64 lower-case hexadecimal digits")
		}
		i.kind, i.path = kindStored, rest
		return i, nil
	}
	i.kind = kindRegistry
	name := text
	var hasDigest bool
	name, i.digest, hasDigest = strings.Cut(name, "@")
	if hasDigest && i.digest != "*" && i.digest != "sha256:*" && !image.ValidDigest(i.digest) {
		return bad("its digest is not sha256:* or sha256: and 64 lower-case hexadecimal digits")
	}
	if c := strings.LastIndexByte(name, ':'); c > strings.LastIndexByte(name, '/') {
		name, i.tag = name[:c], name[c+1:]
		if i.tag == "" || hasDigest {
			return bad("it has an empty tag, or both a tag and a digest")
		}
		if i.tag == "*" {
			i.tag = ""
		}
	}
	// "*.example.com" is a family of registries; a star elsewhere in the name of
	// one would take in those of strangers.
	host, repository, ok := strings.Cut(name, "/")
	if rest := strings.TrimPrefix(host, "*."); ok && strings.Contains(rest, "*") {
		return bad("a star in a registry name must be its first part")
	}
	// With something in the place of the stars it must be the name of an image.
	ref, err := image.ParseReference(strings.ReplaceAll(name, "*", "0"))
	if err != nil {
		return bad("it is not a valid name with stars")
	}
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		i.registry, i.repository = host, repository
		if !strings.Contains(host, "*") {
			i.registry = ref.Registry
		}
	} else {
		i.registry, i.repository = ref.Registry, name
	}
	if i.registry == "docker.io" && !strings.Contains(i.repository, "/") {
		i.repository = "library/" + i.repository
	}
	return i, nil
}

func isFileScheme(s string) bool {
	return s == "dir" || s == "oci" || s == "oci-archive" || s == "docker-archive"
}

func cleanAbsolute(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p
}

// allowImage checks Spec.Image. It tells the forms apart as image.Store does.
func (p *Policy) allowImage(name string) error {
	allowed := false
	scheme, rest, _ := strings.Cut(name, ":")
	switch {
	case name == "" || name == "host":
		allowed = p.anyImage(func(i *Image) bool { return i.kind == kindHost })
		name = "host"
	case isFileScheme(scheme):
		if cleanAbsolute(rest) {
			allowed = p.anyImage(func(i *Image) bool {
				return i.kind == kindFile && i.scheme == scheme && glob(i.path, rest)
			})
		}
	case scheme == image.SavedScheme: // those of the caller's own namespace
		_, err := p.AllowSaving()
		return err
	case scheme == "sha256":
		allowed = p.anyImage(func(i *Image) bool { return i.kind == kindStored && glob(i.path, rest) })
	default:
		ref, err := image.ParseReference(name)
		if err != nil {
			return err
		}
		allowed = p.anyImage(func(i *Image) bool { return i.matches(ref) })
	}
	if allowed {
		return nil
	}
	var may []string
	for _, i := range p.Rules.Images {
		may = append(may, i.String())
	}
	hint := "ask the operator to allow the image in the policy"
	if len(may) > 0 {
		hint = "use one of these images: " + few(may)
	}
	return p.refuse("image", "images", hint, "the image %s is not allowed", quote(name))
}

// AllowImage checks the name of an image to use or pull. Errors match sandpit.ErrForbidden,
// or sandpit.ErrInvalid if it is not a name.
func (p *Policy) AllowImage(name string) error {
	if err := checkNames(sandpit.Spec{Image: name}); err != nil {
		return err
	}
	if p.Rules == nil {
		return nil
	}
	return p.allowImage(name)
}

// Vouches reports whether the policy names the registry of an allowed image without a star,
// and thereby trusts it. Without Rules the caller is trusted.
func (p *Policy) Vouches(name string) bool {
	if p.Rules == nil {
		return true
	}
	ref, err := image.ParseReference(name)
	return err == nil && p.anyImage(func(i *Image) bool { return !strings.Contains(i.registry, "*") && i.matches(ref) })
}

// Shows reports whether a list of the images in the store may show a caller the image of this
// name: the policy allows it, and does so by more than a star for any registry. Such a star
// would show what other callers have pulled.
func (p *Policy) Shows(name string) bool {
	if p.Rules == nil {
		return true
	}
	if p.AllowImage(name) != nil {
		return false
	}
	if scheme, _, _ := strings.Cut(name, ":"); name == "host" || scheme == "sha256" || isFileScheme(scheme) {
		return true
	}
	return p.Vouches(name)
}

func (p *Policy) anyImage(match func(*Image) bool) bool {
	for i := range p.Rules.Images {
		if match(&p.Rules.Images[i]) {
			return true
		}
	}
	return false
}

// matches compares part by part, so that a star for a host is never more.
func (i *Image) matches(ref image.Reference) bool {
	if i.kind != kindRegistry || !glob(i.registry, ref.Registry) || !glob(i.repository, ref.Repository) {
		return false
	}
	switch {
	case i.digest != "":
		return ref.Digest != "" && glob(i.digest, ref.Digest)
	case i.tag != "":
		return ref.Digest == "" && glob(i.tag, ref.Tag)
	}
	return true
}

// glob reports whether a pattern, in which * stands for any text, is s.
func glob(pattern, s string) bool {
	star, from := -1, 0 // the last star, and where what it stands for ends
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
