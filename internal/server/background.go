package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/state"
)

// SocketIn returns the address of the server that belongs to a data directory.
func SocketIn(home string) Address {
	return Address{"unix", filepath.Join(home, "server.sock")}
}

// DialHome connects to the server of a data directory. The error matches
// sandpit.ErrForbidden if a program of another user listens there.
func DialHome(ctx context.Context, home string) (net.Conn, error) {
	return SocketIn(home).dial(ctx)
}

// maxLog is the size of the log of a background server, in bytes, at which a new server
// starts a new one.
const maxLog = 4 << 20

// Background says how to start a server in the background for a user.
type Background struct {
	Home    string
	Program string   // the program to start; default this one
	Environ []string // its environment
}

// LogFile is the log file of a server in the background.
func (b Background) LogFile() string { return filepath.Join(b.Home, "server.log") }

// Ensure starts a server unless one answers, and returns when it answers. started reports
// whether this call started it. Of concurrent calls, one does. The error matches
// sandpit.ErrForbidden if a program of another user has taken the server's place.
func (b Background) Ensure(ctx context.Context) (started bool, err error) {
	if answers, err := b.Answers(ctx); answers || err != nil {
		return false, err
	}
	caller := unix.Umask(0o077) // which may take the owner's bits away
	defer unix.Umask(caller)
	if err := os.MkdirAll(b.Home, 0o700); err != nil {
		return false, fmt.Errorf("starting a server: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(b.Home, "server.start"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false, fmt.Errorf("starting a server: %w", err)
	}
	defer lock.Close()
	if err := flock(ctx, lock); err != nil {
		return false, fmt.Errorf("starting a server: waiting for another process that starts one: %w", err)
	}
	if answers, err := b.Answers(ctx); answers || err != nil {
		return false, err
	}
	if err := b.start(ctx); err != nil {
		if answers, _ := b.Answers(ctx); answers {
			return false, nil // somebody has started one by its name at the same time
		}
		return true, err
	}
	return true, nil
}

// Answers reports whether there is a server. The error matches sandpit.ErrForbidden if a
// program of another user has taken its place, or if this user may not connect to it.
func (b Background) Answers(ctx context.Context) (bool, error) {
	conn, err := DialHome(ctx, b.Home)
	switch {
	case err == nil:
		_ = conn.Close()
	case errors.Is(err, sandpit.ErrForbidden):
		return false, fmt.Errorf("looking for a server: %w", err)
	case errors.Is(err, fs.ErrPermission):
		return false, sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "looking for a server: %s: permission denied", b.place()),
			"set SANDPIT_HOME to a directory of yours")
	}
	return err == nil, nil
}

// place names the server that this user may not connect to, or its directory if even that is
// closed.
func (b Background) place() string {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(b.Home, "server.sock"), &st) != nil {
		return b.Home
	}
	owner := "root"
	if st.Uid != 0 {
		owner = fmt.Sprintf("user %d", st.Uid)
	}
	return fmt.Sprintf("the server in %s belongs to %s", b.Home, owner)
}

// Left reports whether a server that has ended has left sandboxes, which the next one adopts.
func (b Background) Left() bool {
	left, err := os.ReadDir(filepath.Join(b.Home, runDir))
	return err == nil && len(left) > 0
}

// LeaveSignal asks a server in the background to leave its place to one that a person or a service manager
// starts, which adopts its sandboxes. It does so if it has no requests in progress, which only it knows.
const LeaveSignal = syscall.SIGWINCH

// leaveTime is how long requests in progress may take to end, as with the end of a command.
const leaveTime = 5 * time.Second

// predecessor is a server in the background that is asked to leave.
type predecessor struct {
	pid   int // 0: none was asked
	since time.Time
}

// leaves asks the process that has the state to leave. It reports false if that is certain not to, since
// it is not a server in the background.
func (p *predecessor) leaves(holder int) bool {
	if holder <= 0 {
		return p.pid > 0 // another one is about to begin
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", holder))
	switch {
	case err != nil: // it has just ended
		return p.pid > 0
	case !strings.HasSuffix(string(line), "\x00serve\x00--background\x00"):
		return false
	}
	if p.pid == 0 {
		p.since = time.Now()
	}
	p.pid = holder
	_ = syscall.Kill(holder, LeaveSignal) // one that has just ended needs none
	return true
}

// stays returns the error that the one that was asked has requests in progress.
func (p *predecessor) stays() error {
	return sandpit.WithHint(fault.Errorf(state.ErrInUse, "taking the place of the server that a command started, process %d: it has requests in progress", p.pid),
		fmt.Sprintf("wait until commands such as 'sandpit exec' have ended, or cancel them with 'kill %d'; then run this again (sandboxes keep running)", p.pid))
}

// late reports whether the one that was asked has had the time to leave.
func (p *predecessor) late() bool { return time.Since(p.since) > leaveTime }

// flock takes a lock, and gives up when ctx ends.
func flock(ctx context.Context, f *os.File) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// start starts the program with a pipe on which it reports "ready", or why it is not.
func (b Background) start(ctx context.Context) error {
	program := b.Program
	if program == "" {
		// Not os.Executable: the file may have been replaced or removed meanwhile.
		program = "/proc/self/exe"
	}
	log, err := b.openLog()
	if err != nil {
		return fmt.Errorf("starting a server: opening its log: %w", err)
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("starting a server: %w", err)
	}
	defer read.Close()
	cmd := exec.Command(program, "serve", "--background")
	cmd.Args[0] = "sandpit"
	cmd.Env = append(b.Environ[:len(b.Environ):len(b.Environ)], "SANDPIT_HOME="+b.Home)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	keepFiles()
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return fmt.Errorf("starting a server: %w", err)
	}
	// It outlives this program, which ignores its end.
	go func() { _ = cmd.Wait() }()

	said := make(chan error, 1)
	go func() { said <- b.hear(read) }()
	select {
	case <-ctx.Done():
		return fmt.Errorf("starting a server: %w", ctx.Err())
	case err := <-said:
		return err
	}
}

// A server in the background writes to descriptor readyFD: readyLine when it answers, or
// why it does not, with a hint on another line.
const (
	readyLine = "ready"
	readyFD   = 3
)

// TellStarter tells the process that started this server in the background that it answers,
// or why it does not.
func TellStarter(err error) {
	pipe := os.NewFile(readyFD, "starter")
	if pipe == nil {
		return
	}
	text := readyLine + "\n"
	if err != nil {
		oneLine := strings.NewReplacer("\n", " ").Replace
		text = oneLine(err.Error()) + "\n" + oneLine(sandpit.Hint(err)) + "\n"
	}
	_, _ = pipe.WriteString(text)
	_ = pipe.Close()
}

// hear waits for the server's report to its starter.
func (b Background) hear(from io.Reader) error {
	lines := bufio.NewReader(io.LimitReader(from, 8<<10))
	next := func() string {
		line, _ := lines.ReadString('\n')
		return strings.TrimSpace(line)
	}
	why := next()
	if why == readyLine {
		return nil
	}
	hint := "see " + b.LogFile()
	if why == "" {
		why = "it exited without an error message"
	} else if said := next(); said != "" {
		hint = said
	}
	return sandpit.WithHint(startError(why), hint)
}

// startError is the reason why a background server does not answer. It matches
// sandpit.ErrUnavailable.
type startError string

func (e startError) Error() string        { return "starting a server: " + string(e) }
func (e startError) Is(target error) bool { return target == sandpit.ErrUnavailable }

func (b Background) openLog() (*os.File, error) {
	name := b.LogFile()
	if info, err := os.Lstat(name); err == nil && info.Size() > maxLog {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}
