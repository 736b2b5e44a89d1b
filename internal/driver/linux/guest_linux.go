package linux

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// GuestName is the name under which a program acts as a guest: when argv[0] ends in it.
const GuestName = "sandpit-guest"

// GuestProgram returns the embedded guest. See driver.GuestProgrammer.
func (d *Driver) GuestProgram() []byte { return d.opts.Guest }

// guestFile finds the file of the guest program. An embedded guest is written
// once into dir under a name that holds its digest; without one the running
// program is its own guest.
//
// A driver calls it once at a time: a process that is cloned while another goroutine
// writes the file has a copy of its descriptor for a moment, and a file that is open
// for writing can't be executed.
func guestFile(dir string, embedded []byte, digest string) (string, error) {
	if embedded == nil {
		exe, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("finding the guest program: %w", err)
		}
		return exe, nil
	}
	if digest == "" {
		sum := sha256.Sum256(embedded)
		digest = hex.EncodeToString(sum[:8])
	}
	name := filepath.Join(dir, GuestName+"-"+digest)
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err == nil && !(st.Mode&unix.S_IFMT == unix.S_IFDIR && ours(&st)) {
		return "", sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "storing the guest program: %s is not a directory that only this user can write to", dir),
			"remove it, or set SANDPIT_HOME to a directory that others can't write to")
	}
	if err := unix.Lstat(name, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && ours(&st) && st.Mode&0o777 == guestMode() && st.Size == int64(len(embedded)) {
		return name, nil
	}
	err := writeGuest(dir, name, embedded)
	if err != nil {
		err = fmt.Errorf("storing the guest program: %w", err)
		switch {
		case diskfull.Is(err):
			return "", sandpit.WithHint(diskfull.Mark(err), "free some space, or set SANDPIT_HOME to another directory")
		case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
			return "", sandpit.WithHint(err, "set SANDPIT_HOME to a directory that you can write to")
		}
		return "", err
	}
	return name, nil
}

// ours reports whether only this user and root can have made or changed a file or
// directory.
func ours(st *unix.Stat_t) bool {
	return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0
}

// needsRoot reports whether this program, as the guest, is executed only in the
// root of the sandbox. One that was built with cgo needs the C library that it
// was linked with, which only the host image has for certain, and which must
// not be looked for while the root changes.
func needsRoot(exe string) (bool, error) {
	f, err := os.Open(exe)
	if err != nil {
		return false, fmt.Errorf("reading this program: %w", err)
	}
	defer f.Close()
	return needsInterpreter(f)
}

// checkLibraries refuses a root in which a guest that needs its libraries can't be
// executed.
func checkLibraries(root *driver.Root) error {
	if slices.Contains(root.Binds, driver.Bind{Source: "/usr", Target: "/usr"}) {
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "using this program as the guest: it was built with cgo and needs a C library that images may lack"),
		"install it with `CGO_ENABLED=0 go install`, or build it with `make build`")
}

// needsInterpreter reports whether a program of this machine needs a dynamic
// loader: a program header of type PT_INTERP (elf(5)). Package debug/elf would
// tell, but links what costs every start 0.2 ms.
func needsInterpreter(program io.ReaderAt) (bool, error) {
	const interp = 3 // PT_INTERP
	header := make([]byte, 64)
	if _, err := program.ReadAt(header, 0); err != nil || string(header[:6]) != "\x7fELF\x02\x01" {
		return false, fmt.Errorf("reading this program: it is not a 64-bit ELF file: %w", cmp.Or(err, sandpit.ErrUnsupported))
	}
	at, size, count := binary.LittleEndian.Uint64(header[32:]), binary.LittleEndian.Uint16(header[54:]), binary.LittleEndian.Uint16(header[56:])
	for i := range int64(count) {
		var kind [4]byte
		if _, err := program.ReadAt(kind[:], int64(at)+i*int64(size)); err != nil {
			return false, fmt.Errorf("reading this program: %w", err)
		}
		if binary.LittleEndian.Uint32(kind[:]) == interp {
			return true, nil
		}
	}
	return false, nil
}

// guestMode is the mode of the guest's file. Of a program that nobody inside may
// read, the files in /proc belong to root outside, not to root inside (would_dump of
// fs/exec.c). So nobody inside can look into the guest, or make the kernel choose it
// when memory runs out (oom_score_adj). This needs an owner of the file who does not
// exist inside: it makes a difference only where root makes sandboxes with ids of
// their own.
func guestMode() uint32 {
	if os.Geteuid() == 0 {
		return 0o511
	}
	return 0o555
}

// writeGuest writes the guest atomically.
func writeGuest(dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".guest-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(fs.FileMode(guestMode()))
	}
	if err == nil {
		// The name is trusted from then on, also after a crash of the machine.
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err == nil {
		removeOldGuests(dir, name)
	}
	return err
}

// oldGuest is the time that a guest of another build is kept: a program of that build may
// be about to execute it. A running guest no longer needs its file.
const oldGuest = 24 * time.Hour

// removeOldGuests removes guests of other builds, and incomplete files.
func removeOldGuests(dir, keep string) {
	names, _ := filepath.Glob(filepath.Join(dir, GuestName+"-*"))
	parts, _ := filepath.Glob(filepath.Join(dir, ".guest-*"))
	for _, name := range append(names, parts...) {
		if info, err := os.Lstat(name); err == nil && name != keep && time.Since(info.ModTime()) > oldGuest {
			_ = os.Remove(name)
		}
	}
}
