package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// L18: a server whose database was lost does not start beside the sandboxes that
// it had, and touches none of them; with the database restored it takes them over.
func TestLostDatabaseOrphansNothingSilently(t *testing.T) {
	srv := newServed(t).start()
	c := srv.unix()
	sb := createOf(t, c, sandpit.Spec{Name: "box"}) // without limits, for ordinary users
	id := sb.ID()
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}

	state, backup := filepath.Join(srv.home, "state"), filepath.Join(srv.home, "backup")
	refused := func(what string) {
		t.Helper()
		err := server.Run(t.Context(), srv.options())
		if !errors.Is(err, engine.ErrOrphans) || !strings.Contains(err.Error(), id) || !strings.Contains(sandpit.Hint(err), "--remove-orphans") {
			t.Errorf("%s: the server ended with %v, hint %q", what, err, sandpit.Hint(err))
		}
	}
	if err := os.Rename(state, backup); err != nil {
		t.Fatal(err)
	}
	refused("without a database")
	refused("with the empty one that it has made")

	// The database is back: so is the sandbox, with its process.
	if err := errors.Join(os.RemoveAll(state), os.Rename(backup, state)); err != nil {
		t.Fatal(err)
	}
	srv.start()
	c = srv.unix()
	if sb, err := c.Get(t.Context(), "box"); err != nil {
		t.Error(err)
	} else if all, err := sb.Processes(t.Context()); err != nil || len(all) != 1 || all[0].Result != nil {
		t.Errorf("its processes are %+v, %v", all, err)
	}
	_ = c.Close()
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}

	// A note that tells nothing hides no sandbox.
	note := filepath.Join(server.KeepDir(srv.home), id+".json")
	whole, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(state), os.Remove(note)); err != nil {
		t.Fatal(err)
	}
	refused("without a note")
	if err := os.WriteFile(note, whole, 0o600); err != nil {
		t.Fatal(err)
	}

	// Whoever says so has it removed.
	srv.removeOrphans = true
	srv.start()
	for _, dir := range []string{server.KeepDir(srv.home), filepath.Join(srv.home, "images", "kept"), filepath.Join(srv.home, "sandboxes")} {
		if left, err := os.ReadDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			t.Errorf("left in %s are %v, %v", dir, left, err)
		}
	}
	var list v1.SandboxList
	c = srv.unix()
	defer c.Close()
	if err := c.Call(t.Context(), "GET", "/v1/sandboxes", nil, &list); err != nil || len(list.Sandboxes) != 0 {
		t.Errorf("there are %+v, %v", list, err)
	}
	if !strings.Contains(srv.log.String(), "removing a sandbox that has no record") {
		t.Error("the log does not say what was removed")
	}
}

// L18: a server whose data directory was moved to another disk, or is a copy of one that was
// renamed, names the sandboxes that run, and serves without them. It never ends them, even
// when it is told to remove orphans. When they have ended they have failed.
func TestMovedToAnotherDisk(t *testing.T) {
	for _, what := range []string{"moved", "linked", "copied"} {
		t.Run(what, func(t *testing.T) { movedToAnotherDisk(t, what) })
	}
}

func movedToAnotherDisk(t *testing.T, what string) {
	srv := newServed(t).start()
	c := srv.unix()
	sb := createOf(t, c, sandpit.Spec{Name: "box"}) // without limits, for ordinary users
	_ = c.Close()
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}
	// As mv does it: sockets are made again, and nobody listens at them.
	original := srv.home
	srv.home = newServed(t).home
	if out, err := exec.Command("cp", "-a", original+"/.", srv.home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var err error
	switch what {
	case "moved":
		err = os.RemoveAll(original)
	case "linked":
		err = errors.Join(os.RemoveAll(original), os.Symlink(srv.home, original))
	case "copied":
		err = os.Rename(original, original+".renamed")
	}
	if err != nil {
		t.Fatal(err)
	}
	note, err := os.ReadFile(filepath.Join(server.KeepDir(srv.home), sb.ID()+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var first struct{ PID int }
	if err := json.Unmarshal(note, &first); err != nil || first.PID <= 1 {
		t.Fatalf("the note is %s: %v", note, err)
	}
	t.Cleanup(func() { _ = unix.Kill(first.PID, unix.SIGKILL) })

	for range 2 {
		before := srv.log.String()
		srv.start()
		if log := strings.TrimPrefix(srv.log.String(), before); !strings.Contains(log, "a sandbox could not be adopted") || !strings.Contains(log, fmt.Sprintf("it is running as process %d", first.PID)) {
			t.Errorf("the log does not say what runs:\n%s", log)
		}
		if err := srv.stop(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(first.PID, 0); err != nil {
			t.Fatalf("the sandbox has ended: %v", err)
		}
		srv.removeOrphans = true
	}

	// The server of the renamed original has it. Elsewhere the operator ends it.
	want := sandpit.StateFailed
	if what == "copied" {
		srv.home, want = original+".renamed", sandpit.StateRunning
	} else {
		if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "it has ended", func() bool { return unix.Kill(first.PID, 0) != nil })
	}
	srv.start()
	c = srv.unix()
	defer c.Close()
	if sb, err := c.Get(t.Context(), "box"); err != nil {
		t.Error(err)
	} else if info, err := sb.Info(t.Context()); err != nil || info.State != want {
		t.Errorf("it is %+v, %v", info, err)
	} else if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(server.KeepDir(srv.home)); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
