package yamldoc

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"# nothing\n":                 "",
		"---\n":                       "",
		"---\n# nothing\n":            "",
		"a: 1\n":                      "a: 1",
		"# before\n---\na: 1\n...\n":  "a: 1",
		"a: 1\n---\n":                 "a: 1",
		"a: 1\n---\n# behind\n":       "a: 1",
		"- a\n- b\n":                  "- a\n- b",
		"~\n":                         "",
		"--- # nothing\n# at all\n\n": "",
	} {
		node, err := parse([]byte(text))
		got := ""
		if node != nil {
			got = strings.TrimSpace(node.String())
		}
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// What is behind another document must not be passed over, nor what can't be read.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]struct {
		line int
		text string
	}{
		"a: 1\n---\nb: 2\n":         {3, "it must be a single document"},
		"---\n---\na: 1\n":          {2, "it must be a single document"},
		"---\n# x\n---\na: 1\n":     {3, "it must be a single document"},
		"a: 1\n---\n---\nb: 2\n":    {3, "it must be a single document"},
		"a: 1\n...\n---\nb: 2\n":    {4, "it must be a single document"},
		"a: [1\n":                   {1, "it is not valid YAML: "},
		"a: 1\na: 2\n":              {2, "it is not valid YAML: "},
		"\n\na: 'open\n":            {3, "it is not valid YAML: "},
		"%YAML 1.2\n---\n---\na: 1": {3, "it must be a single document"},
	} {
		_, err := parse([]byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Line != want.line || !strings.HasPrefix(e.Err.Error(), want.text) || strings.Contains(e.Error(), "\n") {
			t.Errorf("%q: got %+v, want %+v", text, e, want)
		}
	}
}

