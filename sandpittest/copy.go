package sandpittest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

var copyProperties = []property{
	{"ReadFile and WriteFile move a whole file", testWholeFiles},
	{"a directory that is copied in and out is the same", testCopyInAndOut},
	{"a directory is copied without what can't be copied", testCopyLeavesOut},
	{"CopyIn and CopyOut continue past what the sandbox's user may not read or write", testCopyPastPermissions},
	{"CopyIn follows links only where that is asked for, and only in the directory", testCopyFollowsLinks},
	{"Do returns output and files, and removes the sandbox", testDo},
	{"Do that fails leaves no sandbox", testDoFails},
}

func testWholeFiles(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{WorkDir: "/tmp"})
	for _, data := range [][]byte{nil, []byte("a\x00\xff\n"), bytes.Repeat([]byte("0123456789abcdef"), sandpit.DefaultCapture/16)} {
		must(t, sandpit.WriteFile(guarded(t), sb, "f", data, 0o640))
		if got, err := sandpit.ReadFile(guarded(t), sb, "/tmp/f"); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes come back as %d, %v", len(data), len(got), err)
		}
	}
	if info, err := sb.Files().Stat(guarded(t), "f"); err != nil || info.Mode.Perm() != 0o640 {
		t.Errorf("the file is %v, %v", info, err)
	}
	shell(t, sb, "truncate -s 1T sparse")
	_, err := sandpit.ReadFile(guarded(t), sb, "sparse")
	isPathError(t, err, sandpit.ErrQuota)
	_, err = sandpit.ReadFile(guarded(t), sb, "missing")
	isPathError(t, err, fs.ErrNotExist)
	isPathError(t, sandpit.WriteFile(guarded(t), sb, "missing/f", nil, 0), fs.ErrNotExist)
}

// localTree makes a directory of this machine with files and links.
func localTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "bin/deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "bin/run"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	must(t, os.Symlink("/usr/bin/env", filepath.Join(dir, "bin/env")))
	must(t, os.Symlink("../nowhere", filepath.Join(dir, "dangling")))
	return dir
}

// described lists what is in a directory of this machine, with modes, contents and targets.
func described(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch info.Mode().Type() {
		case 0:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			content = string(b)
		case fs.ModeSymlink:
			if content, err = os.Readlink(name); err != nil {
				return err
			}
		}
		all[name[len(dir):]] = info.Mode().String() + " " + content
		return nil
	}))
	return all
}

func testCopyInAndOut(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	from, to := localTree(t), filepath.Join(t.TempDir(), "new", "dir")
	must(t, sandpit.CopyIn(guarded(t), sb, from, "/tmp/a/b", sandpit.CopyOptions{}))
	if got := shell(t, sb, "cd /tmp/a/b && cat bin/run && readlink bin/env dangling"); got != "#!/bin/sh\n/usr/bin/env\n../nowhere" {
		t.Errorf("inside it is %q", got)
	}
	for range 2 { // and once more over what is there
		must(t, sandpit.CopyOut(guarded(t), sb, "/tmp/a/b", to, sandpit.CopyOptions{}))
		if got, want := described(t, to), described(t, from); !maps.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		must(t, sandpit.CopyIn(guarded(t), sb, from, "/tmp/a/b", sandpit.CopyOptions{}))
	}
	if err := sandpit.CopyIn(guarded(t), sb, filepath.Join(from, "missing"), "/tmp/x", sandpit.CopyOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("copying in a missing directory: %v", err)
	}
	isPathError(t, sandpit.CopyOut(guarded(t), sb, "/tmp/missing", t.TempDir(), sandpit.CopyOptions{}), fs.ErrNotExist)
	isPathError(t, sandpit.CopyOut(guarded(t), sb, "/tmp/a/b/empty", t.TempDir(), sandpit.CopyOptions{}), sandpit.ErrNotDirectory)
}

