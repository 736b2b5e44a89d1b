package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const patience = testkit.Patience

// session is sandpit on a terminal.
type session struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File
	before unix.Termios // settings of the terminal before it was started

	mu  sync.Mutex
	out bytes.Buffer
}

// startSession starts a command line, in which "sandpit" is the program under test,
// with a new terminal as its controlling one.
func startSession(t *testing.T, argv ...string) *session {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	heedSignals(t)
	s := &session{t: t, master: master, slave: slave}
	s.before = s.settings()
	s.cmd = commandLine(t, argv...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	var reader sync.WaitGroup
	reader.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			s.mu.Lock()
			s.out.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = slave.Close()
		_ = master.Close()
		reader.Wait()
	})
	return s
}

// commandLine returns a command in which sandpit is the program under test.
func commandLine(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	bin := binDir(t)
	cmd := exec.Command(argv[0], argv[1:]...)
	if argv[0] == "sandpit" {
		cmd = &exec.Cmd{Path: filepath.Join(bin, "sandpit"), Args: argv}
	}
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+t.TempDir(), "SANDPIT_HOME="+dataDir(t), "XDG_CONFIG_HOME=", "SANDPIT_QUIET=true")
	return cmd
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// expect waits until the output holds text.
func (s *session) expect(text string) {
	s.t.Helper()
	s.until("the output holds "+text, func() bool { return strings.Contains(s.output(), text) })
}

func (s *session) until(what string, true func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !true(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain until %s; output:\n%s", what, s.output())
		}
	}
}

func (s *session) write(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// settings returns those of the terminal.
func (s *session) settings() unix.Termios {
	s.t.Helper()
	settings, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *settings
}

func (s *session) isRaw() bool { return s.settings().Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == 0 }

// exitCode waits for the end; 128+n stands for death by signal n.
func (s *session) exitCode() int {
	s.t.Helper()
	return exitCode(s.t, s.cmd)
}

func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("%q has not ended", cmd.Args)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// waitCatching waits until sandpit passes signals on to the command, which it
// begins when it has heard that the command runs: somewhat later than the command
// does. SIGCONT is the last that it catches then, and the Go runtime does not catch
// it by itself.
func waitCatching(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, caught, _ := strings.Cut(string(status), "SigCgt:\t")
		caught, _, _ = strings.Cut(caught, "\n")
		mask, err := strconv.ParseUint(caught, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if mask&(1<<(syscall.SIGCONT-1)) != 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the signals are not caught")
		}
	}
}

func TestTerminal(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sandpit", "run", "-it", "--", "sh", "-c", `test -t 0 && test -t 1 && echo ready; read a; echo "got $a"; exit 3`)
	s.expect("ready")
	if !s.isRaw() {
		t.Error("the terminal is not raw while the command runs")
	}
	s.write("hello\r")
	s.expect("got hello")
	if got := s.exitCode(); got != 3 {
		t.Errorf("exit code %d", got)
	}
	if s.settings() != s.before {
		t.Error("the terminal was not restored")
	}
}

// TestTerminalRestored ends sandpit and the command in every way.
func TestTerminalRestored(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	needSandboxes(t)
	for _, tt := range []struct {
		name string
		end  func(*session)
		code int
	}{
		{"SIGTERM", func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGTERM) }, 143},
		{"SIGHUP", func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGHUP) }, 129},
		{"SIGINT", func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGINT) }, 130},
		{"SIGQUIT", func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGQUIT) }, 131},
		{"SIGKILL", func(s *session) { _ = s.cmd.Process.Kill() }, 137},
		{"SIGABRT", func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGABRT) }, 2}, // ends Go programs like a panic
		{"the command is killed", func(s *session) { s.write("kill\r") }, 137},
		{"the sandbox is killed", killGuest, 125},
		{"control-C", func(s *session) { s.write("\x03") }, 130},
		{"end of input", func(s *session) { s.write("\x04") }, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startSession(t, "sandpit", "run", "-it", "--", "sh", "-c", `echo ready; read a || exit 9; kill -KILL $$`)
			s.expect("ready")
			s.until("the terminal is raw", s.isRaw)
			waitCatching(t, s.cmd.Process.Pid)
			tt.end(s)
			if got := s.exitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d; output:\n%s", got, tt.code, s.output())
			}
			s.until("the terminal is restored", func() bool { return s.settings() == s.before })
		})
	}
}

