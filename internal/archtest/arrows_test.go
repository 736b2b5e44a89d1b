package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sandpit-dev/sandpit"

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath string
	Name       string
	Dir        string
	Standard   bool
	GoFiles    []string // without tests
	Imports    []string // of GoFiles
	Deps       []string // all that is reached from it
}

// packages lists the packages that match for an operating system.
func packages(t *testing.T, goos string, patterns ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-deps", "-e", "-json=ImportPath,Name,Dir,Standard,GoFiles,Imports,Deps"}, patterns...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("running go list: %v\n%s", err, stderr.Bytes())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// ours are the packages of this module, by their path in it; the root is ".".
func ours(t *testing.T, goos string) map[string]pkg {
	t.Helper()
	found := map[string]pkg{}
	for _, p := range packages(t, goos, "./...") {
		if rel, ok := within(p.ImportPath); ok {
			found[rel] = p
		}
	}
	if len(found) < 5 {
		t.Fatalf("go list found only %d packages of the module", len(found))
	}
	return found
}

// within is an import path's place in the module.
func within(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// under reports whether a package is the folder or lies in it.
func under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// An arrow that must never be. Both ends are folders.
type arrow struct{ from, to, why string }

var forbidden = []arrow{
	{"internal/guest", "internal/engine", "the guest runs inside and knows nothing of the host"},
	{"internal/guest", "internal/api", "the guest runs inside and knows nothing of the host"},
	{"internal/guest", "internal/driver", "the guest is the same on every driver"},
	{"internal/guest", "internal/image", "the guest runs inside and knows nothing of the host"},
	{"internal/guest/server", "internal/guest/client", "the two ends share the wire alone"},
	{"internal/guest/client", "internal/guest/server", "the two ends share the wire alone"},
	{"internal/guest/files", "internal/guest/process", "file work starts no processes"},
	{"internal/guest/process", "internal/guest/files", "a process needs no file work"},
	{"internal/driver", "internal/api", "a driver makes a place and a byte stream"},
	{"internal/driver", "internal/engine", "the engine uses drivers, never the reverse"},
	{"internal/driver", "internal/policy", "a plan is final; a driver decides nothing"},
	{"internal/driver", "internal/image", "a plan names directories; a driver knows no images"},
	{"internal/driver", "internal/cli", "a driver serves every caller"},
	{"internal/gate", "internal/api", "a gate serves every dialect and knows none"},
	{"internal/gate", "internal/engine", "a gate lets requests in; what they do is not its business"},
	{"internal/gate", "internal/driver", "a gate lets requests in; what they do is not its business"},
	{"internal/gate", "internal/server", "a server uses the gate, never the reverse"},
	{"internal/gate", "internal/dialect", "a gate serves every dialect and knows none"},
	{"internal/engine", "internal/dialect", "the engine serves every dialect and knows none"},
	{"internal/dialect", "internal/server", "a server uses dialects, never the reverse"},
	{"internal/engine", "internal/api", "the API is on top of the engine"},
	{"internal/engine", "internal/cli", "the command line is on top of the engine"},
	{"internal/image", "internal/engine", "images are below the engine"},
	{"internal/image", "internal/driver", "images are below drivers"},
	{"internal/image", "internal/image/fetch", "a store gives what it has without what fetches more"},
	{"internal/cli", "internal/cli/commands", "what starts quickly carries no framework"},
	{"internal/policy", "internal/engine", "a policy decides and does nothing"},
	{"internal/policy", "internal/driver", "a policy decides and does nothing"},
	{"internal/cgroup", "internal/driver", "mechanisms know no policy"},
	{"internal/sysprog", "internal/driver", "mechanisms know no policy"},
	{"internal/seccomp", "internal/driver", "mechanisms know no policy"},
	{"client", "internal/engine", "a remote client carries no engine"},
	{"client", "internal/driver", "a remote client carries no driver"},
	{"client", "internal/guest", "a remote client speaks to a server alone"},
	{"client", "local", "a remote client carries no engine"},
}

// The table in the architecture has every package, and exactly the imports between them.
func TestArchitectureHasTheImports(t *testing.T) {
	data, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n| package | what it is | may import |\n|---|---|---|\n")
	text, _, _ = strings.Cut(text, "\n\n")
	known := map[string]bool{} // packages as the table has them
	all := map[string]map[string]pkg{"linux": ours(t, "linux"), "darwin": ours(t, "darwin")}
	for _, packages := range all {
		for path := range packages {
			known[rowOf(path)] = true
		}
	}
	// Imports that a row allows: false until one is found.
	rows := map[string]map[string]bool{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 {
			t.Fatalf("docs/ARCHITECTURE.md: %q is not a row of the table of packages", line)
		}
		full := func(name string) string {
			name = strings.Trim(name, "` ")
			switch {
			case name == "root":
				return "."
			case known["internal/"+name]:
				return "internal/" + name
			case !known[name]:
				t.Errorf("docs/ARCHITECTURE.md: %s is not a package", name)
			}
			return name
		}
		may := map[string]bool{}
		switch cells[2] {
		case "the standard library":
		case "everything":
			may = nil
		default:
			for name := range strings.SplitSeq(cells[2], ",") {
				may[full(name)] = false
			}
		}
		for name := range strings.SplitSeq(cells[0], ",") {
			if name = full(name); rows[name] != nil {
				t.Errorf("docs/ARCHITECTURE.md: two rows have %s", name)
			}
			rows[name] = may
		}
	}
	for goos, packages := range all {
		for path, p := range packages {
			row := rowOf(path)
			may, ok := rows[row]
			if !ok && len(p.GoFiles) > 0 {
				t.Errorf("docs/ARCHITECTURE.md lacks %s", row)
			}
			for _, dep := range p.Imports {
				to, ok := within(dep)
				if to = rowOf(to); !ok || to == row || may == nil {
					continue
				}
				if _, ok := may[to]; !ok {
					t.Errorf("%s: docs/ARCHITECTURE.md does not say that %s imports %s", goos, row, to)
				}
				may[to] = true
			}
		}
	}
	for row, may := range rows {
		for to, found := range may {
			if !found {
				t.Errorf("docs/ARCHITECTURE.md says that %s imports %s, which it does not", row, to)
			}
		}
	}
}

// rowOf is the package that the table has for a package: what only one may
// import is a part of that, and programs are with the others in their folder.
func rowOf(path string) string {
	for _, folder := range []string{"cmd", "examples", "internal/hosttest"} {
		if under(path, folder) {
			return folder
		}
	}
	if at := strings.Index(path, "/internal/"); at >= 0 {
		return path[:at]
	}
	return path
}

// wiring are the only folders that may name a concrete driver.
var wiring = []string{"cmd", "bench", "local", "examples"}

func TestForbiddenArrows(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		for path, p := range ours(t, goos) {
			for _, dep := range p.Deps {
				to, ok := within(dep)
				if !ok {
					continue
				}
				for _, a := range forbidden {
					if under(path, a.from) && under(to, a.to) {
						t.Errorf("%s: %s reaches %s: %s", goos, path, to, a.why)
					}
				}
				isDriver := strings.HasPrefix(to, "internal/driver/") && to != "internal/driver/drivertest"
				if isDriver && !under(path, to) && !slices.ContainsFunc(wiring, func(w string) bool { return under(path, w) }) && !under(to, path) {
					t.Errorf("%s: %s reaches the driver %s; only %s put things together", goos, path, to, strings.Join(wiring, " and "))
				}
				if under(to, "cmd") || under(to, "internal/archtest") || under(to, "internal/hosttest") {
					t.Errorf("%s: %s reaches %s, which nothing stands on", goos, path, to)
				}
			}
		}
	}
}

// Package testkit is for tests. Only the packages of tests may import it: the suites,
// the registry and the browser that tests run.
func TestOnlyTestsImportTestkit(t *testing.T) {
	suites := []string{"internal/driver/drivertest", "internal/image/imagetest", "internal/browsertest", "internal/network/networktest", "internal/oauth/oauthtest", "sandpittest"}
	for path, p := range ours(t, "linux") {
		for _, dep := range p.Deps {
			if to, ok := within(dep); ok && (to == "internal/testkit" || slices.Contains(suites, to)) && !slices.Contains(suites, path) {
				t.Errorf("%s reaches %s, which is for tests", path, to)
			}
		}
	}
}

// What a test needs is said by package testkit, so that skips have one form. The
// suites are told what their driver or client lacks.
func TestSkipsAreNeeds(t *testing.T) {
	skip := regexp.MustCompile(`\b[a-zA-Z.]*\b(t|b|tb|f)\.Skip(f|Now)?\(`)
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "../.." && (strings.HasPrefix(e.Name(), ".") || slices.Contains([]string{"archtest", "testkit", "testreport", "sandpittest", "drivertest"}, e.Name())):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if at := skip.FindIndex(text); at != nil {
			t.Errorf("%s:%d skips a test by itself; say with testkit what it needs", path, 1+bytes.Count(text[:at[0]], []byte("\n")))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The domain can be imported by anyone at no cost.
func TestRootImportsOnlyTheStandardLibrary(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		for _, p := range packages(t, goos, ".") {
			if !p.Standard && p.ImportPath != module {
				t.Errorf("%s: the root package reaches %s", goos, p.ImportPath)
			}
		}
	}
}

// TestGuestDependencies lists all that the guest consists of. It is the first
// thing inside every sandbox, and every sandbox pays for its size.
func TestGuestDependencies(t *testing.T) {
	allowed := []string{
		"cmd/sandpit-guest",
		"internal/cmdline",
		"internal/guest/conn",
		"internal/guest/fdio",
		"internal/guest/files",
		"internal/guest/process",
		"internal/guest/procfs",
		"internal/guest/server",
		"internal/guest/rights",
		"internal/guest/settings",
		"internal/guest/spawn",
		"internal/guest/wire",
		"internal/guest/workers",
		"internal/sysprog",
	}
	heavy := []string{
		"net", "net/http", "crypto/tls", "encoding/json", "encoding/gob", "regexp", "text/template", "html/template", "go/",
		"database/sql", "flag", "log", "log/slog", "os/exec", "os/user", "testing",
	}
	for _, p := range packages(t, "linux", "./cmd/sandpit-guest") {
		path, own := within(p.ImportPath)
		switch {
		case own:
			if !slices.Contains(allowed, path) {
				t.Errorf("the guest contains %s, which is not in its list", path)
			}
		case p.Standard:
			for _, h := range heavy {
				if p.ImportPath == h || strings.HasSuffix(h, "/") && strings.HasPrefix(p.ImportPath, h) {
					t.Errorf("the guest contains %s, which is too heavy for it", p.ImportPath)
				}
			}
		case !under(p.ImportPath, "golang.org/x/sys"):
			t.Errorf("the guest contains %s; beside ours only the standard library and golang.org/x/sys are allowed", p.ImportPath)
		}
	}
}

// TestLauncherDependencies keeps out of the launcher what every start would pay for
// and the commands of the launcher don't need.
func TestLauncherDependencies(t *testing.T) {
	heavy := []string{
		"net/http", "crypto/tls", "database/sql", "text/template", "html/template", "log/slog", "testing",
		"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/klauspost/compress", "modernc.org",
		"github.com/danielgtaylor/huma", "github.com/coder/websocket", "github.com/prometheus", "go.opentelemetry.io", "google.golang.org",
		module + "/internal/cli/commands", module + "/internal/image/fetch", module + "/internal/guest/server", module + "/internal/server", module + "/internal/state", module + "/internal/api",
	}
	// The packages that carry programs are not asked for those: they may not be built.
	found := packages(t, "linux", "-tags=guestembed,launcher", "./cmd/sandpit")
	if !slices.ContainsFunc(found, func(p pkg) bool { return p.ImportPath == module+"/internal/fullprogram" }) {
		t.Fatal("this is not the launcher")
	}
	for _, p := range found {
		for _, h := range heavy {
			if under(p.ImportPath, h) && p.ImportPath != module+"/internal/api/v1" { // the JSON alone
				t.Errorf("the launcher contains %s", p.ImportPath)
			}
		}
	}
}

// A name that says nothing collects everything.
func TestPackageNames(t *testing.T) {
	for path, p := range ours(t, "linux") {
		for element := range strings.SplitSeq(path, "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "lib"}, element) {
				t.Errorf("%s: package %s: name a package after what it provides", path, p.Name)
			}
		}
	}
}
