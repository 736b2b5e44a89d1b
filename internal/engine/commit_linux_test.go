package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func commit(t *testing.T, sb sandpit.Sandbox, c sandpit.Commit) sandpit.SavedImage {
	t.Helper()
	saved, err := sb.(sandpit.Committer).Commit(t.Context(), c)
	if errors.Is(err, sandpit.ErrUnsupported) && strings.Contains(err.Error(), "paused") {
		testkit.Lacks(t, "the cgroup freezer: "+err.Error())
	}
	if err != nil {
		t.Fatal(err, sandpit.Hint(err))
	}
	return saved
}

// must runs a script that has to succeed, and returns what it wrote.
func must(t *testing.T, sb sandpit.Sandbox, script string) string {
	t.Helper()
	out, result := shell(t, sb, "set -e\n"+script)
	if result.ExitCode != 0 {
		t.Fatalf("%s: %+v: %s", script, result, out)
	}
	return out
}

// What a sandbox of the host's image has changed is an image, for sandboxes that may do the same.
func TestCommitOverTheHost(t *testing.T) {
	e := newEngine(t)
	sb := create(t, e, sandpit.Spec{User: "root", WorkDir: "/"})
	must(t, sb, `
		mkdir -p /opt/x/empty; echo one > /opt/x/a; ln /opt/x/a /opt/x/b; ln -s a /opt/x/l; chmod 4755 /opt/x/a
		rm /etc/group; echo more >> /etc/profile; chown 1000:1000 /opt/x/empty; chmod 0700 /root
		echo t > /tmp/t; mkdir /tmp/.sandpit-mine; mkfifo /opt/x/fifo; echo n > /etc/hostname; echo w > /opt/x/.wh.a; mkdir /opt/x/.wh.d`)
	saved := commit(t, sb, sandpit.Commit{Name: "app", Env: []string{"A=1"}, WorkDir: "/opt/x", Labels: map[string]string{"l": "v"}})
	if saved.Name != "saved:app" || !strings.HasPrefix(saved.Digest, "sha256:") || len(saved.LeftOut) != 3 {
		t.Errorf("got %+v", saved)
	}
	if got := must(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("it wrote %q", got)
	}
	next := create(t, e, sandpit.Spec{Image: "saved:app", User: "root"})
	got := must(t, next, `
		pwd; echo $A; cat a b; readlink l; stat -c '%a %h %u' a; stat -c '%u:%g' empty; stat -c %a /root
		test -e /etc/group || echo gone; tail -1 /etc/profile; ls -A /opt/x /tmp; test "$(cat /etc/hostname)" != n`)
	if want := "/opt/x\n1\none\none\na\n4755 2 0\n1000:1000\n700\ngone\nmore\n/opt/x:\na\nb\nempty\nl\n\n/tmp:\n.sandpit-mine\nt\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// A layer over that one, and one by its digest.
	must(t, next, "rm -r /opt/x; mkdir /opt/x; echo two > /opt/x/c; mv /opt/x /opt/y; mkdir /opt/x; touch /opt/x/new")
	second := commit(t, next, sandpit.Commit{Name: "app"})
	third := create(t, e, sandpit.Spec{Image: second.Digest, User: "root"})
	if got := must(t, third, "ls /opt/x; cat /opt/y/c; python3 -c 'print(6*7)' || echo 42"); got != "new\ntwo\n42\n" {
		t.Errorf("got %q", got)
	}
}

