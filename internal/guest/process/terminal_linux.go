package process

import (
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/settings"
)

// openTerminal makes a terminal that belongs to u and returns its two ends.
func openTerminal(u *settings.User, rows, cols uint64) (master, slave int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(master)
		}
	}()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, -1, err
	}
	// By descriptor (Linux 4.13), so that whatever is mounted at /dev/pts is the right one.
	s, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, -1, errno
	}
	slave = int(s)
	if t, err := unix.IoctlGetTermios(slave, unix.TCGETS); err == nil {
		t.Iflag |= unix.IUTF8
		_ = unix.IoctlSetTermios(slave, unix.TCSETS, t)
	}
	if u.Change {
		// So that the program may open it again by name. The group stays what devpts says.
		_ = unix.Fchown(slave, int(u.UID), -1)
	}
	if err := setSize(master, rows, cols); err != nil {
		unix.Close(slave)
		return -1, -1, err
	}
	return master, slave, nil
}

// setSize changes a terminal's size.
func setSize(fd int, rows, cols uint64) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(min(rows, 65535)), Col: uint16(min(cols, 65535))})
}

// endOfInput returns what, written to a terminal, makes a program that reads
// lines see the end of its input. midLine says that an unfinished line was
// written before. A program in raw mode has no such thing.
func endOfInput(master int, midLine bool) []byte {
	t, err := unix.IoctlGetTermios(master, unix.TCGETS)
	if err != nil || t.Lflag&unix.ICANON == 0 {
		return nil
	}
	eof := t.Cc[unix.VEOF]
	if midLine { // the first one only ends the line
		return []byte{eof, eof}
	}
	return []byte{eof}
}
