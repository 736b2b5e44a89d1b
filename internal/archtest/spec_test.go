package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/policy"
)

// names are what a reader may look for in a folder: its test functions, and
// the string literals of its Go files, among which are the names of cases.
type names struct {
	functions map[string]bool
	literals  map[string]bool
	scripts   map[string]bool // files of testdata/script
}

// namesIn reads the Go files of a folder of the module, tests included.
func namesIn(t *testing.T, folder string) names {
	t.Helper()
	n := names{functions: map[string]bool{}, literals: map[string]bool{}, scripts: map[string]bool{}}
	dir := filepath.Join("../..", folder)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncDecl:
				if node.Recv == nil && strings.HasSuffix(name, "_test.go") {
					n.functions[node.Name.Name] = true
				}
			case *ast.BasicLit:
				if node.Kind == token.STRING {
					if text, err := strconv.Unquote(node.Value); err == nil {
						n.literals[text] = true
					}
				}
			}
			return true
		})
	}
	scripts, err := filepath.Glob(filepath.Join(dir, "testdata", "script", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scripts {
		n.scripts[filepath.Base(s)] = true
	}
	return n
}

// has reports whether the folder has a test of that name: a function, one of
// its cases after a slash, a case of a suite, or a script.
func (n names) has(name string) bool {
	if n.scripts[name] {
		return true
	}
	function, part, isCase := strings.Cut(name, "/")
	if strings.HasPrefix(function, "Test") || strings.HasPrefix(function, "Fuzz") {
		return n.functions[function] && (!isCase || n.literals[part])
	}
	return n.literals[name]
}

// references are the tests that a document names, as `folder: name`.
type references struct {
	pattern *regexp.Regexp
	folders map[string]names
}

func newReferences() *references {
	return &references{regexp.MustCompile("`(\\.|(?:cmd|internal|sandpittest|bench|client|local|examples|sdk)[a-z0-9/]*): ([^`]+)`"), map[string]names{}}
}

// check checks that the tests which a text names exist.
func (r *references) check(t *testing.T, document, text string) {
	t.Helper()
	for _, ref := range r.pattern.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		folder, name := ref[1], ref[2]
		if _, ok := r.folders[folder]; !ok {
			r.folders[folder] = namesIn(t, folder)
		}
		if !r.folders[folder].has(name) {
			t.Errorf("%s: there is no test %q in %s", document, name, folder)
		}
	}
}

// The specification says of each promise which test holds it.
func TestSpecificationNamesRealTests(t *testing.T) {
	data, err := os.ReadFile("../../docs/SPECIFICATION.md")
	if err != nil {
		t.Fatal(err)
	}
	refs := newReferences()
	refs.check(t, "docs/SPECIFICATION.md", string(data))

	promise := regexp.MustCompile(`(?m)^- \*\*(\d+\.\d+)\*\* `)
	starts := promise.FindAllStringSubmatchIndex(string(data), -1)
	if len(starts) < 50 {
		t.Fatalf("only %d promises were found", len(starts))
	}
	var seen []string
	for i, at := range starts {
		text := string(data[at[0]:])
		if i+1 < len(starts) {
			text = string(data[at[0]:starts[i+1][0]])
		}
		number := string(data[at[2]:at[3]])
		if slices.Contains(seen, number) {
			t.Errorf("docs/SPECIFICATION.md: two promises are %s", number)
		}
		seen = append(seen, number)
		text, _, _ = strings.Cut(text, "\n\n") // what follows the promise is not part of it
		if !refs.pattern.MatchString(strings.Join(strings.Fields(text), " ")) {
			t.Errorf("docs/SPECIFICATION.md: no test holds promise %s", number)
		}
	}
}

// The catalogue of attacks is whole, and says of each which test tries it.
func TestEveryAttackIsTried(t *testing.T) {
	data, err := os.ReadFile("../../docs/ATTACKS.md")
	if err != nil {
		t.Fatal(err)
	}
	refs := newReferences()
	refs.check(t, "docs/ATTACKS.md", string(data))
	row := regexp.MustCompile(`(?m)^\| ([A-HL]\d+[a-z]?) \|.*$`)
	variant := regexp.MustCompile(`[a-z]$`)
	var got, want []string
	found := map[string]bool{}
	for _, line := range row.FindAllStringSubmatch(string(data), -1) {
		if found[line[1]] {
			t.Errorf("docs/ATTACKS.md: two attacks are %s", line[1])
		}
		found[line[1]] = true
		// The last part grows with each review; the others are the field's catalogue, with variants of ours.
		if !strings.HasPrefix(line[1], "L") && !variant.MatchString(line[1]) {
			got = append(got, line[1])
		}
		if !refs.pattern.MatchString(line[0]) {
			t.Errorf("docs/ATTACKS.md: no test tries %s", line[1])
		}
	}
	for _, part := range []struct {
		name  string
		cases int
	}{{"A", 14}, {"B", 11}, {"C", 12}, {"D", 8}, {"E", 7}, {"F", 12}, {"G", 6}, {"H", 4}} {
		for i := range part.cases {
			want = append(want, part.name+strconv.Itoa(i+1))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/ATTACKS.md (-want +got):\n%s", diff)
	}
}

// Tests name only attacks that the catalogue has, and it has every test that is
// called after one.
func TestAttacksOfTestsAreInTheCatalogue(t *testing.T) {
	data, err := os.ReadFile("../../docs/ATTACKS.md")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-HL]\d+[a-z]?) \|`).FindAllStringSubmatch(string(data), -1) {
		ids = append(ids, row[1])
	}
	cited := regexp.MustCompile(`\bL\d+[a-z]*\b`) // others, such as B2, are words in tests, too
	function := regexp.MustCompile(`(?m)^func (TestAttack((?:[A-HL]\d+[a-z]?)+)\w*)\(`)
	one := regexp.MustCompile(`[A-HL]\d+[a-z]?`)
	found := 0
	err = filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "../.." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "archtest"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		names := cited.FindAllString(string(text), -1)
		for _, f := range function.FindAllStringSubmatch(string(text), -1) {
			found++
			names = append(names, one.FindAllString(f[2], -1)...)
			if !strings.Contains(string(data), ": "+f[1]+"`") {
				t.Errorf("%s: docs/ATTACKS.md does not name %s", path, f[1])
			}
		}
		for _, name := range names {
			// L10 is all of L10a, L10b and so on.
			if !slices.ContainsFunc(ids, func(id string) bool { return id == name || strings.TrimRight(id, "abcdefghijklmnopqrstuvwxyz") == name }) {
				t.Errorf("%s: docs/ATTACKS.md has no attack %s", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("only %d tests are called after an attack", found)
	}
}

// The table of limits is what sandpit policy show prints.
func TestSpecificationHasTheLimits(t *testing.T) {
	data, err := os.ReadFile("../../docs/SPECIFICATION.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range policy.Default().Limits() {
		rest := "| " + l.Meaning + " |"
		line := "| " + l.Name + " | `" + l.Flag + "` | " + l.Default
		found := slices.ContainsFunc(strings.Split(string(data), "\n"), func(s string) bool {
			return strings.HasPrefix(s, line) && strings.Contains(s, "| "+l.Min+" "+rest)
		})
		if !found {
			t.Errorf("docs/SPECIFICATION.md: no line with %q and minimum %s", line, l.Min)
		}
	}
}
