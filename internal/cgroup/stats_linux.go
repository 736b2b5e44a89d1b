package cgroup

import (
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Stats reads the present usage of the group. An unknown value, or one whose controller the
// group does not use, is -1.
func (g *Group) Stats() (sandpit.Metrics, error) {
	m := sandpit.UnknownMetrics()
	if g.removed.Load() {
		return m, sandpit.ErrClosed
	}
	var buf [2048]byte
	var first error
	read := func(d groupDir, name string) []byte {
		data, err := readSmall(d.path+name, buf[:])
		if err != nil && first == nil {
			first = err
		}
		return data
	}
	for _, d := range g.dirs {
		switch {
		case d.v2:
			if us := field(read(d, "/cpu.stat"), "usage_usec"); us >= 0 {
				m.CPU = time.Duration(us) * time.Microsecond
			}
		case d.ctrls&cpuacct != 0:
			if ns := number(read(d, "/cpuacct.usage")); ns >= 0 {
				m.CPU = time.Duration(ns)
			}
		}
		switch {
		case d.ctrls&memory == 0:
		case d.v2:
			m.Memory = number(read(d, "/memory.current"))
			m.OOMKills = field(read(d, "/memory.events"), "oom_kill")
			if peak, err := readSmall(d.path+"/memory.peak", buf[:]); err == nil { // since 5.19
				m.MemoryPeak = number(peak)
			}
		default:
			m.Memory = number(read(d, "/memory.usage_in_bytes"))
			m.MemoryPeak = number(read(d, "/memory.max_usage_in_bytes"))
			m.OOMKills = field(read(d, "/memory.oom_control"), "oom_kill") // since 4.13
		}
		switch {
		case d.ctrls&pids == 0:
		case d.work:
			m.Pids = max(0, number(read(d, work+"/pids.current"))-forker)
		default:
			m.Pids = number(read(d, "/pids.current"))
		}
	}
	if name := g.refusedFile(); name != "" {
		if events, err := readSmall(name, buf[:]); err == nil { // on v1 since 4.3
			m.PidsRefused = field(events, "max")
		}
	}
	if first != nil {
		return m, fmt.Errorf("reading cgroup %s: %w", g.id, first)
	}
	return m, nil
}
