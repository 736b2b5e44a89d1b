package v1_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/keys"
)

// The reference names every format of keys.
func TestFormatsOfKeys(t *testing.T) {
	f, _ := reflect.TypeFor[v1.NewKey]().FieldByName("Format")
	if got, want := f.Tag.Get("enum"), strings.Join(keys.Formats(), ","); got != want {
		t.Errorf("NewKey.Format can be %q, want %q", got, want)
	}
}

// overJSON returns what the other end reads.
func overJSON[T any](t *testing.T, v T) T {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// filled returns a T of which each field has a value of its own, apart from those in except, such
// as "Limits.Disk", which keep their zero value.
func filled[T any](t *testing.T, except ...string) (v T) {
	t.Helper()
	var n int64
	var fill func(path string, v reflect.Value)
	fill = func(path string, v reflect.Value) {
		if slices.Contains(except, path) {
			return
		}
		n++
		switch {
		case v.Type() == reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Unix(n, n).UTC()))
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				fill(strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), v.Field(i))
			}
		case v.Kind() == reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(path, v.Elem())
		case v.Kind() == reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(path, v.Index(0))
		case v.Kind() == reflect.Map:
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(path, key)
			fill(path, value)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		case v.Kind() == reflect.String:
			v.SetString(fmt.Sprint("v", n))
		case v.Kind() == reflect.Bool:
			v.SetBool(true)
		case v.CanInt():
			v.SetInt(n)
		case v.CanUint():
			v.SetUint(uint64(n))
		case v.CanFloat():
			v.SetFloat(float64(n) + 0.5)
		default:
			t.Errorf("the field %s of a %T can't be filled", path, *new(T))
		}
	}
	fill("", reflect.ValueOf(&v).Elem())
	return v
}

// carried checks that a T with a value in each field, apart from those in except, comes back as it
// was sent.
func carried[T any](t *testing.T, through func(T) (T, error), except ...string) {
	t.Helper()
	sent := filled[T](t, except...)
	got, err := through(sent)
	if err != nil {
		t.Errorf("%T: %v", sent, err)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("%T (-sent +received):\n%s", sent, diff)
	}
}

func TestEachFieldIsCarried(t *testing.T) {
	carried(t, func(v sandpit.Spec) (sandpit.Spec, error) { return overJSON(t, v1.FromSpec(v)).Sandpit() })
	carried(t, func(v sandpit.Info) (sandpit.Info, error) { return overJSON(t, v1.FromInfo(v)).Sandpit(), nil })
	carried(t, func(v sandpit.Command) (sandpit.Command, error) { return overJSON(t, v1.FromCommand(v)).Sandpit() },
		"Background", "Stdout", "Stderr") // the route says Background; the writers are the client's
	carried(t, func(v sandpit.ProcessInfo) (sandpit.ProcessInfo, error) {
		return overJSON(t, v1.FromProcess(v)).Sandpit()
	})
	carried(t, func(v sandpit.Result) (sandpit.Result, error) { return overJSON(t, v1.FromResult(v)).Sandpit(), nil })
	carried(t, func(v sandpit.Sample) (sandpit.Sample, error) {
		return overJSON(t, v1.FromMetrics(v.Metrics, v.Time)).Sandpit(), nil
	})
	carried(t, func(v sandpit.Lifetime) (sandpit.Lifetime, error) {
		return overJSON(t, v1.FromLifetime(v)).Sandpit()
	})
	carried(t, func(v sandpit.Egress) (sandpit.Egress, error) { return overJSON(t, v1.FromEgress(v)).Sandpit(), nil })
	carried(t, func(v sandpit.Flow) (sandpit.Flow, error) { return overJSON(t, v1.FromFlow(v)).Sandpit(), nil })
	carried(t, func(v sandpit.FileInfo) (sandpit.FileInfo, error) { return overJSON(t, v1.FromFile(v)).Sandpit() })
	carried(t, func(v sandpit.Change) (sandpit.Change, error) {
		change, err := v1.FromChange(v)
		if err != nil {
			return v, err
		}
		return overJSON(t, change).Sandpit()
	}, "Limits.Disk", "Limits.Files", "Limits.NoFile", "Limits.Output", "Limits.Life") // which can't be changed
}

