package engine

import (
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/image"
)

// The certificates that an image trusts are found where distributions have them: in the topmost
// layer, or in what is bound over it. Links are followed in the image, and lead to certificates or nowhere. What
// can't be read is named.
func TestRootsOfImages(t *testing.T) {
	write := func(name string) (dir string) {
		dir = t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	const debian, fedora = "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
	linked := func(to string) (dir string) {
		dir = t.TempDir()
		if err := os.MkdirAll(dir+"/etc/ssl/certs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, dir+debian); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	outside := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(outside, newRoot(t, pkix.Name{CommonName: "Outside"}), 0o644); err != nil {
		t.Fatal(err)
	}
	large := write(debian)
	if err := os.Truncate(large+debian, maxLayerFile+1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root             image.Rootfs
		at, text, unread string
	}{
		"Debian": {image.Rootfs{Layers: []string{t.TempDir(), write(debian)}}, debian, debian, ""},
		"Fedora": {image.Rootfs{Layers: []string{write(fedora)}}, fedora, fedora, ""},
		"bind": {
			image.Rootfs{Layers: []string{t.TempDir()}, Binds: []image.Bind{{Source: write("ca-certificates.crt"), Target: "/etc/ssl/certs"}}},
			debian, "ca-certificates.crt", "",
		},
		"none":                   {image.Rootfs{Layers: []string{t.TempDir()}}, debian, "", ""},
		"link to something else": {image.Rootfs{Layers: []string{linked("/etc/passwd"), write("/etc/passwd")}}, debian, "", ""},
		"link to the outside":    {image.Rootfs{Layers: []string{linked("../../.." + strings.Repeat("/..", 20) + outside)}}, debian, "", ""},
		"link to itself":         {image.Rootfs{Layers: []string{linked("ca-certificates.crt")}}, debian, "", ""},
		"large":                  {image.Rootfs{Layers: []string{large}}, debian, "", debian},
		"large, and another":     {image.Rootfs{Layers: []string{large, write(fedora)}}, fedora, fedora, ""},
	} {
		in := &rootReader{Rootfs: c.root}
		if at, unread, text := in.roots(); in.err != nil || at != c.at || string(text) != c.text || unread != c.unread {
			t.Errorf("%s: %q at %s, and %q: %v", name, text, at, unread, in.err)
		}
	}
}
