package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

const example = `
# two teams
pool: 8
policies:
  default:
    images: [host, "debian:*"]
    defaults: {memory: 512m, cpus: 0.5, pids: 100, disk: 1g, files: 1000, nofile: 256, output: 1m, life: 1h, idle: 10m}
    maximum:
      memory: 4g
      life: 24h
      idle: 1h
      connections: 99
      sent: 1g
    on-expiry: [stop, remove]
    sandboxes: 50
    creates-per-second: 2.5
    previews: 8h
    open-ports: true
    saved-images: 3g
    contexts: 3
    mounts: [/srv/data, "/srv/scratch:rw", "/srv/x:ro"]
    write-paths:
      - /workspace
      - /tmp
    egress: [registries, "*.example.com:443"]
    deny: [bad.example]
    resolve: [public, 10.1.2.0/24]
  build: {images: []}
  empty:
`

func TestParseWarm(t *testing.T) {
	set, err := parse("f", strings.NewReader("pool:\n  warm:\n  - {image: host}\n  - {image: 'python:3.12', policy: small, root-inside: true, language: python, modules: [json, os.path], size: 3}\n  blanks: 2\npolicies:\n  small:\n"))
	want := []Warm{{"host", "default", false, "python", nil, 1}, {"python:3.12", "small", true, "python", []string{"json", "os.path"}, 3}}
	if err != nil || set.Pool != 2 || !cmp.Equal(set.Warm, want) {
		t.Errorf("got %d, %+v, %v", set.Pool, set.Warm, err)
	}
	if set, err := parse("f", strings.NewReader("pool: 5")); err != nil || set.Pool != 5 || set.Warm != nil {
		t.Errorf("got %+v, %v", set, err)
	}
}

