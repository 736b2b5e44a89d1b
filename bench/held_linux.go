package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// measureHeld holds many idle sandboxes in the server. Each is promised little
// memory, so that capacity does not stop them. Their processors are not capped
// below the default: that would time the cap, which the guest's start is under.
func (s *served) measureHeld(ctx context.Context) error {
	n := 1000
	if s.b.opts.quick {
		n = 40
	}
	const mine = "all that the machine gives for it"
	g := s.b.group("held", fmt.Sprintf("memory of an idle sandbox, of %d held", n), "MiB")
	h := s.b.group("held", fmt.Sprintf("create, the last of %d beside the 10th", n), "ms")
	spec := sandpit.Spec{Limits: sandpit.Limits{Memory: 32 << 20, Pids: 16}}
	var boxes []removable
	defer func() {
		_, _ = atOnce(len(boxes), func(i int) error { return boxes[i].Remove(context.WithoutCancel(ctx)) })
	}()
	var took []float64
	start := available()
	for len(boxes) < n {
		begin := time.Now()
		sb, err := s.Create(ctx, spec)
		if err != nil {
			g.add(mine, &series{err: fmt.Errorf("after %d: %w", len(boxes), err)})
			return ctx.Err()
		}
		took = append(took, float64(time.Since(begin))/float64(time.Millisecond))
		boxes = append(boxes, sb)
	}
	used := float64(start-available()) / float64(n)
	own, err := readPSS(s.cmd.Process.Pid)
	all := &series{values: []float64{used / mib}}
	if used <= 0 {
		all = &series{err: errors.New("other programs have freed more meanwhile: measure on a quiet machine")}
	}
	g.absolute(mine, all, goal{below, 4, 1})
	users := own.all
	for _, pid := range distinct(descendants(s.cmd.Process.Pid), s.cmd.Process.Pid) {
		if p, err := readPSS(pid); err == nil {
			users += p.all
		}
	}
	g.add("of that, processes: the server and its guests", &series{values: []float64{mebibytes(users) / float64(n)}})
	g.add("of that, the server's own", &series{values: []float64{mebibytes(own.all) / float64(n)}, err: err})
	g.Note = "the decrease of MemAvailable in /proc/meminfo, which includes other programs of the machine"
	// One is chance: of ten each.
	last := took[n-10:]
	early, late := &series{values: took[5:15]}, &series{values: last}
	h.add("the last ten", late)
	h.against("the 6th to the 15th", early, "the last ten", late, goal{atMost, 1.2, 1})
	return ctx.Err()
}
