package sandpittest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var userProperties = []property{
	{"the default user is not root and has no capability", testDefaultUser},
	{"root is uid 0 with exactly the capabilities of package managers", testRoot},
	{"a uid and gid may be any", testNumericUser},
	{"a uid alone has the group of its line in /etc/passwd, or group 0", testGroupOfAUID},
	{"a Command has a user of its own", testCommandUser},
	{"a user that does not exist is ErrInvalid", testUnknownUser},
	{"root and numeric users need no /etc/passwd", testBrokenPasswd},
	{"no program gains rights by its set-user-id bit", testSetUID},
	{"root exists beside an ordinary user where RootInside asks for it, and lends it no rights", testRootInside},
	{"sudo runs a command as root where RootInside asks for it, with root's own rights and no more", testSudo},
	{"sudo starts nothing where RootInside does not ask for it, or for another user", testSudoRefused},
	{"B6a: requests to the socket of sudo give nobody more, and leave nothing behind", testSudoAttacked},
	{"root can give files away and act as others", testRootWork},
	{"Files act with the rights of the sandbox's user", testFilesUser},
	{"Files act with the rights of another user, who is that user to the kernel", testFilesAs},
	{"Files of another user that does not exist are ErrInvalid or ErrUnsupported", testFilesAsNobody},
	{"A9a: links and files of one user do not lead Files of another out of that user's rights", testFilesAsAttacked},
}

// rootCapabilities is chown, dac_override, fowner, fsetid, kill, setgid and
// setuid, by their numbers in linux/capability.h.
const rootCapabilities = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7

// capabilities reads the five sets of a process.
func capabilities(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command) string {
	t.Helper()
	cmd.Script = `sed -n 's/^\(Cap[A-Za-z]*\):[[:space:]]*/\1=/p; s/^\(NoNewPrivs\):[[:space:]]*/\1=/p' /proc/self/status`
	return strings.Join(strings.Fields(command(t, sb, cmd)), " ")
}

const (
	noCapabilities  = "CapInh=0000000000000000 CapPrm=0000000000000000 CapEff=0000000000000000 CapBnd=0000000000000000 CapAmb=0000000000000000 NoNewPrivs=1"
	allCapabilities = "CapInh=0000000000000000 CapPrm=%016x CapEff=%016[1]x CapBnd=%016[1]x CapAmb=0000000000000000 NoNewPrivs=1"
)

func testDefaultUser(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	if got := shell(t, sb, "id -u"); got == "0" {
		t.Error("it is root")
	}
	if got := shell(t, sb, "id -g"); got == "0" {
		t.Error("its group is root's")
	}
	if got := capabilities(t, sb, sandpit.Command{}); got != noCapabilities {
		t.Errorf("got %s", got)
	}
	// Where only one user exists, the image's own files may be that user's.
	if out := run(t, sb, sandpit.Command{Script: `touch /tmp/f; chown 0:0 /tmp/f && exit; [ ! -O /etc/passwd ] && echo x >/etc/passwd && exit; echo x >/usr/x && exit; exit 1`}); out.Success() {
		t.Error("it may do what only root may")
	}
}