func TestParse(t *testing.T) {
	set, err := parse("policy.yaml", strings.NewReader(example))
	if err != nil {
		t.Fatal(err)
	}
	if set.Pool != 8 || !cmp.Equal(set.Names(), []string{"build", "default", "empty"}) {
		t.Errorf("got %d, %v", set.Pool, set.Names())
	}
	p, err := set.Policy("")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sandpit.Limits{Memory: 512 << 20, CPUs: 0.5, Pids: 100, Disk: 1 << 30, Files: 1000, NoFile: 256, Output: 1 << 20, Life: time.Hour}, p.Default); diff != "" {
		t.Error(diff)
	}
	want := policy.ServerDefault()
	want.Max.Memory, want.Max.Life = 4<<30, 24*time.Hour
	if diff := cmp.Diff(want.Max, p.Max); diff != "" {
		t.Error(diff)
	}
	r := p.Rules
	r.Images = nil
	if diff := cmp.Diff(&policy.Rules{
		Mounts:   []policy.MountRule{{Source: "/srv/data"}, {Source: "/srv/scratch", Write: true}, {Source: "/srv/x"}},
		Write:    []string{"/workspace", "/tmp"},
		Idle:     10 * time.Minute,
		MaxIdle:  time.Hour,
		Egress:   []string{"registries", "*.example.com:443"},
		Deny:     []string{"bad.example"},
		Secrets:  []string{"*"},
		Resolve:  []string{"public", "10.1.2.0/24"},
		Traffic:  sandpit.EgressBounds{Connections: 99, NewConnections: 1000, Sent: 1 << 30},
		OnExpiry: []sandpit.Expiry{sandpit.ExpiryStop, sandpit.ExpiryRemove}, Sandboxes: 50, CreateRate: 2.5, Previews: 8 * time.Hour, OpenPorts: policy.OpenEverywhere, Saved: 3 << 30, Contexts: 3,
	}, r); diff != "" {
		t.Error(diff)
	}
	build, err := set.Policy("build")
	if err != nil || build.Name != "build" || !errors.Is(build.AllowImage("host"), sandpit.ErrForbidden) {
		t.Errorf("got %+v, %v", build, err)
	}
	if p, err := set.Policy("empty"); err != nil || p.AllowImage("host") != nil {
		t.Errorf("got %+v, %v", p, err)
	}
	if _, err := set.Policy("gone"); !errors.Is(err, sandpit.ErrForbidden) || sandpit.Hint(err) == "" {
		t.Errorf("got %v", err)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n"} {
		if set, err := parse("f", strings.NewReader(empty)); err != nil || set.Pool != -1 || len(set.Names()) != 1 {
			t.Errorf("%q: got %v, %v", empty, set, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"pool: many":       "f:1: pool: it must be a whole number from 0 to 10000",
		"pool: 1\npool: 2": "f:2: ",
		"Pool: 1":          `f:1: unknown field "Pool"`,
		"policies:\n  a: {sandboxes: 1}\n  a: {sandboxes: 2}":                "f:3: ",
		"policies:\n  a: {maximum: {memory: 1g, memory: 2g}}":                "f:2: ",
		"policies:\n  a: {maximum: {Memory: 1g}}":                            `f:2: policies.a.maximum: unknown field "Memory"`,
		"pool: {blanks: many}":                                               "f:1: pool.blanks: it must be a whole number",
		"pool: {warm: host}":                                                 "f:1: pool.warm: it must be a list",
		"pool: {warm: [{size: 1}]}":                                          "f:1: pool.warm[0]: it has no image",
		"pool: {warm: [{image: host, size: 0}]}":                             "f:1: pool.warm[0].size: it must be a whole number from 1 to 100",
		"pool: {warm: [{image: host, language: cobol}]}":                     "f:1: pool.warm[0].language: it must be one of: python, javascript, typescript",
		"pool: {warm: [{image: host, modules: ['a b']}]}":                    `f:1: pool.warm[0].modules[0]: "a b" is not the name of a module`,
		"pool: {warm: [{image: host, language: javascript, modules: [fs]}]}": "f:1: pool.warm[0]: modules are only imported ahead for python",
		"pool: {warm: [{image: host, policy: x}]}":                           `f:1: pool.warm[0]: there is no policy "x"`,
		"pool: {warm: [{image: host}, {image: host}]}":                       "f:1: pool.warm[1]: an entry above has the same image and policy",

		"pool:\n  warm:\n    - image: host\n    - size: 1\n      image: host\n      policy: x\npolicies: {}": `f:4: pool.warm[1]: there is no policy "x"`,
		"pool:\n  warm:\n    - image: host\n    - image: host\n      size: 2":                                "f:4: pool.warm[1]: an entry above has",

		"pool: -1":                                                                 "f:1: pool: it must be",
		"policy:\n  default:":                                                      `f:1: unknown field "policy"`,
		"policies: [a]":                                                            "f:1: policies: it must be lines of NAME: VALUE",
		"policies:\n  a/b: {}":                                                     `f:2: policies.a/b: it is not a name for a policy`,
		"policies:\n  a:\n    egress: ['*.com']":                                   "f:3: policies.a.egress[0]: ",
		"policies:\n  a:\n    egress: [learn]":                                     "f:3: policies.a.egress[0]: learn needs no permission",
		"policies:\n  a:\n    egress: public":                                      "f:3: policies.a.egress: it must be a list",
		"policies:\n  a:\n    deny: [public]":                                      "f:3: policies.a.deny[0]: ",
		"policies:\n  a:\n    resolve: [localhost]":                                "f:3: policies.a.resolve[0]: ",
		"policies:\n  a: {maximum: {sent: much}}":                                  "f:2: policies.a.maximum.sent: ",
		"policies:\n  a: {maximum: {connections: 0}}":                              "f:2: policies.a.maximum.connections: ",
		"policies:\n  a: {defaults: {sent: 1m}}":                                   `f:2: policies.a.defaults: unknown field "sent"`,
		"aliases: {base: 'saved:app'}":                                             `f:1: aliases.base: "saved:app" was saved in one namespace, and policies are for all`,
		"policies:\n  a: {saved-images: 20}":                                       "f:2: policies.a.saved-images: it must be a size, unlimited, or false: 20 has no unit, and would be 20 B",
		"policies:\n  a:\n    maximum:\n      output: 64":                          "f:4: policies.a.maximum.output: 64 has no unit, and would be 64 B",
		"policies:\n  a: {defaults: {memory: 512}}":                                "f:2: policies.a.defaults.memory: 512 has no unit",
		"policies:\n  a: {maximum: {disk: 20480}}":                                 "f:2: policies.a.maximum.disk: 20480 has no unit, and would be 20 KiB",
		"policies:\n  a: {maximum: {sent: 100}}":                                   "f:2: policies.a.maximum.sent: 100 has no unit",
		"policies:\n  a: {maximum: {received: 100}}":                               "f:2: policies.a.maximum.received: 100 has no unit",
		"policies:\n  a: {maximum: {bandwidth: 65535}}":                            "f:2: policies.a.maximum.bandwidth: 65535 has no unit",
		"policies:\n  a: {saved-images: 0}":                                        "f:2: policies.a.saved-images: it must be a size",
		"policies:\n  a:\n    secrets: {}":                                         "f:3: policies.a.secrets: it must be a list",
		"policies:\n  a:\n    secrets: [a/b]":                                      `f:3: policies.a.secrets[0]: "a/b" is not the name of a secret`,
		"policies:\n  a:\n    drivers: [vm]":                                       `unknown field "drivers"`,
		"policies:\n  a:\n    workspaces: 1":                                       `unknown field "workspaces"`,
		"policies:\n  a: {maximum: {gpus: 1}}":                                     `f:2: policies.a.maximum: unknown field "gpus"`,
		"policies:\n  a:\n    maximum:\n      memory: lots":                        `f:4: policies.a.maximum.memory: "lots" is not a size`,
		"policies:\n  a: {maximum: {memory: 1k}}":                                  "f:2: policies.a: the maximum memory limit of 1 KiB is impossible",
		"policies:\n  a: {defaults: {life: -1s}}":                                  "f:2: policies.a.defaults.life: ",
		"policies:\n  a: {defaults: {idle: 2h}, maximum: {idle: 1h}}":              "f:2: policies.a: the default idle time of 2h is more than the maximum of 1h",
		"policies:\n  a: {defaults: {memory: 1g}, maximum: {memory: 512m}}":        "f:2: policies.a: the default memory limit of 1 GiB is more than the maximum of 512 MiB",
		"policies:\n  default: {maximum: {pids: 50}}\n  a: {defaults: {pids: 51}}": "f:3: policies.a: the default process limit of 51 is more than the maximum of 50",
		"policies:\n  a:\n    images: host":                                        "f:3: policies.a.images: it must be a list",
		"policies:\n  a:\n    images:\n      - host\n      - 'a b'":                "f:5: policies.a.images[1]: ",
		"policies:\n  a:\n    images: [[host]]":                                    "f:3: policies.a.images[0]: it must be one plain value",
		"policies:\n  a:\n    on-expiry: [explode]":                                "f:3: policies.a.on-expiry[0]: it is not remove, stop or pause",
		"policies:\n  a:\n    on-expiry: []":                                       "f:2: policies.a: on-expiry must allow at least one action",
		"policies:\n  a:\n    mounts: [srv]":                                       "f:3: policies.a.mounts[0]: ",
		"policies:\n  a:\n    mounts: [/]":                                         "f:3: policies.a.mounts[0]: ",
		"policies:\n  a:\n    mounts: ['/a:x']":                                    `"x" is not ro or rw`,
		"policies:\n  a:\n    write-paths: [/a/../b]":                              "f:3: policies.a.write-paths[0]: ",
		"policies:\n  a:\n    write-paths: [/a, /]":                                "f:3: policies.a.write-paths: / means everywhere",
		"policies:\n  default: {sandboxes: 0}\n  a: {sandboxes: x}":                "f:2: policies.default.sandboxes: ",
		"policies:\n  a:\n    sandboxes: 0":                                        "f:3: policies.a.sandboxes: it must be a whole number from 1",
		"policies:\n  a:\n    creates-per-second: 0":                               "f:3: policies.a.creates-per-second: it must be a number",
		"policies:\n  a:\n    previews: 8d":                                        "f:3: policies.a.previews: it must be true, false, or a time",
		"policies:\n  a:\n    open-ports: all":                                     "f:3: policies.a.open-ports: it must be true, false or loopback",
		"policies:\n  a:\n    creates-per-second: NaN":                             "f:3: policies.a.creates-per-second: it must be a number",
		"policies:\n  a: &x {}\n  b: *x":                                           "f:2: tags (!), anchors (&) and aliases (*) are not supported",
		"policies:\n  a: {sandboxes: 1, sandboxes: 2}":                             "f:2: ",
		"policies: {":           "f:1: ",
		"pool: 1\n---\npool: 2": "it must be a single document",
		"---\n---\npool: 2":     "it must be a single document",
		// A missing value lifts no bound.
		"policies:\n  a:\n    maximum:\n    #  memory: 1g\n": "f:3: policies.a.maximum: it has no value",
		"policies:\n  a: {maximum: ~}":                       "f:2: policies.a.maximum: it has no value",
		"policies:\n  a: {defaults: ~}":                      "f:2: policies.a.defaults: it has no value",
		"policies:\n  a: {maximum: {memory: }}":              "f:2: policies.a.maximum.memory: it has no value",
		"policies:\n  a:\n    images:":                       "f:3: policies.a.images: it must be a list",
		"policies: ~":                                        "f:1: policies: it has no value",
		"policies:\n# a: {}":                                 "f:1: policies: it has no value",
		"pool:":                                              "f:1: pool: it has no value",
		"just text":                                          "f:1: it must be lines of NAME: VALUE",
		"policies:\n  a: !!binary x":                         "f:2: tags (!), anchors (&) and aliases (*) are not supported",
	} {
		_, err := parse("f", strings.NewReader(text))
		if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := parse("f", strings.NewReader("policies: {a: {maximum: }}")); !strings.Contains(sandpit.Hint(err), "{} if there are none") {
		t.Errorf("the hint is %q", sandpit.Hint(err))
	}
	if _, err := parse("f", strings.NewReader("policies: {a: {gpus: 1}}")); !strings.Contains(sandpit.Hint(err), "creates-per-second") {
		t.Errorf("the hint is %q", sandpit.Hint(err))
	}
}

// Policies start from default, wherever it is, and can take each bound away again.
func TestDefaultIsInherited(t *testing.T) {
	set, err := parse("f", strings.NewReader(`
policies:
  same:
  more: {defaults: {cpus: 1, idle: never}, maximum: {memory: 8g, idle: never}, creates-per-second: unlimited, write-paths: [/], images: ["*"]}
  less: {maximum: {memory: 256m, idle: 5m}, mounts: []}
  default:
    images: [host]
    mounts: [/srv]
    write-paths: [/tmp]
    defaults: {memory: 512m, idle: 10m}
    maximum: {memory: 1g, pids: 99, idle: 1h}
    sandboxes: 3
    creates-per-second: 2
`))
	if err != nil {
		t.Fatal(err)
	}
	shown := func(name string) Document {
		t.Helper()
		p, err := set.Policy(name)
		if err != nil || p.Name != name {
			t.Fatalf("%+v %v", p, err)
		}
		return Show(p)
	}
	opt := cmp.AllowUnexported(policy.Image{})
	base := shown("default")
	if diff := cmp.Diff(base, shown("same"), opt); diff != "" {
		t.Errorf("a name alone: %s", diff)
	}
	if base.Sandboxes != 3 || base.Maximum.Pids != 99 || base.Maximum.CPUs != 64 || base.Defaults.Pids != 99 {
		t.Errorf("default: %+v", base)
	}
	want := base
	want.Defaults.CPUs, want.Defaults.Idle = 1, "never"
	want.Maximum.Memory, want.Maximum.Idle = 8<<30, "never"
	want.CreateRate, want.Write, want.Images = "unlimited", []string{"/"}, shown("more").Images
	if diff := cmp.Diff(want, shown("more"), opt); diff != "" || len(want.Images) != 1 {
		t.Errorf("more: %s", diff)
	}
	// Inherited defaults are at most its own maximum.
	want = base
	want.Defaults.Memory, want.Defaults.Idle = 256<<20, "5m"
	want.Maximum.Memory, want.Maximum.Idle, want.Mounts = 256<<20, "5m", []string{}
	if diff := cmp.Diff(want, shown("less"), opt); diff != "" {
		t.Errorf("less: %s", diff)
	}
}

// What is shown of a policy can be put into a file, and means the same there, whatever
// that file's default is.
func TestShowIsReadBack(t *testing.T) {
	set, err := parse("f", strings.NewReader(example+`  tiny: {saved-images: 100b, maximum: {output: 20b, sent: 1k, received: 65535b, bandwidth: 65536}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range set.Names() {
		p, err := set.Policy(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"policies": map[string]any{name: Show(p), Default: map[string]any{
			"defaults": map[string]any{"idle": "1m"}, "maximum": map[string]any{"idle": "1h", "memory": "1g"}, "write-paths": []string{"/x"}, "creates-per-second": 1, "mounts": []string{"/y"},
		}}})
		if name == Default {
			text, err = json.Marshal(map[string]any{"policies": map[string]any{name: Show(p)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse("shown", bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		q, err := again.Policy(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Show(p), Show(q), cmp.AllowUnexported(policy.Image{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if d := Show(policy.Default()); !d.Unrestricted {
		t.Errorf("got %+v", d)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func sandboxes(t *testing.T, l *Live) int {
	t.Helper()
	p, err := l.Policy("")
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules.Sandboxes
}

func TestLive(t *testing.T) {
	name := filepath.Join(t.TempDir(), "policy.yaml")
	if _, err := Open(name, true); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a file that was asked for: %v", err)
	}
	l, err := Open(name, false)
	if err != nil || sandboxes(t, l) != policy.ServerDefault().Rules.Sandboxes {
		t.Fatalf("without a file: %v", err)
	}

	ctx, stop := context.WithCancel(t.Context())
	told := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Watch(ctx, time.Millisecond, func(err error) { told <- err })
	}()
	defer func() { stop(); <-done }()

	write(t, name, "policies: {default: {sandboxes: 7}}")
	if err := <-told; err != nil || sandboxes(t, l) != 7 {
		t.Errorf("when there is one: %d, %v", sandboxes(t, l), err)
	}
	write(t, name, "policies: {default: {sandboxes: seven}}")
	if err := <-told; !errors.Is(err, sandpit.ErrInvalid) || sandboxes(t, l) != 7 || l.Err() == nil {
		t.Errorf("a broken one: %d, %v, %v", sandboxes(t, l), err, l.Err())
	}
	write(t, name, "policies: {default: {sandboxes: 8}}")
	if err := <-told; err != nil || sandboxes(t, l) != 8 || l.Err() != nil {
		t.Errorf("a good one again: %d, %v", sandboxes(t, l), err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err == nil || sandboxes(t, l) != 8 {
		t.Errorf("removed: %d, %v", sandboxes(t, l), err)
	}
	if err := l.Reload(); err == nil || sandboxes(t, l) != 8 {
		t.Errorf("removed, asked to read it: %v", err)
	}
}

func TestFilesThatAreNotRead(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "policy.yaml")
	write(t, name, "pool: 1")
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(name); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(sandpit.Hint(err), "chmod") {
		t.Errorf("everyone may write: %v", err)
	}
	if _, _, err := read(dir); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a directory: %v", err)
	}
	write(t, name, "# "+strings.Repeat("a", maxFile))
	if _, _, err := read(name); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("too long: %v", err)
	}
	var many strings.Builder
	many.WriteString("policies:\n")
	for i := range maxPolicies + 1 {
		fmt.Fprintf(&many, "  p%d: {}\n", i)
	}
	if _, err := parse("f", strings.NewReader(many.String())); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("too many: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	for _, s := range []string{"", "pool: 1", "policies: {a: {images: [x]}}", "a: &b [*b]", "- 1", "? a : b", "policies:\n  a:\n    mounts: ['/a:rw']", "{[", "<<: {a: 1}", "pool: !!int 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := parse("f", bytes.NewReader(data))
		if (set == nil) == (err == nil) {
			t.Fatalf("got %v, %v", set, err)
		}
		if err != nil {
			if !errors.Is(err, sandpit.ErrInvalid) {
				t.Errorf("got %v", err)
			}
			return
		}
		for _, name := range set.Names() {
			p, err := set.Policy(name)
			if err != nil || p.Rules == nil || len(p.Rules.OnExpiry) == 0 || p.CheckDefaults() != nil {
				t.Errorf("%s: %+v, %v", name, p, err)
			}
			if _, err := policy.Resolve(p.Complete(sandpit.Spec{Image: "host"}), p); err != nil && !errors.Is(err, sandpit.ErrForbidden) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// An inherited default above the maximum is shown as what sandboxes get.
func TestDefaultsAreAtMostTheMaximum(t *testing.T) {
	set, err := parse("f", strings.NewReader("policies:\n  a: {maximum: {memory: 256m, pids: 64}}"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := set.Policy("a")
	if err != nil || p.Default.Memory != 256<<20 || p.Default.Pids != 64 {
		t.Errorf("got %+v, %v", p.Default, err)
	}
}

// Aliases are added to the built-in ones. Those that name no image are refused.
func TestAliases(t *testing.T) {
	set, err := parse("f", strings.NewReader("aliases:\n  base: python:3.12-slim\n  team/own: sha256:"+strings.Repeat("a", 64)+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"base": "python:3.12-slim", "team/own": "sha256:" + strings.Repeat("a", 64), "code-interpreter-v1": "host", "microsandbox/python": "host", "microsandbox/node": "host"} {
		if got, err := set.Alias(name); got != want || err != nil {
			t.Errorf("%s: %q %v, want %q", name, got, err, want)
		}
	}
	if got, err := BuiltIn().Alias("base"); got != "host" || err != nil {
		t.Errorf("without a file: %q %v", got, err)
	}
	for _, name := range []string{"", "python", "BASE", "no\nthing"} {
		if got, err := set.Alias(name); !errors.Is(err, sandpit.ErrNotFound) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || !strings.Contains(sandpit.Hint(err), "base, ") {
			t.Errorf("%q: %q %v", name, got, err)
		}
	}
	for text, want := range map[string]string{
		"aliases: {a: 'x:*'}":                               `"x:*" is not an image`,
		"aliases: {a: ''}":                                  `"" is not an image`,
		"aliases: {a: 'B@x'}":                               `"B@x" is not an image`,
		"aliases: {'a b': host}":                            "it is not a name",
		"aliases: {'': host}":                               "it is not a name",
		"aliases: [a]":                                      "f:1: ",
		"aliases: {a: host, a: host}":                       "f:1: ",
		"aliases: {" + strings.Repeat("a", 256) + ": host}": "it is not a name",
	} {
		if _, err := parse("f", strings.NewReader(text)); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}
