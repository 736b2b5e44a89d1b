package sandpit

import (
	"bytes"
	"context"
)

// Output is a Result with what the process wrote.
type Output struct {
	Result
	Stdout, Stderr []byte
}

// DefaultCapture is how much output Exec and Shell keep, in bytes, both streams
// together. What goes over it is counted in DroppedBytes.
const DefaultCapture = 16 << 20

// Exec runs a program with an empty input and returns its output. When ctx
// ends first, the process is killed with all that it started, and the error is
// that of ctx.
func Exec(ctx context.Context, sb Sandbox, argv ...string) (Output, error) {
	return Run(ctx, sb, Command{Argv: argv})
}

// Shell is Exec for a script of /bin/sh.
func Shell(ctx context.Context, sb Sandbox, script string) (Output, error) {
	return Run(ctx, sb, Command{Script: script})
}

// Run starts cmd, waits for it and returns the output of the streams for which
// cmd names no writer. OutputLimit is DefaultCapture unless cmd has one. When
// ctx ends first, the process is killed.
func Run(ctx context.Context, sb Sandbox, cmd Command) (Output, error) {
	var out Output
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	if cmd.OutputLimit == 0 {
		cmd.OutputLimit = DefaultCapture
	}
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return out, err
	}
	res, err := p.Wait(ctx)
	if err != nil {
		_ = p.Kill(context.WithoutCancel(ctx))
		return out, err
	}
	out.Result, out.Stdout, out.Stderr = res, stdout.Bytes(), stderr.Bytes()
	return out, nil
}
