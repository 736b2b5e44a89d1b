package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// withSandbox starts a server with one sandbox, "box", and returns an
// environment in which sandpit uses it.
func withSandbox(t *testing.T) (*service, sandpit.Sandbox) {
	t.Helper()
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	s := startService(t, home, nil)
	sb, err := s.client().Create(t.Context(), sandpit.Spec{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDPIT_SERVER", "unix://"+home+"/server.sock")
	return s, sb
}

// TestExecFeelsLikeSSH has a person work at a shell in a sandbox.
func TestExecFeelsLikeSSH(t *testing.T) {
	_, sb := withSandbox(t)
	// What a terminal's keys reach is its foreground group: fields 5 and 8 of
	// proc_pid_stat(5), and the shell is not to be it any more.
	inFront := func() bool {
		out, err := sandpit.Shell(t.Context(), sb, `for p in /proc/[0-9]*; do
			read -r pid comm state ppid group session tty front rest <$p/stat && test "$comm $state $group" = "(sleep) S $front" && echo found
		done 2>/dev/null; :`)
		if err != nil {
			t.Fatal(err)
		}
		return string(out.Stdout) == "found\n"
	}
	s := startSession(t, "sandpit", "exec", "-it", "box", "--", "sh", "-i")
	s.write("PS1='$ '; tty; stty size\r")
	s.expect("/dev/pts/")
	if !s.isRaw() {
		t.Error("the terminal is not raw while the command runs")
	}
	if err := pty.Setsize(s.master, &pty.Winsize{Rows: 31, Cols: 71}); err != nil {
		t.Fatal(err)
	}
	s.until("the size is known inside", func() bool {
		s.write("stty size\r")
		time.Sleep(20 * time.Millisecond)
		return strings.Contains(s.output(), "31 71")
	})
	// ^C ends the job and not the shell, ^Z stops it.
	s.write("sleep 1000\r")
	s.until("it sleeps", inFront)
	s.write("\x03")
	s.write("echo code-$?\r")
	s.expect("code-130")
	s.write("sleep 1000\r")
	s.until("it sleeps", inFront)
	s.write("\x1a")
	s.write("jobs; echo job-$?\r")
	s.expect("job-0")
	s.until("the job is stopped", func() bool { return strings.Contains(s.output(), "Stopped") })
	s.write("fg\r") // which goes on, and is ended
	s.until("it sleeps again", inFront)
	s.write("\x03")
	s.write("exit 7\r")
	if got := s.exitCode(); got != 7 {
		t.Errorf("exit code %d: %s", got, s.output())
	}
	if s.settings() != s.before {
		t.Error("the terminal was not restored")
	}
}

// TestAttachIsLeft attaches to a shell, leaves it by keys, and finds it again.
func TestAttachIsLeft(t *testing.T) {
	_, sb := withSandbox(t)
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sh", "-i"}, Background: true, Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}})
	if err != nil {
		t.Fatal(err)
	}
	s := startSession(t, "sandpit", "attach", "box", p.ID())
	s.until("the terminal is raw", s.isRaw)
	s.write("mark=well; echo he''re\r")
	s.expect("here")
	s.write("\x10\x11")
	s.expect("which keeps running")
	if got := s.exitCode(); got != 0 {
		t.Errorf("exit code %d", got)
	}
	if s.settings() != s.before {
		t.Error("the terminal was not restored")
	}
	again := startSession(t, "sandpit", "attach", "box", p.ID())
	again.expect("here") // what was written meanwhile
	again.until("the terminal is raw", again.isRaw)
	again.write("echo $mark-done; exit 5\r")
	again.expect("well-done")
	if got := again.exitCode(); got != 5 {
		t.Errorf("exit code %d", got)
	}
}

// TestExecIsLeft detaches from a shell that exec has started, and finds it again.
func TestExecIsLeft(t *testing.T) {
	_, sb := withSandbox(t)
	first := startSession(t, "sandpit", "exec", "-it", "box", "--", "sh", "-i")
	first.until("the terminal is raw", first.isRaw)
	first.write("mark=well; echo he''re\r")
	first.expect("here")
	first.write("last=typed\r\x10\x11") // the keys may come with the input before them
	first.expect("which keeps running; run 'sandpit attach box p")
	if got := first.exitCode(); got != 0 {
		t.Errorf("exit code %d", got)
	}
	if first.settings() != first.before {
		t.Error("the terminal was not restored")
	}
	_, id, _ := strings.Cut(first.output(), "run 'sandpit attach box ")
	id, _, _ = strings.Cut(id, "'")
	again := startSession(t, "sandpit", "attach", "box", id)
	again.expect("here") // what was written meanwhile
	again.until("the terminal is raw", again.isRaw)
	again.write("echo $mark-done-$last; exit 5\r")
	again.expect("well-done-typed")
	if got := again.exitCode(); got != 5 {
		t.Errorf("exit code %d", got)
	}
	procs, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(procs, func(p sandpit.ProcessInfo) bool { return p.ID == id }); i < 0 || !procs[i].Background {
		t.Errorf("it is not listed as one in the background: %+v", procs)
	}
}

// TestAttachHarmsNothing ends attachments in every way: what they watch goes on.
func TestAttachHarmsNothing(t *testing.T) {
	s, sb := withSandbox(t)
	ticks := "trap '' PIPE; while :; do echo tick; sleep 0.02; done"
	watched, err := sb.Start(t.Context(), sandpit.Command{Script: ticks, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	fed, err := sb.Start(t.Context(), sandpit.Command{Script: "trap 'echo trapped' INT; trap 'exit 9' TERM HUP QUIT USR1 PIPE; while :; do if read x; then echo got-$x; else echo eof-$?; sleep 0.1; fi; done", Background: true, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	// alive waits until a process that goes on writes something.
	alive := func(p sandpit.Process) {
		t.Helper()
		out := new(testkit.Buffer)
		q, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{Stdout: out, Stdin: true, NoHistory: true})
		if err != nil {
			t.Fatal(err)
		}
		defer q.(sandpit.Detacher).Detach()
		if in := q.Stdin(); in != nil {
			if _, err := io.WriteString(in, "well\n"); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Until(t, "it writes", func() bool { return strings.Contains(out.String(), "\n") }, out.String)
	}
	for _, tt := range []struct {
		sig  syscall.Signal
		code int
	}{{syscall.SIGHUP, 129}, {syscall.SIGINT, 130}, {syscall.SIGQUIT, 131}, {syscall.SIGTERM, 143}} {
		heedSignals(t)
		cmd := commandLineAt(t, s.home, "attach", "box", watched.ID())
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		waitCatching(t, cmd.Process.Pid)
		if err := cmd.Process.Signal(tt.sig); err != nil {
			t.Fatal(err)
		}
		if got := exitCode(t, cmd); got != tt.code {
			t.Errorf("%s: exit code %d", tt.sig, got)
		}
		alive(watched)
	}
	// The reader of the output goes.
	head := commandLine(t, "sh", "-c", "(sandpit attach box "+watched.ID()+"; echo $? >&3) 3>&2 | head -1")
	var code strings.Builder
	head.Stderr = &code
	if out, err := head.Output(); err != nil || string(out) != "tick\n" || code.String() != "141\n" {
		t.Errorf("%q %q %v", out, code.String(), err)
	}
	alive(watched)
	// Also if nothing more is written.
	silent := commandLine(t, "sh", "-c", "printf 'zero\\n' | sandpit attach -i --no-history box "+fed.ID()+" | head -1")
	if out, err := silent.CombinedOutput(); err != nil || string(out) != "got-zero\n" {
		t.Errorf("%q %v", out, err)
	}
	// The input ends, and others still write to the process.
	feedProcess(t, fed.ID(), "one\n", "got-one\n")
	feedProcess(t, fed.ID(), "two\n", "got-two\n")
	// At a terminal: ^C is for the process if what is typed is. ^Z stops only the watching.
	at := startSession(t, "sh", "-c", "set -m; sandpit attach --no-history box "+fed.ID()+"; echo stopped; sleep 0.1; fg; echo code-$?")
	at.write("three\r")
	at.expect("got-three")
	at.write("\x03")
	at.expect("trapped")
	at.write("\x1a")
	at.expect("stopped")
	alive(fed)
	at.write("four\r")
	at.expect("got-four")
	if err := at.cmd.Process.Signal(syscall.SIGKILL); err != nil { // the terminal hangs up
		t.Fatal(err)
	}
	alive(fed)
	watching := startSession(t, "sandpit", "attach", "box", watched.ID())
	watching.expect("tick")
	waitCatching(t, watching.cmd.Process.Pid)
	watching.write("\x03")
	watching.expect("which keeps running")
	if got := watching.exitCode(); got != 130 {
		t.Errorf("exit code %d", got)
	}
	alive(watched)
	for _, p := range []sandpit.Process{watched, fed} {
		if err := p.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// feedProcess writes to a process in the background by attaching to it, expects an answer,
// and leaves it.
func feedProcess(t *testing.T, id, text, want string) {
	t.Helper()
	cmd := commandLine(t, "sandpit", "attach", "-i", "--no-history", "box", id)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(out, buf); err != nil || string(buf) != want {
		t.Errorf("%q is answered by %q, %v", text, buf, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, cmd); got != 143 {
		t.Errorf("exit code %d", got)
	}
}

// TestExecDetached starts processes in the background whose input is passed on later.
func TestExecDetached(t *testing.T) {
	_, _ = withSandbox(t)
	start := func(argv ...string) string {
		t.Helper()
		out, err := commandLine(t, append([]string{"sandpit", "exec"}, argv...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// Its input is open, and ends when that is asked for.
	id := start("-d", "-i", "box", "--", "cat")
	feedProcess(t, id, "one\n", "one\n")
	cmd := commandLine(t, "sandpit", "attach", "-i", "--close-stdin", "box", id)
	cmd.Stdin = strings.NewReader("two\n")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "one\ntwo\n" {
		t.Errorf("%q %v", out, err)
	}
	// Without -i it is empty.
	id = start("-d", "box", "--", "cat")
	if out, err := commandLine(t, "sandpit", "wait", "box", id).CombinedOutput(); err != nil {
		t.Errorf("%s %v", out, err)
	}
	// A terminal of its own, which needs none here.
	id = start("-dt", "box", "--", "sh", "-i")
	s := startSession(t, "sandpit", "attach", "box", id)
	s.until("the terminal is raw", s.isRaw)
	if err := pty.Setsize(s.master, &pty.Winsize{Rows: 31, Cols: 71}); err != nil {
		t.Fatal(err)
	}
	s.until("the size is known inside", func() bool {
		s.write("tty; stty size\r")
		time.Sleep(20 * time.Millisecond)
		return strings.Contains(s.output(), "31 71")
	})
	s.expect("/dev/pts/")
	s.write("exit 6\r")
	if got := s.exitCode(); got != 6 {
		t.Errorf("exit code %d: %s", got, s.output())
	}
}

// TestAttachAtAKeyboard attaches to a process that has an input and no terminal, and leaves it by
// keys. The terminal edits lines as before.
func TestAttachAtAKeyboard(t *testing.T) {
	_, _ = withSandbox(t)
	out, err := commandLine(t, "sandpit", "exec", "-d", "-i", "box", "--", "sh", "-c", `trap '' INT; while read line; do echo "<$line>"; done; echo over; exec sleep 1001`).Output()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))
	attach := func(flags ...string) *session {
		t.Helper()
		s := startSession(t, append(append([]string{"sandpit", "attach", "--no-history"}, flags...), "box", id)...)
		s.until("the terminal hands over the keys", func() bool { return s.settings() != s.before })
		return s
	}
	left := func(s *session, code int) {
		t.Helper()
		if got := s.exitCode(); got != code {
			t.Errorf("exit code %d, want %d", got, code)
		}
		s.expect("which keeps running; run 'sandpit attach box " + id + "'")
		if s.settings() != s.before {
			t.Error("the terminal is not as it was")
		}
	}
	s := attach()
	s.write("onn\x7fe\r") // with a typing error
	s.expect("<one>")
	s.write("half a line\x10\x11")
	left(s, 0)

	s = attach("--detach-keys", "ctrl-s,ctrl-c") // which mean something to a terminal
	s.write("two\r")
	s.expect("two>")
	s.write("\x13\x03")
	left(s, 0)

	s = attach()
	s.write("three\r")
	s.expect("<three>")
	interrupt := func() { // ^D ends what this terminal passes on, and the input of the process only if asked to
		t.Helper()
		s.until("^C leaves", func() bool { // it does so when ^D has been read, and else discards that
			for _, key := range []string{"\x04", "\x03"} {
				s.write(key)
				time.Sleep(20 * time.Millisecond)
			}
			return strings.Contains(s.output(), "keeps running")
		})
	}
	interrupt()
	left(s, 130)

	s = attach("--close-stdin")
	s.write("four\r")
	s.expect("<four>")
	interrupt()
	s.until("the input of the process ends", func() bool {
		out, err := commandLine(t, "sandpit", "logs", "box").Output()
		return err == nil && strings.Contains(string(out), "over")
	})
	left(s, 130)

	// Keys detach from a process without an input, too, and after ^D.
	if out, err = commandLine(t, "sandpit", "exec", "-d", "box", "--", "sleep", "1001").Output(); err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(string(out))
	for _, typed := range []string{"\x10\x11", "text\r\x04\x10\x11"} {
		s = attach()
		s.write(typed)
		left(s, 0)
	}
}

// TestVanishedClient kills sandpit exec with -9: what it ran is killed, and
// what others run is not, nor what was begun in the background.
func TestVanishedClient(t *testing.T) {
	_, sb := withSandbox(t)
	background, err := commandLine(t, "sandpit", "exec", "-d", "box", "--", "sleep", "1001").Output()
	if err != nil {
		t.Fatal(err)
	}
	start := func(script string) *exec.Cmd {
		cmd := commandLine(t, "sandpit", "exec", "box", "--", "sh", "-c", script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	gone := start("echo ready; sleep 1002")
	start("echo ready; sleep 1003")
	running := func() string {
		out, err := sandpit.Shell(t.Context(), sb, `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`)
		if err != nil {
			t.Fatal(err)
		}
		return string(out.Stdout)
	}
	if got := running(); !strings.Contains(got, "sleep 1002") {
		t.Fatal(got)
	}
	if err := gone.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); strings.Contains(running(), "sleep 1002"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what a client ran that is gone goes on")
		}
	}
	if got := running(); !strings.Contains(got, "sleep 1001") || !strings.Contains(got, "sleep 1003") {
		t.Errorf("what others run is gone: %s", got)
	}
	p, err := sb.Attach(t.Context(), strings.TrimSpace(string(background)), sandpit.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

const python = "the program python3, to listen in a sandbox"

// hasPython reports whether this machine has what serveFiles needs.
func hasPython() bool {
	return slices.ContainsFunc([]string{"/usr/bin/python3", "/usr/local/bin/python3"}, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// serveFiles has an HTTP server of /tmp/www, where there is an index.html, listen
// in a sandbox, at port 8000.
func serveFiles(t *testing.T, sb sandpit.Sandbox) {
	t.Helper()
	if out, err := sandpit.Shell(t.Context(), sb, "python3 -c 'import http.server' && mkdir -p /tmp/www && echo hello >/tmp/www/index.html"); err != nil || !out.Success() {
		t.Fatalf("the machine has Python, and a sandbox of its files has none: %s %v", out.Stderr, err)
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"python3", "-m", "http.server", "-b", "127.0.0.1", "-d", "/tmp/www", "8000"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	var ports []sandpit.Port
	testkit.Until(t, "it listens", func() bool {
		var err error
		if ports, err = sb.(sandpit.Networker).Ports(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(ports) == 1 && ports[0].Port == 8000
	}, func() string { return fmt.Sprint(ports) })
}

// TestForward reaches an HTTP server in a sandbox through a port here.
func TestForward(t *testing.T) {
	if !hasPython() {
		testkit.Lacks(t, python)
	}
	_, sb := withSandbox(t)
	if out, err := sandpit.Shell(t.Context(), sb, "mkdir -p /tmp/www && head -c 3000000 /dev/zero >/tmp/www/zeros"); err != nil || !out.Success() {
		t.Fatalf("%s %v", out.Stderr, err)
	}
	serveFiles(t, sb)
	cmd := commandLine(t, "sandpit", "forward", "box", "0:8000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(os.Interrupt)
	line := make([]byte, 100)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address, to, ok := strings.Cut(strings.TrimSpace(string(line[:n])), " -> ")
	if !ok || to != "box:8000" || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("it said %q", line[:n])
	}
	for path, want := range map[string]int{"/": 6, "/zeros": 3000000} {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || len(data) != want {
			t.Errorf("%s: %d bytes, %v", path, len(data), err)
		}
	}
}

// overTLS writes the settings of a server that listens on loopback, too, with TLS,
// and starts it for the first time: it then says its first key,
// which may do everything.
func overTLS(t *testing.T, home string) *service {
	t.Helper()
	s := startTLS(t, home, writeTLS(t, home, ""))
	s.key = shownKey(t, s)
	return s
}

// firstKey matches what servers of all versions say when they show the first key.
var firstKey = regexp.MustCompile(`the first key, which [^:]+:\s+(sp_\w+)`)

// shownKey returns the first key, which a server has shown when it was started for the
// first time.
func shownKey(t *testing.T, s *service) string {
	t.Helper()
	shown := firstKey.FindStringSubmatch(s.log.String())
	if shown == nil {
		t.Fatalf("the first key was not shown: %s", s.log)
	}
	return shown[1]
}

// writeTLS writes settings for overTLS, with more settings, and returns the
// HOST:PORT.
func writeTLS(t *testing.T, home, more string) string {
	t.Helper()
	address := testkit.Address(t)
	testkit.Certificate(t, home, address)
	settings := "listen: [" + address + "]\ntls-cert: cert.pem\ntls-key: key.pem\n" + more
	if err := os.WriteFile(filepath.Join(home, "server.yaml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return address
}

// startTLS starts a server as overTLS has set it up.
func startTLS(t *testing.T, home, address string) *service {
	t.Helper()
	s := startService(t, home, nil, "--config", filepath.Join(home, "server.yaml"))
	s.tls = address
	return s
}

// TestCommandsOverTLS uses a server at an address, with a key.
func TestCommandsOverTLS(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	s := startTLS(t, home, writeTLS(t, home, "domain: box.example\n"))
	s.key = shownKey(t, s)
	address, first := s.tls, s.key
	run := func(env []string, argv ...string) (string, error) {
		cmd := commandLine(t, append([]string{"sandpit"}, argv...)...)
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	trust := "SSL_CERT_FILE=" + filepath.Join(home, "cert.pem")
	at, with := "SANDPIT_SERVER=https://"+address, "SANDPIT_KEY="+first
	if out, err := run([]string{trust, at, with}, "create", "box"); err != nil || !strings.HasSuffix(out, "box\n") {
		t.Fatalf("%v %s", err, out)
	}
	// It is in the namespace of the key. This user is the server's, and may list those of all.
	mine := []string{"SANDPIT_HOME=" + home}
	if out, err := run(mine, "ps", "-q"); err != nil || out != "" {
		t.Errorf("its own sandboxes are %q, %v", out, err)
	}
	if out, err := run(mine, "create", "mine"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(mine, "ps", "--all-namespaces"); err != nil || !regexp.MustCompile(`(?s)^NAMESPACE +NAME .*\ndefault +box .*\nlocal +mine `).MatchString(out) {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(mine, "ps", "--all-namespaces", "-r", "--filter", "name=mi", "--format", "{{.Namespace}} {{.Name}}"); err != nil || out != "local mine\n" {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(mine, "ps", "--all-namespaces", "box"); err == nil || !strings.Contains(out, "--all-namespaces is for lists") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(mine, "rm", "mine"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run(mine, "key", "create", "--namespace", "plain", "p"); err != nil {
		t.Errorf("%v %s", err, out)
	} else if out, err := run([]string{trust, at, "SANDPIT_KEY=" + regexp.MustCompile(`sp_\w+`).FindString(out)}, "ps", "--all-namespaces"); err == nil || !strings.Contains(out, "administrator") {
		t.Errorf("with a key that is not an administrator's: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with}, "exec", "box", "--", "sh", "-c", "echo well"); err != nil || out != "well\n" {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run([]string{trust, at}, "ps"); err == nil || !strings.Contains(out, "the request has no key") || !strings.Contains(out, "hint: ") {
		t.Errorf("without a key: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, "SANDPIT_KEY=sp_no"}, "ps"); err == nil || !strings.Contains(out, "not valid") {
		t.Errorf("with a key that is none: %v %s", err, out)
	}
	if out, err := run([]string{at, with}, "ps"); err == nil || !strings.Contains(out, "certificate") || strings.Contains(out, first) {
		t.Errorf("with a certificate that nobody vouches for: %v %s", err, out)
	}
	if out, err := run([]string{"SANDPIT_SERVER=http://192.0.2.1:80", with}, "ps"); err == nil || !strings.Contains(out, "plain HTTP") {
		t.Errorf("plain http: %v %s", err, out)
	}
	out, err := run([]string{trust, at, with}, "preview", "--for", "10m", "box", "8000")
	text, link, _ := strings.Cut(out, "\n")
	if note := regexp.MustCompile(`^sandpit: preview (\w+) expires in 10m; its URL is shown only once$`).FindStringSubmatch(text); err != nil || note == nil {
		t.Errorf("%v %s", err, text)
	} else {
		if !regexp.MustCompile(`^https://8000-\w+\.box\.example` + address[strings.LastIndex(address, ":"):] + `/\?sandpit-preview=pv_\w+\n$`).MatchString(link) {
			t.Errorf("its URL is %q", link)
		}
		if out, err := run([]string{trust, at, with}, "preview", "box"); err != nil || !regexp.MustCompile(`(?m)^`+note[1]+` +8000 +\d+s +\d+m$`).MatchString(out) {
			t.Errorf("%v %s", err, out)
		}
		if out, err := run([]string{trust, at, with}, "preview", "--revoke", note[1], "box"); err != nil || out != "" {
			t.Errorf("%v %s", err, out)
		}
		if out, err := run([]string{trust, at, with}, "preview", "--json", "box"); err != nil || out != "[]\n" {
			t.Errorf("after its end: %v %s", err, out)
		}
	}
	// run works there, too, and never here; killed with -9 it leaves what soon expires.
	if out, err := run([]string{trust, at, with}, "run", "--", "sh", "-c", "echo well"); err != nil || out != "well\n" {
		t.Errorf("%v %s", err, out)
	}
	if out, err := run([]string{trust, at, "SANDPIT_KEY=sp_no"}, "run", "echo", "well"); err == nil || !strings.Contains(out, "not valid") || strings.Contains(out, "well") {
		t.Errorf("run with a key that is none: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with}, "run", "--mount", ".:/work", "echo", "well"); err == nil || !strings.Contains(out, "is on this machine") {
		t.Errorf("run with a mount: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with}, "ps", "-q"); err != nil || out != "box\n" {
		t.Errorf("run has left something: %v %s", err, out)
	}
	if _, err := run([]string{trust, at, with}, "create", "later"); err != nil {
		t.Error(err)
	}
	if out, err := run([]string{trust, at, with}, "ps", "-rq"); err != nil || out != "later\nbox\n" {
		t.Errorf("the newest first: %v %s", err, out)
	}
	if _, err := run([]string{trust, at, with}, "rm", "later"); err != nil {
		t.Error(err)
	}
	for _, line := range [][]string{{"create", "--no-start", "later"}, {"start", "later"}, {"exec", "later", "true"}, {"rm", "later"}} {
		if out, err := run([]string{trust, at, with}, line...); err != nil {
			t.Errorf("%q: %v %s", line, err, out)
		}
		if out, err := run([]string{trust, at, with}, "exec", "later", "true"); line[0] == "create" && (err == nil || !strings.Contains(out, "not started yet") || !strings.Contains(out, "sandpit start later")) {
			t.Errorf("a command in what is not started: %v %s", err, out)
		}
	}
	nested := "SANDPIT_NAMESPACE=team"
	if out, err := run([]string{trust, at, with, nested}, "create", "box"); err != nil || !strings.HasSuffix(out, "box\n") {
		t.Errorf("a nested namespace: %v %s", err, out)
	}
	all, err := run([]string{trust, at, with, "SANDPIT_NAMESPACE=*"}, "ps")
	if lines := strings.Split(all, "\n"); err != nil || len(lines) != 4 || !strings.HasPrefix(lines[0], "NAMESPACE  NAME") || !strings.HasPrefix(lines[1], "-          box") || !strings.HasPrefix(lines[2], "team       box") {
		t.Errorf("all namespaces: %v %s", err, all)
	}
	if out, err := run([]string{trust, at, with, nested}, "rm", "--all"); err != nil || out != "box\n" {
		t.Errorf("removing what is nested: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with, "SANDPIT_NAMESPACE=a/b"}, "ps"); err == nil || !strings.Contains(out, "not a valid name") {
		t.Errorf("a namespace that is none: %v %s", err, out)
	}
	r := startServedRun(t, s, fmt.Sprintf("mark-%d-away", os.Getpid()), "echo ready; sleep 1000", trust, at, with)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.until("the command is gone", func() bool { return len(r.inside()) == 0 })
	if out, err := run([]string{trust, at, with}, "ps", "--json"); err != nil || strings.Count(out, `"idle_seconds": 60`) != 1 {
		t.Errorf("what is left does not expire soon: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with}, "images", "ls"); err != nil || strings.HasPrefix(out, "host") {
		t.Errorf("images: %v %s", err, out)
	}
	if out, err := run([]string{trust, at, with}, "policy", "show"); err != nil || !strings.Contains(out, "default:") {
		t.Errorf("the policy: %v %s", err, out)
	}
	// The key's namespace has what it made; endServer looks into its user's own.
	if out, err := run([]string{trust, at, with}, "rm", "box"); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if err := removeAll(t.Context(), tlsOptions(t, s)); err != nil {
		t.Error(err)
	}
}
