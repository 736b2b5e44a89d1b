package linux_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// shownAt is where tests show a directory of theirs beside those of the host image.
const shownAt = "/srv"

// A showing driver shows one more directory of the host in each sandbox, in the
// way of the host image.
type showing struct {
	*recorder
	source string
}

func (s *showing) with(plan driver.Plan) driver.Plan {
	plan.Root.Binds = append(slices.Clone(plan.Root.Binds), driver.Bind{Source: s.source, Target: shownAt})
	return plan
}

func (s *showing) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	return s.recorder.Create(ctx, s.with(plan))
}

func (s *showing) Prepare(ctx context.Context, id string, bp driver.BlankPlan) (driver.Blank, error) {
	b, err := s.recorder.Prepare(ctx, id, bp)
	if err != nil {
		return nil, err
	}
	return &showingBlank{b, s}, nil
}

type showingBlank struct {
	driver.Blank
	s *showing
}

func (b *showingBlank) Fits(plan driver.Plan) bool { return b.Blank.Fits(b.s.with(plan)) }

func (b *showingBlank) Bind(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	return b.Blank.Bind(ctx, b.s.with(plan))
}

// shownDir makes a directory that everybody may read.
func shownDir(t *testing.T) string {
	t.Helper()
	return filepath.Dir(plant(t).path)
}

// eachShowing runs a test with sandboxes that show a directory: made at once,
// made of a blank, and where ids can't be mapped.
func eachShowing(t *testing.T, source string, f func(t *testing.T, c sandpit.Client)) {
	testkit.NeedWorkingHost(t)
	run := func(name, source string, pool int) {
		t.Run(name, func(t *testing.T) {
			e := engineOf(t, &showing{newDriver(), source}, pool)
			f(t, e)
			if pool > 0 && e.PoolStats().Claimed == 0 && os.Geteuid() == 0 {
				t.Error("no sandbox was made of a blank")
			}
		})
	}
	run("fresh", source, 0)
	run("blank", source, 1)
	if os.Geteuid() != 0 {
		return
	}
	run("same ids", unmappable(t, source), 0)
}

// unmappable shows a directory where ids can't be mapped: those of a sandbox that
// shows it are those outside.
func unmappable(t *testing.T, dir string) string {
	t.Helper()
	over, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mountHere(t, "none", "overlay", over, unix.MS_RDONLY, "lowerdir="+dir+":"+t.TempDir())
	return over
}