func testCopyLeavesOut(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	dir := t.TempDir()
	shell(t, sb, "mkdir -p /tmp/out/d && cd /tmp/out && echo x >d/f && echo y >z && truncate -s 2G big")
	wantKind(t, sandpit.CopyOut(guarded(t), sb, "/tmp/out", dir, sandpit.CopyOptions{}), sandpit.ErrQuota)
	shell(t, sb, "rm /tmp/out/big; mkfifo /tmp/out/pipe")
	wantKind(t, sandpit.CopyOut(guarded(t), sb, "/tmp/out", dir, sandpit.CopyOptions{MaxFiles: 2}), sandpit.ErrQuota)
	// A link is in the place of a directory: what belongs there is left out, the rest is not.
	outside := t.TempDir()
	must(t, os.RemoveAll(filepath.Join(dir, "d")))
	must(t, os.Symlink(outside, filepath.Join(dir, "d")))
	err := sandpit.CopyOut(guarded(t), sb, "/tmp/out", dir, sandpit.CopyOptions{})
	left, ok := errors.AsType[*sandpit.CopyError](err)
	if !ok || left.More > 0 || !errors.Is(err, sandpit.ErrUnsupported) {
		t.Fatalf("got %v", err)
	}
	var names []string
	for _, s := range left.Skipped {
		names = append(names, s.Path)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"d", "d/f", "pipe"}) {
		t.Errorf("left out: %q", names)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "z")); err != nil || string(got) != "y\n" {
		t.Errorf("the rest: %q, %v", got, err)
	}
	if all, err := os.ReadDir(outside); err != nil || len(all) > 0 {
		t.Errorf("outside there are %v, %v", all, err)
	}
}

// leftOut returns the paths that a copy has left out, sorted.
func leftOut(t *testing.T, err error) (names []string) {
	t.Helper()
	left, ok := errors.AsType[*sandpit.CopyError](err)
	if !ok || left.More > 0 {
		t.Fatalf("got %v", err)
	}
	for _, s := range left.Skipped {
		names = append(names, s.Path)
	}
	slices.Sort(names)
	return names
}

// What the sandbox's user may not read or write is left out. Everything else is copied, in the
// order before and after it.
func testCopyPastPermissions(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	shell(t, sb, "mkdir -p /tmp/in/m /tmp/in/old && chmod 555 /tmp/in/m && echo was >/tmp/in/z && ln -s nowhere /tmp/in/l")
	from := t.TempDir()
	for name, content := range map[string]string{"a": "first", "m/x": "1", "m/y": "2", "n/x": "next", "z": "last"} {
		must(t, os.MkdirAll(filepath.Join(from, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o640))
	}
	must(t, os.Symlink("z", filepath.Join(from, "l")))
	must(t, os.Chmod(filepath.Join(from, "n"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(from, "n"), 0o755) }) // or an ordinary user can't remove it
	err := sandpit.CopyIn(guarded(t), sb, from, "/tmp/in", sandpit.CopyOptions{})
	if got := leftOut(t, err); !slices.Equal(got, []string{"m/x", "m/y"}) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("left out of what was copied in: %q, %v", got, err)
	}
	if got := shell(t, sb, "cd /tmp/in && cat a n/x z && readlink l && stat -c %a n z"); got != "firstnextlastz\n555\n640" {
		t.Errorf("inside is %q", got)
	}
	shell(t, sb, "mkdir -p /tmp/out/m/d /tmp/out/n && cd /tmp/out && echo 1 >a && echo 2 >m/d/x && echo 3 >n/x && echo 4 >secret && echo 5 >z && ln -s z l && mkfifo pipe && chmod 0 secret m/d")
	to := t.TempDir()
	err = sandpit.CopyOut(guarded(t), sb, "/tmp/out", to, sandpit.CopyOptions{})
	if got := leftOut(t, err); !slices.Equal(got, []string{"m/d", "pipe", "secret"}) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("left out of what was copied out: %q, %v", got, err)
	}
	for name, want := range map[string]string{"a": "1\n", "n/x": "3\n", "z": "5\n", "l": "5\n"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	none := filepath.Join(to, "none") // of a directory that can't be read, nothing is made
	err = sandpit.CopyOut(guarded(t), sb, "/tmp/out/m/d", none, sandpit.CopyOptions{})
	if _, partly := errors.AsType[*sandpit.CopyError](err); partly || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a directory that can't be read: %v", err)
	}
	if _, err := os.Lstat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made for a directory that can't be read: %v", err)
	}
	shell(t, sb, "chmod 755 /tmp/in/m /tmp/in/n /tmp/out/m/d")
}

