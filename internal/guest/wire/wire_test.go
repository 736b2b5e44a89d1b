package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// decodable is a message, both ways.
type decodable interface {
	Append([]byte) []byte
	Decode([]byte) error
}

// messages are one filled and one empty of each kind, made anew.
func messages() [][2]decodable {
	exit := Exit{1, 2, 3, "why", 5, 6, 7, 8, 9, 10, 11, 1 << 63, StageNone, 0}
	failed := exit
	failed.Stage, failed.Errno = StageDirectory, 2
	file := File{"näme\n", -5, 0o100644, -1, 7, 1<<32 - 1, "target", nil}
	described := Described{file}
	described.Attrs = []Attr{{"e2b.k", "v"}, {"", "\xff"}}
	return [][2]decodable{
		{&HelloMessage{1, 2, HostWindow, 1 << 63, "build"}, &HelloMessage{Window: MinWindow}},
		{&ErrorMessage{CodeFile, 28, "no space", StageUser}, &ErrorMessage{}},
		{&Config{"u", "/d", []string{"A=1", ""}, -1, 2, 3, 1 << 40, -500, true}, &Config{}},
		{&Info{"b", 1, 2, 3, -4, 5, 6}, &Info{}},
		{&Start{7, []string{"a", "b\x00"}, "s", []string{"E=1"}, "d", "u", 1, 2, -3, 4, 5, 6, []Rlimit{{"cpu", 1, 1<<64 - 1}, {"", 0, 0}}, "t"}, &Start{}},
		{&Started{1, 2}, &Started{}},
		{&failed, &Exit{}},
		{&Target{1, 2}, &Target{}},
		{&Attach{Target{1, 2}, true, 3, -1}, &Attach{}},
		{&Signal{Target{1, 2}, 9, true}, &Signal{}},
		{&Resize{Target{1, 2}, 3, 4}, &Resize{}},
		{&After{5}, &After{}},
		{&Refs{[]uint64{1, 1 << 40}}, &Refs{List: []uint64{}}},
		{&Processes{[]Process{{Started{1, 2}, []string{"a"}, "u", -3, true, true, exit, 3, 1 << 40, "", ""}, {}}, true}, &Processes{List: []Process{}}},
		{&Stat{"p", true, true}, &Stat{}},
		{&file, &File{}},
		{&described, &Described{}},
		{&ReadDir{"p", "a", 3}, &ReadDir{}},
		{&Entries{true, []File{described.File, {}}}, &Entries{List: []File{}}},
		{&Read{"p", -1, 2}, &Read{}},
		{&Write{"p", 0o644, true, true, true, -9, []Attr{{"n", "v"}}}, &Write{}},
		{&Written{5}, &Written{}},
		{&Lifetime{true, 1, 2, 3}, &Lifetime{}},
		{&LifetimeState{1, 2, 3}, &LifetimeState{}},
		{&Expired{1, 2}, &Expired{}},
		{&Output{OutputStderr, 2, -3, 4, "data"}, &Output{}},
		{&Find{"r", "g", "a", 1, 2, true}, &Find{}},
		{&Grep{"r", "g", 1, 2, 3, "l", []Inst{{InstRune, 1, 0, []int32{-1, 7, 9, 1 << 20}}, {InstMatch, 0, 9, nil}}, 1}, &Grep{}},
		{&GrepLine{GrepMore, "p", 3, "text"}, &GrepLine{}},
		{&Edits{"p", []Edit{{"a", "b", true}, {}}}, &Edits{List: []Edit{}}},
		{&Watch{"p", true}, &Watch{}},
		{&WatchEvent{WatchRename, "p", "q"}, &WatchEvent{Kind: WatchCreate}},
		{&TreeEntry{TreeFile, "p", 0o644, -1, 5, "t"}, &TreeEntry{Kind: TreeDir}},
		{&Dial{"a", 1}, &Dial{}},
		{&Closed{104}, &Closed{}},
		{&Ports{[]Port{{"\x7f\x00\x00\x01", 80, 1000}, {string(make([]byte, 16)), 0, 0}}}, &Ports{List: []Port{}}},
		{&Path{"p", "o", 3, true}, &Path{}},
		{&SetAttr{"p", true, 63, -1, 0o644, 1, 1 << 32, -2, 3}, &SetAttr{}},
		{&As{"u", 9, "p\x00", true}, &As{}},
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	scratch := messages()
	for i, pair := range messages() {
		for _, m := range pair {
			name := fmt.Sprintf("%T", m)
			b := m.Append(nil)
			got := scratch[i][1]
			if err := got.Decode(b); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("%s: (-sent +got)\n%s", name, diff)
			}
			// A later version has appended fields.
			if err := got.Decode(append(b[:len(b):len(b)], "\x05later"...)); err != nil {
				t.Errorf("%s with more fields: %v", name, err)
			} else if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("%s with more fields: (-sent +got)\n%s", name, diff)
			}
		}
	}
}

