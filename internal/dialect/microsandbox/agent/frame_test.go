package agent

import (
	"bytes"
	"encoding/json"
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
	f.Add([]byte("\x00\x00\x00\x14\x00\x00\x00\x01\x08\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00abc"))
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
			if r, err := parseRecord(body); err == nil && len(r.content)+bulkHead != n {
				t.Errorf("a record of %d bytes has %d", n, len(r.content))
			}
			e, err := parseBody(body)
			if err != nil {
				continue
			}
			var req execRequest
			if decoder().Unmarshal(e.P, &req) == nil {
				_ = req.command(req.Rlimits)
			}
			if _, err := rlimitsOf(e.P); err == nil && len(e.P) > 0 && !json.Valid(e.P) {
				t.Errorf("limits of %q", e.P)
			}
			_, _, _ = parseFiles(e.P)
			again := appendFrame(nil, id, 0, e.T, e.P)
			if back, err := parseBody(again[headSize:]); err != nil || back.T != e.T || !bytes.Equal(back.P, e.P) {
				t.Errorf("%+v became %+v: %v", e, back, err)
			}
		}
	})
}

// Whatever records and messages of a transfer come in whatever order, what waits is no more than the window, and the reader gets just
// what was accepted.
func FuzzBulk(f *testing.F) {
	f.Add([]byte{0, 3, 0, 2, 1, 0, 2, 5, 3, 0})
	f.Add([]byte{0, 200, 0, 200, 1, 0, 4, 0, 5, 0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		const window = 256
		steps = steps[:min(len(steps), 64)]
		b := &bulk{kind: bulkFiles, record: 100, window: window, limit: window}
		b.cond.L = &b.mu
		var want []byte
		for ; len(steps) >= 2; steps = steps[2:] {
			n := int(steps[1])
			content := bytes.Repeat(steps[1:2], n)
			r := record{kind: bulkFiles, flow: bulkIn, offset: b.received, content: content}
			switch steps[0] % 6 {
			case 1: // another offset
				r.offset += uint64(n) + 1
			case 2:
				r.flow = bulkOut
			case 3:
				p, err := cbor.Marshal(finishMessage{bulkFiles, bulkIn, b.received - uint64(n%2)})
				if err != nil {
					t.Fatal(err)
				}
				_ = b.tell(message{kind: kindBulkFinish, payload: p})
				continue
			case 4:
				p, err := cbor.Marshal(creditMessage{bulkFiles, bulkOut, uint64(n), uint64(n) << 20})
				if err != nil {
					t.Fatal(err)
				}
				if b.tell(message{kind: kindBulkCredit, payload: p}) == nil && n > 0 {
					t.Error("the client has consumed what was never sent")
				}
				continue
			case 5:
				_ = b.tell(message{kind: kindBulkCredit, payload: content})
				continue
			}
			if b.take(r) == nil {
				want = append(want, content...)
			}
		}
		if len(b.buf) > window || !bytes.Equal(b.buf, want) {
			t.Errorf("%d bytes wait, want %d", len(b.buf), len(want))
		}
	})
}
