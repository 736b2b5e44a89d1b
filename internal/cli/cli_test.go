package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// requestOf returns what sandpit run with args would ask for.
func requestOf(t *testing.T, system string, environ []string, args ...string) (sandpit.Spec, error) {
	t.Helper()
	a := &App{Environ: environ, SystemConfig: system}
	o := NewOptions(a.Lookup)
	if _, ok := parse(o.Sections(), args); !ok {
		t.Fatalf("%v can't be read", args)
	}
	if err := o.Configure(a.Config()); err != nil {
		return sandpit.Spec{}, err
	}
	return o.Spec()
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	vars := file(t, "vars", "A=system file\nB=system file\n")
	system := file(t, "system.yaml", `
memory: 1g
pids: 100
nofile: 100
env-file: [`+vars+`]
env: {B: system, C: system, D: system}
mount: [/etc:/system]
label: {a: system, b: system}
`)
	user := file(t, "user.yaml", `
memory: 512m
pids: 200
env: {C: user, D: user}
mount: [/etc:/user, /etc:/user2]
label: {b: user}
`)
	environ := []string{"SANDPIT_CONFIG=" + user, "SANDPIT_PIDS=300", "SANDPIT_ENV=D=variable\nE=variable", "SANDPIT_HOSTNAME="}
	got, err := requestOf(t, system, environ, "--memory", "1m", "--memory", "64m", "-e", "E=flag")
	if err != nil {
		t.Fatal(err)
	}
	want := sandpit.Spec{
		Limits: sandpit.Limits{Memory: 64 << 20, Pids: 300, NoFile: 100},
		Env: []string{ // a later variable replaces an earlier one
			"A=system file", "B=system file", "B=system", "C=system", "D=system", "C=user", "D=user", "D=variable", "E=variable", "E=flag",
		},
		Mounts: []sandpit.Mount{{Source: "/etc", Target: "/user"}, {Source: "/etc", Target: "/user2"}},
		Labels: map[string]string{"a": "system", "b": "user"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestExclusive lets the stronger of two levels decide between flags that
// exclude each other.
func TestExclusive(t *testing.T) {
	write := file(t, "write.yaml", "write: [/a]")
	readOnly := file(t, "read-only.yaml", "read-only: true")
	for _, tt := range []struct {
		system   string
		environ  []string
		args     []string
		readOnly bool
		write    []string
		refused  bool
	}{
		{system: write, write: []string{"/a"}},
		{system: write, args: []string{"--read-only"}, readOnly: true},
		{system: write, args: []string{"--read-only=false"}, write: []string{"/a"}},
		{system: readOnly, args: []string{"--write", "/b"}, write: []string{"/b"}},
		{system: readOnly, environ: []string{"SANDPIT_WRITE=/b\n/c"}, write: []string{"/b", "/c"}},
		{args: []string{"--write", "/b", "--read-only"}, refused: true},
	} {
		got, err := requestOf(t, tt.system, tt.environ, tt.args...)
		if tt.refused != errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%v: %v", tt.args, err)
		}
		if err == nil && (got.ReadOnly != tt.readOnly || !cmp.Equal(got.Write, tt.write)) {
			t.Errorf("%v: got %v and %v", tt.args, got.ReadOnly, got.Write)
		}
	}
}

// What closes the network wins over rules and secrets that are set at weaker levels.
func TestClosedNetwork(t *testing.T) {
	rules := file(t, "rules.yaml", "allow: [a.test]\nresolve: [a.test:127.0.0.1]\nsecret: [a]\nsecret-env: [b]")
	none := file(t, "none.yaml", "egress: none\nallow: [a.test]")
	for _, tt := range []struct {
		system  string
		environ []string
		args    []string
		allow   []string
		secrets int
	}{
		{system: rules, allow: []string{"a.test"}, secrets: 2},
		{system: rules, args: []string{"--egress", "none"}, secrets: 1},
		{system: rules, args: []string{"--egress", "none", "--allow", "b.test"}, allow: []string{"b.test"}, secrets: 1},
		{system: rules, environ: []string{"SANDPIT_EGRESS=none"}, args: []string{"--allow", "b.test"}, allow: []string{"b.test"}, secrets: 1},
		{system: none, allow: []string{"a.test"}},
		{system: none, environ: []string{"SANDPIT_ALLOW=b.test"}, allow: []string{"a.test", "b.test"}},
	} {
		got, err := requestOf(t, tt.system, tt.environ, tt.args...)
		if err != nil || !cmp.Equal(got.Egress.Allow, tt.allow) || len(got.Secrets) != tt.secrets {
			t.Errorf("%v %v: %v, %v, %v", tt.environ, tt.args, got.Egress.Allow, got.Secrets, err)
		}
	}
}

func TestLongTimeout(t *testing.T) {
	got, err := requestOf(t, "", nil, "--timeout", "48h")
	if err != nil || got.Limits.Life <= 48*time.Hour {
		t.Errorf("got a lifetime of %v, %v", got.Limits.Life, err)
	}
}

func TestDataDir(t *testing.T) {
	system := file(t, "system.yaml", "home: /srv/sandpit")
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		environ []string
		system  string
		want    string // for an ordinary user; empty: unknown, an error
	}{
		{[]string{"SANDPIT_HOME=/x/"}, system, "/x"},
		{[]string{"SANDPIT_HOME=" + open}, system, open}, // refused: others may have put something there
		{[]string{"HOME=/home/a"}, system, "/srv/sandpit"},
		{[]string{"HOME=/home/a"}, "", "/home/a/.local/share/sandpit"},
		{[]string{"HOME=/home/a", "XDG_DATA_HOME=/data"}, "", "/data/sandpit"},
		{[]string{"HOME=relative"}, "", ""},
	} {
		a := &App{Environ: tt.environ, SystemConfig: tt.system}
		o := NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			t.Fatal(err)
		}
		want := tt.want
		if os.Geteuid() == 0 && !o.home.set {
			want = "/var/lib/sandpit"
		}
		if got, err := o.DataDir(); got != want || (err == nil) != (want != "" && want != open) {
			t.Errorf("%v: got %q, %v, want %q", tt.environ, got, err, want)
		}
	}
}

