package engine_test

import (
	"archive/zip"
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// wheel is a Python package as pip takes it (PEP 427).
func wheel(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range [][2]string{
		{"hello_sandpit.py", "answer = 42\n"},
		{"hello_sandpit-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello-sandpit\nVersion: 1.0\n"},
		{"hello_sandpit-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"hello_sandpit-1.0.dist-info/RECORD", "hello_sandpit.py,,\nhello_sandpit-1.0.dist-info/METADATA,,\nhello_sandpit-1.0.dist-info/WHEEL,,\nhello_sandpit-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// makePackage makes a Debian package with the image's own tools: one that
// gives a directory to other users and adds a user of its own.
const makePackage = `set -e
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/share/hello /tmp/p/var/lib/hello
printf 'Package: hello-sandpit\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a test\n' >/tmp/p/DEBIAN/control
printf '#!/bin/sh\nset -e\nchown nobody:mail /var/lib/hello\nuseradd --system hellod\n' >/tmp/p/DEBIAN/postinst
chmod 755 /tmp/p/DEBIAN/postinst
echo installed >/tmp/p/usr/share/hello/text
dpkg-deb --root-owner-group --build /tmp/p /tmp/hello.deb
`

// Package managers work as root in a stock image: their packages have files of
// several owners, and their scripts add users.
func TestPackagesInAStockImage(t *testing.T) {
	testkit.NeedFull(t, "it installs Debian's packages")
	needGuest(t)
	archive := imagetest.Debian(t)
	if os.Getuid() != 0 {
		testkit.NeedProgram(t, "newuidmap")
	}
	e := newEngine(t)
	if os.Getuid() != 0 && !several(t, e) {
		testkit.Lacks(t, "subordinate ids for this user")
	}
	sb := create(t, e, sandpit.Spec{Image: "oci-archive:" + archive, User: "root"})

	if out, res := shell(t, sb, makePackage+"apt-get install --yes /tmp/hello.deb"); res.ExitCode != 0 {
		t.Fatalf("apt-get ended with %d:\n%s", res.ExitCode, out)
	}
	out, _ := shell(t, sb, "cat /usr/share/hello/text; stat -c %U:%G /var/lib/hello; id -un hellod; dpkg-query -W hello-sandpit")
	if want := "installed\nnobody:mail\nhellod\nhello-sandpit\t1.0\n"; out != want {
		t.Errorf("after apt-get: got %q, want %q", out, want)
	}

	ctx := context.Background()
	name := "/tmp/hello_sandpit-1.0-py3-none-any.whl"
	if _, err := sb.Files().Write(ctx, name, bytes.NewReader(wheel(t)), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, res := shell(t, sb, "pip install --no-index --break-system-packages "+name); res.ExitCode != 0 {
		t.Fatalf("pip ended with %d:\n%s", res.ExitCode, out)
	}
	if out, _ := shell(t, sb, "python3 -c 'import hello_sandpit; print(hello_sandpit.answer)'"); out != "42\n" {
		t.Errorf("after pip: got %q", out)
	}
	if out, res := shell(t, sb, "python3 -m venv /tmp/v && /tmp/v/bin/pip install --no-index "+name); res.ExitCode != 0 {
		t.Errorf("pip in a virtual environment ended with %d:\n%s", res.ExitCode, out)
	}
}

// several reports whether more users than one exist in a sandbox of this user.
func several(t *testing.T, e interface {
	Create(context.Context, sandpit.Spec) (sandpit.Sandbox, error)
},
) bool {
	t.Helper()
	sb, err := e.Create(t.Context(), sandpit.Spec{User: "root"})
	testkit.Made(t, err)
	defer func() { _ = sb.Remove(context.Background()) }()
	out, _ := shell(t, sb, "wc -l </proc/self/uid_map")
	return strings.TrimSpace(out) != "1"
}

// What an image says about running it means what it means to Docker.
func TestImageConfigIsObeyed(t *testing.T) {
	testkit.NeedFull(t, "it makes an image of Debian")
	needGuest(t)
	archive := imagetest.Debian(t)
	sb := create(t, newEngine(t), sandpit.Spec{Image: "oci-archive:" + archive})
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(info.Image, "@sha256:") && !strings.HasPrefix(info.Image, "oci-archive:") {
		t.Errorf("image is told as %q", info.Image)
	}
	// The image names no user, so it is an ordinary one, without capabilities.
	out, _ := shell(t, sb, "id -u; grep CapEff /proc/self/status | tr -d '\\t'; cat /etc/debian_version | cut -c1-2")
	if !strings.HasPrefix(out, "1000\nCapEff:0000000000000000\n") {
		t.Errorf("got %q", out)
	}
}