// mountHere mounts something until the test ends, in a directory that it makes.
func mountHere(t *testing.T, source, fstype, dir string, flags uintptr, data string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount(source, dir, fstype, flags, data)); err != nil {
		t.Fatalf("mounting %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// lend lends a tree these directories of this machine, as mounts or as the links that
// they are, for lack of other programs.
func lend(t *testing.T, tree string, dirs ...string) (mounts []sandpit.Mount) {
	t.Helper()
	for _, d := range dirs {
		target, err := os.Readlink("/" + d)
		if err == nil {
			err = os.Symlink(target, filepath.Join(tree, d))
		} else if _, err = os.Stat("/" + d); err == nil {
			mounts = append(mounts, sandpit.Mount{Source: "/" + d, Target: "/" + d, ReadOnly: true})
			err = os.MkdirAll(filepath.Join(tree, d), 0o755)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return mounts
}

// Where ids can't be mapped, the kernel lets nobody look below what is mounted:
// a directory of the host is then shown as it is, with that.
func TestMountBelowADirectoryOfTheHost(t *testing.T) {
	testkit.NeedWorkingHost(t)
	testkit.NeedRoot(t, "to mount something on the host")
	dir := shownDir(t)
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	source := unmappable(t, dir)
	mountHere(t, "none", "tmpfs", filepath.Join(source, "below"), 0, "mode=755")
	if err := os.WriteFile(filepath.Join(source, "below/file"), []byte("below"), 0o644); err != nil {
		t.Fatal(err)
	}
	if below := linux.MountBelow(source); below != filepath.Join(source, "below") {
		t.Errorf("below %s is %q", source, below)
	}
	if below := linux.MountBelow(dir); below != "" {
		t.Errorf("below %s is %q", dir, below)
	}
	if linux.Overlays(source) || !linux.Overlays(dir) {
		t.Error("doctor does not tell what can be shown through an overlay")
	}
	e := engineOf(t, &showing{newDriver(), source}, 0)
	out := sh(t, box(t, e, sandpit.Spec{}), "cat "+shownAt+"/below/file")
	if string(out.Stdout) != "below" {
		t.Errorf("got %+v %s%s", out.Result, out.Stdout, out.Stderr)
	}
}

// The host's files can be an overlay of an overlay, as in nested containers: no
// third one can show them, and they are shown as they are.
func TestHostIsAnOverlayOfAnOverlay(t *testing.T) {
	testkit.NeedWorkingHost(t)
	testkit.NeedRoot(t, "to mount something on the host")
	once := unmappable(t, shownDir(t))
	source := unmappable(t, once)
	if linux.Overlays(source) || !linux.Overlays(once) {
		t.Error("doctor does not tell what can be shown through an overlay")
	}
	for _, of := range []struct {
		pool   int
		source string
	}{{0, source}, {1, source}, {0, once}} {
		e := engineOf(t, &showing{newDriver(), of.source}, of.pool)
		sb := box(t, e, sandpit.Spec{})
		out := sh(t, sb, "test -s "+shownAt+"/flag && ! touch "+shownAt+"/flag")
		if !out.Success() || !strings.Contains(string(out.Stderr), "Read-only file system") {
			t.Errorf("got %+v %s%s", out.Result, out.Stdout, out.Stderr)
		}
		// Who asks for the sandbox is told.
		info, err := sb.Info(t.Context())
		told := slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool {
			return g.What == feature.GapHostImage && strings.Contains(g.Why, source+" as it is")
		})
		if err != nil || told != (of.source == source) {
			t.Errorf("not enforced are %v, %v", info.NotEnforced, err)
		}
	}
}

func TestAttackL7FilesOfTheHostsUsers(t *testing.T) {
	dir := shownDir(t)
	owners := [][2]int{{os.Geteuid(), os.Getegid()}}
	if os.Geteuid() == 0 {
		owners = append(owners, [2]int{1000, 1000}, [2]int{65534, 65534})
	}
	var flags []string
	for _, owner := range owners {
		for _, mode := range []os.FileMode{0o600, 0o640, 0o400, 0o000} {
			name := fmt.Sprintf("%d-%o", owner[0], mode)
			data, err := os.ReadFile(filepath.Join(dir, "flag"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{name, name + ".dir/inner"} {
				f = filepath.Join(dir, f)
				if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
					t.Fatal(err)
				}
				fileMode, dirMode := mode, os.FileMode(0o755)
				if filepath.Base(f) == "inner" {
					fileMode, dirMode = 0o644, mode|mode>>2&0o111
				}
				if err := errors.Join(os.WriteFile(f, data, 0o600), os.Chown(f, owner[0], owner[1]), os.Chmod(f, fileMode)); err != nil {
					t.Fatal(err)
				}
				if d := filepath.Dir(f); d != dir {
					if err := errors.Join(os.Chown(d, owner[0], owner[1]), os.Chmod(d, dirMode)); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = os.Chmod(d, 0o700) })
				}
				flags = append(flags, shownAt+strings.TrimPrefix(f, dir))
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "flag"))
	if err != nil {
		t.Fatal(err)
	}
	eachShowing(t, dir, func(t *testing.T, c sandpit.Client) {
		for _, user := range users {
			if !multiUser(t) || os.Geteuid() != 0 && user == "" {
				// Whoever is the only user inside is the one outside: a gap, which
				// the threat model states.
				continue
			}
			sb := box(t, c, sandpit.Spec{User: user})
			if out := sh(t, sb, "cat "+shownAt+"/flag"); string(out.Stdout) != string(text) {
				t.Errorf("user %q can't read what everybody may read: %s%s", user, out.Stdout, out.Stderr)
			}
			for _, found := range strings.Fields(string(sh(t, sb, "for f in "+strings.Join(flags, " ")+"; do grep -l . $f; done").Stdout)) {
				t.Errorf("READ: user %q reads %s", user, found)
			}
			// What it finds below closed directories.
			if out := sh(t, sb, "grep -rl . "+shownAt); strings.TrimSpace(string(out.Stdout)) != shownAt+"/flag" {
				t.Errorf("READ: user %q reads %s", user, out.Stdout)
			}
		}
	})
}

// What the host image hides of /usr can't be read, by its name or from a list.
func TestAttackL7CredentialsInUsr(t *testing.T) {
	testkit.NeedWorkingHost(t)
	text, err := os.ReadFile(plant(t).path)
	if err != nil {
		t.Fatal(err)
	}
	host := shownDir(t)
	programs := lend(t, host, "usr/bin", "usr/lib", "usr/lib64", "bin", "lib", "lib64")
	for _, name := range []string{"usr/local/etc/npmrc", "usr/local/etc/pip/pip.conf", "usr/local/pip.conf", "usr/local/share/public"} {
		name = filepath.Join(host, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{NoSync: true, HostDir: host})
	e := engine.New(engine.Options{Driver: newDriver(), Images: store, Policy: policy.Default()})
	defer e.Close()
	for _, user := range users {
		if user != "" && !multiUser(t) {
			continue
		}
		sb := box(t, e, sandpit.Spec{User: user, Mounts: programs})
		out := sh(t, sb, "cat /usr/local/etc/npmrc /usr/local/etc/pip/pip.conf /usr/local/pip.conf; grep -r . /usr/local; ls -R /usr/local")
		want := "/usr/local/share/public:" + string(text) + "\n/usr/local:\netc\nshare\n\n/usr/local/etc:\n\n/usr/local/share:\npublic\n"
		if string(out.Stdout) != want {
			t.Errorf("READ: user %q reads\n%s\nwant\n%s", user, out.Stdout, want)
		}
	}
}

// probing is a probe that waits for the end of its input before it answers.
type probing struct {
	t   *testing.T
	p   sandpit.Process
	out *bufio.Reader
}

// startProbe returns when the probe has said that it waits.
func startProbe(t *testing.T, sb sandpit.Sandbox, name string, args ...string) *probing {
	t.Helper()
	r, w := io.Pipe()
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: append([]string{"/probe", "probe:" + name}, args...), Stdin: true, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := p.Wait(t.Context())
		w.CloseWithError(err)
	}()
	out := bufio.NewReader(r)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the probe says %q, %v", line, err)
	}
	return &probing{t, p, out}
}

// answer ends the probe.
func (p *probing) answer() map[string]string {
	p.t.Helper()
	if err := p.p.Stdin().Close(); err != nil {
		p.t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.NewDecoder(p.out).Decode(&got); err != nil {
		p.t.Fatal(err)
	}
	return got
}

// waitForEnd is the probe's part of it.
func waitForEnd() {
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// use opens, reads and locks files.
func use(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Read(make([]byte, 1))
		f.Close()
	}
}

func TestAttackL10hWatchingOthers(t *testing.T) {
	dir := shownDir(t)
	tree := filepath.Join(shownDir(t), "image")
	for _, d := range []string{"etc", "bin"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "bin/tool"), []byte("tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	libraries := lend(t, tree, "usr", "lib", "lib64")
	eachShowing(t, dir, func(t *testing.T, c sandpit.Client) {
		for _, user := range users {
			watcher, neighbour := box(t, c, sandpit.Spec{User: user}), box(t, c, sandpit.Spec{User: user})
			p := startProbe(t, watcher, "watch", shownAt, shownAt+"/flag", "/usr/bin", "/usr/bin/env", "/etc/ssl/certs")
			use(t, filepath.Join(dir, "flag"), "/usr/bin/env")
			for _, script := range []string{"cat " + shownAt + "/flag", "env true"} {
				if out := sh(t, neighbour, script); !out.Success() {
					t.Errorf("%s: %+v %s", script, out.Result, out.Stderr)
				}
			}
			for what, saw := range p.answer() {
				if saw != "" {
					t.Errorf("READ: user %q sees of %s what others do: %s", user, what, saw)
				}
			}
			// A watch works: it sees what the sandbox itself does.
			p = startProbe(t, watcher, "watch", shownAt)
			if out := sh(t, watcher, "cat "+shownAt+"/flag"); !out.Success() {
				t.Errorf("%+v %s", out.Result, out.Stderr)
			}
			if saw := p.answer(); !strings.Contains(saw[shownAt], "flag") {
				t.Errorf("a watch sees nothing of its own sandbox: %v", saw)
			}
		}
	})
	t.Run("layers", func(t *testing.T) {
		if why, ok := skipped()["Mounts/a directory is an image"]; ok {
			testkit.Lacks(t, "a directory as an image: "+why)
		}
		c := client(t, options())
		spec := sandpit.Spec{Image: "dir:" + tree, User: "0:0", Mounts: libraries}
		watcher, neighbour := box(t, c, spec), box(t, c, spec)
		p := startProbe(t, watcher, "watch", "/bin", "/bin/tool")
		use(t, filepath.Join(tree, "bin/tool"))
		if got := tryOut(t, neighbour, sandpit.Command{}, "lock", "/bin/tool"); got["flock"] != "" {
			t.Errorf("the neighbour can't use /bin/tool: %v", got)
		}
		for what, saw := range p.answer() {
			if saw != "" {
				t.Errorf("READ: a sandbox sees of %s what others do: %s", what, saw)
			}
		}
	})
}

func TestAttackL10iLocksOnFilesOfTheHost(t *testing.T) {
	dir := shownDir(t)
	host := filepath.Join(dir, "flag")
	eachShowing(t, dir, func(t *testing.T, c sandpit.Client) {
		for _, user := range users {
			holder, neighbour := box(t, c, sandpit.Spec{User: user}), box(t, c, sandpit.Spec{User: user})
			p := startProbe(t, holder, "lock", shownAt+"/flag", "wait")
			for what, is := range lock(host) {
				if is != "" {
					t.Errorf("STARVE: %s by a program of the host: %s", what, is)
				}
			}
			for what, is := range tryOut(t, neighbour, sandpit.Command{}, "lock", shownAt+"/flag") {
				if is != "" && what != "lease" {
					t.Errorf("STARVE: %s by another sandbox: %s", what, is)
				}
			}
			// A lease makes those wait who open the file.
			if f, err := os.OpenFile(host, os.O_WRONLY|unix.O_NONBLOCK, 0); err != nil {
				t.Errorf("STARVE: opening by a program of the host: %v", err)
			} else {
				f.Close()
			}
			if held := p.answer(); held["flock"] != "" || held["fcntl"] != "" {
				t.Errorf("nothing was held: %v", held)
			}
		}
	})
}

// A socket below a directory of the host that is shown can't be connected to.
func TestAttackL7SocketsOfTheHost(t *testing.T) {
	dir := shownDir(t)
	// The whole path must fit into sun_path.
	short, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	tellFlag(t, fmt.Sprintf("/proc/self/fd/%d/s", short.Fd()), reachable)
	eachShowing(t, dir, func(t *testing.T, c sandpit.Client) {
		for _, user := range users {
			got := tryOut(t, box(t, c, sandpit.Spec{User: user}), sandpit.Command{}, "connect", shownAt+"/s")
			refused(t, got, "ECONNREFUSED", "EACCES")
		}
	})
}

// lock tries to take locks on a file that nobody else may hold meanwhile.
func lock(name string) map[string]string {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return map[string]string{"open": errName(err)}
	}
	defer unix.Close(fd)
	return map[string]string{
		"flock": errName(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)),
		"fcntl": errName(unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})),
	}
}