func TestNothingIsLostOnTheWay(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 5, 6, 789, time.UTC)
	check := func(name string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-sent +received):\n%s", name, diff)
		}
	}
	limits := sandpit.Limits{Memory: 1 << 40, CPUs: 0.5, Pids: 17, Disk: 3, Files: 4, NoFile: 5, Output: 6, Life: 1500*time.Millisecond + 1}
	spec := sandpit.Spec{
		Name: "a", Image: "b", Pull: sandpit.PullAlways, Hostname: "h", Env: []string{"A=b"}, WorkDir: "/w", User: "root", Limits: limits,
		Mounts: []sandpit.Mount{{Source: "/s", Target: "/t", ReadOnly: true, NoSockets: true}}, Tmpfs: []sandpit.Tmpfs{{Target: "/t", Size: 7}}, ReadOnly: true,
		Write: []string{"/a"}, Labels: map[string]string{"k": "v"}, Idle: sandpit.NoIdle, OnExpiry: sandpit.ExpiryPause,
		Secrets: []sandpit.Secret{{Name: "s", Variable: "V", Hosts: []string{"h"}}, {Name: "t", Env: true}},
		Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 1, Hard: sandpit.RlimitUnlimited}},
	}
	read := func(name string, v interface{ Sandpit() (sandpit.Spec, error) }, want sandpit.Spec) {
		t.Helper()
		got, err := v.Sandpit()
		if err != nil {
			t.Error(err)
		}
		check(name, got, want)
	}
	read("spec", overJSON(t, v1.FromSpec(spec)), spec)
	read("zero spec", overJSON(t, v1.FromSpec(sandpit.Spec{})), sandpit.Spec{})
	spec.Env, spec.Write, spec.Idle = []string{"A=\xff"}, []string{}, time.Minute
	read("odd spec", overJSON(t, v1.FromSpec(spec)), spec)

	info := sandpit.Info{
		ID: "i", Name: "n", State: sandpit.StatePaused, Image: "m", Driver: "d", Labels: map[string]string{"k": "v"}, CreatedAt: now,
		ExpiresAt: now, Idle: time.Second, OnExpiry: sandpit.ExpiryStop, Reason: "r", Limits: limits, NotEnforced: []sandpit.Gap{{What: "a", Why: "b", Fix: "c"}},
		Rlimits: spec.Rlimits,
	}
	check("info", overJSON(t, v1.FromInfo(info)).Sandpit(), info)

	cmd := sandpit.Command{
		Argv: []string{"a", "b"}, Entrypoint: []string{}, FromImage: true, Env: []string{"A=b"}, Dir: "/d", User: "u", Stdin: true,
		Terminal: &sandpit.TerminalSize{Rows: 1, Cols: 65535}, Timeout: -1, OutputLimit: -1, NoFile: 9,
		Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 1, Hard: sandpit.RlimitUnlimited}, {Resource: "x", Soft: math.MaxInt64}},
	}
	odd := sandpit.Command{Argv: []string{"", "\xff\x00"}, Entrypoint: []string{"\x81"}, Script: "echo \x80", Env: []string{"\xfe=1"}, Dir: "/\xfd"}
	for _, want := range []sandpit.Command{cmd, {}, odd, {Argv: []string{}}, {Argv: []string{"a"}, Dir: "\xff"}} {
		got, err := overJSON(t, v1.FromCommand(want)).Sandpit()
		if err != nil {
			t.Error(err)
		}
		if len(want.Argv) == 0 { // which JSON leaves out
			want.Argv = nil
		}
		check("command", got, want)
	}

	res := sandpit.Result{ExitCode: 1, Signal: 2, TimedOut: true, OOMKilled: true, Truncated: true, CPUExceeded: true, StdoutBytes: 3, StderrBytes: 4, DroppedBytes: 5, Wall: 123456789123, UserCPU: 1, SystemCPU: 999999999, PeakMemory: 1 << 50}
	check("result", overJSON(t, v1.FromResult(res)).Sandpit(), res)
	proc := sandpit.ProcessInfo{ID: "p", PID: 3, Argv: []string{"a"}, User: "u", Background: true, Terminal: true, StartedAt: now, Result: &res}
	for _, argv := range [][]string{{"a"}, {"a\xff", "b"}} {
		proc.Argv = argv
		got, err := overJSON(t, v1.FromProcess(proc)).Sandpit()
		if err != nil {
			t.Error(err)
		}
		check("process", got, proc)
	}
	for _, target := range []string{"a", "\xff", ""} {
		got, err := overJSON(t, v1.FromLink(target)).Sandpit()
		if err != nil || got != target {
			t.Errorf("the link to %q is %q, %v", target, got, err)
		}
	}

	for _, m := range []sandpit.Metrics{{CPU: 1, Memory: 2, MemoryPeak: 3, Pids: 4, OOMKills: 5, Disk: 6, Files: 7, RxBytes: 8, RxPackets: 9, TxBytes: 10, TxPackets: 11}, sandpit.UnknownMetrics()} {
		check("metrics", overJSON(t, v1.FromMetrics(m, now)).Sandpit(), sandpit.Sample{Time: now, Metrics: m})
	}
	for _, l := range []sandpit.Lifetime{{}, {Life: time.Hour, Idle: sandpit.NoIdle, OnExpiry: sandpit.ExpiryStop}} {
		got, err := overJSON(t, v1.FromLifetime(l)).Sandpit()
		if err != nil {
			t.Error(err)
		}
		check("lifetime", got, l)
	}
	for _, mode := range []fs.FileMode{
		0o644, fs.ModeDir | fs.ModeSticky | 0o777, fs.ModeSymlink | 0o777, fs.ModeNamedPipe | fs.ModeSetuid | fs.ModeSetgid | 0o711,
		fs.ModeSocket, fs.ModeDevice | 0o600, fs.ModeDevice | fs.ModeCharDevice | 0o666, fs.ModeIrregular,
	} {
		for _, name := range []string{"n", "\xff\xfe\n"} {
			f := sandpit.FileInfo{Name: name, Size: 1 << 60, Mode: mode, ModTime: now, UID: 1<<32 - 1, GID: 5, Target: name}
			got, err := overJSON(t, v1.FromFile(f)).Sandpit()
			if err != nil {
				t.Error(err)
			}
			check("file", got, f)
		}
	}
}

