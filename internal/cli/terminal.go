package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Terminal is the person's terminal while a command has one of its own, or, with keys, while
// what is typed there goes to a command without one. Its methods do nothing on a nil one.
//
// It is put back by Restore; and when this program dies without having done
// so, by the guard: a process of its own that only waits for that.
type Terminal struct {
	file  *os.File
	guard *exec.Cmd
	pipe  *os.File // what the guard listens to

	// keys, if set, are those that detach. The terminal then is not made raw: lines are still
	// edited and echoed there, but these keys reach this program at once.
	keys string

	mu    sync.Mutex
	saved *term.State // not nil while the settings are changed
}

// GuardName is the name under which this program acts as its terminal guard: if it is
// os.Args[0], main only calls GuardTerminal.
const GuardName = "sandpit-terminal"

// OpenTerminal starts the guard of a terminal.
func OpenTerminal(file *os.File) (*Terminal, error) {
	// Not by its name, which this program may have lost, or never have had.
	self := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if self, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("finding this executable: %w", err)
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("preparing the terminal's guard: %w", err)
	}
	defer read.Close()
	guard := &exec.Cmd{
		Path:  self,
		Args:  []string{GuardName},
		Stdin: file,
		// A session of its own keeps it clear of the terminal's signals.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		ExtraFiles:  []*os.File{read},
		Dir:         "/",
	}
	ready, err := guard.StdoutPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		write.Close()
		return nil, fmt.Errorf("starting the terminal's guard: %w", err)
	}
	t := &Terminal{file: file, guard: guard, pipe: write}
	// It has read the terminal's settings when it has said so.
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Close()
		return nil, errors.New("starting the terminal's guard: it exited")
	}
	return t, nil
}

// GuardTerminal saves the settings of the terminal on standard input, waits until its
// starter has ended, and restores them, unless the starter has written to descriptor 3 that
// it did so. It returns the exit code.
func GuardTerminal() int {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGTTOU, syscall.SIGPIPE)
	saved, err := term.GetState(0)
	if err != nil {
		return 1
	}
	if _, err := os.Stdout.Write([]byte{0}); err != nil {
		return 1
	}
	if n, _ := os.NewFile(3, "starter").Read(make([]byte, 1)); n == 0 {
		_ = term.Restore(0, saved)
	}
	return 0
}

// IsGuard reports whether this program was started as its own terminal guard.
func IsGuard(args []string) bool {
	return len(args) == 1 && filepath.Base(args[0]) == GuardName
}

// Size returns the terminal's size; 24 by 80 for one that does not know.
func (t *Terminal) Size() sandpit.TerminalSize {
	cols, rows, err := term.GetSize(int(t.file.Fd()))
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<16-1 || rows > 1<<16-1 {
		return sandpit.TerminalSize{Rows: 24, Cols: 80}
	}
	return sandpit.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)}
}

// Raw hands every key to the command, or, with keys, those to this program.
func (t *Terminal) Raw() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		return nil
	}
	saved, err := t.change(int(t.file.Fd()))
	if err != nil {
		return fmt.Errorf("preparing the terminal: %w", err)
	}
	t.saved = saved
	return nil
}

// change changes the settings and returns those before; nil if it does not.
func (t *Terminal) change(fd int) (*term.State, error) {
	if t.keys == "" {
		return term.MakeRaw(fd)
	}
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return nil, nil // a job in the background would be stopped; SIGCONT tells it when it is not
	}
	saved, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	return saved, passKeys(fd, t.keys)
}

// Restore puts the terminal back as it was.
func (t *Terminal) Restore() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	if term.Restore(int(t.file.Fd()), t.saved) == nil {
		t.saved = nil
	}
}

// again makes the terminal raw after this program has been stopped, when it
// was, and tells the command its size.
func (t *Terminal) again(process sandpit.Process) {
	if t == nil || process == nil {
		return
	}
	_ = t.Raw()
	t.resize(process)
}

// resize tells the command the size of the terminal.
func (t *Terminal) resize(process sandpit.Process) {
	if t == nil || process == nil || t.keys != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = process.Resize(ctx, t.Size())
}

// Close restores the terminal and dismisses the guard.
func (t *Terminal) Close() {
	t.Restore()
	_, _ = t.pipe.Write([]byte{0})
	_ = t.pipe.Close()
	_ = t.guard.Wait()
}

// waitForeground returns when reading from f would not stop this program:
// at once, unless f is the terminal of a job that is in the background.
func waitForeground(f *os.File) {
	fd := int(f.Fd())
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
		return // not a terminal, or not ours
	}
	for {
		// Wait without reading: a read that has begun would stop the program
		// when it is put into the background and somebody types.
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			return
		}
		if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group == unix.Getpgrp() {
			if ready[0].Revents != 0 {
				return
			}
			continue
		}
		time.Sleep(100 * time.Millisecond)
	}
}
