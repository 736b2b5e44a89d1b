package sandpittest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// fillNoise fills b with what stands at an offset of an endless stream that
// does not repeat soon: so a byte that is lost, doubled or in the wrong place
// is noticed.
func fillNoise(b []byte, offset int64) {
	var word [8]byte
	for i := 0; i < len(b); {
		at := offset + int64(i)
		// splitmix64 of the word's number.
		z := uint64(at/8)*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(word[:], z^z>>31)
		i += copy(b[i:], word[at%8:])
	}
}

// noiseReader gives the first n bytes of the stream.
type noiseReader struct{ at, n int64 }

func (r *noiseReader) Read(b []byte) (int, error) {
	if r.at == r.n {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), r.n-r.at)]
	fillNoise(b, r.at)
	r.at += int64(len(b))
	return len(b), nil
}

// noiseChecker takes the stream and fails at the first byte that differs.
type noiseChecker struct {
	at   int64
	want []byte
}

func (c *noiseChecker) Write(b []byte) (int, error) {
	if len(c.want) < len(b) {
		c.want = make([]byte, len(b))
	}
	fillNoise(c.want[:len(b)], c.at)
	if !bytes.Equal(b, c.want[:len(b)]) {
		return 0, fmt.Errorf("the content differs between bytes %d and %d", c.at, c.at+int64(len(b)))
	}
	c.at += int64(len(b))
	return len(b), nil
}
