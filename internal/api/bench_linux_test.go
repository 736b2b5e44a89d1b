package api_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// BenchmarkExecTrue times a whole exec of true: bare fork and exec, in-process,
// and over the API on the unix socket.
func BenchmarkExecTrue(b *testing.B) {
	b.Run("fork", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := serve(b, nil)
	sb := s.create("", v1.Spec{})
	in, err := s.engine.As("local", defaultPolicy()).Get(context.Background(), sb.ID)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("engine", func(b *testing.B) {
		for b.Loop() {
			if _, err := sandpit.Exec(context.Background(), in, "/bin/true"); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, kind := range []string{v1.StreamType, "application/json"} {
		b.Run(strings.ReplaceAll(kind, "/", "_"), func(b *testing.B) {
			for b.Loop() {
				s.exec(b, sb.ID, kind, "/bin/true")
			}
		})
	}
	b.Run("health", func(b *testing.B) {
		for b.Loop() {
			s.get(ask{method: "GET", path: "/healthz"})
		}
	})
}

func (s *service) exec(b testing.TB, id, kind string, argv ...string) int64 {
	r, _ := http.NewRequest("POST", "http://sandpit/v1/sandboxes/"+id+"/exec", strings.NewReader(fmt.Sprintf(`{"argv":[%q]}`, strings.Join(argv, `","`))))
	if len(argv) > 1 {
		r, _ = http.NewRequest("POST", "http://sandpit/v1/sandboxes/"+id+"/exec", strings.NewReader(fmt.Sprintf(`{"script":%q}`, argv[1])))
	}
	r.Header.Set("Accept", kind)
	resp, err := s.unix.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if kind != v1.StreamType {
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp.Status, err)
		}
		return n
	}
	br := bufio.NewReaderSize(resp.Body, 256<<10)
	var head [5]byte
	var total int64
	for {
		if _, err := io.ReadFull(br, head[:]); err != nil {
			b.Fatal(err)
		}
		n, err := br.Discard(int(binary.BigEndian.Uint32(head[1:])))
		if err != nil {
			b.Fatal(err)
		}
		switch head[0] {
		case v1.FrameStdout:
			total += int64(n)
		case v1.FrameResult:
			_, _ = io.Copy(io.Discard, br)
			return total
		case v1.FrameEnd:
			b.Fatal("there is no result")
		}
	}
}

// BenchmarkStream times 1 GiB: through a pipe, in-process, over the API.
func BenchmarkStream(b *testing.B) {
	const size = 1 << 30
	script := fmt.Sprintf("exec head -c %d /dev/zero", size)
	b.Run("pipe", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			cmd := exec.Command("/bin/sh", "-c", script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{out}, make([]byte, 64<<10)); n != size {
				b.Fatal(n, err)
			}
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := serve(b, nil)
	sb := s.create("", v1.Spec{Limits: &v1.Limits{Output: 2 << 30}})
	in, err := s.engine.As("local", defaultPolicy()).Get(context.Background(), sb.ID)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("engine", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			p, err := in.Start(context.Background(), sandpit.Command{Script: script, Stdout: io.Discard})
			if err != nil {
				b.Fatal(err)
			}
			if r, err := p.Wait(context.Background()); err != nil || r.StdoutBytes != size {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("api", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if n := s.exec(b, sb.ID, v1.StreamType, "sh", script); n != size {
				b.Fatal(n)
			}
		}
	})
}
