package server_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

var updateCompatibility = flag.Bool("update", false, "write docs/COMPATIBILITY.md anew, as far as the clients ran")

const compatibilityFile = "../../docs/COMPATIBILITY.md"

// compatibilityHead begins docs/COMPATIBILITY.md.
const compatibilityHead = `# Compatibility

Clients of other projects use Sandpit unmodified. These tables say what becomes of each of their public
methods. They are generated: the tests run programs that use the clients, of these versions, and check
results and errors. Tests fail if a method is in no table, if a table is not true, or if its versions are not those
in tools/clients. Add a version or method with

    SANDPIT_TEST_LONG=1 go test -tags guestembed ./internal/server -run 'Clients$' -update

- **works**: the method was called, and did what the client's documentation says.
- **sent**: the request arrives as it should; what it does was not tested.
- **refused by the client**: the client itself does not send the request.
- **not yet**: the server refuses the request, and the client shows the error that says so.
- An empty field: this version has no such method.
- A version with \*: it does not know E2B_SANDBOX_URL, and needs TLS and E2B_DOMAIN ([server.md](server.md#clients-of-e2b)).

In the tables of JavaScript, ` + "`Class.method` is static and `class#method`" + ` is of an object.
`

// byDomain are the versions that reach sandboxes only by host names with TLS, by the beginnings of their clients' names.
var byDomain = map[string][]string{
	"e2b (":                   {"2.6.4"},
	"@e2b/code-interpreter (": {"2.4.0", "2.2.0"},
	"e2b-code-interpreter (":  {"2.8.1", "2.4.1", "2.3.0"},
}

// clientNotes say what clients that do not run as they are published were given, by their names. The versions come from
// package-lock.json: the package's own, that of the SDK which is used, and what the package asks for.
var clientNotes = map[string]string{
	"microsandbox-mcp": `Version %[1]s does not run as npm installs it: it asks for the SDK ` + "`microsandbox`" + ` %[3]s, which npm did not have when this was
tested. Its modules are run as published, with the SDK %[2]s and [a module](../tools/clients/microsandbox-mcp/sdk.mjs) that adds the two functions about a
local runtime which that SDK lacks; ` + "`runtime_check` and `runtime_install`" + `, which use them, are not called. [server.md](server.md#clients-of-microsandbox) says how.
`,
}

// noteOf returns the note about a client, or "".
func noteOf(client string) string {
	form, ok := clientNotes[client]
	if !ok {
		return ""
	}
	var lock struct {
		Packages map[string]struct {
			Version      string
			Dependencies map[string]string
		}
	}
	text, err := os.ReadFile(filepath.Join(recipes, client, "package-lock.json"))
	if err == nil {
		err = json.Unmarshal(text, &lock)
	}
	if err != nil {
		panic(err)
	}
	own := lock.Packages["node_modules/"+client]
	return "\n" + fmt.Sprintf(form, own.Version, lock.Packages["node_modules/microsandbox"].Version, own.Dependencies["microsandbox"])
}

// heads returns the heads of the columns of versions of a client.
func heads(client string, versions []string) (out []string) {
	for _, version := range versions {
		for name, marked := range byDomain {
			if strings.HasPrefix(client, name) && slices.Contains(marked, version) {
				version += ` \*`
				break
			}
		}
		out = append(out, version)
	}
	return out
}

