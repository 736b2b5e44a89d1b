package apart

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/landlock"
)

// connect connects a host, which runs no process, to a process that is this one.
func connect(t *testing.T, h *Host) *process {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range ends {
		file := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns[i] = conn.(*net.UnixConn)
	}
	c := &child{conn: conns[0], names: h.openNames, places: make(chan struct{}, 1)}
	p := newProcess(conns[1])
	hello, err := encode(&message{Op: opHello, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(conns[0], hello, -1), p.greet(nil)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := receive(conns[0]); err != nil {
		t.Fatal(err)
	}
	hear := func(conn *net.UnixConn, got func(*message, *os.File)) {
		for {
			body, file, err := receive(conn)
			if err != nil {
				return
			}
			if m, err := decode(body); err == nil {
				got(m, file)
			}
		}
	}
	go hear(conns[0], func(m *message, _ *os.File) { c.answer(m) })
	go hear(conns[1], p.handle)
	return p
}

// TestNameServers asks for the name servers as a process that can read the directories that were there when it started.
func TestNameServers(t *testing.T) {
	_, unlocked := landlock.Probe()
	const local, other = "127.0.0.1:53", "192.0.2.53:53"
	const reads = "the server reads them for it"
	write := func(dir, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		before, after string // the file; "": there is none
		want          string // of three questions; "": they fail
		logs          string
	}{
		"the directory comes later":   {"", "# comment\nnameserver\nnameserver x\nnameserver 192.0.2.53\n", other + " " + other + " " + other, reads},
		"the directory is made anew":  {"nameserver 192.0.2.1\n", "search example.org\nnameserver 192.0.2.53", other + " " + other + " " + other, reads},
		"two name servers":            {"", "nameserver 192.0.2.53\nnameserver fe80::1%lo", other + " " + other + " [fe80::1%lo]:53", reads},
		"a file without name servers": {"", "search example.org\n", local + " " + local + " [::1]:53", reads},
		"nothing has changed":         {"nameserver 192.0.2.1\n", "", local + " " + local + " [::1]:53", ""},
		"the server can't read it":    {"", "nameserver 192.0.2.1\n", "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, link := filepath.Join(base, "run"), filepath.Join(base, "resolv.conf")
			if err := os.Symlink(filepath.Join(dir, "resolv.conf"), link); err != nil {
				t.Fatal(err)
			}
			if c.before != "" {
				write(dir, c.before)
			}
			t.Setenv("SSL_CERT_DIR", dir) // which is readable, if it is there
			h, log := newHost(t)
			h.resolv = link
			if c.want == "" {
				h.resolv += ".missing"
			}
			p := connect(t, h)
			p.servers.file = link
			confined, changed, asked := make(chan error), make(chan struct{}), make(chan struct{})
			var got []string
			var failed error
			go func() {
				defer close(asked)
				runtime.LockOSThread() // and never unlocked: it ends with the ruleset
				_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
				err := restrictFiles(func(call, arg uintptr) error {
					if _, _, errno := unix.RawSyscall(call, arg, 0, 0); errno != 0 {
						return errno
					}
					return nil
				})
				if got, failed := p.way.NameServer(t.Context(), local); got != local || failed != nil {
					t.Errorf("before: %q, %v", got, failed)
				}
				confined <- err
				<-changed
				for _, asked := range []string{local, local, "[::1]:53"} { // of which Go asks the last only if the first fails
					var server string
					server, failed = p.way.NameServer(t.Context(), asked)
					got = append(got, server)
				}
			}()
			if err := <-confined; err != nil && unlocked == nil {
				t.Error(err)
			}
			if c.after != "" {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				write(dir, c.after)
			}
			close(changed)
			<-asked
			if unlocked != nil { // then the process can read it
				c.want, c.logs = local+" "+local+" [::1]:53", ""
			}
			if (failed != nil) != (c.want == "") || failed == nil && strings.Join(got, " ") != c.want {
				t.Errorf("%q, %v, want %q", got, failed, c.want)
			}
			if s := log.String(); !strings.Contains(s, c.logs) || c.logs == "" && s != "" || c.logs != "" && !strings.Contains(s, link) {
				t.Errorf("logged %q, want %q and %s", s, c.logs, link)
			}
		})
	}
}