// A sandbox that was paused while it was saved runs on after its engine was killed, and what was written of the image
// is removed.
func TestKilledCommitResumes(t *testing.T) {
	srv := newSurvivor(t)
	box, pid := srv.leave(t, true)
	mark := filepath.Join(srv.dir, "logs", box.ID()+".saving")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o700), os.WriteFile(mark, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	images, _ := engine.Home(srv.dir)
	half := filepath.Join(images, "tmp", "half")
	if err := errors.Join(os.MkdirAll(filepath.Dir(half), 0o700), os.WriteFile(half, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	e, _ := adopt(t, srv)
	sb, err := e.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the unfinished file is gone", func() bool {
		_, err := os.Lstat(half)
		return errors.Is(err, os.ErrNotExist)
	})
	eventually(t, "it runs", func() bool {
		info, err := sb.Info(t.Context())
		return err == nil && info.State == sandpit.StateRunning
	})
	if out, result := shell(t, sb, "echo alive"); out != "alive\n" || !alive(pid) {
		t.Errorf("%q, %+v", out, result)
	}
	eventually(t, "the mark is gone", func() bool {
		_, err := os.Lstat(mark)
		return errors.Is(err, os.ErrNotExist)
	})
}

// A disk that hangs while a sandbox is saved does not keep the sandbox paused.
func TestStuckCommit(t *testing.T) {
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}), Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(), Patience: engine.Patience{Undo: time.Millisecond},
	})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	sb := create(t, e, sandpit.Spec{User: "root", WorkDir: "/"})
	commit(t, sb, sandpit.Commit{Name: "first"})
	// Whoever reads the records of images waits in the kernel.
	record := filepath.Join(images, "images", strings.Repeat("0", 64))
	if err := unix.Mkfifo(record, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := sb.(sandpit.Committer).Commit(ctx, sandpit.Commit{Name: "second"})
		ended <- err
	}()
	is := func(state sandpit.State) func() bool {
		return func() bool {
			info, err := sb.Info(t.Context())
			return err == nil && info.State == state
		}
	}
	eventually(t, "it is paused", is(sandpit.StatePaused))
	leave()
	if err := <-ended; !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	eventually(t, "it runs", is(sandpit.StateRunning))
	if got := must(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("it wrote %q", got)
	}
	if err := os.Rename(record, record+".away"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(record+".away", os.O_RDWR, 0)
	if err := errors.Join(err, f.Close(), os.Remove(record+".away")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
	commit(t, sb, sandpit.Commit{Name: "second"})
}

// A context goes on where it was when its sandbox is paused to be saved, also in the middle of a run.
func TestCommitKeepsContexts(t *testing.T) {
	e := newEngine(t)
	sb := create(t, e, sandpit.Spec{User: "root", WorkDir: "/"})
	run := func(source string, stdout io.Writer) error {
		result, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Stdout: stdout})
		if err == nil && result.Error != nil {
			err = fmt.Errorf("%s: %s", result.Error.Name, result.Error.Value)
		}
		return err
	}
	if err := run("import os, time\nx = [41]\nf = open('/opt/open', 'w')\nf.write('half ')", nil); err != nil {
		t.Fatal(err)
	}
	before, err := sb.Contexts(t.Context())
	if err != nil || len(before) != 1 {
		t.Fatal(before, err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- run("open('/opt/begun', 'w').close()\nwhile not os.path.exists('/opt/go'): time.sleep(0.01)\nx.append(42)", nil)
	}()
	must(t, sb, "while ! test -e /opt/begun; do sleep 0.01; done")
	if saved := commit(t, sb, sandpit.Commit{Name: "app"}); len(saved.LeftOut) > 0 {
		t.Errorf("left out is %q", saved.LeftOut)
	}
	must(t, sb, "touch /opt/go")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run("print(x, f.write('done'))\nf.close()", &out); err != nil || out.String() != "[41, 42] 4\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	after, err := sb.Contexts(t.Context())
	if err != nil || len(after) != 1 || after[0].Process != before[0].Process {
		t.Errorf("the context was %+v and is %+v, %v", before, after, err)
	}
	if got := must(t, sb, "cat /opt/open"); got != "half done" {
		t.Errorf("the file has %q", got)
	}
	// The image has files, and no context.
	next := create(t, e, sandpit.Spec{Image: "saved:app", User: "root", WorkDir: "/"})
	if all, err := next.Contexts(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the next sandbox has %+v, %v", all, err)
	}
	must(t, next, "test -e /opt/begun; ! test -e /opt/go")
}
