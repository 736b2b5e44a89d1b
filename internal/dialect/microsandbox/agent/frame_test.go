package agent

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// Any bytes are frames, or an error, and what is decoded is not larger than what came. What is encoded is read again.
func FuzzFrames(f *testing.F) {
	payload, err := cbor.Marshal(map[string]any{"cmd": "true", "args": []string{"a"}, "op": map[string]any{"Stat": map[string]any{"path": "/", "follow_symlink": true}}})
	if err != nil {
		f.Fatal(err)
	}
	good := appendFrame(nil, 7, 0, kindExec, payload)
	f.Add(good)
	f.Add(append(good, good[:20]...))
	f.Add([]byte("\xff\xff\xff\xff\x00\x00\x00\x01\x00"))
	f.Add(appendFrame(nil, 1, 0, kindContent, dataHead(nil, 3), []byte("abc")))
	f.Add(appendFrame(nil, 1, 0, kindFiles, []byte("\x9f\x9f\x9f\x9f\xff")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for r := bytes.NewReader(b); ; {
			id, _, n, err := readHead(r)
			if err != nil {
				if !errors.Is(err, errFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Error(err)
				}
				return
			}
			body := make([]byte, n)
			if _, err := io.ReadFull(r, body); err != nil {
				return
			}
			e, err := parseBody(body)
			if err != nil {
				continue
			}
			var req execRequest
			if decoder().Unmarshal(e.P, &req) == nil {
				_, _ = req.command()
			}
			_, _, _ = parseFiles(e.P)
			again := appendFrame(nil, id, 0, e.T, e.P)
			if back, err := parseBody(again[headSize:]); err != nil || back.T != e.T || !bytes.Equal(back.P, e.P) {
				t.Errorf("%+v became %+v: %v", e, back, err)
			}
		}
	})
}
