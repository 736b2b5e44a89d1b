package server_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
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
results and errors. Tests fail if a method is in no table, or if a table is not true. Add a version or method
with ` + "`go test -tags guestembed ./internal/server -run 'Clients$' -update`" + `.

- **works**: the method was called, and did what the client's documentation says.
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
		fmt.Fprintf(&b, "\n## %s\n\n| method | %s |\n|--%s|\n", client, strings.Join(heads(client, versions), " | "), strings.Repeat("|--", len(versions)))
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
	for client, versions := range reported {
		for version, methods := range versions {
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
		if err := os.WriteFile(compatibilityFile, []byte(documented.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// docs/COMPATIBILITY.md has the form that tests write.
func TestCompatibilityDocument(t *testing.T) {
	data, err := os.ReadFile(compatibilityFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(parseCompatibility(string(data)).String(), string(data)); diff != "" {
		t.Errorf("docs/COMPATIBILITY.md (-want +got):\n%s", diff)
	}
}
