package hosttest

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestHosts runs the suites on the hosts that SANDPIT_TEST_HOSTS names: "all",
// "quick", or names of hosts and places with commas between them; and of all
// suites those that SANDPIT_TEST_SUITES names, when it does. SANDPIT_TEST_FORM
// is the form of the suites, "full" or "quick".
func TestHosts(t *testing.T) {
	wanted := os.Getenv("SANDPIT_TEST_HOSTS")
	if wanted == "" {
		testkit.Lacks(t, "make test-vm or make test-hosts, which boot whole machines")
	}
	if runtime.GOOS != "linux" {
		testkit.Lacks(t, "Linux to make hosts on")
	}
	opt := Options{Guard: 3600}
	switch form := os.Getenv("SANDPIT_TEST_FORM"); form {
	case "", "full":
	case "quick":
		opt = Options{Quick: true, Guard: 1800}
	default:
		t.Fatalf("SANDPIT_TEST_FORM is %q, not full or quick", form)
	}
	names := strings.Split(wanted, ",")
	var only map[string][]string
	if wanted == "quick" {
		only, opt = quickBoot(), Options{Quick: true, Guard: 900}
		names = slices.Collect(maps.Keys(only))
	}
	picks := func(name string) bool { return wanted == "all" || slices.Contains(names, name) }

	suites := Suites()
	if only := os.Getenv("SANDPIT_TEST_SUITES"); only != "" {
		suites = slices.DeleteFunc(suites, func(s Suite) bool { return !slices.Contains(strings.Split(only, ","), s.Name) })
	}

	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir, which is closed to other accounts.
	dir, err := os.MkdirTemp("", "sandpit-hosttest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	start := time.Now()
	bundle, err := Build(ctx, root, dir, runtime.GOARCH, suites)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("bundle of %d suites built in %s", len(bundle.Suites), time.Since(start).Round(time.Second))

	results := Results{}
	var hosts []Host
	for _, place := range Places() {
		var here []Host
		for _, h := range place.Hosts {
			if picks(place.Name) || picks(h.Name) {
				h.Only = only[h.Name]
				here = append(here, h)
			}
		}
		if len(here) == 0 {
			continue
		}
		hosts = append(hosts, here...)
		t.Run(place.Name, func(t *testing.T) {
			start := time.Now()
			err := visit(t.Context(), place, here, bundle, opt, results)
			t.Logf("took %s", time.Since(start).Round(time.Second))
			// The whole table comes at the end; a run that is ended before has
			// these.
			defer func() {
				var table strings.Builder
				results.Table(&table, here, suites)
				t.Logf("\n%s", table.String())
			}()
			if unavailable := (*Unavailable)(nil); errors.As(err, &unavailable) {
				for _, h := range here {
					results.at(h.Name, "").NotRun = unavailable.Why
				}
				testkit.Lacks(t, "the place: "+unavailable.Why)
			}
			if err != nil {
				t.Error(err)
			}
			for _, h := range here {
				for _, s := range bundle.Suites {
					r := results.find(h, s)
					switch {
					case s.pattern(h, opt.Quick) == "":
					case r == nil:
						t.Errorf("%s on %s never began", s.Name, h.Name)
					case !r.OK():
						t.Errorf("%s on %s: %s %v\n%s", s.Name, h.Name, r, r.Failures, r.Output)
					case r.NotRun == "" && r.Passed == 0:
						t.Errorf("%s on %s proved nothing: %s %v", s.Name, h.Name, r, r.Skips)
					default:
						for _, name := range r.Proved() {
							t.Logf("passed elsewhere: %s %s", s.Package, name) // for internal/testreport
						}
					}
				}
			}
		})
	}
	if len(hosts) == 0 {
		t.Fatalf("no host or place is called %q", wanted)
	}
	for _, s := range suites {
		if why := bundle.Missing[s.Name]; why != "" {
			for _, h := range hosts {
				results.at(h.Name, s.Name).NotRun = why
			}
		}
	}
	var table strings.Builder
	results.Table(&table, hosts, suites)
	t.Logf("\n%s", table.String())
}

// visit runs the suites on hosts of one place.
func visit(ctx context.Context, place Place, hosts []Host, b *Bundle, opt Options, results Results) error {
	if why := place.Missing(); why != "" {
		return &Unavailable{why}
	}
	read, write := io.Pipe()
	parsed := make(chan error, 1)
	go func() {
		err := results.Parse(read)
		_, _ = io.Copy(io.Discard, read)
		parsed <- err
	}()
	err := place.Run(ctx, b, b.Jobs(hosts, opt.Quick), opt, write)
	write.Close()
	// What the place says of its own failure explains a cut output.
	return errors.Join(err, <-parsed)
}