// probeLock takes locks; with a second argument it holds them until its input ends.
func probeLock(args []string) map[string]string {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return map[string]string{"open": errName(err)}
	}
	_, lease := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	got := map[string]string{
		"flock": errName(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)),
		"fcntl": errName(unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})),
		"lease": errName(lease),
	}
	if len(args) > 1 {
		waitForEnd()
	}
	return got
}

// probeWatch watches paths until its input ends, and tells what was seen.
func probeWatch(paths []string) map[string]string {
	got := map[string]string{}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return map[string]string{"inotify": errName(err)}
	}
	names := map[int32]string{}
	for _, p := range paths {
		wd, err := unix.InotifyAddWatch(fd, p, unix.IN_ALL_EVENTS)
		got[p] = errName(err)
		names[int32(wd)] = p
	}
	waitForEnd()
	for buf := make([]byte, 64<<10); ; {
		n, err := unix.Read(fd, buf)
		if err != nil || n <= 0 {
			return got
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			// struct inotify_event of inotify(7): wd, mask, cookie, len, name.
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			got[names[wd]] += fmt.Sprintf(" %#x %s", mask, name)
			b = b[size:]
		}
	}
}

// probeConnect connects to sockets.
func probeConnect(paths []string) map[string]string {
	got := map[string]string{}
	for _, p := range paths {
		conn, err := net.Dial("unix", p)
		if err == nil {
			conn.Close()
		}
		got[p] = errName(err)
	}
	return got
}
