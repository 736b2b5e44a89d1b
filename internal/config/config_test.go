package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func testKeys() []Key {
	return []Key{
		{"memory", Scalar},
		{"cpus", Scalar},
		{"read-only", Scalar},
		{"image", Scalar},
		{"mount", List},
		{"env", Map},
		{"output-limit", Scalar},
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func TestLoadOrdersLevels(t *testing.T) {
	system := write(t, "system.yaml", "memory: 1g\nenv:\n  A: 1\n  B: two words\n")
	user := write(t, "user.yaml", "# mine\nmemory: 512m # less\ncpus: 1.5\nread-only: true\nmount:\n  - .:/work\n  - /srv:/srv:ro\n")
	env := Environ{System: system, Lookup: lookup(map[string]string{
		"SANDPIT_CONFIG": user, "SANDPIT_ENV": "C=3\nD=a,b\n", "SANDPIT_OUTPUT_LIMIT": "1m", "SANDPIT_IMAGE": "",
	})}
	got, err := env.Load(testKeys())
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{"memory", []string{"1g"}, Origin{System, system + ":1"}},
		{"env", []string{"A=1", "B=two words"}, Origin{System, system + ":2"}},
		{"memory", []string{"512m"}, Origin{User, user + ":2"}},
		{"cpus", []string{"1.5"}, Origin{User, user + ":3"}},
		{"read-only", []string{"true"}, Origin{User, user + ":4"}},
		{"mount", []string{".:/work", "/srv:/srv:ro"}, Origin{User, user + ":5"}},
		{"env", []string{"C=3", "D=a,b"}, Origin{Environment, "SANDPIT_ENV"}},
		{"output-limit", []string{"1m"}, Origin{Environment, "SANDPIT_OUTPUT_LIMIT"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings differ (-want +got):\n%s", diff)
	}
}

func TestFiles(t *testing.T) {
	for _, tt := range []struct {
		env   map[string]string
		user  string
		asked bool
	}{
		{map[string]string{}, "", false},
		{map[string]string{"HOME": "/home/a"}, "/home/a/.config/sandpit/config.yaml", false},
		{map[string]string{"HOME": "/home/a", "XDG_CONFIG_HOME": "/x"}, "/x/sandpit/config.yaml", false},
		{map[string]string{"HOME": "/home/a", "XDG_CONFIG_HOME": "relative"}, "/home/a/.config/sandpit/config.yaml", false},
		{map[string]string{"HOME": "/home/a", "SANDPIT_CONFIG": "c.yaml"}, "c.yaml", true},
	} {
		system, user, asked := Environ{Lookup: lookup(tt.env), System: "/s"}.Files()
		if system != "/s" || user != tt.user || asked != tt.asked {
			t.Errorf("%v: got %q, %q, %v", tt.env, system, user, asked)
		}
	}
}

func TestMissingFile(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone.yaml")
	env := Environ{System: gone, Lookup: lookup(nil)}
	if got, err := env.Load(testKeys()); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
	env.Lookup = lookup(map[string]string{"SANDPIT_CONFIG": gone})
	if _, err := env.Load(testKeys()); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestBrokenFiles(t *testing.T) {
	for text, want := range map[string]string{
		"memory: 1g\nmemroy: 2g\n":         `:2: unknown key "memroy"`,
		"memory:\n":                        ":1: memory: it has no value",
		"memory: ~\n":                      ":1: memory: it has no value",
		"env:\n# A: x\n":                   ":1: env: it has no value",
		"env:\n  A:\n":                     ":2: env.A: it has no value",
		"mount: [~]\n":                     ":1: mount[0]: it has no value",
		"cpus: 1\n\nmemory: [1g]\n":        ":3: memory: it must be one plain value",
		"memory: {a: b}\n":                 ":1: memory: it must be one plain value",
		"memory: 1g\nmemory: 2g\n":         ":2: ",
		"env:\n  A: [1]\n":                 ":2: env.A: it must be one plain value",
		"mount: [[a]]\n":                   ":1: mount[0]: it must be one plain value",
		"- memory\n":                       ":1: it must be lines of NAME: VALUE",
		"just words\n":                     ":1: it must be lines of NAME: VALUE",
		"memory: &a 1g\n":                  ":1: tags (!), anchors (&) and aliases (*) are not supported",
		"memory: 1g\n---\ncpus: 1\n":       "it must be a single document",
		"---\n# x\n---\ncpus: 1\n":         ":3: it must be a single document",
		"memory: 'open\n":                  ":1: it is not valid YAML: ",
		"memory: 1g\n\tcpus: 2\n":          ":2: it is not valid YAML: ",
		"mount: [/a:/b\n":                  ":1: it is not valid YAML: ",
		strings.Repeat("# more\n", 160000): "the file is longer than 1 MiB",
	} {
		file := write(t, "config.yaml", text)
		_, err := Environ{System: file, Lookup: lookup(nil)}.Load(testKeys())
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, sandpit.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: got %q, want it to contain %q", text, err, want)
		}
		if sandpit.Hint(err) == "" && len(text) < 1000 {
			t.Errorf("%q: no hint", text)
		}
	}
}

// A home in which there can be no file is one without it, and what a user may not
// read is not passed over.
func TestFilesOutOfReach(t *testing.T) {
	file := write(t, "file", "")
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME"} {
		for _, dir := range []string{os.DevNull, file, t.TempDir(), "/nonexistent"} {
			if got, err := (Environ{Lookup: lookup(map[string]string{name: dir})}).Load(testKeys()); err != nil || len(got) != 0 {
				t.Errorf("%s=%s: got %v, %v", name, dir, got, err)
			}
		}
	}
	for _, name := range []string{filepath.Join(file, "below"), filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		_, err := Environ{Lookup: lookup(map[string]string{"SANDPIT_CONFIG": name})}.Load(testKeys())
		if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), name) || sandpit.Hint(err) == "" {
			t.Errorf("%s: got %v (%s)", name, err, sandpit.Hint(err))
		}
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "---\n# nothing\n", "mount: []\n"} {
		file := write(t, "config.yaml", text)
		if got, err := (Environ{System: file, Lookup: lookup(nil)}).Load(testKeys()); err != nil || len(got) != 0 {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	got := UnknownVariables([]string{"SANDPIT_MEMORY=1g", "SANDPIT_MEMROY=1g", "SANDPIT_CONFIG=x", "SANDPIT_TEST_LONG=1", "PATH=/bin", "odd"}, testKeys())
	if diff := cmp.Diff([]string{"SANDPIT_MEMROY"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "memory: 1g", "env: {A: 1}", "mount: [a, b]", "memory: |\n  x\n", "a: &b [*b]", "? x\n: y", "<<: {memory: 1}", "memory: !!str 1", "---\n...\n", "\xff\x00",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := parse("config.yaml", bytes.NewReader(data), User, testKeys())
		if err != nil && settings != nil {
			t.Error("settings with an error")
		}
		for _, s := range settings {
			if _, ok := find(testKeys(), s.Key); !ok || len(s.Values) == 0 {
				t.Errorf("setting %+v", s)
			}
		}
	})
}