func testRoot(t *testing.T, e *env) {
	for _, user := range []string{"root", "0", "0:0", "root:root"} {
		sb := e.sandbox(t, sandpit.Spec{User: user})
		if got := shell(t, sb, "id -u; id -g"); got != "0\n0" {
			t.Errorf("%s is %q", user, got)
		}
		if got, want := capabilities(t, sb, sandpit.Command{}), fmt.Sprintf(allCapabilities, rootCapabilities); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func testGroupOfAUID(t *testing.T, e *env) {
	const ids = `echo $(id -u) $(id -g) $(id -G)`
	nobody := e.sandbox(t, sandpit.Spec{User: "4321"})
	if got := shell(t, nobody, ids); got != "4321 0 0" {
		t.Errorf("a uid that no line of /etc/passwd has is %q", got)
	}
	line := shell(t, nobody, `while IFS=: read -r name _ uid gid _; do [ "$uid:$gid" != 0:0 ] && [ "$uid" -lt 60000 ] && echo $uid $gid && break; done </etc/passwd`)
	uid, _, ok := strings.Cut(line, " ")
	if !ok {
		t.Fatalf("/etc/passwd has no users but root: %q", line)
	}
	if got := shell(t, e.sandbox(t, sandpit.Spec{User: uid}), `echo $(id -u) $(id -g)`); got != line {
		t.Errorf("a uid of the line %q is %q", line, got)
	}
	if !e.opt.Features[feature.Users] {
		return
	}
	root := e.sandbox(t, sandpit.Spec{User: "root"})
	for user, want := range map[string]string{"4321": "4321 0", uid: line} {
		if got := command(t, root, sandpit.Command{Script: `echo $(id -u) $(id -g)`, User: user}); got != want {
			t.Errorf("as the user of a command %s is %q", user, got)
		}
	}
}

func testNumericUser(t *testing.T, e *env) {
	for user, want := range map[string]string{"1234:2345": "1234 2345", "65534:65534": "65534 65534", "1000:0": "1000 0", "1:1": "1 1"} {
		t.Run(user, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{User: user})
			if got := shell(t, sb, `echo $(id -u) $(id -g); touch /tmp/x`); got != want {
				t.Errorf("got %q", got)
			}
			if got := capabilities(t, sb, sandpit.Command{}); got != noCapabilities {
				t.Errorf("got %s", got)
			}
			info, err := sb.Files().Stat(t.Context(), "/tmp/x")
			if err != nil || fmt.Sprint(info.UID, info.GID) != want {
				t.Errorf("a file belongs to %d:%d, %v", info.UID, info.GID, err)
			}
		})
	}
}

func testCommandUser(t *testing.T, e *env) {
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{User: "root"})
	for user, want := range map[string]string{"1234:2345": "1234 2345", "0:5": "0 5", "root": "0 0", "4321:0": "4321 0"} {
		if got := command(t, sb, sandpit.Command{Script: `echo $(id -u) $(id -g)`, User: user}); got != want {
			t.Errorf("%s is %q", user, got)
		}
	}
	if got := capabilities(t, sb, sandpit.Command{User: "1234:2345"}); got != noCapabilities {
		t.Errorf("got %s", got)
	}
	// No group of root's is left to others.
	if got := command(t, sb, sandpit.Command{Script: "id -G", User: "1234:2345"}); got != "2345" {
		t.Errorf("its groups are %q", got)
	}
	// One cannot touch the other's.
	shell(t, sb, "umask 077; echo secret >/tmp/secret; mkdir /tmp/own; echo >/tmp/own/x")
	if out := run(t, sb, sandpit.Command{Script: "cat /tmp/secret || ls /tmp/own || rm -f /tmp/secret", User: "1234:2345"}); out.Success() || strings.Contains(string(out.Stdout), "secret") {
		t.Errorf("got %+v, %q", out.Result, out.Stdout)
	}
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}})
	if out := run(t, sb, sandpit.Command{Script: fmt.Sprintf("kill -9 %d", p.PID()), User: "1234:2345"}); out.Success() {
		t.Error("a user kills another's process")
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

func testUnknownUser(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, user := range []string{"no-such-user-here", "0:no-such-group-here", ":", "0:", ":0", "-1", "4294967295"} {
		_, err := sb.Start(t.Context(), sandpit.Command{Script: "true", User: user})
		if !isInvalidOrUnsupported(err) || sandpit.StageOf(err) != sandpit.StageUser {
			t.Errorf("%q gives %v, of the stage %q", user, err, sandpit.StageOf(err))
		}
	}
}

func testSetUID(t *testing.T, e *env) {
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{User: "root", Tmpfs: []sandpit.Tmpfs{{Target: "/scratch"}}})
	for _, dir := range []string{"/tmp", "/scratch", "/usr/local", "/dev/shm"} {
		if out := run(t, sb, sandpit.Command{Script: "cp /usr/bin/id " + dir + "/id && chmod 6755 " + dir + "/id"}); !out.Success() {
			continue // not writable in this image
		}
		out := run(t, sb, sandpit.Command{Script: dir + "/id -u; " + dir + "/id -g", User: "1234:2345"})
		if got := strings.TrimSpace(string(out.Stdout)); got != "1234\n2345" && got != "" {
			t.Errorf("in %s a set-user-id program is %q", dir, got)
		}
	}
	// Nor by those of the image.
	if got := command(t, sb, sandpit.Command{Script: `find /usr/bin -perm -4000 2>/dev/null | head -1 | while read f; do "$f" --version >/dev/null 2>&1; done; grep '^Uid' /proc/self/status | cut -f2-5 | tr '\t' ' '`, User: "1234:2345"}); got != "1234 1234 1234 1234" {
		t.Errorf("got %q", got)
	}
}

