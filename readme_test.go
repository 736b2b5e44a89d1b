package sandpit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// try runs a program that nobody has read, and returns its output.
func try(ctx context.Context, client sandpit.Client, program string) ([]byte, error) {
	sb, err := client.Create(ctx, sandpit.Spec{Limits: sandpit.Limits{Disk: 64 << 20}})
	if err != nil {
		return nil, err
	}
	defer sb.Remove(context.Background())

	if _, err := sb.Files().Write(ctx, "task.sh", strings.NewReader(program), sandpit.WriteOptions{}); err != nil {
		return nil, err
	}
	res, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: []string{"sh", "task.sh"}, Timeout: 10 * time.Second})
	switch {
	case err != nil:
		return nil, err // the sandbox failed, not the program
	case res.TimedOut:
		return nil, errors.New("timed out; it and everything it started were killed")
	case !res.Success():
		return nil, fmt.Errorf("exit code %d: %s", res.ExitCode, res.Stderr)
	}
	return res.Stdout, nil
}

// What the README shows is the code above, which compiles, or an example, which is run.
func TestReadmeShowsRealCode(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("examples/task/main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("README.md shows no Go code")
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(string(source), code) && string(program) != code {
			t.Errorf("this is neither in readme_test.go nor examples/task/main.go:\n%s", code)
		}
	}
}
