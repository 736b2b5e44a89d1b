// Package fullprogram executes the full program, which is embedded in the launcher.
//
// Startup is expensive: every linked package costs time for its initialisation and its
// pages, used or not. So make build makes two programs of cmd/sandpit for Linux. The full
// program has everything, and is also what a plain go install gives. The launcher (tag
// launcher) has what run and shell need when the image is in the store, what exec needs
// when this user's server runs, version, and the full program as data. It takes 1.3 times
// as long to start as an empty Go program, whatever the full program grows to; a single
// program took 1.8 times.
//
// cli.App.Launch takes a command line or leaves it alone: any other command, help, unknown
// flags and invalid values, an image that must be fetched, a server that must be started
// or has an address. Nothing has been done by then, and the launcher becomes the full
// program: same process, arguments, environment and files. The full program is executed
// from program/ in the data directory, after a check of the file's owner. Without a
// usable data directory it is executed from sealed memory.
//
// There is one table of flags and one implementation of each command. Only parsing exists
// twice: a loop over the table in the launcher, pflag in the full program. TestLauncher
// and TestLauncherExec give every flag in every form to both.
package fullprogram

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Program is a program in memory.
type Program struct {
	// Bytes is a static ELF program.
	Bytes []byte

	// Name is a file name that always means these bytes. If it is empty, the program is
	// not kept in a file.
	Name string
}

// Exec replaces this program by p, and returns only on failure.
//
// It executes a file in the directory "program" of dir, which only this user may write to,
// and makes it if it is missing. If dir does not exist, or nothing can be written or
// executed there, it executes the program from memory, which takes some milliseconds each
// time.
func (p Program) Exec(dir string, argv, environ []string) error {
	if dir != "" && p.Name != "" {
		if fd, err := p.file(dir); err == nil {
			_ = execFD(fd, argv, environ) // on a file system without exec, it returns
			_ = unix.Close(fd)
		}
	}
	fd, err := p.memory()
	if err == nil {
		err = execFD(fd, argv, environ)
		_ = unix.Close(fd)
	}
	return sandpit.WithHint(fmt.Errorf("starting the full program: %w", err), "set SANDPIT_HOME to a directory that you can write to and execute programs in")
}

// execFD executes what is open, so that what has been checked is what runs.
func execFD(fd int, argv, environ []string) error {
	err := syscall.Exec("/proc/self/fd/"+strconv.Itoa(fd), argv, environ)
	return os.NewSyscallError("execve", err)
}

var errNotOurs = errors.New("other users could have changed it")

// file opens the program's file in the directory "program" of home, and makes both if
// need be.
func (p Program) file(home string) (int, error) {
	if _, err := os.Stat(home); err != nil {
		return -1, err // help must not create the data directory
	}
	at, err := openDir(filepath.Join(home, "program"))
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	// Not by its name: in a data directory that is another user's, that may mean another
	// directory at any moment, such as one whose files store would remove.
	dir := "/proc/self/fd/" + strconv.Itoa(at)
	if fd, err := p.open(dir); err == nil || errors.Is(err, errNotOurs) {
		return fd, err
	}
	if err := p.store(dir); err != nil {
		return -1, err
	}
	return p.open(dir)
}

// openDir opens a directory that is this user's alone to write, and makes it if there is
// none.
func openDir(name string) (int, error) {
	old := unix.Umask(0o077)  // the caller's may take the owner's bits away
	_ = os.Mkdir(name, 0o700) // most often it is there
	unix.Umask(old)
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFDIR || !ours(st)) {
		err = errNotOurs
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// open opens a file that this user has made, and nobody else could change. What it holds
// is not read, which would take milliseconds: the directory is this user's alone to write,
// store gives a file its name, which stands for its content, once the whole of it
// is on the disk, and a file of another size was not made by store.
func (p Program) open(dir string) (int, error) {
	var st unix.Stat_t
	fd, err := unix.Open(filepath.Join(dir, p.Name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG || !ours(st):
		err = errNotOurs
	case st.Size != int64(len(p.Bytes)):
		err = errors.New("it is incomplete")
	default:
		return fd, nil
	}
	_ = unix.Close(fd)
	return -1, err
}

func ours(st unix.Stat_t) bool {
	return st.Uid == uint32(os.Geteuid()) && st.Mode&0o022 == 0
}

// store writes the file so that its name only ever means the whole of it, and
// removes those of other versions: who runs them keeps them, as memory.
func (p Program) store(dir string) error {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing, once it has its name
	_, err = f.Write(p.Bytes)
	if err == nil {
		err = f.Chmod(0o500)
	}
	if err == nil {
		err = f.Sync() // or a power failure may leave a file of zeros
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, p.Name)); err != nil {
		return err
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != p.Name {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return nil
}

// memory puts the program into a file without a name, and seals it.
func (p Program) memory() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sandpit", flags|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3, every such file could be executed
		fd, err = unix.MemfdCreate("sandpit", flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	for rest := p.Bytes; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil && err != unix.EINTR {
			_ = unix.Close(fd)
			return -1, os.NewSyscallError("write", err)
		}
		rest = rest[max(n, 0):]
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}
