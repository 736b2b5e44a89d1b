package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// speaking is a driver whose guests say that they speak other versions of the
// protocol.
type speaking struct {
	bare
	oldest, newest uint64
}

func (d speaking) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return speakingInstance{i.(*bareInstance), d}, nil
}

type speakingInstance struct {
	*bareInstance
	d speaking
}

// Dial passes on what host and guest say, with another greeting of the guest.
func (i speakingInstance) Dial(ctx context.Context) (net.Conn, error) {
	guest, err := i.bareInstance.Dial(ctx)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	go func() {
		defer guest.Close()
		_, _ = io.Copy(guest, theirs)
	}()
	go func() {
		defer theirs.Close()
		r := wire.NewReader(guest)
		h, err := r.Next()
		if err != nil || r.Skip(h.Len) != nil {
			return
		}
		hello := wire.HelloMessage{Version: i.d.newest, MinVersion: i.d.oldest, Window: wire.GuestWindow, Build: "another"}
		if _, err := theirs.Write(wire.AppendFrame(nil, wire.Hello, 0, hello.Append(nil))); err == nil {
			_, _ = io.Copy(theirs, &rest{r: r, in: guest})
		}
	}()
	return ours, nil
}

// rest is what follows the greeting, frame by frame.
type rest struct {
	r   *wire.Reader
	in  io.Reader
	buf bytes.Buffer
}

func (f *rest) Read(p []byte) (int, error) {
	if f.buf.Len() == 0 {
		h, err := f.r.Next()
		if err != nil {
			return 0, err
		}
		payload := make([]byte, h.Len)
		if err := f.r.Into(payload); err != nil {
			return 0, err
		}
		f.buf.Write(wire.AppendFrame(nil, h.Type, h.Stream, payload))
	}
	return f.buf.Read(p)
}