// TestDocumentedDefaults compares what help says with what is so.
func TestDocumentedDefaults(t *testing.T) {
	usage := map[string]string{}
	for _, section := range NewOptions(func(string) (string, bool) { return "", false }).Sections() {
		for _, e := range section.Entries {
			usage["--"+e.Name] = e.Usage
		}
	}
	for _, l := range policy.Default().Limits() {
		text, ok := usage[l.Flag]
		if !ok {
			t.Errorf("there is no flag %s", l.Flag)
		}
		value := strings.ToLower(strings.TrimSuffix(strings.ReplaceAll(l.Default, " ", ""), "iB"))
		if l.Name != "life" && !strings.Contains(text, "(default "+value) {
			t.Errorf("%s: the default is %s, and help says: %s", l.Flag, value, text)
		}
	}
}

func TestLookup(t *testing.T) {
	a := &App{Environ: []string{"A=1", "AB=2", "A=3", "B="}}
	for name, want := range map[string]string{"A": "3", "AB": "2", "B": ""} {
		if got, ok := a.Lookup(name); !ok || got != want {
			t.Errorf("%s: got %q, %v", name, got, ok)
		}
	}
	if got, ok := a.Lookup("C"); ok {
		t.Errorf("C: got %q", got)
	}
}

func TestHarmless(t *testing.T) {
	for s, want := range map[string]string{
		"plain é 世":           "plain é 世",
		"a\nb\tc\n":           "a b c",
		"\x1b[2J\x07":         `\x1b[2J\a`,
		"\u202Eabc":           `\u202eabc`,
		"\u009b31m":           `\u009b31m`,
		"bad \xff\xfe":        "bad \uFFFD\uFFFD",
		"a\r\x00":             `a\r\x00`,
		"\U000E0041tag\u200b": `\U000e0041tag\u200b`,
	} {
		if got := Harmless(s); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
	if got := Harmless(strings.Repeat("x", 1<<20)); len(got) > 5000 {
		t.Errorf("%d bytes", len(got))
	}
}

func FuzzHarmless(f *testing.F) {
	f.Add("a\x1b[2J\u202e\xff\n")
	f.Fuzz(func(t *testing.T, s string) {
		got := Harmless(s)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) || len(got) > 50000 {
			t.Errorf("%q: got %q", s, got)
		}
	})
}

// TestEveryKeyIsAFlag keeps the promise that keys are the names of flags.
func TestEveryKeyIsAFlag(t *testing.T) {
	o := NewOptions(func(string) (string, bool) { return "", false })
	for _, key := range Keys(o.Settable()) {
		if _, found := entryOf(o.Sections(), func(e Entry) bool { return e.Name == key.Name }); !found && !slices.Contains([]string{"home", "server", "key", "namespace"}, key.Name) {
			t.Errorf("%s is no flag", key.Name)
		}
	}
}

// TestReport maps errors to exit codes, each shown once.
func TestReport(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{&ExitError{3}, 3, ""},
		{errors.New("making: why"), 125, "sandpit: making: why\n"},
		{sandpit.WithHint(errors.New("making: why"), "do this"), 125, "sandpit: making: why\nhint: do this\n"},
	} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		a := &App{Stderr: write}
		if got := a.Report(tt.err); got != tt.code {
			t.Errorf("%v: exit code %d", tt.err, got)
		}
		_ = write.Close()
		buf := make([]byte, 1000)
		n, _ := read.Read(buf)
		_ = read.Close()
		if string(buf[:n]) != tt.text {
			t.Errorf("%v: got %q", tt.err, buf[:n])
		}
	}
}

// FuzzFlags gives a word to every flag, as its value.
func FuzzFlags(f *testing.F) {
	for _, word := range []string{"", "1", "512m", "/a:/b:ro", "A=1", "true", "never", "docker.io=https://x"} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		o := NewOptions(func(string) (string, bool) { return "", false })
		for _, section := range o.Sections() {
			for _, e := range section.Entries {
				err := e.Value.Set(word)
				if again := e.Value.add(word, config.Origin{Level: config.User}); (err == nil) != (again == nil) {
					t.Errorf("--%s %q: %v from a flag, %v from a file", e.Name, word, err, again)
				}
				if err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("--%s %q: %q has more than one line", e.Name, word, err)
				}
			}
		}
		o.envFile.items, o.readOnly.is = nil, false
		if _, err := o.Spec(); err != nil {
			t.Errorf("%q: %v", word, err)
		}
	})
}

// TestMessagesWait writes a message to a pipe that is full and does not wait.
func TestMessagesWait(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	defer r.Close()
	if err := unix.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	full := 0
	for {
		n, err := unix.Write(fds[1], make([]byte, 4096))
		if err != nil {
			break
		}
		full += n
	}
	written := make(chan struct{})
	go func() {
		(&App{Stderr: w}).PrintError(sandpit.WithHint(errors.New("it can't be"), "do that"))
		_ = w.Close()
		close(written)
	}()
	select {
	case <-written:
		t.Error("it was not waited until there is room")
	case <-time.After(20 * time.Millisecond):
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(all[full:]); got != "sandpit: it can't be\nhint: do that\n" {
		t.Errorf("got %q", got)
	}
}
