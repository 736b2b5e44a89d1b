package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/image"
)

// The certificates that an image trusts are found where distributions have them: in the topmost
// layer, or in what is bound over it, without following a link.
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
	linked := t.TempDir()
	if err := os.MkdirAll(linked+"/etc/ssl/certs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", linked+debian); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root     image.Rootfs
		at, text string
	}{
		"Debian": {image.Rootfs{Layers: []string{t.TempDir(), write(debian)}}, debian, debian},
		"Fedora": {image.Rootfs{Layers: []string{write(fedora)}}, fedora, fedora},
		"bind": {
			image.Rootfs{Layers: []string{t.TempDir()}, Binds: []image.Bind{{Source: write("ca-certificates.crt"), Target: "/etc/ssl/certs"}}},
			debian, "ca-certificates.crt",
		},
		"none": {image.Rootfs{Layers: []string{t.TempDir()}}, debian, ""},
		"link": {image.Rootfs{Layers: []string{linked}}, debian, ""},
	} {
		if at, text := rootsOf(c.root); at != c.at || string(text) != c.text {
			t.Errorf("%s: %q at %s", name, text, at)
		}
	}
}
