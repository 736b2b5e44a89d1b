package policy

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestResolveDefaults(t *testing.T) {
	got, err := Resolve(sandpit.Spec{}, Default())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sandpit.DefaultLimits(), got); diff != "" {
		t.Error(diff)
	}
}

func TestResolveTakesLimits(t *testing.T) {
	got, err := Resolve(sandpit.Spec{Limits: sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Life: time.Second}}, Default())
	if err != nil {
		t.Fatal(err)
	}
	want := sandpit.DefaultLimits()
	want.Memory, want.CPUs, want.Life = 64<<20, 0.5, time.Second
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMaximum(t *testing.T) {
	p := Policy{Default: sandpit.DefaultLimits(), Max: sandpit.Limits{Memory: 1 << 30, CPUs: 4}}
	got, err := Resolve(sandpit.Spec{}, p)
	if err != nil || got.Memory != 1<<30 || got.CPUs != 2 {
		t.Errorf("a default over the maximum: got %+v, %v", got, err)
	}
	_, err = Resolve(sandpit.Spec{Limits: sandpit.Limits{Memory: 2 << 30}}, p)
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "2 GiB is more than the maximum of 1 GiB") || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestEveryLimitIsChecked(t *testing.T) {
	for _, l := range limits() {
		if l.get(new(sandpit.DefaultLimits())) < l.min() {
			t.Errorf("the default of %s is below its minimum", l.feature)
		}
	}
	for _, spec := range []sandpit.Limits{
		{Memory: -1}, {CPUs: -1}, {Pids: -1}, {Disk: -1}, {Files: -1}, {NoFile: -1}, {Output: -1}, {Life: -1}, {CPUs: math.NaN()},
	} {
		if _, err := Resolve(sandpit.Spec{Limits: spec}, Default()); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "must be more than 0") {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
	for _, spec := range []sandpit.Limits{
		{Memory: sandpit.MinMemory - 1}, {CPUs: 0.001}, {Pids: 1}, {Disk: 1}, {Files: 1}, {NoFile: 1}, {Life: 1},
	} {
		if _, err := Resolve(sandpit.Spec{Limits: spec}, Default()); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "is below the minimum of") {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
	for _, spec := range []sandpit.Limits{
		{Memory: math.MaxInt64}, {CPUs: math.Inf(1)}, {Pids: math.MaxInt64}, {Disk: math.MaxInt64}, {Files: math.MaxInt64}, {NoFile: math.MaxInt64}, {Output: math.MaxInt64}, {Life: math.MaxInt64},
	} {
		if _, err := Resolve(sandpit.Spec{Limits: spec}, Default()); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "more than any machine has") {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	mount := func(source, target string) sandpit.Spec {
		return sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: target}}}
	}
	long := strings.Repeat("a", 5000)
	for _, tt := range []struct {
		spec sandpit.Spec
		want string
	}{
		{sandpit.Spec{Name: "-a"}, `"-a" is not a valid sandbox name`},
		{sandpit.Spec{Name: "a/b"}, `"a/b" is not a valid sandbox name`},
		{sandpit.Spec{Name: long}, "is not a valid sandbox name"},
		{sandpit.Spec{Hostname: "a_b"}, `"a_b" is not a valid host name`},
		{sandpit.Spec{Hostname: "a..b"}, "is not a valid host name"},
		{sandpit.Spec{Hostname: "-a"}, "is not a valid host name"},
		{sandpit.Spec{Hostname: long}, "is not a valid host name"},
		{sandpit.Spec{User: ":"}, `":" is not a valid user`},
		{sandpit.Spec{User: "a b"}, "is not a valid user"},
		{sandpit.Spec{User: "a:b:c"}, "is not a valid user"},
		{sandpit.Spec{User: "-1"}, "is not a valid user"},
		{sandpit.Spec{User: "4294967295"}, "is not a valid user"},
		{sandpit.Spec{User: "4294967296"}, "is not a valid user"},
		{sandpit.Spec{User: "root:"}, "is not a valid user"},
		{sandpit.Spec{User: "a\nb"}, "is not a valid user"},
		{sandpit.Spec{Pull: "sometimes"}, `"sometimes" is not a valid pull policy`},
		{sandpit.Spec{Image: "a\x00"}, "is not a valid image name"},
		{sandpit.Spec{Env: []string{"A"}}, `"A" is not a valid environment variable`},
		{sandpit.Spec{Env: []string{"=A"}}, "is not a valid environment variable"},
		{sandpit.Spec{Env: []string{"A=\x00"}}, "has a NUL"},
		{sandpit.Spec{Env: []string{"A=" + strings.Repeat("x", 128<<10)}}, "longer than 128 KiB"},
		{sandpit.Spec{Env: slicesRepeat("A="+strings.Repeat("x", 120<<10), 9)}, "larger than 1 MiB"},
		{sandpit.Spec{Env: slicesRepeat("A=", 5000)}, "more than 4096 environment"},
		{sandpit.Spec{WorkDir: "a"}, `the working directory "a" is not absolute`},
		{sandpit.Spec{WorkDir: "/" + long}, "longer than 4095"},
		{sandpit.Spec{Write: []string{"a"}}, `the writable path "a" is not absolute`},
		{sandpit.Spec{Write: []string{"/a\x00"}}, "has a NUL"},
		{sandpit.Spec{Write: []string{"/a"}, ReadOnly: true}, "can't be combined"},
		{sandpit.Spec{Write: []string{"/a", "/x/.."}}, "can't be the root directory"},
		{sandpit.Spec{Write: []string{"/a/b/c"}, Mounts: []sandpit.Mount{{Source: dir, Target: "/a/b/", ReadOnly: true}, {Source: dir, Target: "/a"}}}, `is in the mount at "/a/b/", which is read-only`},
		{mount("a", "/a"), "is not absolute"},
		{mount(dir+"/gone", "/a"), "does not exist"},
		{mount(link, "/a"), "is a symbolic link"},
		{mount(link+"/", "/a"), "is a symbolic link"},
		{mount(file+"/x", "/a"), "can't be accessed"},
		{mount("/dev/null", "/a"), "not a directory or a regular file"},
		{mount("/", "/a"), "the root directory of the host"},
		{mount(dir, "a"), `the mount's target "a" is not absolute`},
		{mount(dir, ""), "is not absolute"},
		{mount(dir, "/"), "can't be the root directory"},
		{mount(dir, "/x/.."), "can't be the root directory"},
		{mount(dir, "/proc/self"), "the sandbox reserves"},
		{mount(dir, "/x/../dev"), "the sandbox reserves"},
		{sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/a"}}, Tmpfs: []sandpit.Tmpfs{{Target: "/a/"}}}, `two mounts have the target "/a"`},
		{sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/a", NoSockets: true}}}, "only if it is read-only"},
		{sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/a", Size: -1}}}, "must be more than 0"},
		{sandpit.Spec{Tmpfs: []sandpit.Tmpfs{{Target: "/a", Size: math.MaxInt64}}}, "more than any machine has"},
		{sandpit.Spec{Labels: map[string]string{"": "x"}}, "not a valid label name"},
		{sandpit.Spec{Labels: map[string]string{"a": "\n"}}, "control characters"},
	} {
		_, err := Resolve(tt.spec, Default())
		if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}

// What an image says of itself is what a sandbox may say.
func TestCheckCommit(t *testing.T) {
	for _, tt := range []struct {
		c    sandpit.Commit
		want string
	}{
		{sandpit.Commit{}, ""},
		{sandpit.Commit{Name: "a", User: "www-data:0", WorkDir: "/s\u00e4", Env: []string{"A=b\nc"}, Labels: map[string]string{"l": "v"}, Cmd: []string{"sh", "-c", "a\nb"}}, ""},
		{sandpit.Commit{User: "a\nb"}, "not a valid user"},
		{sandpit.Commit{User: "a\u0085"}, "the user \"a\\u0085\" has control characters"},
		{sandpit.Commit{WorkDir: "a"}, "not absolute"},
		{sandpit.Commit{WorkDir: "/a\x1b[2J"}, "the working directory \"/a\\x1b[2J\" has control characters"},
		{sandpit.Commit{WorkDir: "/\xff"}, "not UTF-8"},
		{sandpit.Commit{Env: []string{"=b"}}, "not a valid environment variable"},
		{sandpit.Commit{Labels: map[string]string{"a\x7f": "b"}}, "not a valid label name"},
		{sandpit.Commit{Labels: map[string]string{"a": "\r"}}, "control characters"},
		{sandpit.Commit{Labels: map[string]string{"a": strings.Repeat("x", 5000)}}, "too long"},
	} {
		err := CheckCommit(tt.c)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%+v: %v", tt.c, err)
			}
		} else if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.c, err, tt.want)
		}
	}
}