// Variables are a list or an object; names that can't be are refused.
func TestEnv(t *testing.T) {
	for body, want := range map[string]string{
		`{"env":["A=b","A=c=d"]}`: `["A=b" "A=c=d"]`, `{"env":{"B":"c=d","A":"b"}}`: `["A=b" "B=c=d"]`, `{"env":{}}`: `[]`, `{"env":null}`: `[]`, `{}`: `[]`,
		`{"env":{"A":""}}`: `["A="]`, `{"env":{"A":"/w=="},"encoding":"base64"}`: `["A=\xff"]`, `{"env":["QT3/"],"encoding":"base64"}`: `["A=\xff"]`,
		`{"env":{"":"b"}}`: `the field "env" has the name ""`, `{"env":{"A=B":"c"}}`: `the field "env" has the name "A=B"`, `{"env":{"A\u0000":"c"}}`: `the field "env" has the name "A\x00"`,
		`{"env":{"A":1}}`: `"env" must be a list of strings`, `{"env":"A=b"}`: `"env" must be a list of strings`, `{"env":[1]}`: `"env" must be a list of strings`,
		`{"env":{"A":"?"},"encoding":"base64"}`: `the field "env.A" is not valid base64`, `{"env":["QT3/","?"],"encoding":"base64"}`: `the field "env[1]" is not valid base64`,
		`{"env":["A=b"],"encoding":"hex"}`: `the field "encoding" must be base64`,
	} {
		var in v1.Command
		var cmd sandpit.Command
		err := json.Unmarshal([]byte(body), &in)
		if err == nil {
			cmd, err = in.Sandpit()
		}
		got := fmt.Sprintf("%q", cmd.Env)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s is %s, want %s", body, got, want)
		}
		again, err := json.Marshal(in)
		if err == nil && !in.Env.IsZero() && string(again) != body && !strings.Contains(body, "B") && !strings.Contains(body, "u0000") && strings.HasPrefix(want, "[") {
			t.Errorf("%s is written as %s", body, again)
		}
	}
}

