package sandpittest

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var commitProperties = []property{
	{"the changed files of a sandbox are an image for others", func(t *testing.T, e *env) {
		committer := func(sb sandpit.Sandbox) sandpit.Committer {
			c, ok := sb.(sandpit.Committer)
			if !ok {
				t.Fatal("it is not a Committer")
			}
			return c
		}
		sb := e.sandbox(t, sandpit.Spec{User: "root", WorkDir: "/"})
		say := func(sb sandpit.Sandbox, script string) string {
			t.Helper()
			out, err := sandpit.Shell(t.Context(), sb, script)
			if err != nil || !out.Result.Success() {
				t.Fatalf("%s: %v, %+v: %s", script, err, out.Result, out.Stderr)
			}
			return strings.TrimSpace(string(out.Stdout))
		}
		say(sb, "mkdir /opt/kept && echo one > /opt/kept/file && echo t > /tmp/too")
		saved, err := committer(sb).Commit(t.Context(), sandpit.Commit{Name: "kept", NoPause: true, Env: []string{"SAVED=a b"}, Cmd: []string{"cat", "/opt/kept/file"}, Labels: map[string]string{"l": "v"}})
		if err != nil {
			t.Fatal(err)
		}
		if saved.Name != "saved:kept" || !strings.HasPrefix(saved.Digest, "sha256:") || saved.Size <= 0 || len(saved.LeftOut) > 0 {
			t.Errorf("got %+v", saved)
		}
		next := e.sandbox(t, sandpit.Spec{Image: saved.Name, User: "root", WorkDir: "/"})
		if got := say(next, `cat /opt/kept/file; ls /tmp; echo "$SAVED"`); got != "one\ntoo\na b" {
			t.Errorf("got %q", got)
		}
		if info, err := next.Info(t.Context()); err != nil || info.Image != "saved:kept@"+saved.Digest {
			t.Errorf("the image is %q, %v", info.Image, err)
		}
		out, err := sandpit.Run(t.Context(), next, sandpit.Command{FromImage: true})
		if err != nil || string(out.Stdout) != "one\n" {
			t.Errorf("the command wrote %q, %v", out.Stdout, err)
		}
		// The sandbox was not changed, and can be saved again, under the same name.
		say(sb, "echo two > /opt/kept/file")
		again, err := committer(sb).Commit(t.Context(), sandpit.Commit{Name: "kept", NoPause: true})
		if err != nil || again.Digest == saved.Digest {
			t.Errorf("got %+v, %v", again, err)
		}
		if got := say(e.sandbox(t, sandpit.Spec{Image: "saved:kept", User: "root", WorkDir: "/"}), "cat /opt/kept/file"); got != "two" {
			t.Errorf("got %q", got)
		}
	}},
	{"a sandbox that is paused while it is saved runs on", func(t *testing.T, e *env) {
		e.need(t, feature.Pause)
		sb := e.sandbox(t, sandpit.Spec{User: "root", WorkDir: "/"})
		if _, err := sb.(sandpit.Committer).Commit(t.Context(), sandpit.Commit{Name: "paused"}); err != nil {
			t.Fatal(err)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StateRunning {
			t.Errorf("it is %s, %v", info.State, err)
		}
		if out, err := sandpit.Shell(t.Context(), sb, "echo alive"); err != nil || string(out.Stdout) != "alive\n" {
			t.Errorf("it wrote %q, %v", out.Stdout, err)
		}
	}},
	{"what can't be an image is refused", func(t *testing.T, e *env) {
		sb := e.sandbox(t, sandpit.Spec{User: "root", WorkDir: "/"})
		for _, c := range []sandpit.Commit{
			{},
			{Name: "a/b"},
			{Name: "../a"},
			{Name: "a:"},
			{Name: "a:b:c"},
			{Name: "a:b@c"},
			{Name: "a", WorkDir: "rel"},
			{Name: "a", Env: []string{"=x"}},
			{Name: "a", Env: []string{"x"}},
			{Name: "a", User: strings.Repeat("u", 1000)},
			{Name: "a", User: "root\n"},
			{Name: "a", User: "u\u0085"},
			{Name: "a", WorkDir: "/w\x1b[2J"},
			{Name: "a", Labels: map[string]string{"l": "v\n"}},
			{Name: "a", Labels: map[string]string{"l\x7f": "v"}},
			{Name: "a", Cmd: []string{"a\x00b"}},
		} {
			c.NoPause = true
			if _, err := sb.(sandpit.Committer).Commit(t.Context(), c); !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("%+v: got %v", c, err)
			}
		}
		if _, err := e.client.Create(t.Context(), sandpit.Spec{Image: "saved:never"}); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}},
}
