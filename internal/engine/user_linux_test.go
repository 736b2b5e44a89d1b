package engine_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// dirImage makes a directory that serves as an image, with a passwd file.
func dirImage(t *testing.T, passwd string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if passwd != "" {
		if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(passwd), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The user of a hostile image: nothing outside of it is read, and what makes no
// sense is refused before anything is made. (The catalogue's A8.)
func TestUserOfAnImage(t *testing.T) {
	e := newEngine(t)
	for _, tc := range []struct {
		name, passwd, user string
		link               bool // /etc/passwd is a link to a file outside
	}{
		{name: "unknown name", passwd: "app:x:7:7::/:/bin/sh\n", user: "other"},
		{name: "unknown group", passwd: "app:x:7:7::/:/bin/sh\n", user: "app:nogroup-here"},
		{name: "id out of range", user: "4294967296"},
		{name: "id of nobody else", user: "65535"},
		{name: "line with an id out of range", passwd: "app:x:70000:7::/:/bin/sh\n", user: "app"},
		{name: "a path", passwd: "app:x:7:7::/:/bin/sh\n", user: "../../root"},
		{name: "link to the outside", link: true, user: "outsider"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := dirImage(t, tc.passwd)
			if tc.link {
				outside := filepath.Join(t.TempDir(), "passwd")
				if err := os.WriteFile(outside, []byte("outsider:x:7:7::/:/bin/sh\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(outside, filepath.Join(dir, "etc/passwd")); err != nil {
					t.Fatal(err)
				}
			}
			sb, err := e.Create(t.Context(), sandpit.Spec{Image: "dir:" + dir, User: tc.user})
			if err == nil {
				_ = sb.Remove(t.Context())
			}
			if !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

// Mounts over the files that name the users of an image, and mounts that have no place in
// other mounts, are refused with a message that says what to do.
func TestMountsThatHinderTheSandboxAreExplained(t *testing.T) {
	e := newEngine(t)
	outer, inner, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mount := func(source, target string) sandpit.Mount {
		return sandpit.Mount{Source: source, Target: target, ReadOnly: true}
	}
	hiding := func(place string) string {
		return "the mount at " + place + ` hides the image's /etc/passwd, so user "user" is unknown`
	}
	tests := []struct {
		name, want, hint string
		spec             sandpit.Spec
	}{
		{"etc", hiding("/etc"), "1000:1000", sandpit.Spec{Mounts: []sandpit.Mount{mount(inner, "/etc")}}},
		{"passwd", hiding("/etc/passwd"), "1000:1000", sandpit.Spec{Mounts: []sandpit.Mount{mount(file, "/etc/passwd")}}},
		{"tmpfs", hiding("/etc"), "1000:1000", sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/etc", Size: 1 << 20}}}},
		{
			"directory", `the mount at /w has no directory "sub"`, "create it there",
			sandpit.Spec{Mounts: []sandpit.Mount{mount(outer, "/w"), mount(inner, "/w/sub")}},
		},
		{
			"tmpfs in a mount", `the mount at /w has no directory "sub"`, "create it there",
			sandpit.Spec{Mounts: []sandpit.Mount{mount(outer, "/w")}, Tmpfs: []sandpit.Tmpfs{{Target: "/w/sub"}}},
		},
		{
			"file in a directory", `the mount at /w has no file "a/b"`, "create it there",
			sandpit.Spec{Mounts: []sandpit.Mount{mount(outer, "/w"), mount(file, "/w/a/b")}},
		},
		{
			"file", `the mount at /w has no file "file"`, "create it there",
			sandpit.Spec{Mounts: []sandpit.Mount{mount(outer, "/w"), mount(file, "/w/file")}},
		},
	}
	if os.Geteuid() == 0 { // others may create it there
		writable := mount(outer, "/w")
		writable.ReadOnly = false
		tests = append(tests, tests[3])
		last := &tests[len(tests)-1]
		last.name, last.spec = "directory of a writable mount", sandpit.Spec{Mounts: []sandpit.Mount{writable, mount(inner, "/w/sub")}}
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			sb, err := e.Create(t.Context(), tc.spec)
			if err == nil {
				_ = sb.Remove(t.Context())
			}
			if !errors.Is(err, sandpit.ErrInvalid) || !strings.HasPrefix(err.Error(), tc.want) || !strings.Contains(sandpit.Hint(err), tc.hint) {
				t.Errorf("got %v (hint: %s), want %s (hint: … %s …)", err, sandpit.Hint(err), tc.want, tc.hint)
			}
		})
	}
	sb := create(t, e, sandpit.Spec{User: "1000:1000", Mounts: []sandpit.Mount{mount(inner, "/etc")}})
	if out, _ := shell(t, sb, "echo ok"); out != "ok\n" {
		t.Errorf("a user by number: got %q", out)
	}
}

// A tmpfs inside a mount, and a mount inside that, are what a program sees there: nothing
// that is written to the tmpfs is in the mount.
func TestNoMountHidesTheTmpfsInIt(t *testing.T) {
	outer, inner := t.TempDir(), t.TempDir()
	for _, dir := range []string{outer + "/sub", outer + "/sub/x", inner, inner + "/y"} {
		if err := errors.Join(os.MkdirAll(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	sb := create(t, newEngine(t), sandpit.Spec{
		Mounts: []sandpit.Mount{{Source: inner, Target: "/w/sub/x"}, {Source: outer, Target: "/w"}},
		Tmpfs:  []sandpit.Tmpfs{{Target: "/w/sub/x/y"}, {Target: "/w/sub"}, {Target: "/elsewhere"}},
	})
	if out, _ := shell(t, sb, "{ echo a >/w/sub/scratch; echo b >/w/sub/x/kept; echo c >/w/sub/x/y/scratch; } 2>&1"); out != "" {
		t.Fatal(out)
	}
	for name, want := range map[string]bool{outer + "/sub/scratch": false, outer + "/sub/x/kept": false, inner + "/kept": true, inner + "/y/scratch": false} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s is on the host: %v", name, err == nil)
		}
	}
}

func TestDefaultUserIsTheImagesOwn(t *testing.T) {
	if image.UserID != 1000 {
		t.Fatal("the host image's user is another")
	}
	sb := create(t, newEngine(t), sandpit.Spec{})
	if out, _ := shell(t, sb, "id -u; id -un; echo $HOME"); out != "1000\nuser\n/home/user\n" {
		t.Errorf("got %q", out)
	}
}

// RootFiles does what only root may, and what it creates or replaces belongs to the owner. Without root inside it has the
// owner's rights alone.
func TestRootFiles(t *testing.T) {
	needGuest(t)
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users] {
		testkit.Need(t, "several users in a sandbox", errors.ErrUnsupported)
	}
	e := newEngine(t)
	sb := create(t, e, sandpit.Spec{RootInside: true})
	const closed = "/opt/closed"
	prepare := "umask 077; mkdir -p " + closed + "/d; cd " + closed + "; echo roots >kept; cp kept replaced; cp kept edited; chmod 640 replaced; touch d/f; ln -s " + closed + "/replaced /tmp/link"
	if _, res := shell(t, sb, "sudo sh -c '"+prepare+"'"); !res.Success() {
		t.Fatalf("%+v", res)
	}
	files := sb.(engine.Box).RootFiles("1234:2345")
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"write":   func() error { return write(t, files, closed+"/sub/dir/new", sandpit.WriteOptions{Parents: true}) },
		"replace": func() error { return write(t, files, "/tmp/link", sandpit.WriteOptions{}) },
		"append":  func() error { return write(t, files, closed+"/kept", sandpit.WriteOptions{Append: true}) },
		"edit":    func() error { return files.Edit(ctx, closed+"/edited", []sandpit.Edit{{Old: "roots", New: "root's"}}) },
		"mkdir":   func() error { return files.Mkdir(ctx, closed+"/a/b", 0, true) },
		"symlink": func() error { return files.Symlink(ctx, "x", closed+"/link") },
		"remove":  func() error { return files.Remove(ctx, closed+"/d", true) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := "edited 0:0\nkept 0:0\nlink 1234:2345\nreplaced 1234:2345 640\nsub 1234:2345\nsub/dir 1234:2345\nsub/dir/new 1234:2345\na 1234:2345\na/b 1234:2345\n"
	got, _ := shell(t, sb, "sudo sh -c 'cd "+closed+"; ls -d d; stat -c \"%n %u:%g\" edited kept link; stat -c \"%n %u:%g %a\" replaced; stat -c \"%n %u:%g\" sub sub/dir sub/dir/new a a/b' 2>/dev/null")
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := sb.(engine.Box).RootFiles("").Mkdir(ctx, closed+"/root", 0o700, false); err != nil {
		t.Error(err)
	}
	if i, err := sb.(engine.Box).RootFiles("").Stat(ctx, closed+"/root"); err != nil || i.UID != 0 {
		t.Errorf("without an owner it belongs to %d, %v", i.UID, err)
	}

	alone := create(t, e, sandpit.Spec{}).(engine.Box)
	for _, owner := range []string{"", "user"} {
		if err := alone.RootFiles(owner).Mkdir(ctx, "/root/x", 0, true); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("without root inside, as %q: %v", owner, err)
		}
	}
}

// Commands of sudo that ask for the next ones end with the first, however slowly each of them does: they are
// killed together, and get no more.
func TestSudoChainEnds(t *testing.T) {
	needGuest(t)
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users] {
		testkit.Need(t, "several users in a sandbox", errors.ErrUnsupported)
	}
	program := filepath.Join(t.TempDir(), "chain")
	build := exec.Command(testkit.NeedProgram(t, "go"), "build", "-o", program, "./testdata/sudochain")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, newEngine(t), sandpit.Spec{RootInside: true, Limits: sandpit.Limits{Memory: 3 << 30}})
	next := wire.Start{Argv: []string{"/tmp/chain"}, Dir: "/"}
	for path, data := range map[string][]byte{"/tmp/chain": data, "/tmp/request": next.Append(nil)} {
		if err := sandpit.WriteFile(t.Context(), sb, path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, end := range map[string]func(p sandpit.Process) error{
		"timeout": func(sandpit.Process) error { return nil },
		"kill":    func(p sandpit.Process) error { return p.Kill(t.Context()) },
		"SIGKILL": func(p sandpit.Process) error { return p.Signal(t.Context(), syscall.SIGKILL) },
	} {
		cmd := sandpit.Command{Argv: []string{"/tmp/chain"}, Background: true}
		if name == "timeout" {
			cmd.Timeout = 4 * time.Second
		}
		p, err := sb.Start(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		length := func() int64 { info, _ := sb.Files().Stat(t.Context(), "/tmp/log"); return info.Size }
		eventually(t, "all places are taken", func() bool { return length() >= 16 })
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" ends all", func() bool {
			before := length()
			out, _ := shell(t, sb, "n=0; for p in /proc/[0-9]*/cmdline; do case $(tr '\\0' ' ' <$p) in */tmp/chai[n]*) n=$((n+1));; esac; done 2>/dev/null; echo $n")
			return out == "0\n" && length() == before
		})
		if err := sb.Files().Remove(t.Context(), "/tmp/log", false); err != nil {
			t.Fatal(err)
		}
	}
}

// A command of sudo that can't be executed ends after a while, and says so: whoever is root inside can stop it before.
func TestSudoThatDoesNotStart(t *testing.T) {
	testkit.NeedFull(t, "it waits for ten seconds")
	needGuest(t)
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users] {
		testkit.Need(t, "several users in a sandbox", errors.ErrUnsupported)
	}
	sb := create(t, newEngine(t), sandpit.Spec{RootInside: true})
	// What the guest's helpers have made is stopped before it is another program. So that there is time for that, the
	// program is looked for in places that take long to look into.
	stopper, err := sb.Start(t.Context(), sandpit.Command{User: "root", Script: `read -r guest </proc/1/comm
while :; do for p in /proc/[0-9]*; do
	[ -e /tmp/armed ] && read -r _ comm _ parent _ <$p/stat && [ "$comm" = "($guest)" ] && [ "$parent" -gt 1 ] && kill -STOP ${p#/proc/}
done 2>/dev/null; done`})
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandpit.Run(t.Context(), sb, sandpit.Command{Timeout: 2 * time.Minute, Script: `exec 2>&1; mkdir -p /tmp/slow/d; cd /tmp/slow; t=; while [ ${#t} -lt 3990 ]; do t=$t"d/../"; done
i=0; while [ $i -lt 38 ]; do ln -s "${t}k$((i+1))" k$i; i=$((i+1)); done; ln -s d k38
path=/tmp/slow/k0; i=0; while [ $i -lt 250 ]; do path=$path:/tmp/slow/k0; i=$((i+1)); done
touch /tmp/armed; sudo PATH=$path no-such-program; status=$?; rm /tmp/armed; exit $status`})
	if want := "sudo: \"no-such-program\" could not be executed within 10s\n"; err != nil || string(got.Stdout) != want || got.ExitCode != 126 {
		t.Errorf("got %q, %+v, %v; want %q", got.Stdout, got.Result, err, want)
	}
	if err := stopper.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if out, _ := shell(t, sb, "sudo id -u"); out != "0\n" {
		t.Errorf("afterwards it says %q", out)
	}
}

func write(t *testing.T, files sandpit.Files, path string, opt sandpit.WriteOptions) error {
	t.Helper()
	_, err := files.Write(t.Context(), path, strings.NewReader("text\n"), opt)
	return err
}
