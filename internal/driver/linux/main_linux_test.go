package linux_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// home is the data directory of all sandboxes of this test binary.
var home string

// guestPanics is a signal that makes a guest panic that is this program.
const guestPanics = unix.SIGTRAP

// TestMain makes the test binary everything that the tests need: the guest,
// the program that tries things from inside, and the owner that gets killed.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		c := make(chan os.Signal, 1)
		signal.Notify(c, guestPanics)
		go func() {
			<-c
			panic("asked to")
		}()
		os.Exit(server.Main(os.Args))
	}
	if len(os.Args) > 1 {
		if name, ok := strings.CutPrefix(os.Args[1], "probe:"); ok {
			os.Exit(probe(name, os.Args[2:]))
		}
	}
	if what := os.Getenv(ownedEnv); what != "" {
		home = os.Getenv(ownerEnv)
		if err := suiteOwner(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(ownerEnv); dir != "" {
		os.Exit(owner(dir))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sandpit-test-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	home = dir
	// What a set-up would otherwise do at another moment for each test: leaks
	// are looked for between two states.
	unix.Umask(0o022)
	return m.Run()
}

func images() *image.Store {
	dir, _ := engine.Home(home)
	return image.Open(dir, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
}

// options are those of a driver under test.
func options() linux.Options {
	_, dir := engine.Home(home)
	return linux.Options{Dir: dir, Guest: embedded.Guest()}
}

func newDriver() *recorder { return driverWith(options()) }

// driverWith returns a driver that keeps in mind what it has made.
func driverWith(opt linux.Options) *recorder { return &recorder{linux.New(opt)} }

// A recorder is a driver that notes the ids of its sandboxes: what is left of
// one is told by its id from what other programs make.
type recorder struct{ *linux.Driver }

func (r *recorder) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	made.add(plan.ID)
	return r.Driver.Create(ctx, plan)
}

func (r *recorder) Prepare(ctx context.Context, id string, bp driver.BlankPlan) (driver.Blank, error) {
	made.add(id)
	return r.Driver.Prepare(ctx, id, bp)
}

// made has the ids of all sandboxes of this test binary.
var made ids

type ids struct {
	mu  sync.Mutex
	ids map[string]bool // guarded by mu
}

func (i *ids) add(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ids == nil {
		i.ids = map[string]bool{}
	}
	i.ids[id] = true
}

func (i *ids) has(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ids[id]
}

// client is an engine over a driver of this package.
func client(t *testing.T, opt linux.Options) sandpit.Client {
	t.Helper()
	return engineOf(t, driverWith(opt), 0)
}

// engineOf is an engine over a driver, with so many blanks, which are there.
func engineOf(t *testing.T, d driver.Driver, pool int) *engine.Engine {
	t.Helper()
	testkit.NeedWorkingHost(t)
	e := engine.New(engine.Options{Driver: d, Images: images(), Policy: policy.Default(), Pool: engine.Pool{Size: pool}})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	e.Warm()
	eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool })
	return e
}

// multiUser reports whether a sandbox of root has other users beside it.
func multiUser(t *testing.T) bool {
	t.Helper()
	return newDriver().Probe(t.Context()).Features[feature.Users]
}