func TestEveryErrorHasACode(t *testing.T) {
	for _, kind := range []error{
		sandpit.ErrInvalid, sandpit.ErrUnsupported, sandpit.ErrForbidden, sandpit.ErrNotFound, sandpit.ErrExists, sandpit.ErrState,
		sandpit.ErrUnavailable, sandpit.ErrExhausted, sandpit.ErrQuota, sandpit.ErrRateLimited, sandpit.ErrDiskFull, sandpit.ErrIntegrity, sandpit.ErrProtocol, sandpit.ErrClosed, sandpit.ErrIsDirectory,
		sandpit.ErrNotDirectory, sandpit.ErrNotEmpty, sandpit.ErrNoSpace, fs.ErrNotExist, fs.ErrExist, fs.ErrPermission,
		context.Canceled, context.DeadlineExceeded,
	} {
		e := v1.FromError(sandpit.WithHint(&fs.PathError{Op: "open", Path: "/p", Err: fmt.Errorf("why: %w", kind)}, "do this"))
		if got := errcode.Kind(e.Code); got != kind {
			t.Errorf("%v is %q, which is %v", kind, e.Code, got)
		}
		if want := "open /p: why: " + kind.Error(); e.Message != want || e.Hint != "do this" || e.Path != "/p" {
			t.Errorf("got %+v, want the message %q", e, want)
		}
	}
	if e := v1.FromError(errors.New("odd")); e.Code != errcode.Internal || errcode.Kind(e.Code) != nil {
		t.Errorf("got %+v", e)
	}
}

func TestDurationsAreBounded(t *testing.T) {
	for seconds, want := range map[float64]time.Duration{0: 0, 1e-9: 1, -1: -time.Second, 1e300: math.MaxInt64, -1e300: math.MinInt64, math.Inf(1): math.MaxInt64, 0.1: 100 * time.Millisecond} {
		if got := v1.Duration(seconds); got != want {
			t.Errorf("%v s is %v", seconds, got)
		}
	}
	if got := v1.Duration(math.NaN()); got != 0 {
		t.Errorf("what is no number is %v", got)
	}
}

// A timeout that is shorter than a Duration can say is not none.
func TestShortTimeouts(t *testing.T) {
	for seconds, want := range map[float64]time.Duration{0: 0, 1e-12: 1, 1e-9: 1, -1e-12: 0, 1: time.Second} {
		if c, err := (v1.Command{Timeout: seconds}).Sandpit(); err != nil || c.Timeout != want {
			t.Errorf("%v s is %v, %v", seconds, c.Timeout, err)
		}
	}
}

func FuzzParseMode(f *testing.F) {
	for _, s := range []string{"0644", "7777", "10000", "", "-1", "0o644", "٧"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := v1.ParseMode(s)
		if err != nil {
			return
		}
		if again, err := v1.ParseMode(v1.ModeText(m)); err != nil || again != m {
			t.Errorf("%q is %v and then %v, %v", s, m, again, err)
		}
	})
}