func testRootInside(t *testing.T, e *env) {
	spec := sandpit.Spec{RootInside: true}
	if !e.opt.Features[feature.Users] {
		if _, err := e.client.Create(guarded(t), sandpit.Spec{Image: e.opt.Image, RootInside: true}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("where only one user exists: %v (hint: %s)", err, sandpit.Hint(err))
		}
		return
	}
	sb := e.sandbox(t, spec)
	if got := shell(t, sb, "id -u"); got == "0" {
		t.Error("its own user is root")
	}
	if got := capabilities(t, sb, sandpit.Command{}); got != noCapabilities {
		t.Errorf("its own user has %s", got)
	}
	if got, want := capabilities(t, sb, sandpit.Command{User: "root"}), fmt.Sprintf(allCapabilities, rootCapabilities); got != want {
		t.Errorf("root has  %s\nwant %s", got, want)
	}
	command(t, sb, sandpit.Command{User: "root", Script: "umask 077; echo secret >/tmp/roots; mkdir /opt/roots; cp /usr/bin/id /tmp/id; chown 4321:4321 /tmp/roots; chown 0:0 /tmp/roots; chmod 6755 /tmp/id; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid; chmod 644 /tmp/pid"})
	for what, script := range map[string]string{
		"reads a file of root":   "cat /tmp/roots",
		"writes one":             "echo x >/tmp/roots",
		"writes where root may":  "echo x >/opt/roots/f || echo x >/etc/new || echo x >>/etc/passwd",
		"gives a file away":      "touch /tmp/f && chown 0:0 /tmp/f",
		"signals root's process": "kill -9 $(cat /tmp/pid)",
		"becomes root":           `test "$(/tmp/id -u)" = 0 || test "$(/tmp/id -g)" = 0 || setpriv --reuid 0 id`,
	} {
		if out := run(t, sb, sandpit.Command{Script: script}); out.Success() {
			t.Errorf("its own user %s: %s", what, brief(out.Stdout))
		}
	}
	if _, err := sb.Files().Stat(guarded(t), "/opt/roots/f"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Files as its own user: %v", err)
	}
	if _, err := sb.Files().As("root").Write(guarded(t), "/opt/roots/f", strings.NewReader("x"), sandpit.WriteOptions{}); err != nil {
		t.Errorf("Files as root: %v", err)
	}
}

// rootInside makes a sandbox with sudo.
func rootInside(t *testing.T, e *env) sandpit.Sandbox {
	t.Helper()
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{RootInside: true})
	if !run(t, sb, sandpit.Command{Script: "test -x /usr/local/bin/sudo"}).Success() {
		t.Fatal("there is no sudo")
	}
	return sb
}

