package policy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

const (
	hexA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hexB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func withImages(t *testing.T, patterns ...string) Policy {
	t.Helper()
	p := ServerDefault()
	p.Name, p.Rules.Images = "team", nil
	for _, text := range patterns {
		i, err := ParseImage(text)
		if err != nil {
			t.Fatal(err)
		}
		if i.String() != text {
			t.Errorf("%q is shown as %q", text, i)
		}
		p.Rules.Images = append(p.Rules.Images, i)
	}
	return p
}

func TestImages(t *testing.T) {
	for _, tt := range []struct {
		pattern  string
		yes, not []string
	}{
		{"host", []string{"", "host"}, []string{"debian", "dir:/host", "HOST", "host:latest", "docker.io/library/host"}},
		{
			"*",
			[]string{"debian", "localhost:5000/a", "ghcr.io/org/app@sha256:" + hexA, "a/b/c:d"},
			[]string{"", "host", "dir:/", "oci:/a", "oci-archive:/a.tar", "docker-archive:/a.tar", "sha256:" + hexA},
		},
		{
			"debian",
			[]string{"debian", "debian:13", "docker.io/library/debian", "index.docker.io/library/debian:x", "debian@sha256:" + hexA},
			[]string{"debian2", "org/debian", "ghcr.io/library/debian", "xdebian", "localhost/library/debian", "dir:debian"},
		},
		{"python:3.*", []string{"python:3.14", "docker.io/python:3."}, []string{"python", "python:3", "python:2.7", "python@sha256:" + hexA, "python:13.1"}},
		{"debian:*", []string{"debian:13", "debian@sha256:" + hexA}, []string{"ubuntu:13"}},
		{
			"ghcr.io/org/*",
			[]string{"ghcr.io/org/a", "ghcr.io/org/a/b:v1"},
			[]string{"ghcr.io/org2/a", "ghcr.io.evil.com/org/a", "evil.com/ghcr.io/org/a", "org/a", "ghcr.io:444/org/a"},
		},
		{"*.example.com/app", []string{"a.example.com/app", "a.b.example.com/app:x"}, []string{"example.com/app", "evil.io/x.example.com/app", "a.example.com.evil.io/app", "a.example.com:5000/app", "a.example.com/x/app"}},
		{"ghcr.io/org/*@sha256:*", []string{"ghcr.io/org/a@sha256:" + hexA}, []string{"ghcr.io/org/a", "ghcr.io/org/a:sha256"}},
		{"debian@sha256:" + hexA, []string{"debian@sha256:" + hexA, "debian:13@sha256:" + hexA}, []string{"debian", "debian@sha256:" + hexB, "sha256:" + hexA}},
		{"sha256:" + hexA, []string{"sha256:" + hexA}, []string{"sha256:" + hexB, "debian@sha256:" + hexA}},
		{
			"dir:/srv/roots/*",
			[]string{"dir:/srv/roots/a", "dir:/srv/roots/a/b"},
			[]string{"dir:/srv/roots", "dir:/srv/roots/../a", "dir:/srv/rootsx", "dir:srv/roots/a", "dir:/srv/roots//a", "oci:/srv/roots/a", "dir:/srv/roots/a/..", "dir:/"},
		},
		{"oci-archive:/srv/*.tar", []string{"oci-archive:/srv/a.tar"}, []string{"oci-archive:/srv/a.tar:b", "oci-archive:/etc/a.tar"}},
	} {
		p := withImages(t, tt.pattern)
		for _, name := range tt.yes {
			if err := p.AllowImage(name); err != nil {
				t.Errorf("%s: %q: %v", tt.pattern, name, err)
			}
		}
		for _, name := range tt.not {
			err := p.AllowImage(name)
			if !errors.Is(err, sandpit.ErrForbidden) && !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("%s allows %q: %v", tt.pattern, name, err)
			}
			if errors.Is(err, sandpit.ErrForbidden) && (Rule(err) != "team.images" || !strings.Contains(sandpit.Hint(err), tt.pattern)) {
				t.Errorf("%s: %q: %v, rule %q, hint %q", tt.pattern, name, err, Rule(err), sandpit.Hint(err))
			}
		}
	}
	for _, bad := range []string{
		"", " ", "a b", "*/app", "gh*.io/a", "ghcr.io*/a", "*.*.io/a", "UPPER", "debian:", "debian:1@sha256:*", "debian@sha256:abc", "debian@md5:*",
		"dir:relative", "dir:/a/../b", "dir:", "sha256:abc", "a//b", "a\x00b", strings.Repeat("a", 5000), "/abs", "-x",
	} {
		if i, err := ParseImage(bad); !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" {
			t.Errorf("%q: got %v, %v", bad, i, err)
		}
	}
	// Nothing named is nothing allowed.
	p := withImages(t)
	if err := p.AllowImage("host"); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("got %v", err)
	}
	owner := Default()
	for _, name := range []string{"", "host", "dir:/", "debian"} {
		if err := owner.AllowImage(name); err != nil {
			t.Errorf("the owner: %q: %v", name, err)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "abc", true},
		{"a*", "a", true},
		{"a*", "b", false},
		{"*a", "ba", true},
		{"*a", "ab", false},
		{"a*b*c", "axxbyyc", true},
		{"a*b*c", "axxcyyb", false},
		{"**", "x", true},
		{"a**b", "ab", true},
		{strings.Repeat("*a", 50) + "b", strings.Repeat("a", 4000), false},
	} {
		if got := glob(tt.pattern, tt.s); got != tt.want {
			t.Errorf("%.20q, %.20q: got %v", tt.pattern, tt.s, got)
		}
	}
}

