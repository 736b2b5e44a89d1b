package guest_test

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// shownLimits are the rows of /proc/PID/limits (fs/proc/base.c), and numbers of setrlimit(2).
var shownLimits = map[string]struct {
	shown    string
	resource int
}{
	"as": {"Max address space", unix.RLIMIT_AS}, "core": {"Max core file size", unix.RLIMIT_CORE}, "cpu": {"Max cpu time", unix.RLIMIT_CPU},
	"data": {"Max data size", unix.RLIMIT_DATA}, "fsize": {"Max file size", unix.RLIMIT_FSIZE}, "locks": {"Max file locks", unix.RLIMIT_LOCKS},
	"memlock": {"Max locked memory", unix.RLIMIT_MEMLOCK}, "msgqueue": {"Max msgqueue size", unix.RLIMIT_MSGQUEUE},
	"nice": {"Max nice priority", unix.RLIMIT_NICE}, "nofile": {"Max open files", unix.RLIMIT_NOFILE}, "nproc": {"Max processes", unix.RLIMIT_NPROC},
	"rss": {"Max resident set", unix.RLIMIT_RSS}, "rtprio": {"Max realtime priority", unix.RLIMIT_RTPRIO}, "rttime": {"Max realtime timeout", unix.RLIMIT_RTTIME},
	"sigpending": {"Max pending signals", unix.RLIMIT_SIGPENDING}, "stack": {"Max stack size", unix.RLIMIT_STACK},
}

// limitsOf returns the soft and hard limits in the content of /proc/PID/limits.
func limitsOf(t *testing.T, content, shown string) [2]string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + shown + ` +(\S+) +(\S+)`).FindStringSubmatch(content)
	if m == nil {
		t.Fatalf("no %s in %s", shown, content)
	}
	return [2]string{m[1], m[2]}
}

// Every limit holds in the program that it was asked for, and in no other.
func TestRlimitsAreOfOneProgram(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.NoFile = 200
	c := g.client(client.Options{Config: conf})
	_, before, _ := run(t, c, sandpit.Command{Script: "cat /proc/self/limits"})
	if len(shownLimits) != len(notation.RlimitResources()) {
		t.Fatal("a resource has no test")
	}
	var all []sandpit.Rlimit
	for i, name := range notation.RlimitResources() {
		var own unix.Rlimit
		if err := unix.Getrlimit(shownLimits[name].resource, &own); err != nil {
			t.Fatal(err)
		}
		l := sandpit.Rlimit{Resource: name, Soft: 1<<30 + 2*uint64(i), Hard: 1<<30 + 2*uint64(i) + 1}
		if name == "nofile" {
			l.Soft, l.Hard = 50, 60
		}
		l.Hard = min(l.Hard, own.Max)
		l.Soft = min(l.Soft, l.Hard)
		all = append(all, l)
	}
	_, out, errs := run(t, c, sandpit.Command{Script: "cat /proc/self/limits", Rlimits: all})
	for _, l := range all {
		want := [2]string{strconv.FormatUint(l.Soft, 10), strconv.FormatUint(l.Hard, 10)}
		if got := limitsOf(t, out, shownLimits[l.Resource].shown); got != want {
			t.Errorf("%s: %v, want %v (%s)", l.Resource, got, want, errs)
		}
	}
	if _, after, _ := run(t, c, sandpit.Command{Script: "cat /proc/self/limits"}); after != before {
		t.Errorf("the limits of other programs were\n%s\nand are\n%s", before, after)
	}
}

// A limit of 0 keeps no program from being executed, and is enforced from then on. The helper and the guest go on.
func TestRlimitsOfNothing(t *testing.T) {
	c := start(t)
	for _, name := range notation.RlimitResources() {
		limits := []sandpit.Rlimit{{Resource: name}}
		_, _ = exits(t, c, sandpit.Command{Argv: []string{"true"}, Rlimits: limits})
		if res, out, errs := run(t, c, sandpit.Command{Script: "sleep 0.01 & wait; echo $?"}); out != "0\n" {
			t.Errorf("after %s: %+v %q %q", name, res, out, errs)
		}
	}
	dir := t.TempDir()
	res, _, _ := run(t, c, sandpit.Command{Script: "exec head -c 4096 /dev/zero > f", Dir: dir, Rlimits: []sandpit.Rlimit{{Resource: "fsize", Soft: 100, Hard: 100}}})
	if res.Signal != int(unix.SIGXFSZ) && res.ExitCode == 0 {
		t.Errorf("a file above fsize: %+v", res)
	}
	res, _, _ = run(t, c, sandpit.Command{Script: "trap '' XFSZ; head -c 4096 /dev/zero > f", Dir: dir, Rlimits: []sandpit.Rlimit{{Resource: "fsize", Soft: 100, Hard: 100}}})
	if info, err := c.Files().Stat(t.Context(), dir+"/f"); err != nil || info.Size != 100 || res.ExitCode == 0 {
		t.Errorf("a file above fsize, whose signal is ignored: %+v, %+v, %v", res, info, err)
	}
	res, _, _ = run(t, c, sandpit.Command{Script: "while :; do :; done", Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 1, Hard: 2}}})
	if res.Signal != int(unix.SIGXCPU) {
		t.Errorf("a program that takes more than cpu: %+v", res)
	}
	if _, out, _ := run(t, c, sandpit.Command{Script: "ulimit -c; cat /proc/self/limits", Rlimits: []sandpit.Rlimit{{Resource: "core"}}}); !strings.HasPrefix(out, "0\n") || limitsOf(t, out, "Max core file size")[1] != strconv.FormatUint(min(1, ownCore(t)), 10) {
		t.Errorf("the limit of core files is %q", out)
	}
}

