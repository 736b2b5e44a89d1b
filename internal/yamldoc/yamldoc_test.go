package yamldoc

import (
	"errors"
	"strings"
	"testing"
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
		node, err := Parse([]byte(text))
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
	for text, want := range map[string]Error{
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
		_, err := Parse([]byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Line != want.Line || !strings.HasPrefix(e.Text, want.Text) || strings.Contains(e.Text, "\n") {
			t.Errorf("%q: got %+v, want %+v", text, e, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "a: 1", "---\n---\na: 1", "a: &b [*b]", "? x\n: y", "<<: {a: 1}", "a: !!str 1", "---\n...\n", "%YAML 1.2\n---\n", "\xff\x00"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		node, err := Parse(text)
		var e *Error
		if err != nil && (node != nil || !errors.As(err, &e) || e.Line < 0 || strings.Contains(e.Text, "\n")) {
			t.Errorf("%v, %v", node, err)
		}
	})
}