func testSudo(t *testing.T, e *env) {
	sb := rootInside(t, e)
	own := shell(t, sb, "id -u")
	cmd := sandpit.Command{Argv: []string{"sudo", "sed", "-n", `s/^\(Cap[A-Za-z]*\):[[:space:]]*/\1=/p; s/^\(NoNewPrivs\):[[:space:]]*/\1=/p`, "/proc/self/status"}}
	if got, want := strings.Join(strings.Fields(command(t, sb, cmd)), " "), fmt.Sprintf(allCapabilities, rootCapabilities); got != want {
		t.Errorf("it has   %s\nroot has %s", got, want)
	}
	for _, c := range []struct{ script, want string }{
		{"sudo id -u; sudo id -g; sudo id -G", "0\n0\n0"},
		{"sudo -n -- id -un", "root"},
		{"sudo -u 1234:2345 id -u", "1234"},
		{"sudo -u1234:2345 sh -c 'id -g; grep -c ^CapEff:.0000000000000000 /proc/self/status'", "2345\n1"},
		{"cd /usr && sudo pwd", "/usr"},
		{"echo in | sudo cat", "in"},
		{"sudo sh -c 'echo out; echo err >&2' 2>&1 | sort", "err\nout"},
		{"export A=1; sudo sh -c 'echo $A,$B,$HOME,$USER,$SUDO_UID'", ",,$HOME,root," + own},
		{"export A=1; sudo -E B='2 3' sh -c 'echo $A,$B'", "1,2 3"},
		{"PIP_BREAK_SYSTEM_PACKAGES=1 sudo sh -c 'echo $PIP_BREAK_SYSTEM_PACKAGES'", "1"},
		{"sudo -s echo a b", "a b"},
		{"sudo sh -c 'exit 7'; echo $?", "7"},
		{"sudo sh -c 'kill -9 $$'; echo $?", "137"},
		{"sudo no-such-program 2>/dev/null; echo $?", "127"},
		{"sudo /etc/passwd 2>/dev/null; echo $?", "126"},
		{"sudo -u no-such-user true 2>/dev/null; echo $?", "1"},
		{"sudo 2>/dev/null; echo $?", "1"},
		{"sudo -Z true 2>/dev/null; echo $?", "1"},
		{"umask 077; echo x >/tmp/given; sudo chown 33:44 /tmp/given; sudo stat -c %u:%g /tmp/given", "33:44"},
		{"sudo sudo id -u", "0"},
		{"sudo ls /proc/self/fd | wc -l", "4"}, // and that of the directory
		{"p=/; i=0; while [ $i -lt 299 ]; do p=$p:/; i=$((i+1)); done; sudo PATH=$p no-such-program 2>&1 | grep -o 'first 256 directories of PATH'", "first 256 directories of PATH"},
	} {
		want := c.want
		if strings.Contains(want, "$HOME") {
			want = strings.ReplaceAll(want, "$HOME", command(t, sb, sandpit.Command{User: "root", Script: "echo $HOME"}))
		}
		if got := shell(t, sb, c.script); got != want {
			t.Errorf("%s: got %q, want %q", c.script, got, want)
		}
	}
	// It has the limits of the program that asks.
	cmd = sandpit.Command{Script: "ulimit -Sf 2048; sudo sh -c 'ulimit -Sf; ulimit -Hf; ulimit -t; ulimit -n; ulimit -c'", Rlimits: []sandpit.Rlimit{
		{Resource: "fsize", Soft: 2 << 20, Hard: 2 << 20}, {Resource: "cpu", Soft: 50, Hard: 60}, {Resource: "nofile", Soft: 99, Hard: 99},
	}}
	if got := command(t, sb, cmd); got != "2048\n4096\n50\n99\n0" {
		t.Errorf("its limits are %q", got)
	}
	// A signal reaches the command, and what it leaves running ends with it.
	if got := shell(t, sb, `sudo sh -c 'trap "echo got; exit 3" TERM; echo ready >/tmp/ready; while :; do sleep 0.02; done' & while ! [ -s /tmp/ready ]; do sleep 0.02; done; kill -TERM $!; wait $!; echo $?`); got != "got\n3" {
		t.Errorf("after a signal: %q", got)
	}
	if got := shell(t, sb, `sudo sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $!' >/tmp/left; if [ -d /proc/$(cat /tmp/left) ]; then echo there; fi`); got != "" {
		t.Errorf("what it left running is %q", got)
	}
	// So does everything when the command that used sudo is killed.
	p := start(t, sb, sandpit.Command{Script: `sudo sh -c 'setsid sleep 1000 & echo $! >/tmp/killed; wait'`})
	eventually(t, "it runs", func() bool { return run(t, sb, sandpit.Command{Script: "test -s /tmp/killed"}).Success() })
	if err := p.Kill(guarded(t)); err != nil {
		t.Error(err)
	}
	eventually(t, "it is gone", func() bool {
		return run(t, sb, sandpit.Command{Script: "! test -d /proc/$(cat /tmp/killed)"}).Success()
	})
}

