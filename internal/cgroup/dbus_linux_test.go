package cgroup

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// bus starts a real message bus.
func bus(t *testing.T) string {
	t.Helper()
	daemon := testkit.NeedProgram(t, "dbus-daemon")
	dir := t.TempDir()
	socket := filepath.Join(dir, "bus")
	config := `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=` + socket + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>`
	file := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(daemon, "--nofork", "--config-file="+file)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dbus-daemon says: %s", log.String())
		}
	})
	for range 12_000 {
		// Its file is there a moment before it listens.
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return socket
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("dbus-daemon does not listen: %s", log.String())
	return ""
}

// systemd answers StartTransientUnit as systemd does, with the given result of
// the job, or with an error if that is empty. It sends what it was asked.
func systemd(t *testing.T, socket, result string) <-chan []string {
	t.Helper()
	c, err := dialBus(socket, os.Getuid(), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	name := wire{}
	name.str(systemdName)
	name.u32(0)
	call, err := c.send(&message{
		typ: busCall, dest: "org.freedesktop.DBus", path: "/org/freedesktop/DBus",
		iface: "org.freedesktop.DBus", member: "RequestName", signature: "su", body: name.buf,
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := readMessage(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if m.typ == busReturn && m.replySerial == call {
			break
		}
	}
	asked := make(chan []string, 1)
	go func() {
		defer close(asked)
		for {
			m, err := readMessage(c.in)
			if err != nil {
				return
			}
			if m.typ != busCall {
				continue
			}
			dest := m.sender
			switch m.member {
			case "Subscribe":
				_, _ = c.send(&message{typ: busReturn, replySerial: m.serial, dest: dest})
			case "StartTransientUnit":
				asked <- unitRequest(m)
				if result == "" {
					text := wire{}
					text.str("Unit sandpit-x.scope was already loaded or has a fragment file.")
					_, _ = c.send(&message{
						typ: busError, replySerial: m.serial, dest: dest, signature: "s", body: text.buf,
						errorName: "org.freedesktop.systemd1.UnitExists",
					})
					return
				}
				job := wire{}
				job.str("/org/freedesktop/systemd1/job/7")
				_, _ = c.send(&message{typ: busReturn, replySerial: m.serial, dest: dest, signature: "o", body: job.buf})
				for _, unit := range []string{"other.service", "sandpit-x.scope"} {
					gone := wire{}
					gone.u32(7)
					gone.str("/org/freedesktop/systemd1/job/7")
					gone.str(unit)
					gone.str(result)
					_, _ = c.send(&message{
						typ: busSignal, path: systemdPath, iface: systemdManager, member: "JobRemoved", signature: "uoss", body: gone.buf,
					})
				}
				return
			}
		}
	}()
	return asked
}

// unitRequest reads the arguments of StartTransientUnit.
func unitRequest(m *message) []string {
	r := unwire{buf: m.body, order: m.order}
	out := []string{m.signature, r.str(), r.str()}
	end := int(r.u32())
	r.take(0, 8)
	end += r.pos
	for r.pos < end && !r.bad {
		r.take(0, 8)
		name, sig := r.str(), r.sig()
		value := ""
		switch sig {
		case "s":
			value = r.str()
		case "b":
			value = []string{"false", "true"}[r.u32()&1]
		case "au":
			n := r.u32()
			for range n / 4 {
				value += string(rune('0' + r.u32()%10))
			}
		}
		out = append(out, name+" "+sig+" "+value)
	}
	if n := r.u32(); n != 0 {
		out = append(out, "auxiliary units")
	}
	if r.take(0, 8); r.bad || r.pos != len(m.body) {
		out = append(out, "malformed")
	}
	return out
}

func TestScopeOverRealBus(t *testing.T) {
	for _, tt := range []struct{ name, result, want string }{
		{"done", "done", ""},
		{"the job fails", "failed", `the job ended with "failed"`},
		{"refused", "", "org.freedesktop.systemd1.UnitExists: Unit sandpit-x.scope was already loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := bus(t)
			asked := systemd(t, socket, tt.result)
			err := startScope(socket, "sandpit-x.scope", os.Getuid(), 7)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q", err, tt.want)
			}
			want := []string{
				"ssa(sv)a(sa(sv))", "sandpit-x.scope", "fail",
				"Description s Sandpit sandboxes", "Delegate b true", "CollectMode s inactive-or-failed", "PIDs au 7",
			}
			if diff := cmp.Diff(want, <-asked); diff != "" {
				t.Errorf("the request (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("nobody is called systemd", func(t *testing.T) {
		err := startScope(bus(t), "sandpit-x.scope", os.Getuid(), 7)
		if err == nil || !strings.Contains(err.Error(), "org.freedesktop.DBus.Error.") {
			t.Errorf("error %v, want one of the bus", err)
		}
	})
	t.Run("another user is refused", func(t *testing.T) {
		err := startScope(bus(t), "sandpit-x.scope", os.Getuid()+1, 7)
		if err == nil || !strings.Contains(err.Error(), "authenticating") {
			t.Errorf("error %v, want a refusal", err)
		}
	})
	t.Run("no bus", func(t *testing.T) {
		if err := startScope(t.TempDir()+"/bus", "sandpit-x.scope", os.Getuid(), 7); err == nil {
			t.Error("no error")
		}
	})
}

func TestMessageRoundTrip(t *testing.T) {
	in := &message{
		typ: busSignal, serial: 3, replySerial: 9, path: "/a", iface: "b.c", member: "D", errorName: "e.f", dest: ":1.2",
		signature: "s", body: []byte{1, 0, 0, 0, 'x', 0}, order: binary.LittleEndian,
	}
	out, err := readMessage(bytes.NewReader(in.encode()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(message{}), cmp.Comparer(func(a, b binary.ByteOrder) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if s, err := out.strings("s"); err != nil || s[0] != "x" {
		t.Errorf("body is %q, %v", s, err)
	}
	if _, err := out.strings("so"); err == nil {
		t.Error("a body of another type is read")
	}
}

func TestBadMessages(t *testing.T) {
	good := (&message{typ: busSignal, serial: 1, member: "M", signature: "s", body: []byte{0xff, 0xff, 0xff, 0x7f, 'x', 0}}).encode()
	for name, data := range map[string][]byte{
		"empty":           {},
		"short":           good[:20],
		"byte order":      append([]byte{'x'}, good[1:]...),
		"version":         append(append(bytes.Clone(good[:3]), 2), good[4:]...),
		"huge body":       append(append(bytes.Clone(good[:4]), 0xff, 0xff, 0xff, 0xff), good[8:]...),
		"huge fields":     append(append(bytes.Clone(good[:12]), 0xff, 0xff, 0xff, 0xff), good[16:]...),
		"fields cut":      append(append(bytes.Clone(good[:12]), 9, 0, 0, 0), good[16:]...),
		"field of a type": append(append(bytes.Clone(good[:18]), 'v'), good[19:]...),
	} {
		if m, err := readMessage(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: read as %+v", name, m)
		}
	}
	m, err := readMessage(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := m.strings("s"); err == nil {
		t.Errorf("a string longer than its message is read as %q", s)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add((&message{typ: busReturn, serial: 1, replySerial: 2, signature: "o", body: []byte{2, 0, 0, 0, '/', 'a', 0}}).encode())
	f.Add((&message{typ: busError, serial: 1, replySerial: 2, errorName: "a.b", signature: "s", body: []byte{0, 0, 0, 0, 0}}).encode())
	f.Add((&message{typ: busSignal, serial: 1, path: "/", iface: "a.b", member: "JobRemoved", signature: "uoss", body: make([]byte, 40)}).encode())
	f.Add([]byte("B\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x08\x09\x01u\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		for {
			m, err := readMessage(in)
			if err != nil {
				return
			}
			_, _ = m.strings("uoss")
			_, _ = m.strings("s")
			if len(m.body) > len(data) {
				t.Error("a body longer than the input")
			}
			if again, err := readMessage(bytes.NewReader(m.encode())); m.order == binary.LittleEndian && plain(m) && (err != nil || again.member != m.member || !bytes.Equal(again.body, m.body)) {
				t.Errorf("%+v does not survive a round trip: %+v, %v", m, again, err)
			}
		}
	})
}

// plain reports whether m can be written: signatures are at most 255 bytes.
func plain(m *message) bool { return len(m.signature) < 256 }
