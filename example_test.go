package sandpit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/local"
)

// A sandbox that this program makes itself. With a server, only the second line
// differs: see package client.
func Example() {
	guest := local.Guest() // the first thing in main
	client, err := local.New(local.Options{Guest: guest})
	if err != nil {
		fmt.Println(err, sandpit.Hint(err))
		return
	}
	defer client.Close()

	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{})
	if err != nil {
		fmt.Println(err, sandpit.Hint(err))
		return
	}
	defer sb.Remove(ctx)
	out, err := sandpit.Exec(ctx, sb, "sh", "-c", "echo $((6 * 7))")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", out.Stdout)
	// Prints 42.
}

// Files are read and written inside, by the sandbox's own user.
func ExampleFiles() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{WorkDir: "/tmp"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)

	if _, err := sb.Files().Write(ctx, "words", strings.NewReader("sand\npit\n"), sandpit.WriteOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sandpit.Shell(ctx, sb, "sort words >sorted"); err != nil {
		fmt.Println(err)
		return
	}
	sorted, err := sb.Files().Open(ctx, "sorted", 0, -1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sorted.Close()
	_, _ = io.Copy(os.Stdout, sorted)
	// Prints pit and sand.
}

// A whole file is written and read in one call each.
func ExampleReadFile() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{WorkDir: "/tmp"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)

	if err := sandpit.WriteFile(ctx, sb, "note", []byte("sandpit\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	data, err := sandpit.ReadFile(ctx, sb, "note")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", data)
	// Prints sandpit.
}

// A directory is copied in, and what was made of it is copied out.
func ExampleCopyIn() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	_ = os.WriteFile(filepath.Join(dir, "words"), []byte("sand\npit\n"), 0o644)

	if err := sandpit.CopyIn(ctx, sb, dir, "/tmp/project", sandpit.CopyOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sandpit.Shell(ctx, sb, "cd /tmp/project && sort words >sorted && mkfifo pipe"); err != nil {
		fmt.Println(err)
		return
	}
	err = sandpit.CopyOut(ctx, sb, "/tmp/project", dir, sandpit.CopyOptions{MaxBytes: 1 << 20})
	var left *sandpit.CopyError // what could not be copied; the rest was
	if err != nil && !errors.As(err, &left) {
		fmt.Println(err)
		return
	}
	sorted, _ := os.ReadFile(filepath.Join(dir, "sorted"))
	fmt.Printf("%s", sorted)
	// Prints pit and sand.
}

// Files in, a command, its output and files out; the sandbox is removed.
func ExampleDo() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	res, err := sandpit.Do(context.Background(), client, sandpit.Task{
		Files:   map[string][]byte{"/tmp/in": []byte("sand\npit\n")},
		Command: sandpit.Command{Script: "sort /tmp/in >/tmp/out; echo sorted", Timeout: 10 * time.Second},
		Outputs: []string{"/tmp/out"},
	})
	if err != nil {
		fmt.Println(err, sandpit.Hint(err))
		return
	}
	fmt.Printf("%s%s", res.Stdout, res.Files["/tmp/out"])
	// Prints sorted, pit and sand.
}

// A program that takes too long is killed with everything that it has started.
func ExampleRun() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{Limits: sandpit.Limits{Memory: 64 << 20}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)

	out, err := sandpit.Run(ctx, sb, sandpit.Command{Script: "echo begin; sleep 1000", Timeout: 2 * time.Second})
	if err != nil {
		fmt.Println(err) // the sandbox failed, not the program
		return
	}
	fmt.Printf("%stimed out: %v\n", out.Stdout, out.TimedOut)
	// Prints begin, and that it timed out.
}

// A process in the background is found again by its id.
func ExampleProcessKeeper() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)

	started, err := sb.Start(ctx, sandpit.Command{Script: "echo working; exit 3", Background: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := sb.Attach(ctx, started.ID(), sandpit.AttachOptions{Stdout: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := p.Wait(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ended with", res.ExitCode)
	// Prints working, and that it ended with 3.
}

// A sandbox that is stopped keeps its files.
func ExampleLifecycle() {
	client, err := local.New(local.Options{Guest: local.Guest()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx, sandpit.Spec{WorkDir: "/tmp"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Remove(ctx)

	for _, step := range []func() error{
		func() error { _, err := sandpit.Shell(ctx, sb, "echo kept >file"); return err },
		func() error { return sb.Stop(ctx, time.Second) },
		func() error { return sb.Restart(ctx) },
		func() error { return sb.SetLifetime(ctx, sandpit.Lifetime{Life: time.Hour}) },
	} {
		if err := step(); err != nil {
			fmt.Println(err, sandpit.Hint(err))
			return
		}
	}
	out, err := sandpit.Exec(ctx, sb, "cat", "file")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", out.Stdout)
	// Prints kept.
}
