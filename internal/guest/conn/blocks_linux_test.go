package conn

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// What is in the blocks of a buffer arrives whole and in order, in frames that
// there was credit for, however little that is and whenever it comes.
func TestSendBlocks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, wire.MaxData - 1, wire.MaxData, wire.MaxData + 1, 3*wire.MaxData + 5, maxBlocks * wire.MaxData} {
		for _, window := range []int{wire.MinWindow, 3*BlockSize + 5000, 1 << 20} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			s := &Stream{c: New(harmless{}, r, w), id: 7, out: wire.NewWindow(window)}
			buf := bulks.Get().(*[]byte)
			var want []byte
			for _, p := range Payloads(*buf, n) {
				for i := range p {
					p[i] = byte(rnd.Uint32())
				}
				want = append(want, p...)
			}
			if len(want) != n {
				t.Fatalf("the blocks have room for %d of %d", len(want), n)
			}
			const times = 6 // so that credit is short
			sent := make(chan error, 1)
			go func() {
				defer w.Close()
				for range times {
					again := make([]byte, len(*buf)) // headers overwrite what is there
					copy(again, *buf)
					if err := s.SendBlocks(wire.Data, again, n); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			credit, got := window, []byte{}
			for in := wire.NewReader(r); ; {
				h, err := in.Next()
				if err == io.EOF {
					break
				}
				if err != nil || h.Type != wire.Data || h.Stream != 7 || h.Len == 0 {
					t.Fatal(h, err)
				}
				b := make([]byte, h.Len)
				if err := in.Into(b[:len(b):len(b)]); err != nil {
					t.Fatal(err)
				}
				got = append(got, b...)
				if credit -= wire.Cost(h.Len); credit < 0 {
					t.Fatal("a frame without credit")
				}
				if credit < window/2 {
					more := 8<<10 + rnd.IntN(window/2)
					credit += more
					s.out.Add(uint32(more))
				}
			}
			if err := <-sent; err != nil || !bytes.Equal(got, bytes.Repeat(want, times)) {
				t.Errorf("%d bytes with a window of %d: %d arrived, or others: %v", n*times, window, len(got), err)
			}
			r.Close()
		}
	}
}