// heedSignals gives the children of a test the default action of the signals
// that this process itself was started to ignore, as nohup has it: they are
// caught here, and execve(2) resets what is caught.
func heedSignals(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	t.Cleanup(func() { signal.Stop(caught) })
}

// killGuest kills the first process of the sandbox, and all others with it.
func killGuest(s *session) {
	s.t.Helper()
	programs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	parent := fmt.Sprintf("\nPPid:\t%d\n", s.cmd.Process.Pid)
	for _, program := range programs {
		line, _ := os.ReadFile(program + "/cmdline")
		status, _ := os.ReadFile(program + "/status")
		if !bytes.HasPrefix(line, []byte(linux.GuestName)) || !bytes.Contains(status, []byte(parent)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(program))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatalf("killing the guest: %v", err)
		}
		return
	}
	s.t.Fatal("no guest found")
}

func TestResize(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sandpit", "run", "-it", "--", "sh", "-c", `trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.05; done`)
	s.expect("ready")
	if err := pty.Setsize(s.master, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	s.expect("33 77")
	s.write("\x03")
	if got := s.exitCode(); got != 130 {
		t.Errorf("exit code %d", got)
	}
}

// TestInterrupt types control-C where the command has no terminal of its own.
func TestInterrupt(t *testing.T) {
	needSandboxes(t)
	// sleep has to get the signal, too: sh runs its trap when sleep has ended.
	// The child says that it is ready: a signal that came before it was made
	// would reach sh alone, which would then wait for it.
	s := startSession(t, "sandpit", "run", "--", "sh", "-c", `trap 'echo trapped; exit 7' INT; (echo ready; exec sleep 1000); echo after`)
	s.expect("ready")
	waitCatching(t, s.cmd.Process.Pid)
	s.write("\x03")
	s.expect("trapped")
	if got := s.exitCode(); got != 7 {
		t.Errorf("exit code %d", got)
	}
}

func TestThirdInterruptKills(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sandpit", "run", "--", "sh", "-c", `trap '' INT; echo ready; while :; do sleep 0.05; done`)
	s.expect("ready")
	waitCatching(t, s.cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = s.master.WriteString("\x03")
			}
		}
	}()
	defer close(ended)
	if got := s.exitCode(); got != 137 {
		t.Errorf("exit code %d", got)
	}
}

// TestStop types control-Z, and sees the job stop and go on.
func TestStop(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sh", "-c", `set -m; sandpit run -- sh -c 'echo ready; while :; do echo tick; sleep 0.02; done'; echo stopped $?; sleep 0.3; echo quiet; fg; echo ended $?`)
	s.expect("ready")
	job, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPGRP)
	if err != nil {
		t.Fatal(err)
	}
	waitCatching(t, job)
	s.write("\x1a")
	s.expect("quiet")
	_, after, _ := strings.Cut(s.output(), "stopped")
	stopped, _, _ := strings.Cut(after, "quiet")
	if strings.Contains(stopped, "tick") {
		t.Errorf("the command went on:\n%s", s.output())
	}
	s.until("the command goes on", func() bool {
		_, after, _ := strings.Cut(s.output(), "quiet")
		return strings.Contains(after, "tick\r\n")
	})
	s.write("\x03")
	s.expect("ended 130")
	_ = s.exitCode()
}

// TestBackground runs a job in the background of a terminal that it does not read.
func TestBackground(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sh", "-c", `set -m; sandpit run -- sh -c 'sleep 0.3; echo done' & wait $!; echo code $?`)
	s.expect("code 0")
	if got := s.exitCode(); got != 0 {
		t.Errorf("exit code %d", got)
	}
}

func TestSignals(t *testing.T) {
	needSandboxes(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		t.Run(sig.String(), func(t *testing.T) {
			heedSignals(t)
			name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
			cmd := commandLine(t, "sandpit", "run", "--", "sh", "-c", `trap 'echo trapped; exit 7' `+name+`; echo ready; while :; do sleep 0.02; done`)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 6)
			if _, err := io.ReadFull(out, buf); err != nil {
				t.Fatal(err)
			}
			waitCatching(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out)
			if got := exitCode(t, cmd); got != 7 || string(rest) != "trapped\n" {
				t.Errorf("exit code %d, output %q", got, rest)
			}
		})
	}
}

