package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/engine"
)

// groupOf measures a group of rows, or several that share their measurements.
type groupOf struct {
	name    string
	measure func(*bench, context.Context) error
}

// groups are all there is, in the order of the table.
func groups() []groupOf {
	return []groupOf{
		{"command", (*bench).measureCommand},
		{"python", (*bench).measurePython},
		{"start", (*bench).measureStart},
		{"engine", (*bench).measureEngine},
		{"server", withServer((*served).measureLife)},
		{"served", withServer((*served).measureLoad)},
		{"held", withServer((*served).measureHeld)},
		{"warm", (*bench).measureWarm},
		{"burst", (*bench).measureBursts},
		{"memory", (*bench).measureMemory},
		{"egress", (*bench).measureEgress},
		{"clients", (*bench).measureClients},
		{"stream", (*bench).measureStream},
		{"files", (*bench).measureFiles},
		{"size", (*bench).measureSize},
		{"steps", (*bench).measureSteps},
	}
}

func groupNames() string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

// measure measures what is wanted.
func measure(ctx context.Context, opts options, log io.Writer) (*report, error) {
	b, err := newBench(ctx, opts, log)
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.report.Machine = machine(b.dir)
	before := load()
	start := time.Now()
	for _, g := range groups() {
		if !opts.wants(g.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b.say("measuring %s", g.name)
		if err := g.measure(b, ctx); err != nil {
			return nil, fmt.Errorf("measuring %s: %w", g.name, err)
		}
	}
	b.report.Machine = append(b.report.Machine,
		fact{"load", before + " before, " + load() + " after (with the benchmark itself)"},
		fact{"took", time.Since(start).Round(time.Second).String()})
	return b.report, nil
}

func (b *bench) group(name, title, unit string) *group {
	g := &group{Name: name, Title: title, Unit: unit}
	b.report.Groups = append(b.report.Groups, g)
	return g
}

// own is the name of Sandpit's row in a comparison of whole commands.
const own = "sandpit run"

// bare is the floor: the program itself, with no sandbox.
const bare = "fork + exec, no sandbox"

// contenders are Sandpit, no sandbox at all, and the peers, all running argv.
func (b *bench) contenders(argv []string, peers []*peer) []*contestant {
	cs := []*contestant{
		b.command(own, always(append([]string{b.sandpit, "run", "--"}, argv...)...)),
		b.command(bare, always(argv...)),
	}
	for _, p := range peers {
		if p.err != nil {
			cs = append(cs, missing(p.name, p.err))
			continue
		}
		cs = append(cs, b.command(p.name, func() ([]string, error) { return p.run(argv...) }))
	}
	return cs
}

func (b *bench) measureCommand(ctx context.Context) error {
	peers := b.allPeers(ctx)
	rec := contest(ctx, b.opts.rounds, b.budget(), b.contenders([]string{b.true}, peers)...)
	g := b.group("command", "create + run `true` + destroy, whole command line, no server", "ms")
	mine := rec.get(own)
	g.add(own, mine)
	g.against(bare, rec.get(bare), own, mine, goal{})
	for _, p := range peers {
		g.against(p.name, rec.get(p.name), own, mine, p.goal)
	}
	return ctx.Err()
}

func (b *bench) measurePython(ctx context.Context) error {
	g := b.group("python", "one-shot Python: print(1)", "ms")
	python, err := realProgram("python3")
	if err != nil {
		g.add(own, &series{err: err})
		return nil
	}
	peers := b.allPeers(ctx)[:1] // bwrap
	rec := contest(ctx, b.opts.rounds, b.budget(), b.contenders([]string{python, "-c", "print(1)"}, peers)...)
	mine := rec.get(own)
	cold := "python3 -c, no sandbox"
	g.add(own, mine)
	g.against(cold, rec.get(bare), own, mine, goal{atMost, 1.3, 0.3})
	g.against(peers[0].name, rec.get(peers[0].name), own, mine, goal{})
	return ctx.Err()
}

func (b *bench) measureStart(ctx context.Context) error {
	g := b.group("start", "start of the program", "ms")
	const mine, other = "sandpit version", "an empty Go program"
	empty, err := b.emptyProgram(ctx)
	if err != nil {
		return err
	}
	rec := contest(ctx, b.opts.rounds, b.budget(),
		b.command(mine, always(b.sandpit, "version")),
		b.command(other, always(empty)))
	g.add(mine, rec.get(mine))
	g.against(other, rec.get(other), mine, rec.get(mine), goal{atMost, 3, 1.5})
	return ctx.Err()
}

func (b *bench) measureEngine(ctx context.Context) error {
	peers := b.allPeers(ctx)
	e, w := b.newEngine()
	defer e.Close()

	cs := []*contestant{b.command(bare, always(b.true)), b.life(e, w)}
	for _, p := range peers {
		if p.err != nil {
			continue // said in the first group
		}
		if p.hold == nil {
			cs = append(cs, b.command(p.name, func() ([]string, error) { return p.run(b.true) }))
			continue
		}
		h := p.hold(ctx)
		if h.err != nil {
			cs = append(cs, missing(p.name, h.err))
			continue
		}
		defer h.remove()
		cs = append(cs, b.command(p.name, always(h.exec...)))
	}
	rec := contest(ctx, b.opts.rounds, b.budget(), cs...)
	get := func(name string) *series {
		s := rec.get(name)
		if s.n() == 0 && s.err == nil {
			s.err = rec.get("engine").err
		}
		return s
	}
	floor := rec.get(bare)
	bwrap := peers[0].name

	g := b.group("engine", "create, until the guest has answered (in-process)", "ms")
	g.add("create", get("create"))
	g.against("bwrap, its whole life with `true`", rec.get(bwrap), "create", get("create"), goal{})
	g = b.group("engine", "create + first exec + destroy, one after the other (in-process)", "ms")
	g.add("all", get("all"))
	g.against("bwrap, its whole life with `true`", rec.get(bwrap), "all", get("all"), goal{})

	for _, row := range []struct{ title, series string }{
		{"first exec of `true` in a new sandbox (in-process)", "first exec"},
		{"n-th exec of `true` in a running sandbox (in-process)", "exec"},
	} {
		g = b.group("engine", row.title, "ms")
		g.add(row.series, get(row.series))
		g.against(bare, floor, row.series, get(row.series), goal{atMost, 2, 1.3})
		if row.series == "exec" {
			for _, p := range peers[1:] {
				if p.err == nil {
					g.against(p.name+" exec", rec.get(p.name), row.series, get(row.series), goal{})
				}
			}
		}
	}

	g = b.group("engine", "destroy, as the caller sees it (in-process)", "ms")
	g.add("destroy", get("destroy"))
	g.against(bare, floor, "destroy", get("destroy"), goal{atMost, 1, 0.5})
	g = b.group("engine", "destroy until quiet: no process, cgroup or network namespace is left", "ms")
	g.add("destroy until quiet", get("quiet"))
	g.against(bare, floor, "destroy until quiet", get("quiet"), goal{})
	return ctx.Err()
}

// burstSizes are how many are made at once.
func (b *bench) burstSizes() []int {
	if b.opts.quick {
		return []int{1, 2, 4, 8, 16}
	}
	return []int{1, 2, 4, 8, 16, 100}
}

func (b *bench) measureBursts(ctx context.Context) error {
	bwrap := b.allPeers(ctx)[0]
	e, _ := b.newEngine()
	defer e.Close()
	for _, n := range b.burstSizes() {
		cs := []*contestant{
			b.engineBurst(e, n),
			b.commandBurst(own, n, always(b.sandpit, "run", "--", b.true)),
		}
		if bwrap.err != nil {
			cs = append(cs, missing(bwrap.name, bwrap.err))
		} else {
			cs = append(cs, b.commandBurst(bwrap.name, n, func() ([]string, error) { return bwrap.run(b.true) }))
		}
		rounds := max(leastTurns, b.opts.rounds/(2*n))
		if b.opts.quick {
			rounds = min(rounds, 10)
		}
		rec := contest(ctx, rounds, b.budget()/4, cs...)
		var to goal
		if n > 1 {
			to = goal{atMost, 1, 0.5}
		}
		g := b.group("burst", strconv.Itoa(n)+" at once, until the last has answered", "ms")
		const answered, removed = "engine: create to first answered exec", "engine: the same, and destroyed"
		g.add(answered, rec.get(answered))
		g.add(removed, rec.get(removed))
		g.add(own, rec.get(own))
		g.against(bwrap.name+" (against the engine's first row)", rec.get(bwrap.name), answered, rec.get(answered), to)
		g.against(bwrap.name+" (against the command)", rec.get(bwrap.name), own, rec.get(own), goal{})
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) commandBurst(name string, n int, next func() ([]string, error)) *contestant {
	return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
		took, err := b.burst(ctx, n, next)
		if err != nil {
			return err
		}
		rec.time(name, took)
		return nil
	}}
}

