package interpreter

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// once is a language without contexts: each run is a process of its own, which reads its program from
// standard input, and then the end of that.
type once struct {
	name string
	argv []string
}

// Without --allow-all, Deno asks for each right. The sandbox bounds the code already.
func onces() []once {
	return []once{
		{"perl", []string{"perl", "-"}},
		{"ruby", []string{"ruby", "-"}},
		{"php", []string{"php"}},
		{"lua", []string{"lua", "-"}},
		{"deno", []string{"deno", "run", "--allow-all", "-"}},
		{"bun", []string{"bun", "run", "-"}},
	}
}

// onceOf returns a language without contexts by its name.
func onceOf(name string) (once, bool) {
	name = nameOf(name)
	for _, o := range onces() {
		if o.name == name {
			return o, true
		}
	}
	return once{}, false
}

// run runs code. When ctx ends or its time is over, it is killed.
func (o once) run(ctx context.Context, place Starter, code sandpit.Code) (sandpit.CodeResult, error) {
	p, err := place.Start(ctx, sandpit.Command{Argv: o.argv, Env: code.Env, Stdin: true, Stdout: code.Stdout, Stderr: code.Stderr, Timeout: code.Timeout}, Cold)
	if err != nil {
		return sandpit.CodeResult{}, missing(err, o.argv[0], absent(o.name, o.argv[0], ""))
	}
	go func() { // which an end of the process ends
		_, _ = io.WriteString(p.Stdin(), code.Source)
		_ = p.Stdin().Close()
	}()
	res, err := p.Wait(ctx)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
		defer cancel()
		return sandpit.CodeResult{}, errors.Join(err, p.Kill(undo))
	}
	out := sandpit.CodeResult{Stateless: true, TimedOut: res.TimedOut, Truncated: res.DroppedBytes > 0, Wall: res.Wall}
	switch {
	case res.TimedOut:
	case res.Signal != 0 || res.OOMKilled:
		out.Ended = (&instance{result: res}).why()
	case res.ExitCode != 0:
		out.Error = &sandpit.CodeError{Name: sandpit.ExitStatus, Value: strconv.Itoa(res.ExitCode)}
	}
	return out, nil
}

// missing returns absent if a process could not be started because the sandbox lacks its program.
func missing(err error, program string, absent error) error {
	var start *sandpit.StartError
	if !errors.As(err, &start) || start.ExitCode != 127 || !strings.Contains(start.Reason, program) {
		return err
	}
	return absent
}

// absent says that the sandbox lacks an interpreter. image is one that has it, or "".
func absent(language, program, image string) error {
	hint := "use an image that has it"
	if image != "" {
		hint += ", such as " + image
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the sandbox has no interpreter for %s: %q was not found in its PATH", language, program), hint)
}
