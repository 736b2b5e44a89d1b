package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const mib = 1 << 20

// amount is how much is moved, in bytes.
func (b *bench) amount() int64 {
	if b.opts.quick {
		return 256 * mib
	}
	return 1024 * mib
}

// defaultSpec is what who asks for nothing gets.
func defaultSpec() sandpit.Spec { return sandpit.Spec{} }

// roomySpec holds the amount that is moved.
func (b *bench) roomySpec() sandpit.Spec {
	l := sandpit.Limits{Disk: 2 * b.amount(), Output: 4 * b.amount()}
	if os.Geteuid() == 0 {
		l.Memory = 4 * b.amount() // files of a sandbox are in memory
	}
	return sandpit.Spec{Limits: l}
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// speed adds MB/s, of a million bytes.
func (r *record) speed(name string, bytes int64, took time.Duration) {
	r.get(name).add(float64(bytes) / 1e6 / took.Seconds())
}

func (b *bench) measureStream(ctx context.Context) error {
	size := b.amount()
	g := b.group("stream", fmt.Sprintf("streamed output, %d MiB", size/mib), "MB/s")
	g.More = true
	const mine, other = "in-process, from the sandbox", "a pipe, no sandbox"
	dd, err := realProgram("dd")
	if err != nil {
		g.add(mine, &series{err: err})
		return nil
	}
	argv := []string{dd, "if=/dev/zero", "bs=1M", fmt.Sprintf("count=%d", size/mib), "status=none"}

	e, _ := b.newEngine()
	defer e.Close()
	sb, err := e.Create(ctx, b.roomySpec())
	if err != nil {
		g.add(mine, &series{err: err})
		return ctx.Err()
	}
	rec := contest(ctx, b.fewer(10, 4), b.budget(),
		&contestant{name: mine, once: func(ctx context.Context, rec *record) error {
			var got counter
			start := time.Now()
			err := succeed(sandpit.Run(ctx, sb, sandpit.Command{Argv: argv, Stdout: &got, OutputLimit: 2 * size}))
			took := time.Since(start)
			if err == nil && int64(got) != size {
				err = fmt.Errorf("streaming: %d bytes arrived of %d", got, size)
			}
			if err == nil {
				rec.speed(mine, size, took)
			}
			return err
		}},
		&contestant{name: other, once: func(ctx context.Context, rec *record) error {
			var got counter
			start := time.Now()
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Stdout = &got
			err := cmd.Run()
			took := time.Since(start)
			if err == nil {
				rec.speed(other, int64(got), took)
			}
			return err
		}})
	g.add(mine, rec.get(mine))
	g.against(other, rec.get(other), mine, rec.get(mine), goal{atLeast, 0.3, 0.7})
	return ctx.Err()
}

// fastDir is a directory in memory, where a sandbox's files are too; else one
// on disk.
func (b *bench) fastDir() (dir string, remove func(), err error) {
	for _, parent := range []string{"/dev/shm", os.TempDir()} {
		if dir, err = os.MkdirTemp(parent, "sandpit-bench-"); err == nil {
			return dir, func() { os.RemoveAll(dir) }, nil
		}
	}
	return "", nil, fmt.Errorf("making a temporary directory: %w", err)
}

func (b *bench) measureFiles(ctx context.Context) error {
	size := b.amount()
	const up, down, copied = "in-process, into the sandbox", "in-process, out of the sandbox", "cp, no sandbox"
	gu := b.group("files", fmt.Sprintf("upload of %d MiB", size/mib), "MB/s")
	gd := b.group("files", fmt.Sprintf("download of %d MiB", size/mib), "MB/s")
	gu.More, gd.More = true, true

	cp, err := realProgram("cp")
	if err != nil {
		gu.add(up, &series{err: err})
		return nil
	}
	dir, remove, err := b.fastDir()
	if err != nil {
		return err
	}
	defer remove()
	gu.Note = "all files are on " + fsType(dir) + ", also those of cp"
	file, target := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := fill(file, size); err != nil {
		gu.add(up, &series{err: fmt.Errorf("writing a file to upload: %w", err)})
		return nil
	}
	e, _ := b.newEngine()
	defer e.Close()
	sb, err := e.Create(ctx, b.roomySpec())
	if err != nil {
		gu.add(up, &series{err: err})
		return ctx.Err()
	}
	fresh := func() error {
		if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	rec := contest(ctx, b.fewer(10, 4), b.budget(),
		&contestant{name: up, once: func(ctx context.Context, rec *record) error {
			took, err := upload(ctx, sb, file)
			if err == nil {
				rec.speed(up, size, took)
			}
			return err
		}},
		&contestant{name: down, once: func(ctx context.Context, rec *record) error {
			if err := fresh(); err != nil {
				return err
			}
			took, err := download(ctx, sb, target, size)
			if err == nil {
				rec.speed(down, size, took)
			}
			return err
		}},
		&contestant{name: copied, once: func(ctx context.Context, rec *record) error {
			if err := fresh(); err != nil {
				return err
			}
			took, err := b.spawn(ctx, cp, file, target)
			if err == nil {
				rec.speed(copied, size, took)
			}
			return err
		}})
	to := goal{atLeast, 0.3, 0.7}
	gu.add(up, rec.get(up))
	gu.against(copied, rec.get(copied), up, rec.get(up), to)
	gd.add(down, rec.get(down))
	gd.against(copied, rec.get(copied), down, rec.get(down), to)
	return ctx.Err()
}

// inside is the file that is moved, as it is named in the sandbox.
const inside = "/tmp/moved"

func upload(ctx context.Context, sb sandpit.Sandbox, file string) (time.Duration, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// A file of the last round would be there twice until it is replaced.
	if err := sb.Files().Remove(ctx, inside, true); err != nil {
		return 0, err
	}
	start := time.Now()
	_, err = sb.Files().Write(ctx, inside, f, sandpit.WriteOptions{})
	return time.Since(start), err
}

func download(ctx context.Context, sb sandpit.Sandbox, target string, size int64) (time.Duration, error) {
	f, err := os.Create(target)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	start := time.Now()
	r, err := sb.Files().Open(ctx, inside, 0, -1)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err := io.Copy(f, r)
	took := time.Since(start)
	if err == nil && n != size {
		err = fmt.Errorf("downloading: %d bytes arrived of %d", n, size)
	}
	return took, err
}

// fill makes a file that is not empty space.
func fill(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	block := []byte(strings.Repeat("0123456789abcdef", mib/16))
	for range size / mib {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Close()
}
