package commands

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// planted is a directory that a sandbox can write to, beside what it must not
// reach: a file with a flag, and a directory.
type planted struct {
	t                *testing.T
	proj, flag, keep string
}

const flagText = "flag-9b1d"

func plant(t *testing.T) planted {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := planted{t, filepath.Join(top, "proj"), filepath.Join(top, "flag"), filepath.Join(top, "keep")}
	p.do(os.Mkdir(p.proj, 0o755), os.Mkdir(p.keep, 0o755), os.WriteFile(p.flag, []byte(flagText), 0o644))
	return p
}

func (p planted) do(errs ...error) {
	p.t.Helper()
	if err := errors.Join(errs...); err != nil {
		p.t.Fatal(err)
	}
}

// safe checks that nothing outside of the directory was changed.
func (p planted) safe() {
	p.t.Helper()
	if data, err := os.ReadFile(p.flag); err != nil || string(data) != flagText {
		p.t.Errorf("WRITE: the file outside holds %q, %v", data, err)
	}
	if all, err := os.ReadDir(p.keep); err != nil || len(all) > 0 {
		p.t.Errorf("WRITE: in the directory outside are %v, %v", all, err)
	}
}

func writeText(name, text string) error {
	return writeLocal("copying", name, 0o644, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// A file that is copied out replaces a link, and goes through none that is not
// the system's.
func TestCopyOutFollowsNoPlantedLink(t *testing.T) {
	p := plant(t)
	out := filepath.Join(p.proj, "out.txt")
	for _, target := range []string{p.flag, "../flag", filepath.Join(p.keep, "new"), "/dev/null", "out.txt"} {
		p.do(os.RemoveAll(out), os.Symlink(target, out))
		if err := writeText(out, "new"); err != nil {
			t.Errorf("a link to %s: %v", target, err)
		}
		if data, err := os.ReadFile(out); err != nil || string(data) != "new" {
			t.Errorf("a link to %s: the file holds %q, %v", target, data, err)
		}
		if info, err := os.Lstat(out); err != nil || !info.Mode().IsRegular() {
			t.Errorf("a link to %s: %v, %v", target, info, err)
		}
	}
	// Above what is named.
	p.do(os.Symlink("../keep", filepath.Join(p.proj, "sub")), os.Symlink(p.proj, filepath.Join(p.proj, "loop")))
	for _, name := range []string{"sub/x", "sub/../x", "loop/sub/x", "loop/x", "./sub//x"} {
		err := writeText(p.proj+"/"+name, "x")
		if name == "sub/../x" { // the same as x
			p.do(err)
			continue
		}
		if !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
			t.Errorf("%s: %v (hint: %s)", name, err, sandpit.Hint(err))
		}
		if root, err := openDirectory(p.proj+"/"+filepath.Dir(name), true); err == nil {
			_ = root.Close()
			t.Errorf("%s: its directory is opened", name)
		}
		if f, _, err := openSource(p.proj + "/" + name); err == nil {
			_ = f.Close()
			t.Errorf("%s is read", name)
		}
	}
	p.safe()
	// Links of the system are followed.
	var system []string
	for _, dir := range []string{"/", "/etc/", "/usr/bin/"} {
		all, err := os.ReadDir(dir)
		p.do(err)
		for _, e := range all[:min(len(all), 300)] {
			var st unix.Stat_t
			if unix.Lstat(dir+e.Name(), &st) == nil && st.Uid == 0 {
				system = append(system, dir+e.Name())
			}
		}
	}
	for _, name := range system {
		if target, err := filepath.EvalSymlinks(name); err == nil && target != name && (filepath.Dir(name) == "/" || filepath.Dir(target) == "/usr/bin") {
			f, _, err := openSource(name)
			if err != nil {
				t.Errorf("%s, which root has linked to %s: %v", name, target, err)
				continue
			}
			_ = f.Close()
		}
	}
	// Streams and devices are written to as they are.
	file, err := os.Create(filepath.Join(p.proj, "stdout"))
	p.do(err)
	defer file.Close()
	_, err = file.WriteString("before ")
	p.do(err, writeText("/dev/null", "x"))
	dup, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	p.do(err)
	name := "/proc/self/fd/" + strconv.Itoa(dup)
	p.do(writeText(name, "after"), unix.Close(dup))
	if data, err := os.ReadFile(file.Name()); err != nil || string(data) != "before after" {
		t.Errorf("%s: it holds %q, %v", name, data, err)
	}
	p.do(os.Mkdir(filepath.Join(p.proj, "d"), 0o755))
	if err := writeText(filepath.Join(p.proj, "d"), "x"); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
	p.safe()
}

// A link that belongs to root is not trusted for that: root's sandboxes make such
// links in what they have mounted.
func TestLinksOfRootAreTrustedByPlace(t *testing.T) {
	testkit.NeedRoot(t, "to make links of root")
	p := plant(t)
	// A directory that only root can write to, as a mount of root's sandbox may be.
	top, err := os.MkdirTemp("/run", "sandpit-test-")
	p.do(err)
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	shared := filepath.Join(top, "shared")
	p.do(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777|os.ModeSticky))
	for _, dir := range []string{top, shared, p.proj} {
		p.do(os.Symlink(p.keep, filepath.Join(dir, "dir")))
		if err := writeText(filepath.Join(dir, "dir", "x"), "x"); !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("in %s: %v", dir, err)
		}
	}
	p.safe()
	// Nor is one below a directory of the system that somebody may mount.
	for _, dir := range []string{"/usr/local", "/usr/share", "/etc"} {
		below, err := os.MkdirTemp(dir, "sandpit-test-")
		p.do(err)
		t.Cleanup(func() { _ = os.RemoveAll(below) })
		p.do(os.Symlink(p.keep, filepath.Join(below, "dir")))
		if err := writeText(filepath.Join(below, "dir", "x"), "x"); !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("in %s: %v", below, err)
		}
	}
	p.safe()
	// A link in /dev leads to its device.
	link := filepath.Join("/dev", filepath.Base(top))
	p.do(os.Symlink("null", link))
	t.Cleanup(func() { _ = os.Remove(link) })
	p.do(writeText(link, "x"))
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("a link in /dev was replaced: %v, %v", info, err)
	}
}