func testSudoRefused(t *testing.T, e *env) {
	sb := rootInside(t, e)
	out := run(t, sb, sandpit.Command{Argv: []string{"sudo", "id", "-u"}, User: "1234:2345"})
	if out.ExitCode != 1 || len(out.Stdout) > 0 || !strings.Contains(string(out.Stderr), "only the sandbox's own user") {
		t.Errorf("as another user: %+v %s %s", out.Result, out.Stdout, out.Stderr)
	}
	shell(t, sb, "cp /usr/local/bin/sudo /tmp/sudo")
	p, err := sb.Files().Open(guarded(t), "/tmp/sudo", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	plain := e.sandbox(t, sandpit.Spec{})
	if _, err := plain.Files().Write(guarded(t), "/tmp/sudo", p, sandpit.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	out = run(t, plain, sandpit.Command{Argv: []string{"/tmp/sudo", "id", "-u"}})
	if out.ExitCode != 1 || len(out.Stdout) > 0 || !strings.Contains(string(out.Stderr), "no root inside") {
		t.Errorf("in a sandbox that did not ask for it: %+v %s %s", out.Result, out.Stdout, out.Stderr)
	}
}

func testSudoAttacked(t *testing.T, e *env) {
	sb := rootInside(t, e)
	if !run(t, sb, sandpit.Command{Argv: []string{"python3", "-c", ""}}).Success() {
		return // the image of other runs of this suite has it
	}
	const own = `
import array, os, socket, time
def dial():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect("\0sandpit-sudo"); return s
def num(n):
    out = b""
    while n >= 128: out += bytes([n & 127 | 128]); n >>= 7
    return out + bytes([n])
def text(s): return num(len(s)) + s
def texts(l): return num(len(l)) + b"".join(text(s) for s in l)
def request(argv, env=(), dir=b"/", user=b"", flags=0): return num(flags) + texts(argv) + text(b"") + texts(env) + text(dir) + text(user)
`
	const attack = own + `
def ask(b, fds, more=()):
    s = dial()
    try:
        s.sendmsg([b], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        for m in more: s.send(m)
        return s.recv(4096)
    except (ConnectionResetError, BrokenPipeError): return b"gone"
three = [0, 1, 2]
touch = [b"touch", b"/tmp/made"]
for b, fds in [(b"\xff" * 50, three), (request([]), three), (request(touch), []), (request(touch), three[:2]), (request(touch), three + [0]), (request(touch), [0] * 200),
        (request(touch, dir=b"tmp"), three), (request(touch, dir=b"/\0"), three), (request([b"a\0b"]), three), (request(touch, env=[b"x"]), three), (request(touch, env=[b"=x"]), three),
        (request(touch, user=b":"), three), (request(touch, user=b"0:"), three), (request(touch, user=b"-1"), three), (request([b""]), three), (b"\0", three)]:
    a = ask(b, fds)
    assert a and a[:1] != b"\0" or a[1:2] != b"\0", (b, a)
assert not os.path.exists("/tmp/made")
# Descriptors of every kind are only the command's.
r, w = os.pipe()
s1, s2 = socket.socketpair()
for fds in [[r, w, w], [s1.fileno()] * 3, [os.open("/proc/self/mem", os.O_RDWR)] * 3, [os.open("/", os.O_PATH)] * 3, [os.open("/dev/null", os.O_RDWR)] * 3]:
    ask(request([b"true"]), fds, [b"\0", b"\xff", b"\x41", b"\x00\x00"])
# Connections that say nothing or leave at once hold up nobody for long.
silent = [dial() for _ in range(12)]
for _ in range(100): dial().close()
s = dial(); s.sendmsg([request([b"sleep", b"1000"])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", three))]); s.close()
assert ask(request([b"id", b"-u"]), three)
`
	if got := shell(t, sb, "cat >/tmp/attack.py <<'END'\n"+attack+"\nEND\npython3 /tmp/attack.py"); got != "0" {
		t.Errorf("got %q", got)
	}
	eventually(t, "nothing is left", func() bool {
		return !run(t, sb, sandpit.Command{Script: `grep -l '^sleep' /proc/[0-9]*/cmdline 2>/dev/null`, User: "root"}).Success()
	})
	if got := shell(t, sb, "sudo id -u"); got != "0" {
		t.Errorf("afterwards it says %q", got)
	}
	// A command ends with the process that asked for it, also if it holds the other end of the request itself.
	alive := func() bool {
		return run(t, sb, sandpit.Command{Script: `grep -l '^sleep' /proc/[0-9]*/cmdline 2>/dev/null`, User: "root"}).Success()
	}
	p := start(t, sb, sandpit.Command{Argv: []string{"python3", "-c", own + `
s = dial()
s.sendmsg([request([b"sleep", b"86701"])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno(), 1, 2]))])
time.sleep(1000)
`}})
	eventually(t, "the command runs", alive)
	must(t, p.Kill(guarded(t)))
	eventually(t, "it has ended", func() bool { return !alive() })
}

func testRootWork(t *testing.T, e *env) {
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{User: "root"})
	shell(t, sb, `touch /tmp/f; chown 33:44 /tmp/f; chmod 2755 /tmp/f; mkdir -p /opt/new; echo x >/opt/new/f; chown -R 1:1 /opt/new; echo y >>/opt/new/f; rm -r /opt/new`)
	info, err := sb.Files().Stat(t.Context(), "/tmp/f")
	if err != nil || info.UID != 33 || info.GID != 44 {
		t.Errorf("got %+v, %v", info, err)
	}
	if got := shell(t, sb, `setpriv --reuid 33 --regid 33 --clear-groups id -u`); got != "33" {
		t.Errorf("got %q", got)
	}
}

func testFilesUser(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	files := sb.Files()
	if _, err := files.Write(t.Context(), "/tmp/mine", strings.NewReader("x"), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	uid := shell(t, sb, "id -u")
	info, err := files.Stat(t.Context(), "/tmp/mine")
	if err != nil || fmt.Sprint(info.UID) != uid {
		t.Errorf("the file belongs to %d, %v", info.UID, err)
	}
	closed(t, sb)
	if _, err := files.Write(t.Context(), "/tmp/closed/f", strings.NewReader("x"), sandpit.WriteOptions{}); err == nil {
		t.Error("a directory without rights may be written")
	}
}

// everyFileOperation does each operation of Files once, on a path or in a directory, and returns
// the error of each by name.
func everyFileOperation(t *testing.T, files sandpit.Files, file, dir, fresh string) map[string]error {
	t.Helper()
	ctx := guarded(t)
	errs := map[string]error{}
	_, errs["Stat"] = files.Stat(ctx, file)
	_, errs["Lstat"] = files.Lstat(ctx, file)
	_, _, errs["ReadDir"] = files.ReadDir(ctx, dir, "", 0)
	r, err := files.Open(ctx, file, 0, -1)
	if errs["Open"] = err; err == nil {
		_, errs["Open"] = io.Copy(io.Discard, r)
		r.Close()
	}
	_, _, errs["Find"] = files.Find(ctx, dir, sandpit.FindQuery{})
	_, errs["Grep"] = files.Grep(ctx, file, sandpit.GrepQuery{Pattern: "."})
	errs["Download"] = files.Download(ctx, dir, io.Discard)
	for e, err := range files.Watch(ctx, dir, false) {
		if errs["Watch"] = err; err != nil || e.Kind == sandpit.WatchReady {
			break
		}
	}
	_, errs["Write"] = files.Write(ctx, file, strings.NewReader("text"), sandpit.WriteOptions{})
	_, errs["Write with Append"] = files.Write(ctx, file, strings.NewReader(" more"), sandpit.WriteOptions{Append: true})
	errs["Edit"] = files.Edit(ctx, file, []sandpit.Edit{{Old: "text", New: "other"}})
	_, errs["Write in place"] = files.Write(ctx, file, strings.NewReader("o"), sandpit.WriteOptions{InPlace: true})
	errs["Chmod"] = files.Chmod(ctx, file, 0o600)
	errs["SetAttr"] = files.SetAttr(ctx, file, sandpit.FileAttr{Size: new(int64(3)), ModTime: time.Unix(1, 0)})
	errs["Mkdir"] = files.Mkdir(ctx, fresh, 0, false)
	errs["Symlink"] = files.Symlink(ctx, "x", fresh+"-link")
	_, errs["Readlink"] = files.Readlink(ctx, fresh+"-link")
	errs["Copy"] = files.Copy(ctx, file, fresh+"-copy", false)
	errs["Rename"] = files.Rename(ctx, fresh+"-copy", fresh+"-renamed")
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "unpacked", Mode: 0o644}); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	errs["Upload"] = files.Upload(ctx, fresh, &archive)
	errs["Remove"] = files.Remove(ctx, file, false)
	errs["Remove of a tree"] = files.Remove(ctx, dir, true)
	return errs
}