// testedClients are the clients of docs/COMPATIBILITY.md: each recipe in tools/clients, the package whose version counts, and the
// names under which its programs report.
var testedClients = []struct {
	recipe, pkg string
	names       []string
}{
	{"e2b-javascript", "e2b", []string{"e2b (JavaScript)"}},
	{"e2b-javascript", "@e2b/code-interpreter", []string{"@e2b/code-interpreter (JavaScript)"}},
	{"e2b-python", "e2b", []string{"e2b (Python)", "e2b (Python, asynchronous)"}},
	{"e2b-python", "e2b-code-interpreter", []string{"e2b-code-interpreter (Python)", "e2b-code-interpreter (Python, asynchronous)"}},
	{"microsandbox-javascript", "microsandbox", []string{"microsandbox (JavaScript)"}},
	{"microsandbox-javascript", "@superradcompany/microsandbox-linux-x64-gnu", []string{"microsandbox (msb)"}},
	{"microsandbox-python", "microsandbox", []string{"microsandbox (Python)", "microsandbox (msb)"}},
	{"microsandbox-mcp", "microsandbox-mcp", []string{"microsandbox-mcp"}},
	{"microsandbox-rpc-python", "microsandbox", []string{"microsandbox for its JSON-RPC server (Python)"}},
}

// newest stands for the versions that a recipe itself names. Others are in its directory versions.
const newest = "newest"

// recipeVersions returns the versions for which a recipe has files, the newest one first.
func recipeVersions(t *testing.T, recipe string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(recipes, recipe, "versions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	all := []string{newest}
	for _, e := range slices.Backward(entries) {
		all = append(all, e.Name())
	}
	return all
}

// testedVersions returns the versions of each client that the recipes install.
func testedVersions(t *testing.T) map[string]map[string]bool {
	t.Helper()
	tested := map[string]map[string]bool{}
	for _, c := range testedClients {
		for _, version := range recipeVersions(t, c.recipe) {
			dir := filepath.Join(recipes, c.recipe)
			if version != newest {
				dir = filepath.Join(dir, "versions", version)
			}
			pinned := pinnedVersion(t, dir, c.pkg)
			for _, name := range c.names {
				if tested[name] == nil {
					tested[name] = map[string]bool{}
				}
				tested[name][pinned] = true
			}
		}
	}
	return tested
}

// pinnedVersion returns the version of a package in the package.json or requirements.txt of a directory.
func pinnedVersion(t *testing.T, dir, pkg string) string {
	t.Helper()
	var file struct{ Dependencies map[string]string }
	text, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	} else if text, err = os.ReadFile(filepath.Join(dir, "requirements.txt")); err == nil {
		file.Dependencies = map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, version, _ := strings.Cut(strings.TrimSpace(line), "==")
			file.Dependencies[name] = version
		}
	}
	if err != nil || file.Dependencies[pkg] == "" {
		t.Fatalf("the version of %s in %s: %v", pkg, dir, err)
	}
	return file.Dependencies[pkg]
}

// compatibility is what is known of each client, version and method.
type compatibility map[string]map[string]map[string]string

func (c compatibility) set(client, version, method, status string) {
	if c[client] == nil {
		c[client] = map[string]map[string]string{}
	}
	if c[client][version] == nil {
		c[client][version] = map[string]string{}
	}
	c[client][version][method] = status
}

// cells returns the fields of a row of a table.
func cells(line string) (fields []string) {
	for f := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|") {
		fields = append(fields, strings.Trim(f, " `"))
	}
	return fields
}

// parseCompatibility reads the tables of the document.
func parseCompatibility(text string) compatibility {
	c := compatibility{}
	client, versions := "", []string(nil)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		name, isClient := strings.CutPrefix(line, "## ")
		switch {
		case isClient:
			client, versions = name, nil
		case client == "" || !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--"):
		case versions == nil:
			for _, head := range cells(line)[1:] {
				versions = append(versions, strings.TrimSuffix(head, ` \*`))
			}
		default:
			row := cells(line)
			for i, version := range versions {
				if status := row[i+1]; status != "" {
					c.set(client, version, row[0], status)
				}
			}
		}
	}
	return c
}