// An earlier version lacks the last fields: they are zero.
func TestMissingFieldsAreZero(t *testing.T) {
	b := (&Start{Flags: StartStdin, Argv: []string{"a"}}).Append(nil)
	var got Start
	if err := got.Decode(b[:4]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Start{Flags: StartStdin, Argv: []string{"a"}}, got); diff != "" {
		t.Error(diff)
	}
}

// What a message claims to hold is not allocated before it is seen.
func TestClaimsAreNotBelieved(t *testing.T) {
	for name, b := range map[string][]byte{
		"strings":   append([]byte{0}, "\xff\xff\xff\xff\x0f"...),
		"length":    append([]byte{0, 1}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"...),
		"varint":    bytes.Repeat([]byte{0xff}, 20),
		"cut short": {0, 1, 5, 'a'},
	} {
		var m Start
		if n := testing.AllocsPerRun(10, func() {
			if err := m.Decode(b); !errors.Is(err, ErrMessage) {
				t.Errorf("%s: got %v", name, err)
			}
		}); n > 4 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestEntriesFitAReply(t *testing.T) {
	m := &Entries{}
	for i := range MaxEntries {
		m.List = append(m.List, File{Name: fmt.Sprint(i), Target: strings.Repeat("t", 300)})
		if i%2 == 0 {
			m.List[i].Attrs = []Attr{{"n", strings.Repeat("v", i%4000)}}
		}
	}
	b := m.Append(nil)
	var got Entries
	if err := got.Decode(b); err != nil || len(b) > MaxReply || !got.More || len(got.List) == 0 {
		t.Errorf("%d bytes, %d entries, more %t, %v", len(b), len(got.List), got.More, err)
	}
	if diff := cmp.Diff(m.List[:len(got.List)], got.List); diff != "" {
		t.Errorf("entries are not what was sent: %s", diff)
	}
}

// Records come apart as they were put together, whatever the pieces.
func TestRecords(t *testing.T) {
	var b []byte
	var want []Output
	for _, n := range []int{0, 1, 100, 127, 128, 5000, MaxRecord - 40} {
		m := Output{OutputStdout, uint64(n), -5, 0, strings.Repeat("x", n)}
		want = append(want, m)
		b = AppendRecord(b, &m)
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(b), "bytes": iotest.OneByteReader(bytes.NewReader(b))} {
		br, buf := bufio.NewReader(r), []byte(nil)
		var got []Output
		for {
			p, err := ReadRecord(br, &buf)
			if err == io.EOF {
				break
			}
			var m Output
			if err == nil {
				err = m.Decode(p)
			}
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, m)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for in, want := range map[string]error{
		"": io.EOF, "\x80": io.ErrUnexpectedEOF, "\x05abc": io.ErrUnexpectedEOF, "\x05": io.ErrUnexpectedEOF,
		"\x81\x80\x04": ErrMessage, "\x80\x80\x80\x00": ErrMessage, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff": ErrMessage,
	} {
		var buf []byte
		if _, err := ReadRecord(bufio.NewReader(strings.NewReader(in)), &buf); err != want {
			t.Errorf("%q: got %v, want %v", in, err, want)
		}
	}
}

func FuzzMessages(f *testing.F) {
	for i, pair := range messages() {
		f.Add(uint8(i), pair[0].Append(nil))
		f.Add(uint8(i), pair[1].Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		all := messages()
		m := all[int(kind)%len(all)][1]
		if m.Decode(b) != nil {
			return
		}
		// What can be read can be written, and is then the same.
		again := m.Append(nil)
		n := all[int(kind)%len(all)][0]
		if err := n.Decode(again); err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if diff := cmp.Diff(m, n); diff != "" {
			if e, ok := m.(*Entries); ok && len(again) >= MaxReply/2 && len(e.List) > 0 {
				return // it has become shorter
			}
			if strings.Contains(fmt.Sprintf("%T", m), "ErrorMessage") || len(again) > maxText {
				return // a long text is cut
			}
			t.Errorf("%T: %s", m, diff)
		}
	})
}

func TestFrames(t *testing.T) {
	var b []byte
	type frame struct {
		Type    Type
		Stream  uint32
		Payload string
	}
	want := []frame{
		{Hello, 0, "x"},
		{Data, 1<<32 - 1, strings.Repeat("d", MaxData)},
		{EOF, 3, ""},
		{Open, 4, strings.Repeat("o", 300_000)},
		{Credit, 5, "1234"},
	}
	for _, f := range want {
		b = AppendFrame(b, f.Type, f.Stream, []byte(f.Payload))
	}
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(b), "bytes": iotest.OneByteReader(bytes.NewReader(b)),
		"halves": iotest.HalfReader(bytes.NewReader(b)), "with EOF": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		fr := NewReader(r)
		var got []frame
		for i := 0; ; i++ {
			h, err := fr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(name, err)
			}
			var p []byte
			switch {
			case h.Type == Data:
				p = make([]byte, h.Len, h.Len+HeaderSize) // as in a chunk
				err = fr.Into(p)
			case h.Type == Credit:
				err = fr.Skip(h.Len)
				p = []byte("1234")
			default:
				p, err = fr.Message(h.Len)
			}
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, frame{h.Type, h.Stream, string(p)})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, b := range map[string]string{
		"no such type": "\x00\x00\x00\x63\x00\x00\x00\x00", "type 0": "\x00\x00\x00\x00\x00\x00\x00\x00",
		"too long": "\x01\x00\x01\x05\x00\x00\x00\x00",
	} {
		if _, err := NewReader(strings.NewReader(b)).Next(); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := NewReader(strings.NewReader("\x01\x00")).Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
}

// What goes into a queue comes out of it, in order, and credit neither grows nor shrinks.
func TestQueue(t *testing.T) {
	const window = MinWindow
	q, w := NewQueue(window), NewWindow(window)
	rnd := rand.New(rand.NewSource(1))
	type piece struct {
		channel Type
		data    []byte
	}
	var want, got [2][]byte
	var pieces []piece
	for range 2000 {
		n := 1 + rnd.Intn(100)
		if rnd.Intn(10) == 0 {
			n = 1 + rnd.Intn(MaxData)
		}
		b := make([]byte, n)
		rnd.Read(b)
		c := Data + Type(rnd.Intn(2))
		pieces = append(pieces, piece{c, b})
		want[c-Data] = append(want[c-Data], b...)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, b, err := q.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			got[c-Data] = append(got[c-Data], b...)
			if n := q.Done(); n > 0 && !w.Add(uint32(n)) {
				t.Error("too much credit")
			}
		}
	})
	for _, p := range pieces {
		for b := p.data; len(b) > 0; {
			n, err := w.Take(len(b))
			if err != nil {
				t.Fatal(err)
			}
			room, ok := q.Space(n)
			if !ok {
				t.Fatal("no room although there was credit")
			}
			copy(room, b[:n])
			q.Commit(p.channel, n)
			b = b[n:]
		}
	}
	q.Finish()
	wg.Wait()
	if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) {
		t.Error("what came out is not what went in")
	}
	if _, ok := q.Space(1); ok {
		t.Error("room after the end")
	}
}

func TestQueueHoldsNoMoreThanItsWindow(t *testing.T) {
	q := NewQueue(MinWindow)
	frames := 0
	for channel := Data; ; channel ^= Data ^ Data2 {
		if _, ok := q.Space(1); !ok {
			break
		}
		q.Commit(channel, 1)
		frames++
	}
	if frames != MinWindow/Cost(1) {
		t.Errorf("%d frames of one byte", frames)
	}
	held := 0
	for _, c := range q.chunks {
		held += cap(c.buf) + cap(c.recs)*16
	}
	if held > 4*MinWindow {
		t.Errorf("%d bytes held for a window of %d", held, MinWindow)
	}
}

func TestQueueIsClosedWhileItIsFilled(t *testing.T) {
	for range 100 {
		q := NewQueue(MinWindow)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				if _, _, err := q.Next(); err != nil {
					return
				}
				q.Done()
			}
		})
		wg.Go(func() { q.Abort(io.ErrClosedPipe) })
		for range 100 {
			if _, ok := q.Space(1000); !ok {
				break
			}
			q.Commit(Data, 1000)
		}
		wg.Wait()
		if _, _, err := q.Next(); err != io.ErrClosedPipe {
			t.Fatalf("got %v", err)
		}
	}
}

// The list has the directory and the tag of a process, and nothing more of a process that has neither.
func TestListHasDirectoryAndTag(t *testing.T) {
	plain := Process{Started: Started{1, 2}, Command: []string{"a"}}
	named := plain
	named.Dir, named.Tag = "/d", "t"
	for _, p := range []Process{plain, named} {
		var got Processes
		if err := got.Decode((&Processes{List: []Process{p}}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Process{p}, got.List); diff != "" {
			t.Error(diff)
		}
	}
	if more := len(named.append(nil)) - len(plain.append(nil)); more != len("\x02/d\x01t") {
		t.Errorf("they take %d bytes", more)
	}
}
