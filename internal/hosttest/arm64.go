package hosttest

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// arm64 is a machine of another architecture under QEMU: Debian's packages
// unpacked and never configured (their scripts would not run here), started
// from memory by a script instead of systemd. Its root is a tmpfs.
type arm64 struct{}

// Its first program: moves from the initial file system, under which no
// pivot_root is possible, to a tmpfs.
//
//go:embed arm64-init.sh
var armInit string

// What then stands in for systemd.
//
//go:embed arm64-machine.sh
var armMachine string

var armPackages = "linux-image-cloud-arm64,busybox-static,dash,bash,coreutils,util-linux,mount,procps,grep,sed,findutils," +
	"hostname,login,passwd,base-files,base-passwd,debianutils,ncurses-base,python3-minimal,libpython3-stdlib"

// What is kept of the packages: programs and libraries, and of the kernel's
// modules those that sandboxes need.
const armTrim = `set -eu
cd "$1"
cp boot/vmlinuz-* "$2/vmlinuz"
xz -dc usr/lib/modules/*/kernel/fs/overlayfs/overlay.ko.xz >overlay.ko
xz -dc usr/lib/modules/*/kernel/drivers/net/tun.ko.xz >tun.ko
rm -rf boot usr/lib/modules var/lib/dpkg var/cache usr/share/doc usr/share/man usr/share/locale
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
ln -sf busybox usr/bin/awk
mkdir -p suites
find . | cpio --quiet -o -H newc -R 0:0 >"$2/root.cpio"
`

func (arm64) missing() string {
	if os.Getuid() != 0 {
		return "not root: unpacking a system's files needs it"
	}
	return missingPrograms("qemu-system-aarch64", "mmdebstrap", "cpio", "xz")
}

func (arm64) make(ctx context.Context) (image, error) {
	return cached("debian-arm64", armPackages+armTrim+armInit+armMachine, func(work string) error {
		mirror, err := debianMirror(ctx)
		if err != nil {
			return err
		}
		tree := filepath.Join(work, "tree")
		if err := run(ctx, "mmdebstrap", "--architectures=arm64", "--variant=extract", "--include="+armPackages, "trixie", tree, mirror); err != nil {
			return &Unavailable{"unpacking Debian for arm64: " + err.Error()}
		}
		for name, script := range map[string]string{"init": armInit, "machine": armMachine} {
			if err := os.WriteFile(filepath.Join(tree, name), []byte(script), 0o755); err != nil {
				return err
			}
		}
		if err := run(ctx, "sh", "-c", armTrim, "sh", tree, work); err != nil {
			return err
		}
		return os.RemoveAll(tree)
	})
}

// run starts the machine with a bundle built for it.
func (a arm64) run(ctx context.Context, b *Bundle, jobs string, opt Options, out io.Writer) error {
	img, err := a.make(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "sandpit-hosttest-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	// Its own bundle: same suites, other binaries.
	own := filepath.Join(work, "bundle")
	suites, err := Build(ctx, b.Root, filepath.Join(own, "suites"), "arm64", b.Suites)
	if err != nil {
		return err
	}
	if err := suites.order(jobs, opt); err != nil {
		return err
	}
	// The kernel unpacks archives one after the other.
	const pack = `cd "$1" && { cat "$2"; find . | cpio --quiet -o -H newc -R 0:0; } >"$3"`
	initrd := filepath.Join(work, "initrd")
	if err := run(ctx, "sh", "-c", pack, "sh", own, img.path("root.cpio"), initrd); err != nil {
		return err
	}

	console := filepath.Join(work, "console.log")
	said, err := exec.CommandContext(ctx, "qemu-system-aarch64",
		// Real pointer authentication is the slowest part of the emulation.
		"-M", "virt", "-accel", "tcg,thread=single", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "4096",
		"-display", "none", "-no-reboot", "-nic", "none", "-serial", "file:"+console,
		"-kernel", img.path("vmlinuz"), "-initrd", initrd,
		"-append", "console=ttyAMA0 loglevel=0 quiet panic=-1 rdinit=/init",
	).CombinedOutput()
	if err != nil {
		return fmt.Errorf("running qemu: %w\n%s\n%s", err, said, tail(console))
	}
	printed, err := os.ReadFile(console)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, bytes.NewReader(printed))
	return err
}