func testFilesAs(t *testing.T, e *env) {
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{User: "root"})
	files := sb.Files()
	user := files.As("1234:2345")

	// What it makes is that user's, and it may do all there.
	shell(t, sb, "mkdir -p /tmp/own/d; echo x >/tmp/own/d/f; chown -R 1234:2345 /tmp/own")
	for op, err := range everyFileOperation(t, user, "/tmp/own/d/f", "/tmp/own/d", "/tmp/own/new") {
		if err != nil {
			t.Errorf("in an own directory %s: %v", op, err)
		}
	}
	if got := shell(t, sb, `stat -c '%u:%g' /tmp/own/new /tmp/own/new-link /tmp/own/new-renamed /tmp/own/new/unpacked | sort -u`); got != "1234:2345" {
		t.Errorf("what was made belongs to %q", got)
	}

	// What is root's is closed. Readlink and Rename fail for want of what they would use.
	shell(t, sb, "umask 077; mkdir -p /tmp/roots/d; echo text >/tmp/roots/d/f")
	for op, err := range everyFileOperation(t, user, "/tmp/roots/d/f", "/tmp/roots/d", "/tmp/roots/new") {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("in a closed directory %s: %v", op, err)
		}
	}
	if got := shell(t, sb, "cat /tmp/roots/d/f; find /tmp/roots | wc -l"); got != "text\n3" {
		t.Errorf("what is root's is %q", got)
	}

	// What root moves to another file system stays its owner's.
	shell(t, sb, "mkdir -p /tmp/moved/d; echo x >/tmp/moved/d/f; ln -s f /tmp/moved/d/l; chown -hR 1234:2345 /tmp/moved/d; chmod 600 /tmp/moved/d/f")
	must(t, files.Rename(t.Context(), "/tmp/moved", "/dev/shm/moved"))
	if got := shell(t, sb, `cd /dev/shm/moved; stat -c '%u:%g %a' . d d/f; stat -c %u:%g d/l; ls /tmp/moved 2>&1 | grep -c 'No such'`); got != "0:0 755\n1234:2345 755\n1234:2345 600\n1234:2345\n1" {
		t.Errorf("what root has moved is %q", got)
	}

	// The same handles serve different users, at once and in turn.
	if _, err := files.As("").Stat(t.Context(), "/tmp/roots/d/f"); err != nil {
		t.Errorf("as the sandbox's user: %v", err)
	}
	if _, err := user.As("root").Stat(t.Context(), "/tmp/roots/d/f"); err != nil {
		t.Errorf("as root: %v", err)
	}
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			name, as, want := fmt.Sprintf("/tmp/at-once-%d", i), fmt.Sprintf("%d:%d", 3000+i%5, 4000+i), uint32(4000+i)
			if i%3 == 0 {
				as, want = "", 0
			}
			if _, err := files.As(as).Write(guarded(t), name, strings.NewReader("x"), sandpit.WriteOptions{}); err != nil {
				t.Errorf("as %q: %v", as, err)
			} else if info, err := files.Stat(guarded(t), name); err != nil || info.GID != want {
				t.Errorf("as %q: it belongs to %d:%d, %v", as, info.UID, info.GID, err)
			}
		})
	}
	all.Wait()

	// A relative path begins where that user's processes do.
	home := e.sandbox(t, sandpit.Spec{User: "root"})
	shell(t, home, "cp /etc/passwd /tmp/p; echo someone:x:1234:2345::/tmp/home:/bin/sh >>/tmp/p; cat /tmp/p >/etc/passwd; mkdir -m 755 /tmp/home")
	dir := command(t, home, sandpit.Command{User: "someone", Script: "pwd"})
	shell(t, home, "echo x >"+dir+"/begins-here")
	if _, err := home.Files().As("someone").Stat(t.Context(), "begins-here"); err != nil {
		t.Error(err)
	}
}