func ownCore(t *testing.T) uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &own); err != nil {
		t.Fatal(err)
	}
	return own.Max
}

// exits starts a program that may not get far.
func exits(t *testing.T, c *client.Client, cmd sandpit.Command) (sandpit.Result, error) {
	t.Helper()
	p, err := c.Start(within(t, time.Minute), cmd)
	if err != nil {
		return sandpit.Result{}, err
	}
	return p.Wait(within(t, time.Minute))
}

// What is above the guest's own limits, or makes no sense, is refused by name, by the client and by the guest.
func TestRlimitsThatAreRefused(t *testing.T) {
	g := newGuest(t)
	conf := config()
	conf.NoFile = 200
	c := g.client(client.Options{Config: conf})
	for name, x := range map[string]struct {
		cmd  sandpit.Command
		text string
	}{
		"unknown":               {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "NOFILE"}}}, `"NOFILE" is not known`},
		"twice":                 {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "cpu"}, {Resource: "cpu"}}}, "cpu is given twice"},
		"soft above hard":       {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 2, Hard: 1}}}, "soft rlimit cpu"},
		"beyond":                {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "cpu", Hard: math.MaxUint64 - 1}}}, "cpu is out of range"},
		"above the sandbox's":   {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "nofile", Soft: 1, Hard: 201}}}, "the rlimit nofile is too high: this sandbox allows at most 200"},
		"without limit":         {sandpit.Command{Rlimits: []sandpit.Rlimit{{Resource: "nofile", Soft: 1, Hard: sandpit.RlimitUnlimited}}}, "at most 200"},
		"beside another nofile": {sandpit.Command{NoFile: 9, Rlimits: []sandpit.Rlimit{{Resource: "nofile", Soft: 1, Hard: 9}}}, "can't be combined"},
	} {
		x.cmd.Argv = []string{"true"}
		if _, err := exits(t, c, x.cmd); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v", name, err)
		}
	}

	const long = 1000
	sent := []wire.Rlimit{}
	hostile := changed(t, g, func(h *wire.Header, payload []byte, fromGuest bool) []byte {
		var m wire.Start
		if fromGuest || h.Type != wire.Open || wire.Op(payload[0]) != wire.OpStart {
			return payload
		}
		if err := m.Decode(payload[1:]); err != nil {
			t.Error(err)
		}
		m.Rlimits = sent
		return m.Append([]byte{byte(wire.OpStart)})
	})
	defer hostile.Close()
	for text, limits := range map[string][]wire.Rlimit{
		"is not known":   {{Resource: strings.Repeat("x", long)}},
		"twice":          {{Resource: "cpu"}, {Resource: "cpu"}},
		"above the hard": {{Resource: "cpu", Soft: 2, Hard: 1}},
		"malformed":      make([]wire.Rlimit, wire.MaxRlimits+1),
	} {
		sent = limits
		if _, err := exits(t, hostile, sandpit.Command{Argv: []string{"true"}}); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), text) || len(err.Error()) > long {
			t.Errorf("the guest, %s: %v", text, err)
		}
	}
	older := changed(t, g, func(h *wire.Header, payload []byte, fromGuest bool) []byte {
		return greeting(t, h, payload, fromGuest, wire.FeatureRlimits)
	})
	defer older.Close()
	if _, err := exits(t, older, sandpit.Command{Argv: []string{"true"}, Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 1, Hard: 1}}}); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
		t.Errorf("a guest that does not know limits: %v", err)
	}
	if res, err := exits(t, older, sandpit.Command{Argv: []string{"true"}}); err != nil || !res.Success() {
		t.Errorf("without limits: %+v, %v", res, err)
	}
}