func testCopyFollowsLinks(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	from, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte("secret"), 0o644))
	must(t, os.MkdirAll(filepath.Join(from, "d/e"), 0o755))
	must(t, os.WriteFile(filepath.Join(from, "d/x"), []byte("x"), 0o644))
	for name, target := range map[string]string{
		"file": "d/x", "dir": "d", "d/e/up": "..", "top": ".", "absolute": outside, "out": "../" + filepath.Base(filepath.Dir(outside)) + "/secret", "dangling": "no",
	} {
		must(t, os.Symlink(target, filepath.Join(from, name)))
	}
	err := sandpit.CopyIn(guarded(t), sb, from, "/tmp/in", sandpit.CopyOptions{Follow: true})
	if got := leftOut(t, err); !slices.Equal(got, []string{"absolute", "d/e/up", "dangling", "dir/e/up", "out", "top"}) {
		t.Errorf("left out: %q", got)
	}
	if got := shell(t, sb, "cd /tmp/in && find . ! -type d | sort && cat file dir/x"); got != "./d/x\n./dir/x\n./file\nxx" {
		t.Errorf("inside is %q", got)
	}
	wantKind(t, sandpit.CopyOut(guarded(t), sb, "/tmp/in", t.TempDir(), sandpit.CopyOptions{Follow: true}), sandpit.ErrUnsupported)
}

// task is a Task with the image of the suite.
func (e *env) task(task sandpit.Task) sandpit.Task {
	task.Spec.Image = e.opt.Image
	task.Spec.Labels = map[string]string{"of": "task"}
	return task
}

// noTask checks that no sandbox of a task is left.
func (e *env) noTask(t *testing.T) {
	t.Helper()
	page, err := e.client.List(t.Context(), sandpit.ListQuery{Labels: map[string]string{"of": "task"}})
	if err != nil || len(page.Sandboxes) > 0 {
		t.Errorf("left behind: %+v, %v", page.Sandboxes, err)
	}
}

func testDo(t *testing.T, e *env) {
	res, err := sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{
		Files:   map[string][]byte{"/tmp/in/words": []byte("pit\nsand\nbox\n")},
		Command: sandpit.Command{Script: "cd /tmp; sort in/words >out; echo sorted; echo warning >&2"},
		Outputs: []string{"/tmp/out", "/tmp/in/words"},
	}))
	if err != nil || string(res.Stdout) != "sorted\n" || string(res.Stderr) != "warning\n" || string(res.Files["/tmp/out"]) != "box\npit\nsand\n" || len(res.Files) != 2 {
		t.Errorf("got %+v, %v", res, err)
	}
	e.noTask(t)
	// A command that fails has its output, and the files that it made.
	res, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{
		Command: sandpit.Command{Script: "echo why >&2; echo part >/tmp/part; exit 3"},
		Outputs: []string{"/tmp/part", "/tmp/whole"},
	}))
	if err != nil || res.ExitCode != 3 || string(res.Stderr) != "why\n" || len(res.Files) != 1 || string(res.Files["/tmp/part"]) != "part\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	e.noTask(t)
}

func testDoFails(t *testing.T, e *env) {
	res, err := sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{
		Command: sandpit.Command{Script: "echo done; echo 123 >/tmp/small; truncate -s 1T /tmp/big"},
		Outputs: []string{"/tmp/missing", "/tmp/big", "/tmp/small"}, MaxOutputs: 4,
	}))
	isPathError(t, err, fs.ErrNotExist)
	if string(res.Stdout) != "done\n" || string(res.Files["/tmp/small"]) != "123\n" {
		t.Errorf("got %+v", res)
	}
	_, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{
		Command: sandpit.Command{Script: "echo 123 | tee /tmp/a >/tmp/b"}, Outputs: []string{"/tmp/a", "/tmp/b"}, MaxOutputs: 7,
	}))
	isPathError(t, err, sandpit.ErrQuota)
	_, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{Command: sandpit.Command{Argv: []string{"/nowhere"}}}))
	wantKind(t, err, sandpit.ErrStart)
	_, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{Files: map[string][]byte{"/proc/no/file": nil}, Command: sandpit.Command{Script: "true"}}))
	if err == nil {
		t.Error("a file was written to /proc")
	}
	_, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{Command: sandpit.Command{Script: "true", Stdin: true}}))
	wantKind(t, err, sandpit.ErrInvalid)
	_, err = sandpit.Do(guarded(t), e.client, e.task(sandpit.Task{Command: sandpit.Command{Script: "true"}, MaxOutputs: -1}))
	wantKind(t, err, sandpit.ErrInvalid)
	// A context that ends while the command runs.
	ctx, cancel := context.WithCancel(guarded(t))
	task := e.task(sandpit.Task{Command: sandpit.Command{Script: "echo running; sleep 1000", Stdout: writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })}})
	_, err = sandpit.Do(ctx, e.client, task)
	wantKind(t, err, context.Canceled)
	e.noTask(t)
}