func testBrokenPasswd(t *testing.T, e *env) {
	e.need(t, feature.Users)
	for _, broken := range []string{"ln -s passwd /etc/passwd", "mkdir /etc/passwd", "true"} {
		sb := e.sandbox(t, sandpit.Spec{User: "root"})
		shell(t, sb, "rm /etc/passwd && "+broken)
		for user, want := range map[string]string{"": "0", "root": "0", "0": "0", "4321:1": "4321"} {
			out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Script: "id -u", User: user})
			if err != nil || strings.TrimSpace(string(out.Stdout)) != want {
				t.Errorf("%s: user %q is %q, %v", broken, user, out.Stdout, err)
			}
		}
		if _, err := sb.Start(t.Context(), sandpit.Command{Script: "true", User: "somebody"}); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "/etc/passwd") {
			t.Errorf("%s: a user by name gives %v", broken, err)
		}
	}
}

func testFilesAsNobody(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for _, user := range []string{"no-such-user-here", "0:no-such-group-here", ":", "0:", ":0", "-1", "99999", "0:99999", "4294967295", "a\x00b", strings.Repeat("x", 10_000)} {
		files := sb.Files().As(user)
		for op, err := range everyFileOperation(t, files, "/tmp/f", "/tmp", "/tmp/new") {
			if !isInvalidOrUnsupported(err) {
				t.Errorf("as %.20q %s: %v", user, op, err)
			}
		}
	}
	if !e.opt.Features[feature.Users] {
		if _, err := sb.Files().As("4321:1").Stat(t.Context(), "/"); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("where one user exists: %v", err)
		}
	}
	if out := shell(t, sb, "ls -A /tmp"); out != "" {
		t.Errorf("left behind: %q", out)
	}
}

