// Command remote works with a sandbox that lives in a server: it starts a
// process there, leaves, comes back and finds it.
//
//	sandpit serve &
//	SANDPIT_SERVER=unix:///var/lib/sandpit/server.sock go run ./examples/remote
//
// Over TCP, SANDPIT_SERVER is https://HOST:PORT and SANDPIT_KEY the key.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "remote: %v\n", err)
		if hint := sandpit.Hint(err); hint != "" {
			fmt.Fprintf(os.Stderr, "  %s\n", hint)
		}
		os.Exit(1)
	}
}

func connect() (*client.Client, error) {
	return client.New(client.Options{Address: os.Getenv("SANDPIT_SERVER"), Key: os.Getenv("SANDPIT_KEY")})
}

func run(ctx context.Context) error {
	id, process, err := begin(ctx)
	if err != nil {
		return err
	}
	// From here on it could be another program, on another day.
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.Close()
	sb, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = sb.Remove(context.Background()) }()
	return end(ctx, sb, process)
}

// begin makes a sandbox and leaves a process in it.
func begin(ctx context.Context) (id, process string, err error) {
	c, err := connect()
	if err != nil {
		return "", "", err
	}
	defer c.Close() // its sandboxes, and what runs in the background, live on

	sb, err := c.Create(ctx, sandpit.Spec{
		WorkDir: "/tmp", Labels: map[string]string{"example": "remote"},
		// Removed if nobody comes back.
		Idle: 10 * time.Minute,
	})
	if err != nil {
		return "", "", err
	}
	p, err := sb.Start(ctx, sandpit.Command{Script: "for i in 1 2 3; do echo step $i; sleep 0.1; done; echo result >out.txt", Background: true})
	if err != nil {
		return "", "", errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
	}
	fmt.Println("left it at work")
	return sb.ID(), p.ID(), nil
}

// end finds the process again, waits for it and takes what it has made.
func end(ctx context.Context, sb sandpit.Sandbox, process string) error {
	p, err := sb.Attach(ctx, process, sandpit.AttachOptions{Stdout: os.Stdout})
	if err != nil {
		return err
	}
	res, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("it ended with %d\n", res.ExitCode)

	// The log has what was written while nobody looked.
	lines := 0
	for entry, err := range sb.Logs(ctx, sandpit.LogQuery{Process: process, Stream: "stdout"}) {
		if err != nil {
			return err
		}
		lines += strings.Count(string(entry.Data), "\n")
	}
	fmt.Printf("its log has %d lines\n", lines)

	// Processes end with Stop; files stay, for as long as the sandbox does.
	if err := sb.Stop(ctx, time.Second); err != nil {
		return err
	}
	if err := sb.Restart(ctx); err != nil {
		return err
	}
	out, err := sandpit.Exec(ctx, sb, "cat", "out.txt")
	if err != nil {
		return err
	}
	fmt.Printf("out.txt: %s", out.Stdout)
	return nil
}
