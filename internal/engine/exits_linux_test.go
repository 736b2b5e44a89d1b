package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// ends notes which ends of processes are told, as "ID CODE".
type ends struct {
	mu  sync.Mutex
	all []string
}

func (e *ends) observe(_ string, ev sandpit.Event) {
	if ev.Kind == sandpit.EventExit {
		e.mu.Lock()
		e.all = append(e.all, fmt.Sprint(ev.Process, " ", *ev.Exit))
		e.mu.Unlock()
	}
}

// told returns what was told since it was asked last, sorted.
func (e *ends) told() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	slices.Sort(all)
	return all
}

// wait waits until so many ends were told.
func (e *ends) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " ends are told"), func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.all) >= n
	})
}

// announced asks the guest of a sandbox of which processes it knows that their
// ends were announced.
func announced(t *testing.T, srv *survivor, id string) (n int) {
	t.Helper()
	conn, err := fromOutside(t, srv, id).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(t.Context(), conn, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Announced {
			n++
		}
	}
	return n
}

// How a process ended is told once, however often the engine is replaced: that of
// one that ended before is not told again, that of one that ended while there was
// no engine is told by the next, and that an engine ends is nobody's end. It does
// not matter whether the engine was closed or killed. (The catalogue's L16.)
func TestExitsAreToldOnce(t *testing.T) {
	for name, paused := range map[string]bool{"running": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			var told ends
			observe := func(o *engine.Options) { o.Observe = told.observe }
			flag := func(name string) string { return filepath.Join(srv.dir, name) }
			until := func(name string, code int) string {
				return fmt.Sprintf("until [ -e %s ]; do sleep 0.02; done; echo >%s; exit %d", flag(name), flag(name+"-seen"), code)
			}
			touch := func(name string) {
				t.Helper()
				if err := os.WriteFile(flag(name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want := func(when string, list ...string) {
				t.Helper()
				told.wait(t, len(list))
				if got := told.told(); !slices.Equal(got, list) {
					t.Errorf("%s: told are %q, not %q", when, got, list)
				}
			}
			list := func(e *engine.Engine) sandpit.Sandbox {
				t.Helper()
				sb, err := e.Get(t.Context(), "box")
				if err != nil {
					t.Fatal(err)
				}
				return sb
			}

			first := srv.open(t, observe)
			sb := made(t, first, sandpit.Spec{Name: "box"})
			background(t, sb, "exit 3")
			ran, err := sandpit.Shell(t.Context(), sb, "exit 4")
			if err != nil || ran.ExitCode != 4 {
				t.Fatal(ran, err)
			}
			background(t, sb, until("a", 5))
			background(t, sb, until("b", 6))
			background(t, sb, until("c", 7))
			want("with the first engine", "p1 3", "p2 4")
			if err := first.Close(); err != nil { // at once: the guest is told before
				t.Fatal(err)
			}
			want("at the end of the first engine")
			touch("a")
			eventually(t, "it has ended", func() bool { _, err := os.Stat(flag("a-seen")); return err == nil })

			second, report := adopt(t, srv, observe)
			if report.Adopted != 1 {
				t.Fatalf("the report is %+v", report)
			}
			want("with the second engine", "p3 5")
			touch("b")
			want("of one that ran on", "p4 6")
			eventually(t, "the guest is told", func() bool { return announced(t, srv, sb.ID()) == 4 })
			if paused {
				if err := list(second).Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			}

			// The second is not closed: as if it had been killed, nothing is told to
			// anybody any more.
			third, report := adopt(t, srv, observe)
			if report.Adopted != 1 {
				t.Fatalf("the report is %+v", report)
			}
			if paused {
				wantState(t, list(third), sandpit.StatePaused)
			}
			want("with the third engine")
			if err := second.Close(); err != nil {
				t.Fatal(err)
			}
			want("at the end of the second engine")
			touch("c")
			if paused {
				if err := list(third).Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			want("of the last", "p5 7")
			all, err := list(third).Processes(t.Context())
			if err != nil || len(all) != 5 {
				t.Errorf("%d processes are known, %v", len(all), err)
			}
			for i, p := range all {
				if p.Result == nil || p.Result.ExitCode != 3+i {
					t.Errorf("%s ended with %+v", p.ID, p.Result)
				}
			}
			if err := list(third).Remove(t.Context()); err != nil {
				t.Error(err)
			}
			want("when all is removed")
		})
	}
}

// What is taken over is charged, and never refused: neither when the ledger is
// full, nor when it is more than the bounds of today allow.
func TestAdoptionIsCharged(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	sb := made(t, first, sandpit.Spec{Name: "box", Labels: map[string]string{"a": "b"}})
	background(t, sb, "echo written; exec sleep 10000")
	if res, err := background(t, sb, "exit 3").Wait(t.Context()); err != nil || res.ExitCode != 3 {
		t.Fatal(res, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ := srv.store.get(sb.ID())
	var d map[string]any
	if err := json.Unmarshal(r.Data, &d); err != nil {
		t.Fatal(err)
	}
	const size = 200 << 10
	d["labels"] = map[string]string{"a": strings.Repeat("x", size)}
	var err error
	if r.Data, err = json.Marshal(d); err != nil {
		t.Fatal(err)
	}
	if err := srv.store.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}

	book := ledger.New(ledger.Bounds{Total: 1})
	second, report := adopt(t, srv, func(o *engine.Options) { o.Memory = book })
	if report.Adopted != 1 || report.Processes != 1 || report.Refused != nil {
		t.Fatalf("the report is %+v", report)
	}
	if n := book.Used(); n < size {
		t.Errorf("%d bytes are charged", n)
	}
	if sb, err = second.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if all, err := sb.Processes(t.Context()); err != nil || len(all) == 0 || all[0].Result != nil {
		t.Errorf("the processes are %+v, %v", all, err)
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}}); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("a start: %v", err)
	}
	if _, err := second.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("a sandbox: %v", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	second.ForgetEvents()
	if n := book.Used(); n != 0 {
		t.Errorf("%d bytes are charged for nothing", n)
	}
}

// noteless is a driver whose guests know no OpAnnounced, as before there was one.
type noteless struct{ bare }

func (d noteless) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	return notelessInstance(d.bare.Create(ctx, plan))
}

