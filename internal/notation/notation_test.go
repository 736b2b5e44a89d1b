package notation

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

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "100b": 100, "100k": 100 << 10, "512m": 512 << 20, "1g": 1 << 30, "1G": 1 << 30, "1GiB": 1 << 30, "1gb": 1 << 30,
		"1.5G": 3 << 29, "0.5k": 512, ".5k": 512, "1.k": 1024, "2 MiB": 2 << 20, " 1k ": 1024, "8191t": 8191 << 40,
		"1.3k": 1331, "007": 7,
	} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"":                    `"" is not a size`,
		"12q":                 `"12q" is not a size`,
		"k":                   `"k" is not a size`,
		"1e3":                 `"1e3" is not a size`,
		"0x10":                `"0x10" is not a size`,
		"1_000":               `"1_000" is not a size`,
		"1.2.3m":              `"1.2.3m" is not a size`,
		"+1m":                 `"+1m" is not a size`,
		"inf":                 `"inf" is not a size`,
		"1.5":                 `"1.5" is not a whole number of bytes`,
		"0":                   "must be more than 0",
		"0m":                  "must be more than 0",
		"-5m":                 "must be more than 0",
		"0.0001k":             "must be more than 0",
		"9999999t":            `"9999999t" is too large`,
		"9223372036854775808": `"9223372036854775808" is too large`,
	} {
		if got, err := ParseSize(s); err == nil || err.Error() != want {
			t.Errorf("%q: got %d, %q, want %q", s, got, err, want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1000: "1000 B", 1 << 10: "1 KiB", 64 << 20: "64 MiB", 3 << 29: "1.5 GiB", 1 << 40: "1 TiB", math.MaxInt64: "8388608 TiB", 1331: "1.3 KiB",
	} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"30": 30 * time.Second, "1.5": 1500 * time.Millisecond, "30s": 30 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond,
		"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "1d1ms": 24*time.Hour + time.Millisecond, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := ParseDuration(s); err != nil || got != want {
			t.Errorf("%q: got %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "x", "1 hour", "d", "1d-1h", "1d+1h", "1d1d", "1h1d", "1 d", "1D", "106752d", "106751d24h", "1e9d", "NaN", "9999999999h"} {
		if _, err := ParseDuration(s); err == nil || !strings.Contains(err.Error(), "is not a duration") || sandpit.Hint(err) == "" {
			t.Errorf("%q: got %v", s, err)
		}
	}
	for _, s := range []string{"0", "0s", "-1", "-5m", "0d", "-1d", "-1d12h"} {
		if _, err := ParseDuration(s); !errors.Is(err, ErrNotPositive) {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		24 * time.Hour: "24h", 90 * time.Minute: "1h30m", 90 * time.Second: "1m30s", 10 * time.Second: "10s", 20 * time.Minute: "20m", 0: "0s",
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestParseNumbers(t *testing.T) {
	if got, err := ParseCPUs("0.5"); err != nil || got != 0.5 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "two", "1e9", "NaN", "Inf", "0x1p3", "500m"} {
		if _, err := ParseCPUs(s); err == nil || sandpit.Hint(err) == "" {
			t.Errorf("%q: got %v", s, err)
		}
	}
	if got, err := ParseCount("64"); err != nil || got != 64 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "1.5", "1k", "99999999999999999999"} {
		if _, err := ParseCount(s); err == nil {
			t.Errorf("%q: no error", s)
		}
	}
	for _, s := range []string{"0", "-1"} {
		_, err1 := ParseCount(s)
		_, err2 := ParseCPUs(s)
		if !errors.Is(err1, ErrNotPositive) || !errors.Is(err2, ErrNotPositive) {
			t.Errorf("%q: got %v, %v", s, err1, err2)
		}
	}
}

func TestParseVolume(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]sandpit.Mount{
		"/a:/b":           {Source: "/a", Target: "/b"},
		".:/b:ro":         {Source: here, Target: "/b", ReadOnly: true},
		"./x:/b":          {Source: filepath.Join(here, "x"), Target: "/b"},
		"/a:/b:cached":    {Source: "/a", Target: "/b"},
		"/a:/b:cached,ro": {Source: "/a", Target: "/b", ReadOnly: true},
	} {
		if got, err := ParseVolume(s); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", s, got, err)
		}
	}
	for s, hint := range map[string]string{"/data": "--tmpfs /data", "data:/data": "./data", "data:/data:ro": "--tmpfs /data ", "/a:/b:z": "write a mount as", ":/b": "write a mount as", "": "--tmpfs"} {
		if _, err := ParseVolume(s); err == nil || !strings.Contains(sandpit.Hint(err), hint) {
			t.Errorf("%q: %v, hint %q", s, err, sandpit.Hint(err))
		}
	}
}

