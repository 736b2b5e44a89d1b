package v1

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

// FuzzReadFrame checks that a frame is read as it was written, or refused before it is held.
func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(AppendFrame(nil, FrameStdout, []byte("out")), FrameResult, []byte("{}")))
	f.Add([]byte("\x02\xff\xff\xff\xff"))
	f.Add([]byte("\x02\x00\x00\x00\x09half"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 10
		in := bytes.NewReader(data)
		var again, buf []byte
		for {
			kind, payload, err := ReadFrame(in, buf, limit)
			if err != nil {
				if errors.Is(err, io.EOF) && len(again) != len(data) {
					t.Errorf("%d of %d bytes were read when it ended", len(again), len(data))
				}
				break
			}
			if len(payload) > limit {
				t.Fatalf("%d bytes", len(payload))
			}
			buf = payload
			again = AppendFrame(again, kind, payload)
		}
		if !bytes.HasPrefix(data, again) {
			t.Errorf("%q is read as %q", data, again)
		}
	})
}

func TestAppendFrame(t *testing.T) {
	b := AppendFrame([]byte("before"), FrameSignal, []byte("four"))
	if string(b) != "before\x13\x00\x00\x00\x04four" || binary.BigEndian.Uint32(b[7:]) != 4 {
		t.Errorf("got %q", b)
	}
}
