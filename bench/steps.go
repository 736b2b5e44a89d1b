package main

import (
	"strconv"
	"strings"
)

// step is a line of what `sandpit run --init-time` prints.
type step struct {
	name string // indented when it is a part of the one above
	ms   float64
}

// initSteps reads the lines "NAME  1.234 ms". Others are left out: they are
// what the command itself has said.
func initSteps(text string) []step {
	var steps []step
	for line := range strings.Lines(text) {
		rest, ok := strings.CutSuffix(strings.TrimRight(line, " \n"), " ms")
		if !ok {
			continue
		}
		i := strings.LastIndexByte(rest, ' ')
		if i < 0 {
			continue
		}
		ms, err := strconv.ParseFloat(rest[i+1:], 64)
		name := strings.TrimRight(rest[:i], " ")
		if err != nil || name == "" {
			continue
		}
		steps = append(steps, step{name, ms})
	}
	return steps
}
