package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"

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
		echo t > /tmp/t; mkfifo /opt/x/fifo; echo n > /etc/hostname; echo w > /opt/x/.wh.a; mkdir /opt/x/.wh.d`)
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
	if want := "/opt/x\n1\none\none\na\n4755 2 0\n1000:1000\n700\ngone\nmore\n/opt/x:\na\nb\nempty\nl\n\n/tmp:\n"; got != want {
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

// A sandbox that was paused while it was saved runs on after its engine was killed.
func TestKilledCommitResumes(t *testing.T) {
	srv := newSurvivor(t)
	box, pid := srv.leave(t, true)
	mark := filepath.Join(srv.dir, "logs", box.ID()+".saving")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o700), os.WriteFile(mark, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	e, _ := adopt(t, srv)
	sb, err := e.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
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
