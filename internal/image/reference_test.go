package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/sandpit-dev/sandpit"
)

func TestParseReference(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0a", 32)
	for in, want := range map[string]string{
		"debian": "docker.io/library/debian:latest", "debian:13": "docker.io/library/debian:13", "a/b": "docker.io/a/b:latest",
		"docker.io/debian": "docker.io/library/debian:latest", "index.docker.io/library/debian:1": "docker.io/library/debian:1",
		"ghcr.io/a/b/c:v1.2_3-x": "ghcr.io/a/b/c:v1.2_3-x", "localhost/x": "localhost/x:latest", "localhost:5000/x": "localhost:5000/x:latest",
		"[::1]:5000/x": "[::1]:5000/x:latest", "127.0.0.1:5000/x:1": "127.0.0.1:5000/x:1",
		"x@" + hash: "docker.io/library/x@" + hash, "ghcr.io/a/x:tag@" + hash: "ghcr.io/a/x@" + hash, "a__b": "docker.io/library/a__b:latest",
		"a.b/c": "a.b/c:latest", "a---b": "docker.io/library/a---b:latest",
	} {
		got, err := ParseReference(in)
		if err != nil || got.String() != want {
			t.Errorf("ParseReference(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", "@", "/", "x:", "x@", "x@sha256:abc", "x@" + strings.ToUpper(hash), "x@md5:" + hash[7:], "X", "a//b", "/a", "a/", "-a", "a-",
		"a..b", "a___b", "a._b", "a b", "a\nb", "a:b c", "a:.b", "a:" + strings.Repeat("x", 129), strings.Repeat("x", 256), "host:port/x", "a.b:123456/x",
		"[::1/x", "[fe80::1%eth0]/x", "..", "../x", "a/../b", "https://a.b/c", "é", "x?y", "x#y", "x%2fy", "a.b:/c", ".a.b/c",
	} {
		if got, err := ParseReference(in); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("ParseReference(%q) = %q, %v; want it refused", in, got, err)
		} else if sandpit.Hint(err) == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("ParseReference(%q): no hint, or several lines: %v", in, err)
		}
	}
}

// The form that people type is always read as the same image.
func TestFamiliarReferencesAreReadAgain(t *testing.T) {
	for full, want := range map[string]string{
		"docker.io/library/debian:13": "debian:13", "docker.io/a/b:1": "a/b:1", "ghcr.io/a/b:1": "ghcr.io/a/b:1",
		"docker.io/library/saved:1": "docker.io/library/saved:1", "docker.io/library/oci:latest": "docker.io/library/oci:latest",
	} {
		ref, err := ParseReference(full)
		if err != nil || ref.Familiar() != want {
			t.Errorf("%s: got %s, %v", full, ref.Familiar(), err)
		}
		if kind, _, _ := strings.Cut(ref.Familiar(), ":"); isScheme(kind) {
			t.Errorf("%s is not read as an image of a registry", ref.Familiar())
		}
	}
}

// A widely used parser agrees on what we take.
func TestParseReferenceAgreesWithOthers(t *testing.T) {
	for _, in := range []string{"debian:13", "a/b", "ghcr.io/a/b", "localhost:5000/x:y", "x@sha256:" + strings.Repeat("a", 64)} {
		ours, err := ParseReference(in)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := name.ParseReference(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Replace(theirs.Name(), "index.docker.io/", "docker.io/", 1); got != ours.String() {
			t.Errorf("%q is %q to us and %q to others", in, ours, got)
		}
	}
}
