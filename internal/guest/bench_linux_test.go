package guest_test

import (
	"io"
	"os/exec"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// BenchmarkExec compares a program started in a sandbox with one started here.
func BenchmarkExec(b *testing.B) {
	b.Run("guest", func(b *testing.B) {
		c := start(b)
		ctx := b.Context()
		for b.Loop() {
			p, err := c.Start(ctx, sandpit.Command{Argv: []string{"/bin/true"}})
			if err != nil {
				b.Fatal(err)
			}
			if res, err := p.Wait(ctx); err != nil || res.ExitCode != 0 {
				b.Fatal(res, err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPing is the round trip of the smallest frame.
func BenchmarkPing(b *testing.B) {
	c := start(b)
	for b.Loop() {
		if err := c.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{} // io.Discard takes a shortcut by ReadFrom

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkOutput compares streamed output with the same through a pipe.
func BenchmarkOutput(b *testing.B) {
	const size = 1 << 30
	const script = "head -c 1073741824 /dev/zero"
	b.Run("guest", func(b *testing.B) {
		c := start(b)
		b.SetBytes(size)
		for b.Loop() {
			p, err := c.Start(b.Context(), sandpit.Command{Script: script, Stdout: discard{}})
			if err != nil {
				b.Fatal(err)
			}
			if res, err := p.Wait(b.Context()); err != nil || res.StdoutBytes != size {
				b.Fatal(res, err)
			}
		}
	})
	b.Run("pipe", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			cmd := exec.Command("sh", "-c", script)
			r, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			if n, err := io.CopyBuffer(struct{ io.Writer }{discard{}}, struct{ io.Reader }{r}, make([]byte, 64<<10)); err != nil || n != size {
				b.Fatal(n, err)
			}
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFiles is the speed of file content up and down.
func BenchmarkFiles(b *testing.B) {
	const size = 1 << 30
	c := start(b)
	path := b.TempDir() + "/file"
	b.Run("write", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.Files().Write(b.Context(), path, io.LimitReader(zeros{}, size), sandpit.WriteOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			r, err := c.Files().Open(b.Context(), path, 0, -1)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(discard{}, r); err != nil || n != size {
				b.Fatal(n, err)
			}
			r.Close()
		}
	})
	b.Run("cp", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if err := exec.Command("cp", path, path+"2").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stat", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Files().Stat(b.Context(), path); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
