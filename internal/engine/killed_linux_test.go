package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// fileStore keeps a file for each record.
type fileStore string

func (d fileStore) name(id string) string { return filepath.Join(string(d), id) }

func (d fileStore) PutSandbox(_ context.Context, r engine.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(string(d), "."+r.ID+strconv.Itoa(rand.Int()))
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.name(r.ID))
}

func (d fileStore) DeleteSandbox(_ context.Context, id string) error {
	if err := os.Remove(d.name(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d fileStore) Sandboxes(context.Context) ([]engine.Record, error) {
	entries, err := os.ReadDir(string(d))
	var all []engine.Record
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			_ = os.Remove(filepath.Join(string(d), e.Name()))
			continue
		}
		data, err := os.ReadFile(d.name(e.Name()))
		if err != nil {
			return nil, err
		}
		var r engine.Record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b engine.Record) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all, err
}

// victimDir tells a process of this program to be a victim; see victim.
const victimDir = "SANDPIT_TEST_VICTIM"

// openKept opens the engine that keeps everything in a directory.
func openKept(dir string) *engine.Engine {
	images, guests := engine.Home(dir)
	_ = os.MkdirAll(filepath.Join(dir, "records"), 0o700)
	return engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest(), KeepDir: filepath.Join(dir, "keep")}),
		Images: image.Open(images, image.Options{NoSync: true}), Policy: policy.Default(),
		Store: fileStore(filepath.Join(dir, "records")), Dir: filepath.Join(dir, "logs"),
		Network: network.InProcess{},
	})
}

// victim is an engine that does all sorts of things until it is killed.
func victim(dir string) int {
	e := openKept(dir)
	ctx := context.Background()
	if report, err := e.Adopt(ctx); err != nil || report.Refused != nil {
		fmt.Println("adopting:", report, err)
		return 1
	}
	fmt.Println("ready")
	for range 3 {
		go func() {
			for {
				disturb(ctx, e, dir)
			}
		}()
	}
	select {}
}

// disturb does one thing to one sandbox.
func disturb(ctx context.Context, e *engine.Engine, dir string) {
	all := e.Sandboxes()
	if len(all) < 3 || rand.IntN(6) == 0 && len(all) < 8 {
		_, _ = e.Create(ctx, sandpit.Spec{
			Env: []string{victimDir + "X=" + dir}, Limits: sandpit.Limits{Memory: 64 << 20},
			Egress: sandpit.Egress{Allow: []string{"a.test"}[:rand.IntN(2)]},
		})
		return
	}
	sb := all[rand.IntN(len(all))]
	switch rand.IntN(9) {
	case 8:
		_ = sb.SetEgress(ctx, sandpit.Egress{Allow: []string{"a.test", "b.test"}[:rand.IntN(3)]})
	case 0:
		_ = sb.Remove(ctx)
	case 1:
		_ = sb.Pause(ctx)
	case 2:
		_ = sb.Stop(ctx, 0)
	case 3:
		_ = sb.Restart(ctx)
	case 4:
		_ = sb.SetLifetime(ctx, sandpit.Lifetime{Life: time.Hour, Idle: time.Hour})
	case 5:
		_, _ = sandpit.Shell(ctx, sb, "echo hello")
	default:
		_, _ = sb.Start(ctx, sandpit.Command{Background: true, Script: "i=0; while :; do echo $i; i=$((i+1)); sleep 0.003; done"})
	}
}

