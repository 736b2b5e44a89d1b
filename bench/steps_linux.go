package main

import "context"

// measureSteps shows where the time of a whole command goes, as --init-time
// tells it: of each step the middle of many runs.
func (b *bench) measureSteps(ctx context.Context) error {
	g := b.group("steps", "where the time goes: sandpit run --init-time -- true", "ms")
	var order []string
	rec := contest(ctx, b.fewer(100, 20), b.budget(), &contestant{name: "run", once: func(ctx context.Context, rec *record) error {
		took, err := b.spawn(ctx, b.sandpit, "run", "--init-time", "--", b.true)
		if err != nil {
			return err
		}
		order = order[:0]
		inner := 0.0
		for _, s := range initSteps(b.said()) {
			rec.get(s.name).add(s.ms)
			order = append(order, s.name)
			inner = s.ms // the last line is the sum
		}
		rec.get(outside).add(float64(took.Microseconds())/1000 - inner)
		return nil
	}})
	if err := rec.get("run").err; err != nil {
		g.add("steps", &series{err: err})
		return ctx.Err()
	}
	for _, name := range append(order, outside) {
		g.add(name, rec.get(name))
	}
	g.Note = "indented steps are parts of the step above; each row is the median of its own runs, so they don't add up exactly"
	return ctx.Err()
}

// outside is the part of a command's time that it can't see itself.
const outside = "before and after: exec, runtime, exit"