// TestRareSignals sends a command every other signal that can be passed on.
func TestRareSignals(t *testing.T) {
	needSandboxes(t)
	heedSignals(t)
	var signals []syscall.Signal
	script := ""
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGURG, syscall.SIGPROF, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP, syscall.SIGTERM, 32, 33, 34:
			continue
		}
		signals = append(signals, sig)
		script += fmt.Sprintf("trap 'echo got-%d' %[1]d\n", sig)
	}
	cmd := commandLine(t, "sandpit", "run", "--", "sh", "-c", script+"trap 'echo got-15; exit 7' 15; echo ready; while :; do sleep 0.02; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := make(chan string)
	go func() {
		defer close(lines)
		for r := bufio.NewScanner(out); r.Scan(); {
			lines <- r.Text()
		}
	}()
	// The last signal that is caught is ignored before that. So it is sent until it is answered.
	const last = 64
	send := func(sig syscall.Signal, again <-chan time.Time) {
		t.Helper()
		timeout := time.After(patience)
		want := fmt.Sprintf("got-%d", sig)
		for got := ""; got != want; {
			select {
			case line, ok := <-lines:
				if got = line; !ok || got != want && got != fmt.Sprintf("got-%d", last) {
					t.Fatalf("got %q, want %q", got, want)
				}
			case <-again:
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
			case <-timeout:
				t.Fatalf("no answer to signal %d", sig)
			}
		}
	}
	if got := <-lines; got != "ready" {
		t.Fatalf("got %q", got)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	send(last, tick.C)
	for _, sig := range append(signals, syscall.SIGTERM) {
		once := make(chan time.Time, 1)
		once <- time.Time{}
		send(sig, once)
	}
	if got := exitCode(t, cmd); got != 7 {
		t.Errorf("exit code %d", got)
	}
}

// TestEverySentSignalIsPassedOn sends signals again and again to a command that runs at a
// terminal and survives them: only what is typed there may mean something else.
func TestEverySentSignalIsPassedOn(t *testing.T) {
	needSandboxes(t)
	s := startSession(t, "sandpit", "run", "--", "sh", "-c", `trap 'i=$((i+1)); echo INT-$i' INT; trap 'j=$((j+1)); echo TERM-$j' TERM; trap 'echo WINCH' WINCH; trap 'exit 7' USR1
		echo ready; while :; do sleep 0.02; done`)
	s.expect("ready")
	waitCatching(t, s.cmd.Process.Pid)
	send := func(sig syscall.Signal, want string) {
		t.Helper()
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		s.expect(want)
	}
	for n := 1; n <= 5; n++ {
		send(syscall.SIGINT, fmt.Sprintf("INT-%d", n))
	}
	for n := 1; n <= 3; n++ {
		send(syscall.SIGTERM, fmt.Sprintf("TERM-%d", n))
	}
	send(syscall.SIGWINCH, "WINCH")
	for n := 6; n <= 8; n++ { // to all that is at the terminal, and yet not typed
		if err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		s.expect(fmt.Sprintf("INT-%d", n))
	}
	s.write("\x03") // one that is typed after so many changes nothing
	s.expect("INT-9")
	if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := s.exitCode(); got != 7 {
		t.Errorf("exit code %d; output:\n%s", got, s.output())
	}
}

// TestIgnoredSignals keeps ignored what was ignored when sandpit started.
func TestIgnoredSignals(t *testing.T) {
	needSandboxes(t)
	cmd := commandLine(t, "sh", "-c", `trap '' HUP; exec sandpit run -- sh -c 'echo ready; sleep 0.3; exit 3'`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, cmd); got != 3 {
		t.Errorf("exit code %d", got)
	}
}

// TestClosedOutput has the command end when nobody reads its output, as it
// would without Sandpit.
func TestClosedOutput(t *testing.T) {
	needSandboxes(t)
	for name, script := range map[string]string{
		"dies of SIGPIPE": "yes",
		"ignores SIGPIPE": `trap "" PIPE; while :; do echo y; sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := commandLine(t, "sandpit", "shell", script)
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout = write
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = write.Close()
			if _, err := io.ReadFull(read, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
			_ = read.Close()
			if got := exitCode(t, cmd); got != 141 {
				t.Errorf("exit code %d", got)
			}
		})
	}
}

// TestLargeOutput passes everything on, unchanged, to a slow reader.
func TestLargeOutput(t *testing.T) {
	needSandboxes(t)
	cmd := commandLine(t, "sandpit", "shell", "yes 0123456789abcde | head -c 16777216; yes | head -c 100 >&2")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 16<<20 || strings.Count(string(out), "0123456789abcde\n") != 1<<20 || stderr.Len() != 100 {
		t.Errorf("%d bytes of output, %d of errors", len(out), stderr.Len())
	}
}