// An engine that is killed at any moment loses nothing: the next one finds the
// sandboxes as their records say, with all that their processes have written,
// and nothing on the machine that it does not know.
func TestKilledAtAnyMoment(t *testing.T) {
	needGuest(t)
	testkit.NeedRoot(t, "to see whose the processes of this machine are")
	rounds := 6
	if n, err := strconv.Atoi(os.Getenv("SANDPIT_TEST_KILLS")); err == nil {
		rounds = n
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		e := openKept(dir)
		_, _ = e.Adopt(context.Background())
		for _, sb := range e.Sandboxes() {
			if err := sb.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for round := range rounds {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), victimDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		time.Sleep(time.Duration(rand.IntN(400_000)) * time.Microsecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if line != "ready\n" {
			t.Fatalf("round %d: %q", round, line)
		}
		checkKept(t, dir)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// checkKept compares records, sandboxes, processes, output and files.
func checkKept(t *testing.T, dir string) {
	t.Helper()
	e := openKept(dir)
	defer func() { _ = e.Close() }()
	report, err := e.Adopt(t.Context())
	if err != nil || report.Refused != nil || report.Lacking != nil || report.Failed > 0 {
		for _, sb := range e.Sandboxes() {
			info, err := sb.Info(t.Context())
			t.Logf("%+v, %v", info, err)
		}
		t.Fatalf("adopting: %+v, %v", report, err)
	}
	records, err := fileStore(filepath.Join(dir, "records")).Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	namespaces := map[string]bool{}
	for _, r := range records {
		known[r.ID] = true
		var d struct{ Handle driver.Handle }
		var st struct{ PID int }
		if err := errors.Join(json.Unmarshal(r.Data, &d), json.Unmarshal(d.Handle.State, &st)); err != nil {
			t.Fatal(err)
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", st.PID))
		if err != nil {
			t.Errorf("sandbox %s (%s) has no guest: %v", r.ID, r.State, err)
		}
		namespaces[ns] = true
		sb, err := e.Get(t.Context(), r.ID)
		if err != nil {
			t.Error(err)
			continue
		}
		if info, err := sb.Info(t.Context()); err != nil || info.State != r.State {
			t.Errorf("sandbox %s is %s, its record says %s: %v", r.ID, info.State, r.State, err)
		}
		want, err := engine.RecordedEgress(r)
		if err != nil {
			t.Error(err)
		}
		if is, err := egresser(t, sb).Egress(t.Context()); err != nil || !slices.Equal(is.Allow, want.Allow) {
			t.Errorf("the egress of sandbox %s is %+v, its record says %+v: %v", r.ID, is, want, err)
		}
		checkOutput(t, sb)
	}
	if n := len(e.Sandboxes()); n != len(records) {
		t.Errorf("there are %d sandboxes and %d records", n, len(records))
	}
	for _, sub := range []string{"logs", "keep", "images/kept"} {
		entries, _ := os.ReadDir(filepath.Join(dir, sub))
		for _, f := range entries {
			if id, _, _ := strings.Cut(f.Name(), "."); !known[id] {
				t.Errorf("%s/%s belongs to no sandbox", sub, f.Name())
			}
		}
	}
	// What was killed with its sandbox may be on its way out.
	var strays []string
	testkit.Until(t, "no process is in a sandbox that is not known", func() bool {
		strays = nil
		all, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range all {
			env, _ := os.ReadFile(name)
			if ns, err := os.Readlink(filepath.Join(filepath.Dir(name), "ns/pid")); err == nil && !namespaces[ns] && bytes.Contains(env, []byte(victimDir+"X="+dir+"\x00")) {
				stat, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
				strays = append(strays, string(stat))
			}
		}
		return strays == nil
	}, func() string { return strings.Join(strays, "") })
}

// checkOutput checks that the numbers that processes count are all in the log.
func checkOutput(t *testing.T, sb sandpit.Sandbox) {
	t.Helper()
	next := map[string]int{}
	for entry, err := range sb.Logs(t.Context(), sandpit.LogQuery{}) {
		if err != nil {
			t.Error(err)
			return
		}
		if string(entry.Data) == "hello\n" {
			continue
		}
		if want := strconv.Itoa(next[entry.Process]) + "\n"; string(entry.Data) != want {
			t.Errorf("process %s of %s has written %q where %q should be", entry.Process, sb.ID(), entry.Data, want)
			return
		}
		next[entry.Process]++
	}
}
