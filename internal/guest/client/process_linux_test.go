package client_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
)

// run runs a command to its end.
func run(t testing.TB, c *client.Client, cmd sandpit.Command) (res sandpit.Result, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &o
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &e
	}
	ctx := within(t, time.Minute)
	p, err := c.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	res, err = p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res, o.String(), e.String()
}

func TestOutputAndExitCode(t *testing.T) {
	c := start(t)
	res, stdout, stderr := run(t, c, sandpit.Command{Script: "echo out; echo err >&2; exit 3"})
	if stdout != "out\n" || stderr != "err\n" || res.ExitCode != 3 || res.StdoutBytes != 4 || res.StderrBytes != 4 {
		t.Errorf("got %q, %q, %+v", stdout, stderr, res)
	}
}