func TestParseMount(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]sandpit.Mount{
		"/a:/b":      {Source: "/a", Target: "/b"},
		"/a/../c:/b": {Source: "/c", Target: "/b"},
		"/a:/b:ro":   {Source: "/a", Target: "/b", ReadOnly: true},
		"/a:/b:rw":   {Source: "/a", Target: "/b"},

		"/a:/b:ro,nosockets": {Source: "/a", Target: "/b", ReadOnly: true, NoSockets: true},
		"/a:/b:nosockets,ro": {Source: "/a", Target: "/b", ReadOnly: true, NoSockets: true},
		".:/work":            {Source: here, Target: "/work"},
		"x y:/b":             {Source: filepath.Join(here, "x y"), Target: "/b"},

		"type=bind,source=/a,target=/b":                                 {Source: "/a", Target: "/b"},
		"type=bind,src=.,dst=/b,readonly":                               {Source: here, Target: "/b", ReadOnly: true},
		"type=bind,src=/a,destination=/b,ro=true,consistency=delegated": {Source: "/a", Target: "/b", ReadOnly: true},
		"type=bind,src=/a,dst=/b,readonly=false":                        {Source: "/a", Target: "/b"},
	} {
		got, err := ParseMount(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", s, diff)
		}
	}
	for _, s := range []string{
		"", "/a", ":/b", "/a:", "/a:/b:rx", "/a:/b:ro:z", "/a:/b:ro,rw", "/a:/b:rw,ro", "::", "/a:/b:ro,", "/a:/b:ro nosockets",
		"type=volume,source=a,target=/b", "type=bind,source=/a", "type=bind,source=/a,target=/b,readonly=maybe", "type=bind,source=/a,target=/b,bind-propagation=shared", "type=bind,source=/a:b,target=/c",
	} {
		if _, err := ParseMount(s); err == nil || sandpit.Hint(err) == "" {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

// What Docker mounts in other ways has flags of its own here.
func TestParseDockersTmpfs(t *testing.T) {
	if _, err := ParseMount("type=tmpfs,target=/b"); sandpit.Hint(err) != "use --tmpfs /b" {
		t.Errorf("got %v, with the hint %q", err, sandpit.Hint(err))
	}
}

func TestParseTmpfs(t *testing.T) {
	for s, want := range map[string]sandpit.Tmpfs{
		"/a": {Target: "/a"}, "/a:64m": {Target: "/a", Size: 64 << 20}, "/a:size=1k": {Target: "/a", Size: 1024},
	} {
		if got, err := ParseTmpfs(s); err != nil || got != want {
			t.Errorf("%q: got %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", ":1m", "/a:", "/a:exec", "/a:0"} {
		if _, err := ParseTmpfs(s); err == nil {
			t.Errorf("%q: no error", s)
		}
	}
}

func lookupA(name string) (string, bool) { return "here", name == "A" }

func TestParseEnv(t *testing.T) {
	for _, tt := range []struct {
		in, want string
		ok, bad  bool
	}{
		{"X=1", "X=1", true, false},
		{"X=", "X=", true, false},
		{"X=a=b\n", "X=a=b\n", true, false},
		{"A", "A=here", true, false},
		{"B", "", false, false},
		{"", "", false, true},
		{"=1", "", false, true},
		{"X=\x00", "", false, true},
	} {
		got, ok, err := ParseEnv(tt.in, lookupA)
		if got != tt.want || ok != tt.ok || (err != nil) != tt.bad {
			t.Errorf("%q: got %q, %v, %v", tt.in, got, ok, err)
		}
	}
}

func TestReadEnvFile(t *testing.T) {
	got, err := ReadEnvFile(strings.NewReader("\uFEFFX=1\n# no\n\n  Y=a b # kept\nZ=\"q\"\r\nA\nB\n"), lookupA)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"X=1", "Y=a b # kept", `Z="q"`, "A=here"}, got); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"X=1\n=2\n":                            `line 2: "=2" has no variable name`,
		"export X=1\n":                         `line 1: the name "export X" has a space in it`,
		"X=\x00\n":                             "line 1: ",
		"X=" + strings.Repeat("a", maxEnvFile): "the file is larger than 1 MiB",
	} {
		if _, err := ReadEnvFile(strings.NewReader(text), lookupA); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
}

func TestParseLabel(t *testing.T) {
	for s, want := range map[string][2]string{"a=b": {"a", "b"}, "a": {"a", ""}, "a=b=c": {"a", "b=c"}} {
		if k, v, err := ParseLabel(s); err != nil || k != want[0] || v != want[1] {
			t.Errorf("%q: got %q, %q, %v", s, k, v, err)
		}
	}
	if _, _, err := ParseLabel("=x"); err == nil {
		t.Error("no error")
	}
}

// FuzzValues gives the same text to every parser of a flag's value.
func FuzzValues(f *testing.F) {
	for _, s := range []string{"", "1", "-1", "512m", "1.5GiB", "1h30m", "0.5", "/a:/b:ro", "/tmp:size=1m", "A=b", "missing", "9223372036854775807", "1e309", ".", "\xff", "٣m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseSize(s); err == nil {
			if n <= 0 {
				t.Errorf("size %q is %d", s, n)
			}
			back, err := ParseSize(FormatSize(n))
			if err != nil && n < math.MaxInt64>>1 {
				t.Errorf("size %q was written as %q: %v", s, FormatSize(n), err)
			}
			if diff := float64(back-n) / float64(n); err == nil && math.Abs(diff) > 0.01 {
				t.Errorf("size %q came back as %d", s, back)
			}
		}
		if d, err := ParseDuration(s); err == nil {
			if back, err := ParseDuration(FormatDuration(d)); err != nil || back != d {
				t.Errorf("duration %q came back as %v, %v", s, back, err)
			}
		}
		if c, err := ParseCPUs(s); err == nil && !(c > 0 && !math.IsInf(c, 0)) {
			t.Errorf("cpus %q is %v", s, c)
		}
		if n, err := ParseCount(s); err == nil && n <= 0 {
			t.Errorf("count %q is %d", s, n)
		}
		if m, err := ParseMount(s); err == nil && (!filepath.IsAbs(m.Source) || m.Target == "") {
			t.Errorf("mount %q is %+v", s, m)
		}
		if m, err := ParseTmpfs(s); err == nil && (m.Target == "" || m.Size < 0) {
			t.Errorf("tmpfs %q is %+v", s, m)
		}
		if e, ok, err := ParseEnv(s, lookupA); err == nil && ok && strings.Index(e, "=") < 1 {
			t.Errorf("env %q is %q", s, e)
		}
		if k, _, err := ParseLabel(s); err == nil && k == "" {
			t.Errorf("label %q has no variable name", s)
		}
		_, _ = ParsePull(s)
	})
}

func FuzzReadEnvFile(f *testing.F) {
	for _, s := range []string{"", "A=1\nB\n# c\n", "\uFEFFA=1", "A=\x00", "=", "a b=c", "X=1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := ReadEnvFile(strings.NewReader(string(data)), lookupA)
		if err != nil && entries != nil {
			t.Error("entries with an error")
		}
		for _, e := range entries {
			if strings.Index(e, "=") < 1 || strings.ContainsAny(e, "\x00\n") {
				t.Errorf("entry %q", e)
			}
		}
	})
}

func TestParseDurationOrNever(t *testing.T) {
	for text, want := range map[string]time.Duration{"never": 0, "5m": 5 * time.Minute} {
		if got, err := ParseDurationOrNever(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	if got, err := ParseDurationOrNever("0"); err == nil {
		t.Errorf("0 is %v", got)
	}
}
