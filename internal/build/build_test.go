package build

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// in returns a caller in a namespace.
func in(namespace string) gate.Caller { return gate.Caller{Namespace: namespace} }

// newBuild returns a build that lives until it has told that it is over.
func newBuild(bs *Builds, namespace, name string) *Build {
	b := &Build{host: &bs.host, namespace: namespaceOf(in(namespace)), request: Request{Template: name}}
	life, end := context.WithCancelCause(context.Background())
	b.life, b.over = life, func() { end(nil) }
	return b
}

// A build that is still being made has no sandbox for its archives, and gets none.
func TestBuildsWithoutAPlace(t *testing.T) {
	all := New(Host{})
	b := newBuild(all, "n", "t")
	if left, err := all.add(b); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	if found := all.Waiting(in("n"), "t"); found != nil {
		t.Errorf("%+v is found before it has a place", found)
	}
	if !all.place(b, struct{ engine.Box }{}) || all.Waiting(in("n"), "t") != b || all.Waiting(in("other"), "t") != nil {
		t.Error("it is not found in its namespace only")
	}
}

// stage is the sandbox of a build for its archives.
type stage struct {
	engine.Box
	name    string
	removed bool
}

func (s *stage) Remove(context.Context) error {
	s.removed = true
	return nil
}

// Of the builds of one template that wait, only the newest goes on, and what is left of the others is returned: also of those that
// make room, and of one whose sandbox is still being made.
func TestNewBuildsReplaceThoseThatWait(t *testing.T) {
	all := New(Host{})
	add := func(namespace, name, want string) *Build {
		t.Helper()
		b := newBuild(all, namespace, name)
		left, err := all.add(b)
		var names []string
		for _, sb := range left {
			names = append(names, sb.(*stage).name)
		}
		if got := strings.Join(names, " "); got != want || err != nil {
			t.Errorf("%s of %s leaves %q, %v, want %q", name, namespace, got, err, want)
		}
		return b
	}
	placed := func(namespace, name, want, stageName string) *Build {
		t.Helper()
		b := add(namespace, name, want)
		if !all.place(b, &stage{name: stageName}) {
			t.Errorf("%s of %s has no place", name, namespace)
		}
		return b
	}
	first := placed("n", "t", "", "first")
	placed("n", "other", "", "another template")
	placed("m", "t", "", "another namespace")
	placed("n", "t", "first", "second")
	if first.Report(0, 100).Status != Failed || first.Report(0, 100).Reason.Message != replaced {
		t.Errorf("the first is told %+v", first.Report(0, 100))
	}
	slow := add("n", "t", "second")
	placed("n", "t", "", "after the slow one")
	if all.place(slow, &stage{}) {
		t.Error("a build that was replaced gets a place")
	}
	for i := range maxBuildsOfOne {
		want := ""
		switch i { // those that have ended make room before those that wait
		case maxBuildsOfOne - 2:
			want = "another template"
		case maxBuildsOfOne - 1:
			want = "after the slow one"
		}
		placed("n", fmt.Sprint("more", i), want, fmt.Sprint(i))
	}

	// Namespaces with many that wait do not keep others out.
	all = New(Host{})
	for i := range maxBuilds {
		placed(fmt.Sprint("n", i/maxBuildsOfOne), fmt.Sprint("t", i%maxBuildsOfOne), "", fmt.Sprint("waits ", i))
	}
	for i := range 2 {
		placed("new", fmt.Sprint("t", i), fmt.Sprint("waits ", i), "")
	}
	for _, b := range all.all {
		b.status = Building
	}
	if _, err := all.add(newBuild(all, "newer", "t")); errcode.Of(err) != errcode.Overloaded {
		t.Errorf("where all run: %v", err)
	}
}

// A panic in a build ends the build, and not the server.
func TestBuildPanics(t *testing.T) {
	log := new(testkit.Buffer)
	bs, st := New(Host{Server: dialect.Server{Log: slog.New(slog.NewTextHandler(log, nil))}}), new(stage) // it has no engine
	b := newBuild(bs, "n", "t")
	b.stage = st
	b.run(t.Context(), new(Plan))
	if got := b.Report(0, 100); got.Status != Failed || got.Reason.Message != "internal error in the server" {
		t.Errorf("the build: %+v", got)
	}
	if !st.removed || !strings.Contains(log.String(), "a build of a template panicked") {
		t.Errorf("its sandbox is removed: %v; the log: %s", st.removed, log)
	}
}

