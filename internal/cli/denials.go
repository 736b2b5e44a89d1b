package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// tellDenials says in one line what a sandbox could not reach, and how to allow it.
func (a *App) tellDenials(ctx context.Context, s sandpit.Sandbox) {
	e, ok := s.(sandpit.Egresser)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	l, err := e.EgressLog(ctx)
	if err != nil || len(l.Denials) == 0 {
		return
	}
	var count int64
	var flags []string
	for _, d := range slices.Backward(l.Denials) {
		count += d.Count
		if len(flags) < maxShown && d.Destination != "" && d.Rule == "" {
			flags = append(flags, "--allow "+d.Destination)
		}
	}
	times := "once"
	if count != 1 {
		times = fmt.Sprintf("%d times", count)
	}
	text := "network access was denied " + times + ": " + last(l.Denials).Why
	if d := last(l.Denials).Destination; d != "" {
		text = "network access was denied " + times + ", last to " + d + " (" + last(l.Denials).Why + ")"
	}
	if len(flags) > 0 {
		text += "; to allow it: " + strings.Join(flags, " ")
	}
	a.Note("%s", text)
}

// maxShown is the number of flags that tellDenials suggests at most.
const maxShown = 3

func last[T any](all []T) T { return all[len(all)-1] }
