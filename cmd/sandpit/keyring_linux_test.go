package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// startKeyring starts a session bus with an unlocked Secret Service, and returns the variables of the session.
func startKeyring(t *testing.T) (env []string) {
	t.Helper()
	testkit.NeedProgram(t, "dbus-daemon")
	testkit.NeedProgram(t, "dbus-send")
	testkit.NeedProgram(t, "gnome-keyring-daemon")
	dir := shortHome(t)
	env = []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "XDG_DATA_HOME=" + dir, "DBUS_SESSION_BUS_ADDRESS=unix:path=" + filepath.Join(dir, "bus")}
	run := func(stdin string, argv ...string) {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Stdin = append(os.Environ(), env...), strings.NewReader(stdin)
		said := new(testkit.Buffer)
		cmd.Stdout, cmd.Stderr = said, said
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	run("", "dbus-daemon", "--session", "--nofork", "--nopidfile", "--nosyslog", "--address="+strings.TrimPrefix(env[3], "DBUS_SESSION_BUS_ADDRESS="))
	testkit.Until(t, "the bus listens", func() bool {
		_, err := os.Stat(filepath.Join(dir, "bus"))
		return err == nil
	})
	run("of the test", "gnome-keyring-daemon", "--unlock", "--foreground", "--components=secrets")
	testkit.Until(t, "the keyring is unlocked, and at the bus", func() bool {
		if _, err := os.Stat(filepath.Join(dir, "keyrings", "login.keyring")); err != nil {
			return false
		}
		ask := exec.CommandContext(t.Context(), "dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/", "org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets")
		ask.Env = append(os.Environ(), env...)
		out, err := ask.Output()
		return err == nil && strings.Contains(string(out), "true")
	})
	return env
}

// TestKeyring moves the key of the state to a real keyring and back. A server without the keyring does not start.
func TestKeyring(t *testing.T) {
	session := startKeyring(t)
	home := shortHome(t)
	config := filepath.Join(home, "server.yaml")
	serve := func(place string, env []string) *service {
		t.Helper()
		if err := os.WriteFile(config, []byte("secret-key: "+place+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return startService(t, home, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) }, "--config", config)
	}
	stop := func(s *service) {
		t.Helper()
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-s.ended
	}
	sandpit := func(stdin string, args ...string) string {
		t.Helper()
		cmd := commandLineAt(t, home, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("sandpit %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	key := func() []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(home, "state", "state.key"))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	opens := func(about string) {
		t.Helper()
		if out := sandpit("", "run", "--secret-env", "x", "--", "sh", "-c", "echo ${#X}"); !strings.Contains(out, "11") {
			t.Errorf("%s: %s", about, out)
		}
	}
	needSandboxes(t)
	s := serve("file", nil)
	sandpit("hush-hush-x", "secret", "set", "x")
	before := key()
	stop(s)

	s = serve("keyring", session)
	opens("in the keyring")
	if content := key(); len(content) == len(before) || bytes.Contains(content, before) {
		t.Error("the key is still in the file")
	}
	stop(s)

	for _, place := range []string{"keyring", "file"} {
		if err := os.WriteFile(config, []byte("secret-key: "+place+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		at := commandLineAt(t, home, "serve", "--config", config)
		cmd := exec.CommandContext(ctx, at.Path, at.Args[1:]...)
		cmd.Env = append(at.Env, "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the keyring of this user") {
			t.Errorf("%s without the keyring: %v %s", place, err, out)
		}
	}

	s = serve("keyring", session)
	opens("in the keyring again")
	stop(s)
	s = serve("file", session)
	opens("in the file again")
	stop(s)
	if !bytes.Equal(key(), before) {
		t.Error("the file does not have the key")
	}
	serve("file", nil)
	opens("without the session")
}