func testFilesAsAttacked(t *testing.T, e *env) {
	e.need(t, feature.Users)
	sb := e.sandbox(t, sandpit.Spec{User: "root"})
	shell(t, sb, `umask 077; mkdir /tmp/secret /tmp/other; echo secret >/tmp/secret/f; echo other >/tmp/other/f; chown -R 33:44 /tmp/other
mkdir -m 755 /tmp/mine; chown 1234:2345 /tmp/mine`)
	user := sb.Files().As("1234:2345")
	shell(t, sb, "ln -s /tmp/secret /tmp/mine/k")
	for op, err := range everyFileOperation(t, user, "/tmp/mine/k/f", "/tmp/mine/k/d", "/tmp/mine/k/new") {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s through a link: %v", op, err)
		}
	}
	// A process of the user swaps directories and links under each other, fast.
	p := start(t, sb, sandpit.Command{User: "1234:2345", Script: `cd /tmp/mine; mkdir real; echo mine >real/f; ln -s /tmp/secret l1; ln -s /tmp/other l2
while :; do mv -T real d; mv -T d real; mv -T l1 d; mv -T d l1; mv -T l2 d; mv -T d l2; done`})
	for range 60 {
		if r, err := user.Open(guarded(t), "/tmp/mine/d/f", 0, -1); err == nil {
			b, err := io.ReadAll(r)
			r.Close()
			if err != nil || strings.ContainsAny(string(b), "scrtoh") { // of "secret" and "other"
				t.Fatalf("it read %q, %v", b, err)
			}
		}
		_, _ = user.Write(guarded(t), "/tmp/mine/d/f", strings.NewReader("new"), sandpit.WriteOptions{})
		_, _ = user.Write(guarded(t), "/tmp/mine/d/f", strings.NewReader("new"), sandpit.WriteOptions{InPlace: true})
		_ = user.Chmod(guarded(t), "/tmp/mine/d/f", 0o644)
		_ = user.SetAttr(guarded(t), "/tmp/mine/d/f", sandpit.FileAttr{Size: new(int64(3)), Mode: new(fs.FileMode(0o644)), UID: new(uint32(1234)), ModTime: time.Unix(1, 0)})
		// Nor does root change what the last element leads to, if it says so.
		_ = sb.Files().SetAttr(guarded(t), "/tmp/mine/d", sandpit.FileAttr{NoFollow: true, UID: new(uint32(1234)), Mode: new(fs.FileMode(0o777))})
		_ = user.Copy(guarded(t), "/tmp/mine/d/f", "/tmp/mine/d/g", false)
		_ = user.Remove(guarded(t), "/tmp/mine/d/g", true)
	}
	if err := p.Kill(guarded(t)); err != nil {
		t.Error(err)
	}
	if got := shell(t, sb, `cat /tmp/secret/f /tmp/other/f; stat -c '%u:%g %a' /tmp/secret/f /tmp/other/f /tmp/secret /tmp/other; ls /tmp/secret /tmp/other`); got != "secret\nother\n0:0 600\n33:44 600\n0:0 700\n33:44 700\n/tmp/other:\nf\n\n/tmp/secret:\nf" {
		t.Errorf("what others own is now %q", got)
	}
	// The processes of another user can't reach the thread that acts as them.
	if got := command(t, sb, sandpit.Command{User: "1234:2345", Script: `for t in /proc/1/task/*; do kill -9 ${t##*/} && echo killed; cat $t/environ $t/maps 2>/dev/null && echo read; done 2>/dev/null; true`}); got != "" {
		t.Errorf("a program of that user reaches the guest: %q", got)
	}
}