func TestServerDefault(t *testing.T) {
	p := ServerDefault()
	if err := p.CheckDefaults(); err != nil {
		t.Fatal(err)
	}
	spec := p.Complete(sandpit.Spec{})
	limits, err := Resolve(spec, p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sandpit.DefaultLimits(), limits); diff != "" {
		t.Error(diff)
	}
	if spec.OnExpiry != sandpit.ExpiryRemove || spec.Idle != 0 || spec.Write != nil {
		t.Errorf("got %+v", spec)
	}
	dir := t.TempDir()
	for _, spec := range []sandpit.Spec{
		{Mounts: []sandpit.Mount{{Source: dir, Target: "/a", ReadOnly: true}}},
		{Image: "dir:" + dir},
		{Image: "sha256:" + hexA},
		{Limits: sandpit.Limits{Life: 30 * 24 * time.Hour}},
		{Limits: sandpit.Limits{Memory: 1 << 40}},
	} {
		_, err := Resolve(p.Complete(spec), p)
		var r *Refusal
		if !errors.As(err, &r) || !errors.Is(err, sandpit.ErrForbidden) || r.Part == "" || !strings.HasPrefix(r.Rule, "default.") || sandpit.Hint(err) == "" {
			t.Errorf("%+v: got %v", spec, err)
		}
	}
}

func TestMountRules(t *testing.T) {
	p := ServerDefault()
	p.Rules.Mounts = []MountRule{{Source: "/srv"}, {Source: "/srv/data", Write: true}, {Source: "/etc/hosts"}}
	for _, tt := range []struct {
		source string
		read   bool // may be mounted read-only
		write  bool
	}{
		{"/srv", true, false},
		{"/srv/other/deep", true, false},
		{"/srv/data", true, true},
		{"/srv/data/", true, true},
		{"/srv/data/below", false, false}, // a sandbox may have made it, as a link
		{"/srv/data/../other", true, false},
		{"/srv/../etc", false, false},
		{"/srv2", false, false},
		{"/etc/hosts", true, false},
		{"/etc", false, false},
		{"/", false, false},
	} {
		for _, readOnly := range []bool{true, false} {
			want := tt.write
			if readOnly {
				want = tt.read
			}
			err := p.allowMount(sandpit.Mount{Source: tt.source, ReadOnly: readOnly})
			if (err == nil) != want || err != nil && (!errors.Is(err, sandpit.ErrForbidden) || Rule(err) != "default.mounts") {
				t.Errorf("%s, read-only %v: got %v", tt.source, readOnly, err)
			}
		}
	}
}