// A sandbox whose guest speaks a version of the protocol that is spoken here, too,
// is adopted. One whose guest doesn't is left alone, by name, and as it was: the
// program that it belongs to finds it whole.
func TestAdoptGuestOfAnotherVersion(t *testing.T) {
	for name, tt := range map[string]struct {
		oldest, newest uint64
		adopted        bool
	}{
		"one newer, that speaks this one, too": {wire.Version, wire.Version + 1, true},
		"newer ones alone":                     {wire.Version + 1, wire.Version + 2, false},
		"older ones alone":                     {wire.MinVersion - 1, wire.MinVersion - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			e := srv.open(t)
			running, paused := made(t, e, sandpit.Spec{Name: "running"}), made(t, e, sandpit.Spec{Name: "paused"})
			p := background(t, running, "read x")
			_ = background(t, paused, "sleep 1000")
			in, err := running.Start(t.Context(), sandpit.Command{Script: "read x; exit 3", Stdin: true, Background: true})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 1 {
				t.Fatalf("got %+v, %v", res, err)
			}
			if err := paused.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := map[string]engine.Record{}
			for _, sb := range []sandpit.Sandbox{running, paused} {
				before[sb.ID()], _ = srv.store.get(sb.ID())
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}

			e, report := adopt(t, srv, func(o *engine.Options) { o.Driver = speaking{o.Driver.(bare), tt.oldest, tt.newest} })
			if tt.adopted {
				if report.Adopted != 2 || report.Refused != nil {
					t.Errorf("the report is %+v", report)
				}
			} else {
				if report.Adopted != 0 || report.Failed != 0 || len(report.Refused) != 2 {
					t.Errorf("the report is %+v", report)
				}
				for _, err := range report.Refused {
					if text := err.Error(); !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(text, "running") && !strings.Contains(text, "paused") ||
						!strings.Contains(text, "its guest belongs to another version") || !strings.Contains(sandpit.Hint(err), "use the version of Sandpit that created it") {
						t.Errorf("%v (%s)", err, sandpit.Hint(err))
					}
				}
				if _, err := e.Get(t.Context(), "running"); !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("got %v", err)
				}
				// Its name stays its own.
				if _, err := e.Create(t.Context(), sandpit.Spec{Name: "running", User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrExists) {
					t.Errorf("its name taken again: %v", err)
				}
				for id, r := range before {
					if now, ok := srv.store.get(id); !ok || now.State != r.State || !bytes.Equal(now.Data, r.Data) {
						t.Errorf("the record was %+v, is %+v", r, now)
					}
				}
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}

			e, report = adopt(t, srv)
			if report.Adopted != 2 || report.Processes != 2 || report.Refused != nil {
				t.Errorf("the report of the right version is %+v", report)
			}
			sb, err := e.Get(t.Context(), "running")
			if err != nil {
				t.Fatal(err)
			}
			again, err := sb.Attach(t.Context(), in.ID(), sandpit.AttachOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(again.Stdin(), "x\n"); err != nil {
				t.Error(err)
			}
			if res, err := again.Wait(t.Context()); err != nil || res.ExitCode != 3 {
				t.Errorf("its process ended with %+v, %v", res, err)
			}
			if sb, err = e.Get(t.Context(), "paused"); err != nil {
				t.Fatal(err)
			}
			wantState(t, sb, sandpit.StatePaused)
			for _, name := range []string{"running", "paused"} {
				if err := e.Remove(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// What a newer program has made is refused by name, and left alone.
func TestAdoptOfNewerVersions(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"a newer record": func(d map[string]any) { d["version"] = d["version"].(float64) + 1 },
		"a newer handle": func(d map[string]any) {
			h := d["handle"].(map[string]any)
			h["version"] = h["version"].(float64) + 1
			h["state"] = "of which nothing is known here"
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			e := srv.open(t)
			sb := made(t, e, sandpit.Spec{Name: "box"})
			background(t, sb, "sleep 1000")
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			kept, _ := srv.store.get(sb.ID())
			var d map[string]any
			if err := json.Unmarshal(kept.Data, &d); err != nil {
				t.Fatal(err)
			}
			change(d)
			newer := kept
			var err error
			if newer.Data, err = json.Marshal(d); err != nil {
				t.Fatal(err)
			}
			if err := srv.store.PutSandbox(t.Context(), newer); err != nil {
				t.Fatal(err)
			}
			e, report := adopt(t, srv)
			if len(report.Refused) != 1 || report.Adopted+report.Gone+report.Expired+report.Incomplete+report.Failed != 0 {
				t.Fatalf("the report is %+v", report)
			}
			if err := report.Refused[0]; !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(err.Error(), "sandbox box: ") || !strings.Contains(sandpit.Hint(err), "or a newer one") {
				t.Errorf("%v (%s)", err, sandpit.Hint(err))
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if now, _ := srv.store.get(sb.ID()); !bytes.Equal(now.Data, newer.Data) {
				t.Errorf("the record was changed to %s", now.Data)
			}
			if err := srv.store.PutSandbox(t.Context(), kept); err != nil {
				t.Fatal(err)
			}
			e, report = adopt(t, srv)
			if report.Adopted != 1 || report.Processes != 1 {
				t.Errorf("the report of the right version is %+v", report)
			}
			if err := e.Remove(t.Context(), "box"); err != nil {
				t.Error(err)
			}
		})
	}
}

// lacking is a driver that says that its sandboxes lack something.
type lacking struct{ bare }

func (d lacking) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return lackingInstance{i.(*bareInstance)}, nil
}

type lackingInstance struct{ *bareInstance }

func (lackingInstance) Lacks() []sandpit.Gap {
	return []sandpit.Gap{{What: "a wall", Why: "it was made without", Fix: "make it anew"}}
}

// What a sandbox of an earlier version lacks is said when it is adopted, in the
// report, which goes to the log, and in what is known of the sandbox.
func TestAdoptWhatLacksAProtection(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	made(t, e, sandpit.Spec{Name: "old"})
	for range 2 { // it is said once each time
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		var report engine.AdoptReport
		e, report = adopt(t, srv, func(o *engine.Options) { o.Driver = lacking{o.Driver.(bare)} })
		if len(report.Lacking) != 1 || report.Lacking[0].Error() != "sandbox old: it was made without" || sandpit.Hint(report.Lacking[0]) != "make it anew" {
			t.Errorf("the report has %v", report.Lacking)
		}
		sb, err := e.Get(t.Context(), "old")
		if err != nil {
			t.Fatal(err)
		}
		info, err := sb.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, g := range info.NotEnforced {
			if g.What == "a wall" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("it is known to lack %+v", info.NotEnforced)
		}
		if err := errors.Join(sb.Pause(t.Context()), sb.Resume(t.Context())); err != nil { // which write the record
			t.Fatal(err)
		}
	}
}
