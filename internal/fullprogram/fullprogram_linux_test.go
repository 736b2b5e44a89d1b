package fullprogram

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const (
	asFront = "WHOLE_TEST_FRONT" // the data directory
	asWhole = "WHOLE_TEST_WHOLE"
)

// TestMain lets this test program be a launcher, whose full program is this test
// program again.
func TestMain(m *testing.M) {
	if os.Getenv(asWhole) != "" {
		exe, err := os.Readlink("/proc/self/exe")
		fmt.Println(exe, err, strings.Join(os.Args, " "))
		os.Exit(7)
	}
	if dir, ok := os.LookupEnv(asFront); ok {
		self, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = Program{Bytes: self, Name: "name"}.Exec(dir, []string{"sandpit", "a b"}, append(os.Environ(), asWhole+"=1"))
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// launch runs the launcher and returns the file that its full program came from.
func launch(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asFront+"="+dir)
	out, _ := cmd.CombinedOutput()
	exe, rest, _ := strings.Cut(string(out), " <nil> ")
	if rest != "sandpit a b\n" || cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
	return exe
}

func inMemory(exe string) bool { return strings.HasPrefix(exe, "/memfd:sandpit") }

func TestExecKeepsAFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "program", "name")
	if exe := launch(t, dir); exe != file {
		t.Fatalf("executed %s, not %s", exe, file)
	}
	first, err := os.Lstat(file)
	if err != nil || first.Mode() != 0o500 {
		t.Fatalf("%v, %v", first.Mode(), err)
	}
	launch(t, dir)
	if again, err := os.Lstat(file); err != nil || !os.SameFile(first, again) {
		t.Errorf("the file was made again (%v)", err)
	}
	if err := os.Rename(file, filepath.Join(dir, "program", "other version")); err != nil {
		t.Fatal(err)
	}
	launch(t, dir)
	if names, _ := filepath.Glob(filepath.Join(dir, "program", "*")); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
}

// TestExecMakesNoDataDirectory: help, asked for on a fresh machine, leaves
// nothing behind.
func TestExecMakesNoDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	for _, d := range []string{"", dir} {
		if exe := launch(t, d); !inMemory(exe) {
			t.Errorf("%q: executed %s", d, exe)
		}
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory: %v", err)
	}
}

func TestExecReplacesWhatIsNotWhole(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"short": func(file string) error { return os.WriteFile(file, []byte("short"), 0o500) },
		"link":  func(file string) error { return os.Symlink("/bin/true", file) },
		"empty": func(string) error { return nil },
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "program", "name")
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := spoil(file); err != nil {
			t.Fatal(err)
		}
		if exe := launch(t, dir); exe != file {
			t.Errorf("%s: executed %s", name, exe)
		}
	}
}

// TestExecTrustsNobody: what others could have written is not executed, and
// left as it is.
func TestExecTrustsNobody(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"directory for all to write": func(dir string) error { return os.Chmod(filepath.Join(dir, "program"), 0o777) },
		"file for all to write":      func(dir string) error { return os.Chmod(filepath.Join(dir, "program", "name"), 0o777) },
		"not a directory": func(dir string) error {
			if err := os.RemoveAll(filepath.Join(dir, "program")); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "program"), nil, 0o600)
		},
		"link to a directory": func(dir string) error {
			if err := os.Rename(filepath.Join(dir, "program"), filepath.Join(dir, "elsewhere")); err != nil {
				return err
			}
			return os.Symlink("elsewhere", filepath.Join(dir, "program"))
		},
		"of another user": func(dir string) error {
			if os.Geteuid() != 0 {
				return nil // nothing to try
			}
			return os.Chown(filepath.Join(dir, "program", "name"), 1234, 1234)
		},
	} {
		dir := t.TempDir()
		launch(t, dir)
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if exe := launch(t, dir); !inMemory(exe) && (name != "of another user" || os.Geteuid() == 0) {
			t.Errorf("%s: executed %s", name, exe)
		}
	}
}

// A directory that is put in the place of the program's, by whoever may write to the data
// directory, gets no program and loses no file.
func TestStoreInTheDirectoryThatWasChecked(t *testing.T) {
	home, other := t.TempDir(), t.TempDir()
	kept := filepath.Join(other, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "program")
	at, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(at)
	if err := errors.Join(os.Rename(dir, dir+"~"), os.Symlink(other, dir)); err != nil {
		t.Fatal(err)
	}
	p := Program{Bytes: []byte("program"), Name: "name"}
	if err := p.store(fmt.Sprintf("/proc/self/fd/%d", at)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir+"~", p.Name)); err != nil {
		t.Error(err)
	}
	if names, _ := filepath.Glob(filepath.Join(other, "*")); len(names) != 1 || names[0] != kept {
		t.Errorf("the other directory has %v", names)
	}
	if fd, err := openDir(dir); err == nil {
		t.Errorf("a link was opened as %d", fd)
	}
}

// Whoever may write to the data directory can't have files of another directory removed,
// however often the names change.
func TestExecWhileTheDirectoryChanges(t *testing.T) {
	home, other := t.TempDir(), t.TempDir()
	kept := filepath.Join(other, "kept")
	dir, aside := filepath.Join(home, "program"), filepath.Join(home, "aside")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Symlink(other, aside)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if os.Rename(aside, dir) == nil {
				_ = os.Rename(dir, aside)
			} else {
				_ = os.Rename(dir, fmt.Sprint(dir, n))
			}
		}
	}()
	p := Program{Bytes: []byte("program"), Name: "name"}
	for range 2000 {
		if fd, err := p.file(home); err == nil {
			_ = syscall.Close(fd)
		}
	}
	close(stop)
	<-stopped
	if names, _ := filepath.Glob(filepath.Join(other, "*")); len(names) != 1 || names[0] != kept {
		t.Errorf("the other directory has %v", names)
	}
}

func TestExecWhereNothingCanBeExecuted(t *testing.T) {
	testkit.NeedRoot(t, "to mount file systems")
	for name, mount := range map[string]struct {
		flags uintptr
		data  string
	}{
		"noexec":    {syscall.MS_NOEXEC, ""},
		"full":      {0, "size=64k"},
		"read-only": {syscall.MS_RDONLY, ""},
	} {
		dir := t.TempDir()
		testkit.Tmpfs(t, dir, mount.flags, mount.data)
		if exe := launch(t, dir); !inMemory(exe) {
			t.Errorf("%s: executed %s", name, exe)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "program", ".new-*")); left != nil {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}
