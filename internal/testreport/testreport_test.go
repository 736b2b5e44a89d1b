package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// files are a module whose tests end in every way.
func files() map[string]string {
	return map[string]string{
		"go.mod": "module github.com/sandpit-dev/sandpit\n",
		"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) {
	t.Log("nobody reads this")
	t.Run("one of its cases", func(t *testing.T) {})
}
func TestHollow(t *testing.T) { t.Run("skips", func(t *testing.T) { t.Log("a log"); t.Skip("needs a moon:\nit is day") }) }
func TestRoot(t *testing.T) { t.Skip("needs root to dig") }
func TestRootToo(t *testing.T) { t.Skip("needs root to dig") }
func FuzzGood(f *testing.F) { f.Add("x"); f.Fuzz(func(*testing.T, string) {}) }
`,
		"bad/bad_test.go": `package bad
import "testing"
func TestBad(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Error("this is why") }) }
`,
		"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { panic("out of luck") }
`,
		"exits/exits_test.go": `package exits
import ("os"; "testing")
func TestExits(t *testing.T) { os.Exit(0) }
`,
		"hangs/hangs_test.go": `package hangs
import "testing"
func TestHangs(t *testing.T) { t.Log("before it hangs"); select {} }
`,
		"broken/broken_test.go": "package broken\nvar x = y\n",
	}
}

// TestReport runs go test on packages of every kind, and reads what is reported.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	for name, text := range files() {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "testreport")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const hollow = "good: TestHollow* | needs a moon | at night\n"
	for _, tt := range []struct {
		name    string
		skips   string
		doc     string
		args    []string
		ok      bool
		twice   bool
		want    []string
		without []string
	}{
		{
			name: "all is well", skips: hollow + "*: * | needs root | in the dark", args: []string{"./good"}, ok: true,
			doc:     "`internal/x: TestVM` `internal/good: TestElsewhere/a case`",
			want:    []string{"skipped in good: needs root to dig\n  runs in the dark\n    TestRoot\n    TestRootToo\n", "skipped in good: needs a moon: it is day\n  runs at night\n    TestHollow/skips\n", "5 tests passed, 0 failed, 3 were skipped, in 1 packages", "of 2 tests that documents name 2 passed\n"},
			without: []string{"nobody reads this"},
		},
		{
			name: "nothing comes from the cache", twice: true, skips: hollow + "*: * | needs root | in the dark", args: []string{"./good"}, ok: true,
			want:    []string{"5 tests passed, 0 failed, 3 were skipped, in 1 packages"},
			without: []string{"(cached)"},
		},
		{
			name: "an unlisted skip", skips: hollow, args: []string{"./good"},
			want: []string{"needs root to dig\n  runs nowhere that the list of skips names\n    TestRoot\n", "FAIL: 2 skipped tests are not in the list"},
		},
		{
			name: "root may do what root is needed for", skips: hollow + "*: * | needs root | as root", args: []string{"./good"}, ok: os.Geteuid() != 0,
			want: []string{"3 were skipped"},
		},
		{
			name: "another reason", skips: hollow + "good: TestRoot | needs a shovel | in the garden\n", args: []string{"./good"},
			want: []string{"FAIL: 2 skipped tests are not in the list"},
		},
		{
			name: "a document", skips: hollow + "good: TestRoot* | needs root | in the dark\ngood: TestGone | x | y\n", args: []string{"./good"},
			doc: "`internal/good: TestGood` `sandpittest: one of\n its cases` `cmd/good: TestGone` `sandpittest: TestGood`",
			want: []string{
				"document names internal/good: TestGood, which did not pass", "document names cmd/good: TestGone, which did not pass", "document names sandpittest: TestGood, which did not pass",
				`the list of skips has "good: TestGone", and no such test ran or was skipped`, "of 4 tests that documents name 1 passed",
			},
		},
		{name: "a failure", args: []string{"./bad", "./good"}, skips: hollow + "*: * | needs | x", want: []string{"bad_test.go:3: this is why", "--- FAIL: TestBad/sub", "bad: TestBad/sub\n", "FAIL: 3 packages and tests failed", "exit status 1"}},
		{name: "a panic", args: []string{"./panics"}, want: []string{"panic: out of luck", "panics: TestPanics", "FAIL: "}},
		{name: "an exit", args: []string{"./exits"}, want: []string{"FAIL: "}},
		{name: "a timeout", args: []string{"-timeout", "1s", "./hangs"}, want: []string{"before it hangs", "test timed out after 1s", "hangs: TestHangs", "FAIL: "}},
		{name: "what does not compile", args: []string{"./broken"}, want: []string{"undefined: y", "broken\n", "FAIL: "}},
		{name: "no such package", args: []string{"./nowhere"}, want: []string{"nowhere", "FAIL: "}},
		{name: "no tests", args: []string{"-run", "TestNone", "./good"}, want: []string{"FAIL: no test passed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write("skips.txt", "# comment\n\n"+tt.skips)
			write("document", tt.doc)
			args := []string{"-skips", "skips.txt", "-events", "events-" + strings.ReplaceAll(tt.name, " ", "-")}
			if tt.doc != "" {
				args = append(args, "-documents", "document")
			}
			// Of an earlier run, in a virtual machine.
			var earlier bytes.Buffer
			for _, o := range []outcome{
				{test: test{"internal/x", "TestVM"}, Action: "pass"},
				{test: test{"internal/x", "TestOther"}, Action: "fail"},
				{test: test{"internal/good", "TestElsewhere/a_case"}, Action: "pass"},
			} {
				_ = json.NewEncoder(&earlier).Encode(o)
			}
			write(args[3], earlier.String())
			run := func() ([]byte, error) {
				cmd := exec.Command(program, append(append(args, "--"), tt.args...)...)
				cmd.Dir = dir
				return cmd.CombinedOutput()
			}
			out, err := run()
			if tt.twice {
				out, err = run()
			}
			if (err == nil) != tt.ok {
				t.Errorf("it ended with %v", err)
			}
			for _, want := range tt.want {
				if !bytes.Contains(out, []byte(want)) {
					t.Errorf("it does not print %q", want)
				}
			}
			for _, without := range tt.without {
				if bytes.Contains(out, []byte(without)) {
					t.Errorf("it prints %q", without)
				}
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// A test that passed on another machine counts, and one that skips all that it is made
// of does not.
func TestProved(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, false)
	err := r.read(strings.NewReader(`{"Action":"start","Package":"github.com/sandpit-dev/sandpit/internal/h"}
{"Action":"output","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestHosts","Output":"    x.go:1: passed elsewhere: internal/x TestVM/sub\n"}
{"Action":"pass","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestHollow"}
{"Action":"skip","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestHollow/sub"}
{"Action":"pass","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestMixed"}
{"Action":"skip","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestMixed/one"}
{"Action":"pass","Package":"github.com/sandpit-dev/sandpit/internal/h","Test":"TestMixed/two"}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[test]bool{
		{"internal/x", "TestVM/sub"}: true, {"internal/h", "TestHollow"}: false, {"internal/h", "TestMixed"}: true, {"internal/h", "TestNone"}: false,
	} {
		if got := r.proved(name); got != want {
			t.Errorf("%s is proved: %v, want %v", name, got, want)
		}
	}
	if problems := r.summary(nil, 0); !strings.Contains(strings.Join(problems, "\n"), "internal/h did not end") {
		t.Errorf("a package that did not end is no problem: %q", problems)
	}
}
