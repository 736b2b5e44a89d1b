package cli

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// typist counts the interrupts that somebody types at the terminal, as opposed to those
// that another program sends: only who types may be impatient.
//
// The Go runtime does not tell a signal's origin. So the first interrupt that may have been
// typed starts a helper in the same process group, which gets each later one, too, reads its
// origin, and reports those that came from the terminal. The first one counts as well.
//
// Where no helper can be started, every interrupt while this program has the terminal counts.
type typist struct {
	interrupts <-chan time.Time // of the helper: when one was typed
	helper     *keyHelper
	started    bool
	times      []time.Time
}

// impatience is the time after the first interrupt in which a third one is a demand to kill.
const impatience = 2 * time.Second

// signaled counts an interrupt of unknown origin, and reports whether it is a demand to kill.
func (k *typist) signaled() bool {
	if k.helper != nil || !mayBeTyped() {
		return false
	}
	if !k.started {
		k.started = true
		if helper, err := startKeyHelper(); err == nil {
			k.helper, k.interrupts = helper, helper.typed
		}
	}
	return k.interrupted(time.Now())
}

// interrupted counts an interrupt that was typed, and reports whether it is a demand to kill.
func (k *typist) interrupted(at time.Time) bool {
	k.times = append(k.times, at)
	n := len(k.times)
	return n >= 3 && k.times[n-1].Sub(k.times[n-3]) <= impatience
}

func (k *typist) stop() {
	if k.helper != nil {
		k.helper.stop()
	}
}

// mayBeTyped reports whether this program is in the foreground of a terminal.
func mayBeTyped() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
