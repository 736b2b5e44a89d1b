package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
)

// A machine is a Debian machine under QEMU, without KVM: it works everywhere,
// ten times slower than the machine itself. Nothing in there is timed.
type machine struct {
	debian  debian
	cmdline string // beside the usual
}

func (m machine) missing() string {
	if runtime.GOARCH != "amd64" {
		return "the test machines are amd64"
	}
	if os.Getuid() != 0 {
		return "not root: making a disk with a system's files needs it"
	}
	return missingPrograms("qemu-system-x86_64", "mmdebstrap", "mke2fs", "tar")
}

// run boots the machine with the bundle as its second disk.
func (m machine) run(ctx context.Context, b *Bundle, jobs string, opt Options, out io.Writer) error {
	img, err := m.debian.make(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "sandpit-hosttest-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := b.order(jobs, opt); err != nil {
		return err
	}
	suites := filepath.Join(work, "suites.img")
	size, err := treeSize(b.Dir)
	if err != nil {
		return err
	}
	if err := run(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", b.Dir, suites, strconv.FormatInt(size*5/4>>10+8192, 10)); err != nil {
		return err
	}

	// A kernel that dies before any host was begun is the emulator's doing.
	for try := 1; ; try++ {
		began, err := m.boot(ctx, img, work, suites, out)
		if err == nil || began || try == 3 || ctx.Err() != nil {
			return err
		}
	}
}

// boot starts the machine and copies what run.sh printed to out. It reports
// whether a host was begun.
func (m machine) boot(ctx context.Context, img image, work, suites string, out io.Writer) (began bool, err error) {
	console, results := filepath.Join(work, "console.log"), filepath.Join(work, "results.log")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		// With a thread per CPU, QEMU 7.2 now and then runs stale code when the
		// kernel patches itself, and the kernel dies of an int3; one thread
		// boots as fast, for two thirds of the work.
		// Without -cx16 QEMU 7.2 corrupts flags in cmpxchg16b, and a 6.12
		// kernel panics.
		// A thousand sandboxes, of the suite starve, need 3 GB; what nobody uses is not taken.
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "2", "-m", "4096",
		"-display", "none", "-no-reboot", "-nic", "none",
		"-serial", "file:"+console, "-serial", "file:"+results,
		"-kernel", img.path("vmlinuz"), "-initrd", img.path("initrd.img"),
		"-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 mitigations=off random.trust_cpu=on panic=-1 "+m.cmdline,
		// The cached disk is never changed: writes go to a file of this run.
		"-drive", "file="+img.path("disk.img")+",format=raw,if=virtio,cache=unsafe,snapshot=on",
		"-drive", "file="+suites+",format=raw,if=virtio,cache=unsafe,readonly=on",
	)
	cmd.Env = append(os.Environ(), "TMPDIR="+work) // for the snapshot
	said, runErr := cmd.CombinedOutput()

	f, err := os.Open(results)
	if err != nil {
		return false, fmt.Errorf("running qemu: %w\n%s", err, said)
	}
	defer f.Close()
	first := make([]byte, 4096)
	n, _ := f.ReadAt(first, 0)
	if began = bytes.Contains(first[:n], []byte("@@host ")); !began {
		return false, fmt.Errorf("the machine died while it booted: %w\n%s\n%s", errors.Join(runErr, errCut), said, tail(console))
	}
	if _, err := io.Copy(out, f); err != nil {
		return true, err
	}
	if runErr != nil {
		return true, fmt.Errorf("running qemu: %w\n%s\n%s", runErr, said, tail(console))
	}
	if said := tail(console); bytes.Contains(said, []byte("Kernel panic")) {
		return true, fmt.Errorf("the machine's kernel died:\n%s", said)
	}
	return true, nil
}

// tail is the end of a file, for an error.
func tail(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return data[max(0, len(data)-4000):]
}

// treeSize is the sum of the sizes of the files under dir, in bytes; a file
// with several names counts once per name.
func treeSize(dir string) (int64, error) {
	var size int64
	err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		return nil
	})
	return size, err
}
