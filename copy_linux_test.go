package sandpit

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// planted makes a directory that a sandbox can write to, beside what it must not reach: a file
// with a flag, and an empty directory.
func planted(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "dir")
	done(t, os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(top, "keep"), 0o755), os.WriteFile(filepath.Join(top, "flag"), []byte(flagText), 0o644))
	root, err := os.OpenRoot(dir)
	done(t, err)
	t.Cleanup(func() {
		_ = root.Close()
		if data, err := os.ReadFile(filepath.Join(top, "flag")); err != nil || string(data) != flagText {
			t.Errorf("WRITE: the file outside holds %q, %v", data, err)
		}
		if all, err := os.ReadDir(filepath.Join(top, "keep")); err != nil || len(all) > 0 {
			t.Errorf("WRITE: in the directory outside are %v, %v", all, err)
		}
	})
	return dir, root
}

const flagText = "flag-9b1d"

func done(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// packed is the stream of a directory.
func packed(t *testing.T, root *os.Root, opt CopyOptions) (stream string, left error, err error) {
	t.Helper()
	var got bytes.Buffer
	p := packer{copying: copying{ctx: t.Context(), opt: opt}, root: root, tar: tar.NewWriter(&got)}
	if err = p.directory("."); err == nil {
		err = p.tar.Close()
	}
	return got.String(), p.skipped(), err
}

// Links that appear while a directory is copied lead to nothing outside, and what becomes a pipe
// holds nothing up.
func TestCopyInRaces(t *testing.T) {
	dir, root := planted(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	done(t, os.Mkdir(in("sub"), 0o755), os.WriteFile(in("sub/x"), []byte("mine"), 0o644), os.Symlink("..", in("link")),
		os.WriteFile(in("f"), []byte("mine"), 0o644), os.Symlink("../flag", in("g")), unix.Mkfifo(in("h"), 0o644))
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, pair := range [][2]string{{"sub", "link"}, {"f", "g"}, {"f", "h"}, {"sub", "h"}} {
				_ = unix.Renameat2(unix.AT_FDCWD, in(pair[0]), unix.AT_FDCWD, in(pair[1]), unix.RENAME_EXCHANGE)
			}
		}
	})
	for i := range 2000 {
		got, _, err := packed(t, root, CopyOptions{Follow: i%2 > 0})
		if err != nil || strings.Contains(got, flagText) {
			t.Errorf("READ: the stream has %d bytes, with the flag: %v, and %v", len(got), strings.Contains(got, flagText), err)
			break
		}
	}
	close(stop)
	all.Wait()
}

// CopyIn continues past what it can't copy, and names it.
func TestCopyInNamesWhatIsLeftOut(t *testing.T) {
	dir, root := planted(t)
	t.Chdir(dir)
	socket, err := net.Listen("unix", "socket")
	done(t, err, unix.Mkfifo("pipe", 0o644), os.WriteFile("secret", nil, 0), os.Mkdir("closed", 0), os.WriteFile("z", []byte("last"), 0o644), os.Symlink("/usr/bin/python3", "python"))
	defer socket.Close()
	got, left, err := packed(t, root, CopyOptions{})
	done(t, err)
	all, ok := left.(*CopyError)
	if !ok || !errors.Is(left, ErrUnsupported) {
		t.Fatalf("left out: %v", left)
	}
	want := map[string]string{"pipe": "it is a named pipe", "socket": "it is a socket"}
	if os.Getuid() != 0 {
		want["secret"], want["closed"] = "permission denied", "permission denied"
	}
	for _, s := range all.Skipped {
		if want[s.Path] != s.Err.Error() {
			t.Errorf("%s is left out: %v", s.Path, s.Err)
		}
		delete(want, s.Path)
	}
	if len(want) > 0 {
		t.Errorf("not named: %v", want)
	}
	links, files := 0, 0
	for r := tar.NewReader(strings.NewReader(got)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		switch {
		case h.Name == "python" && h.Linkname == "/usr/bin/python3":
			links++
		case h.Name == "z":
			files++
		}
	}
	if links != 1 || files != 1 {
		t.Errorf("the stream has %d links and %d files", links, files)
	}
	if _, _, err := packed(t, root, CopyOptions{MaxBytes: 3}); !errors.Is(err, ErrQuota) {
		t.Errorf("4 bytes of 3: %v", err)
	}
	if _, _, err := packed(t, root, CopyOptions{MaxFiles: 1}); !errors.Is(err, ErrQuota) {
		t.Errorf("more files than 1: %v", err)
	}
}

// A tree that is copied out changes nothing outside of its directory, whatever is in it and
// whatever links are there before it. The rest of it is copied.
func TestCopyOutOfATree(t *testing.T) {
	dir, root := planted(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "t/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "t/f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "t/sub/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "t/sub/g", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "t/abs", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(dir) + "/keep"},
		{Name: "t/abs/g", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "t/up", Typeflag: tar.TypeSymlink, Linkname: "../flag"},
		{Name: "t/up", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 1},
		{Name: "t/../../flag", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "/t/../../keep/g", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "t/hard", Typeflag: tar.TypeLink, Linkname: "../flag"},
		{Name: "t/device", Typeflag: tar.TypeBlock, Devmajor: 8},
		{Name: "t/z", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
	} {
		done(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write([]byte("x"))
			done(t, err)
		}
	}
	done(t, w.Close(), os.Symlink("../flag", in("f")), os.Symlink("../keep", in("sub")))
	unpack := func(opt CopyOptions) (*unpacker, error) {
		u := &unpacker{copying: copying{ctx: t.Context(), opt: opt}, root: root, tar: tar.NewReader(bytes.NewReader(archive.Bytes()))}
		return u, u.unpack()
	}
	u, err := unpack(CopyOptions{})
	done(t, err)
	var left []string
	for _, s := range u.left.Skipped {
		left = append(left, s.Path)
	}
	if got := strings.Join(left, " "); got != "sub sub/g abs/g hard device" {
		t.Errorf("left out: %s", got)
	}
	for _, name := range []string{"f", "up", "z"} {
		if info, err := os.Lstat(in(name)); err != nil || info.Mode() != 0o644 && info.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if target, err := os.Readlink(in("abs")); err != nil || !filepath.IsAbs(target) {
		t.Errorf("the absolute link leads to %q, %v", target, err)
	}
	for _, opt := range []CopyOptions{{MaxBytes: 2}, {MaxFiles: 3}} {
		if _, err := unpack(opt); !errors.Is(err, ErrQuota) {
			t.Errorf("with %+v: %v", opt, err)
		}
	}
	if err := u.skipped(); !errors.Is(err, fs.ErrExist) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
}
