package api_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Much output arrives whole and in order, the rest of it soon, whether its
// client keeps up or not, and whatever the connection is.
func TestMuchOutput(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	const script = "yes 0123456789abcdef | head -c 5000000; yes e | head -c 3000 >&2; yes fedcba9876543210 | head -c 2000000; echo end; while ! rm /tmp/go; do sleep 0.01; done 2>/dev/null"
	stdout := append(append(repeated("0123456789abcdef\n", 5_000_000), repeated("fedcba9876543210\n", 2_000_000)...), "end\n"...)
	for name, key := range map[string]string{"unix": "", "tcp": adminKey} {
		for pace, every := range map[string]time.Duration{"fast": 0, "slow": time.Millisecond} {
			t.Run(name+" "+pace, func(t *testing.T) {
				resp := s.do(ask{
					key: key, method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: script}},
					header: map[string]string{"Accept": v1.StreamType},
				})
				defer resp.Body.Close()
				var got, other bytes.Buffer
				for got.Len() < len(stdout) {
					f, err := readFrame(resp.Body)
					if err != nil {
						t.Fatal(err)
					}
					switch f.kind {
					case v1.FrameStdout:
						got.Write(f.payload)
					case v1.FrameStderr:
						other.Write(f.payload)
					}
					time.Sleep(every)
				}
				var done v1.Executed
				s.want(200, &done, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "touch /tmp/go"}}})
				if sha256.Sum256(got.Bytes()) != sha256.Sum256(stdout) || other.Len() != 3000 {
					t.Errorf("%d bytes arrived of %d, or others, and %d of 3000", got.Len(), len(stdout), other.Len())
				}
				if f, err := readFrame(resp.Body); err != nil || f.kind != v1.FrameResult {
					t.Errorf("the last frame but one is %d: %v", f.kind, err)
				}
				if f, err := readFrame(resp.Body); err != nil || f.kind != v1.FrameEnd {
					t.Errorf("the last frame is %d: %v", f.kind, err)
				}
				if _, err := readFrame(resp.Body); err != io.EOF {
					t.Errorf("the stream ends with %v", err)
				}
			})
		}
	}
}

// repeated is the first n bytes of a text that is repeated.
func repeated(text string, n int) []byte {
	return bytes.Repeat([]byte(text), n/len(text)+1)[:n]
}
