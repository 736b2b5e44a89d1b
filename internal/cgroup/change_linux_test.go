package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// Limits can be made larger and smaller, and stay what they limit.
func TestSetLimits(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	for _, c := range []struct {
		limits Limits
		want   map[string]string
	}{
		{Limits{Memory: 128 << 20, CPUs: 0.75, Pids: 100}, map[string]string{
			"memory.max": "134217728", "cpu.max": "75000 100000", "pids.max": "100",
			"memory.limit_in_bytes": "134217728", "memory.memsw.limit_in_bytes": "134217728", "memory.kmem.tcp.limit_in_bytes": "16777216", "cpu.cfs_quota_us": "75000",
		}},
		{Limits{Memory: 32 << 20, CPUs: 0.25, Pids: 10}, map[string]string{
			"memory.max": "33554432", "cpu.max": "25000 100000", "pids.max": "10",
			"memory.limit_in_bytes": "33554432", "memory.memsw.limit_in_bytes": "33554432", "memory.kmem.tcp.limit_in_bytes": "4194304", "cpu.cfs_quota_us": "25000",
		}},
	} {
		if err := g.SetLimits(c.limits); err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, d := range g.dirs {
			if d.work {
				c.want["pids.max"] = strconv.FormatInt(2*c.limits.Pids+65, 10)
				c.want["work/pids.max"] = strconv.FormatInt(c.limits.Pids+1, 10)
			}
			for name, want := range c.want {
				data, err := os.ReadFile(filepath.Join(d.path, name))
				if err != nil {
					continue
				}
				found++
				if got := strings.TrimSpace(string(data)); got != want {
					t.Errorf("%s is %s, not %s", name, got, want)
				}
			}
		}
		if found < 3 {
			t.Errorf("%d limits are found", found)
		}
	}
	for _, limits := range []Limits{{}, {Memory: 1 << 30}, {Memory: -1, CPUs: 1, Pids: 1}} {
		if err := g.SetLimits(limits); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v gives %v", limits, err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := g.SetLimits(testLimits); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("after Remove: %v", err)
	}
}

// A process that was killed while it freed memory does not leave a group of cgroup v2 throttled:
// the next one sets the limits again.
func TestChangeAfterKill(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.high": "16777216", "memory.current": "60000000", "memory.max": "419430400", "memory.swap.max": "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := &groupDir{path: dir, v2: true, ctrls: memory}
	if err := d.makeRoom(400 << 20); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "memory.high")); err != nil || !strings.HasPrefix(string(data), "max") {
		t.Errorf("memory.high is %q, %v", data, err)
	}

	g := newGroup(t, layout(t), testLimits)
	for _, d := range g.dirs {
		if !d.v2 || d.ctrls&memory == 0 {
			continue
		}
		if err := writeFile(d.path+"/memory.high", "16777216"); err != nil {
			t.Fatal(err)
		}
		if err := g.Change(testLimits); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(d.path + "/memory.high"); err != nil || string(data) != "max\n" {
			t.Errorf("memory.high is %q, %v", data, err)
		}
	}
}

// A limit of memory that is below what is in use is refused: it kills nothing, and changes nothing.
func TestLimitBelowUse(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	c := startIn(t, g, helper(t, "hold"))
	if got := c.line(t); !strings.HasPrefix(got, "holding") {
		t.Fatal(got)
	}
	low := testLimits
	low.Memory = 16 << 20
	if err := g.SetLimits(low); !errors.Is(err, sandpit.ErrState) || sandpit.Hint(err) == "" {
		t.Errorf("a limit below what is in use: %v", err)
	}
	for _, d := range g.dirs {
		for name, want := range map[string]string{"memory.max": "67108864", "memory.high": "max", "memory.limit_in_bytes": "67108864"} {
			if data, err := os.ReadFile(filepath.Join(d.path, name)); err == nil && strings.TrimSpace(string(data)) != want && d.ctrls&memory != 0 {
				t.Errorf("%s is %s", name, data)
			}
		}
	}
	fmt.Fprintln(c.in, "go")
	if got := c.line(t); !strings.HasPrefix(got, "held 1") {
		t.Errorf("the process says %q", got)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the process ends with %v", err)
	}
	if kills, err := g.OOMKills(); kills != 0 || err != nil {
		t.Errorf("%d were killed, %v", kills, err)
	}
	if err := g.SetLimits(low); err != nil {
		t.Errorf("when it is free: %v", err)
	}
}
