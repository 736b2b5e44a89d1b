package process

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Args[0] == tracerName {
		os.Exit(trace(os.Args[1]))
	}
	os.Exit(testkit.Main(m))
}

// One for whom the process waits loses nothing, however he takes it and whatever
// the size of its pieces.
func TestHolderLosesNothing(t *testing.T) {
	l := newOutputLog(64 << 10)
	r := l.attach(0, true)
	var want []byte
	content := func(n int, b byte) []byte {
		return append(make([]byte, wire.HeaderSize), bytes.Repeat([]byte{b}, n)...)
	}
	channels := []wire.Type{wire.Data, wire.Data2}
	var puts [][]byte
	for i := range 100 { // each a small piece, since the channel changes
		puts = append(puts, content(100, byte(i)))
	}
	for i := range 20 {
		puts = append(puts, content(wire.MaxData, byte(i)))
	}
	for _, b := range puts {
		want = append(want, b[wire.HeaderSize:]...)
	}
	go func() {
		for i, b := range puts {
			_ = l.put(channels[i%2], b, len(b)-wire.HeaderSize)
		}
		l.finish()
	}()
	var got []byte
	for {
		taken := 0
		err := l.next(r, func(p *piece, at int, lost int64) int {
			if lost > 0 || p == nil || taken > 0 {
				return 0
			}
			taken = min(100, len(p.data)-at)
			got = append(got, p.data[at:at+taken]...)
			return taken
		})
		if err == io.EOF {
			break
		}
		if len(got) < 5000 {
			time.Sleep(time.Millisecond) // so that room is made behind each small piece
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) || r.lost != 0 {
		t.Errorf("%d bytes of %d were taken, and %d lost", len(got), len(want), r.lost)
	}
}
