// Command local runs a program that nobody has read in a sandbox that it makes
// itself: no server, nothing installed. It works on Linux.
//
//	go run ./examples/local
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
	"github.com/sandpit-dev/sandpit/local"
)

// A program as a model may have written it.
const program = `
echo "primes below 50:"
n=2
while [ $n -lt 50 ]; do
	d=2
	while [ $((d * d)) -le $n ] && [ $((n % d)) -ne 0 ]; do d=$((d + 1)); done
	[ $((d * d)) -gt $n ] && printf '%d ' $n
	n=$((n + 1))
done
echo
echo done >report.txt
`

func main() {
	guest := local.Guest() // before anything else; see package local
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, guest); err != nil {
		fmt.Fprintf(os.Stderr, "local: %v\n", err)
		if hint := sandpit.Hint(err); hint != "" {
			fmt.Fprintf(os.Stderr, "  %s\n", hint)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, guest local.IsGuest) error {
	client, err := local.New(local.Options{Guest: guest})
	if err != nil {
		return err
	}
	defer client.Close() // removes what is left of its sandboxes

	sb, err := client.Create(ctx, sandpit.Spec{
		WorkDir: "/tmp",
		Limits:  sandpit.Limits{Memory: 256 << 20, Pids: 64, Life: time.Minute},
	})
	if err != nil {
		return err
	}
	defer func() { _ = sb.Remove(context.Background()) }()

	if _, err := sb.Files().Write(ctx, "program.sh", strings.NewReader(program), sandpit.WriteOptions{}); err != nil {
		return err
	}
	// Its output comes as it is written. A program that fails is not an error.
	p, err := sb.Start(ctx, sandpit.Command{Argv: []string{"sh", "program.sh"}, Stdout: os.Stdout, Stderr: os.Stderr, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	res, err := p.Wait(ctx)
	switch {
	case err != nil:
		return err
	case res.TimedOut:
		return errors.New("the program took too long")
	case !res.Success():
		return fmt.Errorf("the program ended with %d", res.ExitCode)
	}

	info, err := sb.Files().Stat(ctx, "report.txt")
	if err != nil {
		return err
	}
	fmt.Printf("report.txt has %d bytes; it took %v of processor time\n", info.Size, (res.UserCPU + res.SystemCPU).Round(time.Millisecond))
	return nil
}