// engineBurst makes n sandboxes at once.
func (b *bench) engineBurst(e *engine.Engine, n int) *contestant {
	const answered, removed = "engine: create to first answered exec", "engine: the same, and destroyed"
	return &contestant{name: answered, once: func(ctx context.Context, rec *record) error {
		boxes := make([]removable, n)
		took, err := atOnce(n, func(i int) error {
			sb, err := e.Create(ctx, defaultSpec())
			if err != nil {
				return err
			}
			boxes[i] = sb
			return b.execTrue(ctx, sb)
		})
		gone, rerr := atOnce(n, func(i int) error {
			if boxes[i] == nil {
				return nil
			}
			return boxes[i].Remove(context.WithoutCancel(ctx))
		})
		if err != nil {
			return err
		}
		if rerr != nil {
			return rerr
		}
		rec.time(answered, took)
		rec.time(removed, took+gone)
		return nil
	}}
}

type removable interface{ Remove(context.Context) error }

func (b *bench) measureSize(ctx context.Context) error {
	g := b.group("size", "size of the program", "MiB")
	size := func(file string) *series {
		st, err := os.Stat(file)
		if err != nil {
			return &series{err: err}
		}
		return &series{values: []float64{float64(st.Size()) / (1 << 20)}}
	}
	mine := size(b.sandpit)
	g.add("sandpit, the guest in it", mine)
	g.add("the guest", &series{values: []float64{float64(len(b.guest)) / (1 << 20)}})
	if empty, err := b.emptyProgram(ctx); err == nil {
		g.against("an empty Go program", size(empty), "sandpit", mine, goal{})
	}
	for _, p := range b.allPeers(ctx) {
		if p.err == nil && p.file != "" {
			g.against(p.name, size(p.file), "sandpit", mine, goal{})
		}
	}
	return nil
}
