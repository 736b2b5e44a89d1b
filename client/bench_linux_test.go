package client_test

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/local"
)

// inProcess returns a client without a server.
func inProcess(b *testing.B) sandpit.Client {
	b.Helper()
	c, err := local.New(local.Options{Home: b.TempDir(), Guest: local.Guest()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	return c
}

// BenchmarkExec runs true in a sandbox, over each way to it, and beside it what
// a plain fork and exec costs here.
func BenchmarkExec(b *testing.B) {
	s := serve(b)
	b.Run("fork and exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, way := range []struct {
		name   string
		client sandpit.Client
	}{
		{"engine", inProcess(b)},
		{"unix", s.overUnix(b)},
		{"tls", s.overTLS(b)},
	} {
		sb, err := way.client.Create(b.Context(), sandpit.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				if out, err := sandpit.Exec(b.Context(), sb, "/bin/true"); err != nil || !out.Success() {
					b.Fatal(out, err)
				}
			}
		})
		if way.name == "unix" {
			b.Run("unix, with input", func(b *testing.B) {
				for b.Loop() {
					p, err := sb.Start(b.Context(), sandpit.Command{Argv: []string{"/bin/true"}, Stdin: true})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := p.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("unix, only asking", func(b *testing.B) {
				for b.Loop() {
					if _, err := sb.Info(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		if err := sb.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBytes moves much, over each way.
func BenchmarkBytes(b *testing.B) {
	const size = 64 << 20
	data := make([]byte, size)
	s := serve(b)
	for _, way := range []struct {
		name   string
		client sandpit.Client
	}{
		{"engine", inProcess(b)},
		{"unix", s.overUnix(b)},
		{"tls", s.overTLS(b)},
	} {
		sb, err := way.client.Create(b.Context(), sandpit.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(way.name+"/write", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				if _, err := sb.Files().Write(b.Context(), "/tmp/f", bytes.NewReader(data), sandpit.WriteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(way.name+"/read", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				r, err := sb.Files().Open(b.Context(), "/tmp/f", 0, -1)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, r); err != nil || n != size {
					b.Fatal(n, err)
				}
				r.Close()
			}
		})
		b.Run(way.name+"/output", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				p, err := sb.Start(b.Context(), sandpit.Command{Argv: []string{"cat", "/tmp/f"}, Stdout: io.Discard})
				if err != nil {
					b.Fatal(err)
				}
				if res, err := p.Wait(b.Context()); err != nil || res.StdoutBytes != size {
					b.Fatal(res, err)
				}
			}
		})
		b.Run(way.name+"/input", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				p, err := sb.Start(b.Context(), sandpit.Command{Argv: []string{"sh", "-c", "cat >/dev/null"}, Stdin: true})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := p.Stdin().Write(data); err != nil {
					b.Fatal(err)
				}
				p.Stdin().Close()
				if _, err := p.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := sb.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