// Deep nesting takes the parser much memory, so it never gets there.
func TestDepth(t *testing.T) {
	deep := func(begin string, depth int, end string) string {
		return strings.Repeat(begin, depth) + "a" + strings.Repeat(end, depth)
	}
	indented := func(begin string) string {
		var lines strings.Builder
		for i := range 100 {
			lines.WriteString(strings.Repeat(" ", i) + begin + "\n")
		}
		return lines.String()
	}
	for _, text := range []string{
		deep("[", maxDepth, "]"), deep("{a: ", maxDepth, "}"), deep("- ", maxIndent/2, ""),
		strings.Repeat("- [{a: b}]\n", 1000), "{" + strings.Repeat(" ", 100) + "a: b}", strings.Repeat("a", 100) + ": [{b: c}]",
		"a: \"" + deep("[", 1000, "") + "\"", "a: |\n  " + deep("- ", 1000, ""), "# " + deep("{", 1000, ""),
	} {
		if _, err := parse([]byte(text)); err != nil {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	for _, text := range []string{
		deep("[", maxDepth+1, "]"), deep("{a: ", maxDepth+1, "}"), deep("- ", maxIndent/2+1, ""), deep("[", 100_000, ""),
		deep("{a: ", 25_000, ""), deep("[a: ", 25_000, ""), deep("- ", 25_000, ""), deep("[{a: ", 25_000, ""),
		deep("{]", 25_000, ""), deep("? ", 25_000, ""),
		indented("a:"), indented("-"), indented("? a\n:"),
	} {
		_, err := parse([]byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Line == 0 || !strings.Contains(err.Error(), "it is nested too deeply") {
			t.Errorf("%.40q: got %.100v", text, err)
		}
	}
}

// What would take the parser a time that grows with the square of the length never gets
// there.
func TestNumber(t *testing.T) {
	lines := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for _, text := range []string{
		lines("a%d: b\n", maxNames), "a:\n" + lines("  b%d:\n    c: d\n    e: f\n", maxNames), lines("- {a%d: b}\n", 2*maxNames),
		"a: |\n  b\n'c': >-\n  d # e\n\n  f\n# g\n\"h\": 'i'\nj: 1 # k\nl: 'm\n\n  n'\n",
	} {
		if _, err := parse([]byte(text)); err != nil {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		lines("a%d: b\n", maxNames+1):              "a mapping has more than 5000 names",
		"a:\n" + lines("  'b%d': c\n", 100_000):    "a mapping has more than 5000 names",
		lines("? a%d\n: b\n", 100_000):             "a mapping has more than 5000 names",
		lines("a%d: !b c\n", 60_000):               "tags (!), anchors (&) and aliases (*) are not supported",
		"a: b\nc: &d e\n":                          "tags (!), anchors (&) and aliases (*) are not supported",
		"a: [b, *c]\n":                             "tags (!), anchors (&) and aliases (*) are not supported",
		strings.Repeat("'a' ", 100_000):            "a comma, a colon or a dash between values is missing",
		strings.Repeat("'a\n' # b\n", 100_000):     "a comma, a colon or a dash between values is missing",
		"- " + strings.Repeat("\"a\" 'b'\n", 1000): "a comma, a colon or a dash between values is missing",
	} {
		_, err := parse([]byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Line == 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %.100v, want %q", text, err, want)
		}
	}
}

// settings has a field of every form.
type settings struct {
	Name  string
	Count int
	On    bool
	List  []string
	Inner map[string]string
}

func decode(text string) (s settings, err error) {
	err = Decode("f", strings.NewReader(text), 4<<10, Mapping(map[string]func(Value) error{
		"name":  Parse(&s.Name, String),
		"count": Parse(&s.Count, Int(1, 9)),
		"on":    Parse(&s.On, Bool),
		"list":  List(&s.List, String),
		"inner": func(v Value) error {
			fields, err := v.Fields()
			s.Inner = map[string]string{}
			for _, f := range fields {
				if s.Inner[f.Name], err = f.Text(); err != nil {
					return err
				}
			}
			return err
		},
	}))
	return s, err
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]settings{
		"":                               {},
		"~":                              {},
		"\ufeffname: a\n":                {Name: "a"},
		"name: 010\n":                    {Name: "010"},
		"name: 1e3 # exactly\n":          {Name: "1e3"},
		"name: |\n  two\n  lines\n":      {Name: "two\nlines\n"},
		"{name: 'a b', count: 9}":        {Name: "a b", Count: 9},
		"on: true\nlist: []\n":           {On: true, List: []string{}},
		"list:\n- a\n- 0x1\n- \"c\"\n":   {List: []string{"a", "0x1", "c"}},
		"{\"name\":\"[b]\",\"count\":9}": {Name: "[b]", Count: 9},
		"list: [debian:12, a:b]":         {List: []string{"debian:12", "a:b"}},
		"{name: debian:12}":              {Name: "debian:12"},
		"name: a[b]{c}":                  {Name: "a[b]{c}"},
		"inner: {}\n":                    {Inner: map[string]string{}},
		"inner: {8: x, true: y}\n":       {Inner: map[string]string{"8": "x", "true": "y"}},
	} {
		got, err := decode(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	}
}

// Every error names the file, the line and the field.
func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"just text":                  "f:1: it must be lines of NAME: VALUE",
		"- name\n":                   "f:1: it must be lines of NAME: VALUE",
		"name: a\nnome: b\n":         `f:2: unknown field "nome"`,
		"name: a\n8: b\n":            `f:2: unknown field "8"`,
		"name: a\nname: b\n":         "f:2: it is not valid YAML: ",
		"name:\n":                    "f:1: name: it has no value",
		"inner:\n  # a: b\n":         "f:1: inner: it has no value",
		"inner: ~\n":                 "f:1: inner: it has no value",
		"inner: null\n":              "f:1: inner: it has no value",
		"{inner: }":                  "f:1: inner: it has no value",
		"{inner}":                    "f:1: inner: it has no value",
		"on: true\nname: \xe9\n":     "f:2: it is not text",
		"on: true\n# a\x00b\n":       "f:2: it is not text",
		"{name:4g}":                  "f:1: it is not valid YAML: a text in brackets is ambiguous",
		"{list: [debian:12]}":        "f:1: it is not valid YAML: a text in brackets is ambiguous",
		"list: [remove,} stop]":      "f:1: it is not valid YAML: a text in brackets is ambiguous",
		"{name: b list: c}":          "f:1: it is not valid YAML: a text in brackets is ambiguous",
		"{name: b]}":                 "f:1: it is not valid YAML: a text in brackets is ambiguous",
		"name: [a]\n":                "f:1: name: it must be one plain value",
		"name: {a: b}\n":             "f:1: name: it must be one plain value",
		"name: !!str a\n":            "f:1: tags (!), anchors (&) and aliases (*) are not supported",
		"name: &a b\n":               "f:1: tags (!), anchors (&) and aliases (*) are not supported",
		"name: &a b\nlist: [*a]\n":   "f:1: tags (!), anchors (&) and aliases (*) are not supported",
		"list: &a [*a, *a]\n":        "f:1: tags (!), anchors (&) and aliases (*) are not supported",
		"list:\n- a\n- [b]\n":        "f:3: list[1]: it must be one plain value",
		"list: a\n":                  "f:1: list: it must be a list",
		"list: [~]\n":                "f:1: list[0]: it has no value",
		"count: 1.5\n":               "f:1: count: it must be a whole number from 1 to 9",
		"count: 10\n":                "f:1: count: it must be a whole number from 1 to 9",
		"on: 1\n":                    "f:1: on: it must be true or false",
		"inner:\n  a: b\n  c: []\n":  "f:3: inner.c: it must be one plain value",
		"inner: {\"a\\nb\": []}\n":   "f:1: inner.a?b: it must be one plain value",
		"? [a]\n: b\n":               "f:2: it is not valid YAML: ",
		"<<: {name: a}\n":            "f:1: a name in it is not a plain word",
		"name: a\n---\nname: b\n":    "f:3: it must be a single document",
		strings.Repeat("#", 4<<10+1): "f: the file is longer than 4 KiB",
		"list: [" + strings.Repeat("a,", 1001) + "a]": "f:1: list: it has more than 1000 items",
	} {
		_, err := decode(text)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, sandpit.ErrInvalid) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := decode("nome: b"); sandpit.Hint(err) != "use one of count, inner, list, name, on" {
		t.Errorf("the hint is %q", sandpit.Hint(err))
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{"", "name: 1", "---\n---\nname: 1", "list: &b [*b]", "? x\n: y", "<<: {name: 1}", "name: !!str 1", "---\n...\n", "%YAML 1.2\n---\n", "\xff\x00", "inner: {a: b}", "list: [a, b]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := decode(text)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 0 || e.File != "f" || strings.Contains(err.Error(), "\n")) {
			t.Errorf("got %v", err)
		}
	})
}