// Who may not mount a path is not told what is there.
func TestRefusedMountsTellNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	p := ServerDefault()
	var said []string
	for _, name := range []string{"", "missing", "link"} {
		source := filepath.Join(dir, name)
		_, err := Resolve(sandpit.Spec{Mounts: []sandpit.Mount{{Source: source, Target: "/a", ReadOnly: true}}}, p)
		if Rule(err) != "default.mounts" {
			t.Errorf("%q: %v", name, err)
			continue
		}
		said = append(said, strings.Replace(err.Error(), source, "PATH", 1)+sandpit.Hint(err))
	}
	if len(slices.Compact(said)) != 1 {
		t.Errorf("the refusals differ: %q", said)
	}
}

func TestWritePaths(t *testing.T) {
	p := ServerDefault()
	p.Rules.Write = []string{"/workspace", "/tmp"}
	if spec := p.Complete(sandpit.Spec{}); !cmp.Equal(spec.Write, p.Rules.Write) {
		t.Errorf("got %v", spec.Write)
	}
	if spec := p.Complete(sandpit.Spec{ReadOnly: true}); spec.Write != nil {
		t.Errorf("got %v", spec.Write)
	}
	dir := t.TempDir()
	p.Rules.Mounts = []MountRule{{Source: dir, Write: true}}
	data := []sandpit.Mount{{Source: dir, Target: "/data", ReadOnly: true}}
	for _, ok := range []sandpit.Spec{
		{Write: []string{}},
		{Write: []string{"/tmp/", "/workspace/a"}},
		{Write: []string{}, ReadOnly: true},
		{Write: []string{"/tmp"}, Tmpfs: []sandpit.Tmpfs{{Target: "/workspace/t"}}, Mounts: data},
		{Write: []string{"/tmp"}, Mounts: []sandpit.Mount{{Source: dir, Target: "/workspace/data"}}},
	} {
		if _, err := Resolve(ok, p); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for _, bad := range []sandpit.Spec{
		{},
		{Write: []string{"/etc"}},
		{Write: []string{"/tmp2"}},
		{Write: []string{"/tmp/../etc"}},
		{Write: []string{"/workspace/../workspace"}},
		// What else can be written: /tmp and /dev/shm, a tmpfs, a mount.
		{ReadOnly: true},
		{Write: []string{}, Tmpfs: []sandpit.Tmpfs{{Target: "/t"}}},
		{Write: []string{"/tmp"}, Mounts: []sandpit.Mount{{Source: dir, Target: "/data"}}},
	} {
		if _, err := Resolve(bad, p); Rule(err) != "default.write-paths" || sandpit.Hint(err) == "" {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	p.Rules.Write = []string{"/tmp", "/dev/shm"}
	if _, err := Resolve(sandpit.Spec{ReadOnly: true}, p); err != nil {
		t.Error(err)
	}
}

func TestLifetimes(t *testing.T) {
	p := ServerDefault()
	p.Max.Life, p.Rules.MaxIdle, p.Rules.OnExpiry = 10*time.Hour, time.Hour, []sandpit.Expiry{sandpit.ExpiryStop, sandpit.ExpiryPause}
	spec := p.Complete(sandpit.Spec{})
	if spec.Idle != time.Hour || spec.OnExpiry != sandpit.ExpiryStop {
		t.Errorf("got %+v", spec)
	}
	if limits, err := Resolve(spec, p); err != nil || limits.Life != 10*time.Hour {
		t.Errorf("got %v, %v", limits.Life, err)
	}
	for _, tt := range []struct {
		spec sandpit.Spec
		rule string // "" for what makes no sense
	}{
		{sandpit.Spec{OnExpiry: sandpit.ExpiryStop}, "default.maximum.idle"}, // one that was not completed
		{sandpit.Spec{OnExpiry: sandpit.ExpiryStop, Idle: sandpit.NoIdle}, "default.maximum.idle"},
		{sandpit.Spec{OnExpiry: sandpit.ExpiryStop, Idle: 2 * time.Hour}, "default.maximum.idle"},
		{sandpit.Spec{OnExpiry: sandpit.ExpiryRemove, Idle: time.Hour}, "default.on-expiry"},
		{sandpit.Spec{Idle: -5}, ""},
		{sandpit.Spec{Idle: 100 * 365 * 24 * time.Hour}, ""},
		{sandpit.Spec{OnExpiry: "explode"}, ""},
	} {
		_, err := Resolve(tt.spec, p)
		if Rule(err) != tt.rule || tt.rule == "" && !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" {
			t.Errorf("%+v: got %v", tt.spec, err)
		}
	}

	created := time.Now()
	for _, tt := range []struct {
		change sandpit.Lifetime
		after  time.Duration
		rule   string
	}{
		{sandpit.Lifetime{}, 0, ""},
		{sandpit.Lifetime{Life: 10 * time.Hour}, 0, ""},
		{sandpit.Lifetime{Life: 4 * time.Hour}, 6 * time.Hour, ""},
		{sandpit.Lifetime{Life: 5 * time.Hour}, 6 * time.Hour, "default.maximum.life"},
		{sandpit.Lifetime{Life: time.Second}, 11 * time.Hour, "default.maximum.life"},
		{sandpit.Lifetime{Idle: time.Minute}, 0, ""},
		{sandpit.Lifetime{Idle: 2 * time.Hour}, 0, "default.maximum.idle"},
		{sandpit.Lifetime{Idle: sandpit.NoIdle}, 0, "default.maximum.idle"},
		{sandpit.Lifetime{OnExpiry: sandpit.ExpiryPause}, 0, ""},
		{sandpit.Lifetime{OnExpiry: sandpit.ExpiryRemove}, 0, "default.on-expiry"},
	} {
		err := p.AllowLifetime(tt.change, created, created.Add(tt.after))
		if Rule(err) != tt.rule || (err == nil) != (tt.rule == "") {
			t.Errorf("%+v after %v: got %v", tt.change, tt.after, err)
		}
	}
	for _, bad := range []sandpit.Lifetime{{Life: -1}, {Idle: -7}, {OnExpiry: "x"}, {Life: 1 << 62}} {
		if err := p.AllowLifetime(bad, created, created); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
	owner := Default()
	if err := owner.AllowLifetime(sandpit.Lifetime{Life: 1000 * time.Hour, Idle: sandpit.NoIdle, OnExpiry: sandpit.ExpiryPause}, created, created); err != nil {
		t.Error(err)
	}
}

func FuzzImages(f *testing.F) {
	for _, s := range []string{"host", "*", "debian", "python:3.*", "ghcr.io/org/*@sha256:*", "*.example.com/a", "dir:/srv/*", "sha256:*", "a/b:c", "localhost:5000/x"} {
		f.Add(s, "debian:13")
		f.Add("*", s)
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		i, err := ParseImage(pattern)
		if err != nil {
			return
		}
		p := Policy{Rules: &Rules{Images: []Image{i}}}
		if p.AllowImage(name) != nil {
			return
		}
		// What is allowed has the form that the pattern has.
		host, file := name == "" || name == "host", strings.HasPrefix(name, "dir:") || strings.HasPrefix(name, "oci") && strings.Contains(name, ":/") || strings.HasPrefix(name, "docker-archive:")
		if host != (i.kind == kindHost) || i.kind == kindFile && (!file || strings.Contains(name, "/../")) {
			t.Errorf("%q allows %q", pattern, name)
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	for _, bb := range []struct {
		name string
		p    Policy
	}{{"owner", Default()}, {"server", ServerDefault()}} {
		b.Run(bb.name, func(b *testing.B) {
			spec := bb.p.Complete(sandpit.Spec{Image: "debian:13", Env: []string{"A=b"}})
			for b.Loop() {
				if _, err := Resolve(spec, bb.p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