func (d noteless) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	return notelessInstance(d.bare.Recover(ctx, h))
}

func notelessInstance(i driver.Instance, err error) (driver.Instance, error) {
	if err != nil {
		return nil, err
	}
	return deaf{i.(*bareInstance)}, nil
}

type deaf struct{ *bareInstance }

// Dial passes on what host and guest say, with an operation that nobody knows in
// the place of OpAnnounced.
func (i deaf) Dial(ctx context.Context) (net.Conn, error) {
	guest, err := i.bareInstance.Dial(ctx)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		_, _ = io.Copy(theirs, guest)
	}()
	go func() {
		defer guest.Close()
		r := wire.NewReader(theirs)
		for {
			h, err := r.Next()
			if err != nil {
				return
			}
			payload := make([]byte, h.Len)
			if r.Into(payload) != nil {
				return
			}
			if h.Type == wire.Open && len(payload) > 0 && wire.Op(payload[0]) == wire.OpAnnounced {
				payload[0] = 250
			}
			if _, err := guest.Write(wire.AppendFrame(nil, h.Type, h.Stream, payload)); err != nil {
				return
			}
		}
	}()
	return ours, nil
}

// L16: of a guest that can't note what was announced nothing is announced again.
func TestExitsOfOlderGuestsAreNotRepeated(t *testing.T) {
	srv := newSurvivor(t)
	var told ends
	older := func(o *engine.Options) { o.Observe, o.Driver = told.observe, noteless{o.Driver.(bare)} }
	e := srv.open(t, older)
	background(t, made(t, e, sandpit.Spec{Name: "box"}), "exit 3")
	told.wait(t, 1)
	want := []string{"p1 3"}
	for n := range 3 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		var report engine.AdoptReport
		if e, report = adopt(t, srv, older); report.Adopted != 1 {
			t.Fatalf("the report is %+v", report)
		}
		sb, err := e.Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		background(t, sb, "exit 4")
		want = append(want, fmt.Sprintf("p%d 4", n+2))
		told.wait(t, len(want))
	}
	if got := told.told(); !slices.Equal(got, want) {
		t.Errorf("told are %q, not %q", got, want)
	}
}
