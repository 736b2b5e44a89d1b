package e2b

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

// What is in an envelope comes out of it again, and other bytes are refused.
func FuzzEnvelope(f *testing.F) {
	f.Add([]byte{}, byte(0))
	f.Add([]byte(`{"process":{}}`), byte(0))
	f.Add([]byte{0, 0, 0, 0, 0}, byte(1))
	f.Fuzz(func(t *testing.T, data []byte, flags byte) {
		got, err := openEnvelope(envelope(flags, data))
		if (err == nil) != (flags == 0) || err == nil && !bytes.Equal(got, data) {
			t.Errorf("%q with flags %d is %q, %v", data, flags, got, err)
		}
		if got, err := openEnvelope(data); err == nil && !bytes.Equal(envelope(0, got), data) {
			t.Errorf("%q is an envelope of %q", data, got)
		}
	})
}

// Envelopes that follow each other come out of a stream one by one, however it is cut into reads, and bytes that are
// not all of an envelope are refused.
func FuzzEnvelopes(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0})
	f.Add(envelope(1, []byte("{}")))
	f.Add(append(envelope(0, []byte(`{"start":{}}`)), envelope(0, nil)...))
	f.Add([]byte{0, 0, 0, 0, 9, '{'})
	f.Add([]byte{0, 255, 255, 255, 255, '{'})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := iotest.OneByteReader(bytes.NewReader(data))
		var buf bytes.Buffer
		var again []byte
		for {
			err := nextEnvelope(&buf, r, func() io.Reader { return r }, maxInput, func(b *bytes.Buffer, r io.Reader) error {
				_, err := b.ReadFrom(r)
				return err
			})
			if err == io.EOF && !bytes.Equal(again, data) {
				t.Errorf("%q is taken for the envelopes %q", data, again)
			}
			if err != nil {
				if err != io.EOF && bytes.Equal(again, data) {
					t.Errorf("%q ends with %v", data, err)
				}
				return
			}
			if buf.Len() > maxInput {
				t.Fatalf("a message has %d bytes", buf.Len())
			}
			again = append(again, envelope(0, buf.Bytes())...)
		}
	})
}