// Names that are not those of files here.
func TestNamesThatAreNotFiles(t *testing.T) {
	p := plant(t)
	file := filepath.Join(p.proj, "file")
	p.do(os.WriteFile(file, []byte("x"), 0o644))
	for _, name := range []string{"", file + "/", file + "/."} {
		if f, _, err := openSource(name); err == nil {
			_ = f.Close()
			t.Errorf("%q is read", name)
		}
	}
	for _, name := range []string{"", file + "/", filepath.Join(p.proj, "new") + "/"} {
		if err := writeText(name, "y"); err == nil {
			t.Errorf("%q is written to", name)
		}
	}
	t.Chdir("/dev")
	p.do(writeText("null", "x"))
	if info, err := os.Lstat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("/dev/null is now %v, %v", info, err)
	}
}

// Links that appear while a file is copied lead nowhere either.
func TestCopyRaces(t *testing.T) {
	p := plant(t)
	sub, link := filepath.Join(p.proj, "sub"), filepath.Join(p.proj, "link")
	p.do(os.Mkdir(sub, 0o755), os.Symlink("../keep", link))
	p.do(os.Symlink("../flag", filepath.Join(p.proj, "f")), os.WriteFile(filepath.Join(p.proj, "g"), []byte("mine"), 0o644))
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = unix.Renameat2(unix.AT_FDCWD, sub, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(p.proj, "f"), unix.AT_FDCWD, filepath.Join(p.proj, "g"), unix.RENAME_EXCHANGE)
		}
	})
	written, refused := 0, 0
	for range 2000 {
		if writeText(sub+"/x", "x") == nil {
			written++
		} else {
			refused++
		}
		if f, again, err := openSource(filepath.Join(p.proj, "f")); err == nil {
			data, err := os.ReadFile(again)
			_ = f.Close()
			if strings.Contains(string(data), flagText) {
				t.Fatalf("READ: the file outside was opened (%v)", err)
			}
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d written, %d refused", written, refused)
	p.safe()
}