func TestAccepted(t *testing.T) {
	dir := t.TempDir()
	for _, spec := range []sandpit.Spec{
		{Name: "a", Hostname: "a.b-c", User: "root"},
		{Name: strings.Repeat("a", 63), User: "0:0"},
		{User: "www-data:www-data"},
		{User: "DOMAIN\\user"},
		{Env: []string{"A=", "B=a=b\n\xff", "odd name=1"}},
		{WorkDir: "/a b/\n"},
		{Write: []string{"/work", "/a/w"}, Mounts: []sandpit.Mount{{Source: dir, Target: "/a", ReadOnly: true}, {Source: dir, Target: "/a/w"}}},
		{Write: []string{"/a/t/x", "/ab"}, Mounts: []sandpit.Mount{{Source: dir, Target: "/a", ReadOnly: true}}, Tmpfs: []sandpit.Tmpfs{{Target: "/a/t/"}}},
		{Mounts: []sandpit.Mount{{Source: dir, Target: "/a"}, {Source: dir + "/", Target: "/a/b", ReadOnly: true}}},
		{Tmpfs: []sandpit.Tmpfs{{Target: "/tmp"}, {Target: "/devices", Size: 4096}}},
		{Labels: map[string]string{"team": "é"}},
		{ReadOnly: true, Pull: sandpit.PullNever},
	} {
		if _, err := Resolve(spec, Default()); err != nil {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

func TestRows(t *testing.T) {
	rows := Policy{Default: sandpit.DefaultLimits(), Max: sandpit.Limits{Memory: 4 << 30}}.Limits()
	want := Limit{Name: "memory", Flag: "--memory", Meaning: rows[0].Meaning, Default: "2 GiB", Min: "16 MiB", Max: "4 GiB"}
	if diff := cmp.Diff(want, rows[0]); diff != "" {
		t.Error(diff)
	}
	if len(rows) != 8 || rows[7].Default != "24h" || rows[1].Min != "0.01" || rows[2].Max != "" {
		t.Errorf("got %+v", rows)
	}
}

func slicesRepeat(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

func FuzzResolve(f *testing.F) {
	f.Add("a", "h", "root", "A=1", "/w", "/t", int64(1<<30), 0.5)
	f.Add("", "", "", "", "", "", int64(-1), math.Inf(-1))
	f.Fuzz(func(t *testing.T, name, host, user, env, dir, target string, n int64, cpus float64) {
		got, err := Resolve(sandpit.Spec{
			Name: name, Hostname: host, User: user, Env: []string{env}, WorkDir: dir,
			Tmpfs:  []sandpit.Tmpfs{{Target: target, Size: n}},
			Limits: sandpit.Limits{Memory: n, CPUs: cpus, Life: time.Duration(n)},
		}, Default())
		if err != nil {
			if !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("got %v", err)
			}
			return
		}
		for _, l := range limits() {
			if v := l.get(&got); !(v >= l.min() && v <= l.max) {
				t.Errorf("%s is %v", l.feature, v)
			}
		}
	})
}
