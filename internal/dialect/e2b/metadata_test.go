package e2b

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

func TestMetadata(t *testing.T) {
	h := http.Header{"X-Metadata-": {"no key"}, "X-Metadatas": {"other"}, "Content-Type": {"x"}}
	if got, err := metadataOf(h); got != nil || err != nil {
		t.Errorf("of no metadata: %q, %v", got, err)
	}
	h.Add("X-Metadata-Author", "first ~")
	h.Add("X-Metadata-Author", "second")
	h.Add("X-Metadata-X-!#", "")
	want := map[string]string{"author": "first ~", "x-!#": ""}
	got, err := metadataOf(h)
	if !maps.Equal(got, want) || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	attrs := attrsOf(got)
	if !maps.Equal(attrs, map[string]string{"e2b.author": "first ~", "e2b.x-!#": ""}) {
		t.Errorf("as attributes: %q", attrs)
	}
	for _, bad := range []string{"ü", "\t", "a\x7f", "\xff"} {
		if _, err := metadataOf(http.Header{"X-Metadata-A": {bad}}); err == nil {
			t.Errorf("the value %q is taken", bad)
		}
		if _, err := metadataOf(http.Header{"X-Metadata-" + bad: {"v"}}); err == nil {
			t.Errorf("the key %q is taken", bad)
		}
		// A program in the sandbox may set anything.
		attrs["e2b."+bad], attrs["e2b.bad"+bad], attrs["e2b.value"] = "v", "v", bad
		attrs["e2b."], attrs["other"], attrs[bad] = "v", "v", "v"
		if got := metadataIn(attrs); !maps.Equal(got, want) {
			t.Errorf("back: %q", got)
		}
	}
}

// Metadata comes back from labels as it was. What labels can have stays readable in them.
func TestMetadataInLabels(t *testing.T) {
	metadata := map[string]string{"a b": "ü=%", "": "empty", "a=b": "c", "=": "=", "line\nx": "1\n2\t\x00\x7f\u0085", string(labelEscape): string(labelEscape) + "\n" + string(labelEscape), "x": ""}
	labels, err := labelsOf(metadata)
	if err != nil || labels["a b"] != "ü=%" {
		t.Errorf("%q, %v", labels, err)
	}
	if got := metadataOfLabels(labels); !maps.Equal(got, metadata) {
		t.Errorf("got %q", got)
	}
	for key, value := range labels {
		if key == "" || strings.Contains(key, "=") || strings.ContainsFunc(key+value, unicode.IsControl) {
			t.Errorf("%q: %q can't be a label", key, value)
		}
	}
	for i := range maxMetadata {
		metadata[strconv.Itoa(i)] = ""
	}
	if _, err := labelsOf(metadata); err == nil {
		t.Error("so much metadata is taken")
	}
}

// Metadata that is too long as labels is refused with the name that the client gave it.
func TestLongMetadata(t *testing.T) {
	for about, c := range map[string]struct {
		name, value string
		count       int    // of such entries
		want        string // "": it is taken
	}{
		"a long name":             {strings.Repeat("n", policy.MaxLabelName), "x", 1, ""},
		"a long value":            {"k", strings.Repeat("v", policy.MaxLabelValue), 1, ""},
		"a longer name":           {strings.Repeat("n", policy.MaxLabelName+1), "x", 1, "in metadata takes 129 bytes, and may take 128"},
		"a longer value":          {"k", strings.Repeat("v", policy.MaxLabelValue+1), 1, `the value of "k" in metadata takes 4097 bytes, and may take 4096`},
		"a name that is escaped":  {strings.Repeat("=", 20), "x", 1, `the name "====================" in metadata takes 160 bytes, and may take 128`},
		"a value that is escaped": {"k", strings.Repeat("\n", 600), 1, `the value of "k" in metadata takes 4800 bytes, and may take 4096`},
		"too much in all":         {"k", strings.Repeat("v", policy.MaxLabelValue), 4, "metadata takes 16392 bytes, and may take 16384"},
	} {
		metadata := map[string]string{}
		for i := range c.count {
			name := c.name
			if c.count > 1 {
				name += strconv.Itoa(i)
			}
			metadata[name] = c.value
		}
		labels, err := labelsOf(metadata)
		if c.want != "" {
			if errcode.Of(err) != errcode.Invalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(sandpit.Hint(err), "8 bytes") {
				t.Errorf("%s: %v, want %s", about, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", about, err)
		}
		if _, err := policy.Resolve(sandpit.Spec{Image: "host", Labels: labels}, policy.Policy{}); errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s: as labels: %v", about, err)
		}
	}
}