// A build that waits and gets nothing ends, and its sandbox is removed. One that gets files goes on, and one that was abandoned is
// not abandoned again.
func TestBuildsThatGetNothingEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := New(Host{})
		var made []*Build
		for _, name := range []string{"idle", "busy"} {
			b := newBuild(bs, "n", name)
			if _, err := bs.add(b); err != nil || !bs.place(b, &stage{name: name}) {
				t.Fatal(err)
			}
			made = append(made, b)
		}
		idle, busy := made[0], made[1]
		time.Sleep(maxIdleTime / 2)
		if _, err := (upload{strings.NewReader("x"), busy}).Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxIdleTime/2 + 1)
		synctest.Wait()
		if idle.present() != Failed || !idle.stage.(*stage).removed || !strings.Contains(idle.reason.Message, "neither files nor its start") {
			t.Errorf("the one that got nothing is %s, %+v", idle.present(), idle.reason)
		}
		if busy.present() != Waiting || busy.stage.(*stage).removed {
			t.Errorf("the one that got files is %s", busy.present())
		}
		if bs.abandon(busy, "first"); busy.present() != Failed || !busy.stage.(*stage).removed {
			t.Errorf("the one that was abandoned is %s", busy.present())
		}
		if bs.abandon(busy, "second"); busy.reason.Message != "first" {
			t.Error("a build was abandoned twice")
		}
		bs.remove(busy)
	})
}

// A build whose start is refused ends, and its sandbox is removed, unless the refusal says when to try again.
func TestBuildsWhoseStartIsRefused(t *testing.T) {
	bs, st := New(Host{}), new(stage)
	b := newBuild(bs, "n", "t")
	if _, err := bs.add(b); err != nil || !bs.place(b, st) {
		t.Fatal(err)
	}
	defer bs.remove(b)
	if bs.Refuse(b, gate.Failure{Code: errcode.Overloaded, Message: "busy", After: time.Second}); b.present() != Waiting || st.removed {
		t.Errorf("after a refusal for a while it is %s, and its sandbox is removed: %v", b.present(), st.removed)
	}
	if bs.Refuse(b, gate.Failure{Code: errcode.Invalid, Message: "bad", Hint: "mend it"}); b.present() != Failed || !st.removed || b.reason.Message != "bad (mend it)" {
		t.Errorf("after a refusal it is %s, %+v, and its sandbox is removed: %v", b.present(), b.reason, st.removed)
	}
}

// A build that waits ends with the life of its key, and not with that of the server. However it ends, the gate learns that it is over.
func TestBuildsThatWaitEndWithTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := New(Host{})
		ends := func(name, why string, end func(b *Build)) {
			t.Helper()
			b, st := newBuild(bs, "n", name), new(stage)
			life, cancel := context.WithCancelCause(t.Context())
			over := b.over
			b.life, b.over = life, func() { over(); cancel(nil) }
			if _, err := bs.add(b); err != nil || !bs.place(b, st) {
				t.Fatal(err)
			}
			switch name {
			case "revoked":
				cancel(gate.ErrKeyEnded)
			case "draining":
				cancel(gate.ErrDraining)
			}
			synctest.Wait()
			if waits := name != "revoked"; (b.present() == Waiting) != waits || st.removed == waits {
				t.Errorf("%s: it is %s, and its sandbox is removed: %v", name, b.present(), st.removed)
			}
			end(b)
			synctest.Wait()
			if got := b.Report(0, 100).Reason; life.Err() == nil || why != "" && (got == nil || !strings.Contains(got.Message, why)) {
				t.Errorf("%s: it is told %+v, over: %v", name, got, life.Err())
			}
			bs.remove(b)
		}
		ends("revoked", "the key is no longer valid", func(*Build) {})
		ends("draining", "", bs.remove)
		ends("removed", "", bs.remove)
		ends("abandoned", "why", func(b *Build) { bs.abandon(b, "why") })
		ends("replaced", replaced, func(b *Build) { _, _ = bs.add(newBuild(bs, "n", b.request.Template)) })
		ends("made room", "newer builds", func(b *Build) {
			for i := range maxBuildsOfOne {
				_, _ = bs.add(newBuild(bs, "n", fmt.Sprint("other", i)))
			}
		})
		ends("busy for too long", "was not started within", func(b *Build) {
			for range maxBuildTime/maxIdleTime*2 + 1 {
				time.Sleep(maxIdleTime / 2)
				b.idle.Reset(maxIdleTime)
			}
			synctest.Wait()
			_ = b.present()
		})
		for _, b := range bs.all {
			b.idle.Stop()
			b.over()
		}
	})
}

// Only a command that waits and nothing else is a pause, and not run in sandboxes.
func TestIsPause(t *testing.T) {
	for command, want := range map[string]bool{"sleep 20": true, " sleep  1.5s\n": true, "sleep 2m": true, "": false, "sleep": false, "sleep 1; curl x": false, "sleep 1 && true": false, "sleep 1\ntrue": false, "usleep 1": false} {
		if isPause(command) != want {
			t.Errorf("%q: %v", command, !want)
		}
		start, ready := commandsOf([]string{"A=b", startVariable + "=serve", readyVariable + "=" + command})
		if start != "serve" || (ready == "") != (want || command == "") {
			t.Errorf("with %q, sandboxes run %q and %q", command, start, ready)
		}
	}
}
