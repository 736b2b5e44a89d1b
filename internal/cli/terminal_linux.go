package cli

import (
	"strings"

	"golang.org/x/sys/unix"
)

// passKeys sets up a terminal that edits lines to hand over keys: they mean nothing else there,
// and what was typed up to the last of them is handed over with it.
func passKeys(fd int, keys string) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	for i, c := range t.Cc {
		if i == unix.VMIN || i == unix.VTIME || c == 0 || strings.IndexByte(keys, c) < 0 {
			continue
		}
		t.Cc[i] = 0
		if i == unix.VSTART || i == unix.VSTOP { // one without the other would halt the output for good
			t.Iflag &^= unix.IXON
		}
	}
	t.Cc[unix.VEOL2] = keys[len(keys)-1]
	t.Lflag |= unix.IEXTEN // which VEOL2 needs
	return unix.IoctlSetTermios(fd, unix.TCSETSW, t)
}
