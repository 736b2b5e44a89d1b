package engine_test

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func benchSandbox(b *testing.B, persistent bool) sandpit.Sandbox {
	b.Helper()
	testkit.NeedGuest(b, embedded.Guest())
	dir := b.TempDir()
	images, guests := engine.Home(dir)
	opt := engine.Options{
		Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(),
	}
	driver := linux.Options{Dir: guests, Guest: embedded.Guest()}
	if persistent {
		driver.KeepDir = filepath.Join(dir, "keep")
		opt.Store, opt.Dir = &mapStore{}, filepath.Join(dir, "logs")
	}
	opt.Driver = linux.New(driver)
	e := engine.New(opt)
	b.Cleanup(func() { _ = e.Close() })
	sb, err := e.Create(b.Context(), sandpit.Spec{})
	testkit.Made(b, err)
	b.Cleanup(func() { _ = sb.Remove(context.Background()) })
	return sb
}

// BenchmarkExec is a short program in a sandbox that ends with the engine, and in
// one of a server.
func BenchmarkExec(b *testing.B) {
	for name, persistent := range map[string]bool{"own": false, "persistent": true} {
		b.Run(name, func(b *testing.B) {
			sb := benchSandbox(b, persistent)
			for b.Loop() {
				if _, err := sandpit.Exec(b.Context(), sb, "true"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStream is output of a program to one who waits for it, beside a bare
// pipe: bytes without lines, and lines of 80 bytes.
func BenchmarkStream(b *testing.B) {
	const size = 64 << 20
	for _, kind := range [...]struct{ name, script string }{
		{"bytes", "exec head -c 67108864 /dev/zero"},
		{"lines", "yes 0123456789012345678901234567890123456789012345678901234567890123456789012345678 | head -c 67108864"},
	} {
		b.Run("pipe/"+kind.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				cmd := exec.CommandContext(b.Context(), "/bin/sh", "-c", kind.script)
				out, err := cmd.StdoutPipe()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(struct{ io.Writer }{io.Discard}, out); n != size || err != nil {
					b.Fatal(n, err)
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, persistent := range []bool{false, true} {
			name := "own/"
			if persistent {
				name = "kept/"
			}
			b.Run(name+kind.name, func(b *testing.B) {
				sb := benchSandbox(b, persistent)
				b.SetBytes(size)
				// On a busy machine the processor time says more than the time.
				outside, inside := ownTime(b), boxTime(b, sb)
				defer func() {
					b.ReportMetric(float64(ownTime(b)-outside)/1e6/float64(b.N), "outside-ms/op")
					b.ReportMetric(float64(boxTime(b, sb)-inside)/1e6/float64(b.N), "inside-ms/op")
				}()
				for b.Loop() {
					out := &counter{}
					if _, err := sandpit.Run(b.Context(), sb, sandpit.Command{Script: kind.script, Stdout: out, OutputLimit: size}); err != nil {
						b.Fatal(err)
					}
					if out.n != size {
						b.Fatal(out.n)
					}
				}
			})
		}
	}
}

// counter counts what is written to it.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// ownTime is the processor time that this process has used.
func ownTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// boxTime is the processor time that a sandbox has used.
func boxTime(b *testing.B, sb sandpit.Sandbox) time.Duration {
	b.Helper()
	m, err := sb.Metrics(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return m.CPU
}
