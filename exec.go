package sandpit

import (
	"bytes"
	"context"
)

// Output is a Result and the output of the process.
type Output struct {
	Result
	Stdout, Stderr []byte
}

// DefaultCapture is the maximum number of bytes of output that Exec, Shell and Run
// return, both streams together. The rest is counted in Result.DroppedBytes.
const DefaultCapture = 16 << 20

// Exec runs a program with empty input and returns its output. If ctx ends first,
// Exec kills the process and its descendants and returns the error of ctx. If the
// program can't be started, the error is a *StartError.
func Exec(ctx context.Context, sb Sandbox, argv ...string) (Output, error) {
	return Run(ctx, sb, Command{Argv: argv})
}

// Shell is like Exec for a script that /bin/sh runs.
func Shell(ctx context.Context, sb Sandbox, script string) (Output, error) {
	return Run(ctx, sb, Command{Script: script})
}

// Run starts cmd, waits for it and returns the output of the streams for which
// cmd has no writer. The default of OutputLimit is DefaultCapture. If ctx ends
// first, Run kills the process and returns the error of ctx.
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