// String returns the document.
func (c compatibility) String() string {
	var b strings.Builder
	b.WriteString(compatibilityHead)
	for _, client := range slices.Sorted(maps.Keys(c)) {
		versions, methods := slices.SortedFunc(maps.Keys(c[client]), newestFirst), map[string]bool{}
		for _, of := range c[client] {
			for method := range of {
				methods[method] = true
			}
		}
		fmt.Fprintf(&b, "\n## %s\n%s\n| method | %s |\n|--%s|\n", client, noteOf(client), strings.Join(heads(client, versions), " | "), strings.Repeat("|--", len(versions)))
		for _, method := range slices.Sorted(maps.Keys(methods)) {
			fmt.Fprintf(&b, "| `%s` |", method)
			for _, version := range versions {
				if status := c[client][version][method]; status != "" {
					b.WriteString(" " + status)
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// newestFirst compares versions such as 2.10.0.
func newestFirst(a, b string) int {
	numbers := func(version string) (all []int) {
		for part := range strings.SplitSeq(version, ".") {
			n, _ := strconv.Atoi(part)
			all = append(all, n)
		}
		return all
	}
	return cmp.Or(slices.Compare(numbers(b), numbers(a)), cmp.Compare(a, b))
}

// statusUnchecked is that of methods that a program can't check on this machine. They are not compared, nor written.
const statusUnchecked = "unchecked"

// compatible compares what programs of one client reported with docs/COMPATIBILITY.md. A report is a line of JSON for each method.
func compatible(t *testing.T, reports ...string) {
	t.Helper()
	data, err := os.ReadFile(compatibilityFile)
	if err != nil && !*updateCompatibility {
		t.Fatal(err)
	}
	documented, reported := parseCompatibility(string(data)), compatibility{}
	for line := range strings.Lines(strings.Join(reports, "")) {
		var l struct{ Client, Version, Method, Status, Reason string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q is not a line of a report: %v", line, err)
		}
		if l.Reason != "" {
			l.Status += ": " + l.Reason
		}
		reported.set(l.Client, l.Version, l.Method, l.Status)
	}
	if len(reported) == 0 {
		t.Fatal("the programs report nothing")
	}
	tested := testedVersions(t)
	for client, versions := range reported {
		for version, methods := range versions {
			for method, status := range methods {
				if status != statusUnchecked {
					continue
				}
				if *updateCompatibility {
					t.Fatalf("%s of %s %s can't be checked here: update as root, where pip and npm are", method, client, version)
				}
				t.Logf("%s of %s %s can't be checked here", method, client, version)
				delete(methods, method)
				delete(documented[client][version], method)
			}
			if !tested[client][version] {
				t.Errorf("%s reports version %s, which is not in tools/clients", client, version)
			}
			if *updateCompatibility {
				if documented[client] == nil {
					documented[client] = map[string]map[string]string{}
				}
				documented[client][version] = methods
			} else if diff := gocmp.Diff(documented[client][version], methods); diff != "" {
				t.Errorf("docs/COMPATIBILITY.md, %s %s (-documented +reported; -update writes it):\n%s", client, version, diff)
			}
		}
	}
	if *updateCompatibility {
		for client, versions := range documented {
			maps.DeleteFunc(versions, func(version string, _ map[string]string) bool { return !tested[client][version] })
		}
		maps.DeleteFunc(documented, func(_ string, versions map[string]map[string]string) bool { return len(versions) == 0 })
		if err := os.WriteFile(compatibilityFile, []byte(documented.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// docs/COMPATIBILITY.md has the form that tests write, and the versions that they install: all, and no others.
func TestCompatibilityDocument(t *testing.T) {
	data, err := os.ReadFile(compatibilityFile)
	if err != nil {
		t.Fatal(err)
	}
	documented := parseCompatibility(string(data))
	if diff := gocmp.Diff(documented.String(), string(data)); diff != "" {
		t.Errorf("docs/COMPATIBILITY.md (-want +got):\n%s", diff)
	}
	versions := map[string]map[string]bool{}
	for client, all := range documented {
		versions[client] = map[string]bool{}
		for version := range all {
			versions[client][version] = true
		}
	}
	if diff := gocmp.Diff(testedVersions(t), versions); diff != "" {
		t.Errorf("the versions in docs/COMPATIBILITY.md (-in tools/clients +documented; the command in its head writes it):\n%s", diff)
	}
}
