//go:build unix

package notation_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// The numbers are those of Linux (signal(7)), on every system.
func TestSignalNumber(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{
		syscall.SIGHUP: 1, syscall.SIGINT: 2, syscall.SIGQUIT: 3, syscall.SIGABRT: 6, syscall.SIGBUS: 7, syscall.SIGKILL: 9,
		syscall.SIGUSR1: 10, syscall.SIGUSR2: 12, syscall.SIGTERM: 15, syscall.SIGCHLD: 17, syscall.SIGCONT: 18,
		syscall.SIGSTOP: 19, syscall.SIGTSTP: 20, syscall.SIGTTIN: 21, syscall.SIGTTOU: 22, syscall.SIGURG: 23,
		syscall.SIGXCPU: 24, syscall.SIGXFSZ: 25, syscall.SIGVTALRM: 26, syscall.SIGPROF: 27, syscall.SIGWINCH: 28,
		syscall.SIGIO: 29, syscall.SIGSYS: 31,
	} {
		if got, err := notation.SignalNumber(sig); got != want || err != nil {
			t.Errorf("%v: got %d, %v; want %d", sig, got, err, want)
		}
	}
	for _, sig := range []syscall.Signal{-1, 0, 65, 1 << 20} {
		if n, err := notation.SignalNumber(sig); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%d: got %d, %v", int(sig), n, err)
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"":                           "",
		"as it is: äß 世":             "as it is: äß 世",
		"\x1b[2Jcleared\r\n\u009b1m": "?[2Jcleared???1m",
		"\xff\ufffd\u202ereversed":   "???reversed",
	} {
		if got := notation.Printable(s, 100); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
	if got := notation.Printable(strings.Repeat("x", 11), 10); got != strings.Repeat("x", 10)+"…" {
		t.Errorf("got %q", got)
	}
	if got := notation.Printable("xä", 2); got != "x?…" {
		t.Errorf("a character cut in two is %q", got)
	}
}
