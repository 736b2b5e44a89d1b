package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/sandpit-dev/sandpit"
)

// connected returns a connection with an input, and what it has sent.
func connected(t *testing.T, in io.ReadCloser) (l *lines, sent *bytes.Buffer) {
	t.Helper()
	sent = new(bytes.Buffer)
	l = &lines{in: bufio.NewReaderSize(in, 64<<10), closer: in, out: sent}
	if _, err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, sent
}

// Lines that are not messages are answered and passed over, also without an end, and those that are too long.
func TestLines(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":%d,"method":"ping"}`
	in := "\n  \r\nnope\n" + fmt.Sprintf(ping, 1) + "\r\n" + strings.Repeat("[", maxMessageLine+1) + "\n" + `{"jsonrpc":"2.0","id":"x"}` + "\n" + fmt.Sprintf(ping, 2)
	l, sent := connected(t, io.NopCloser(strings.NewReader(in)))
	for i := range 2 {
		msg, err := l.Read(t.Context())
		req, ok := msg.(*jsonrpc.Request)
		if err != nil || !ok || req.Method != "ping" || req.ID.Raw() != int64(i+1) {
			t.Fatalf("message %d is %v, %v", i+1, msg, err)
		}
	}
	if _, err := l.Read(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("then: %v", err)
	}
	want := []string{
		`{"error":{"code":-32700,"message":"the message is not valid JSON"},"id":null,"jsonrpc":"2.0"}`,
		`{"error":{"code":-32600,"message":"the message has more than 16777216 bytes"},"id":null,"jsonrpc":"2.0"}`,
		`{"error":{"code":-32600,"message":"the message is not one of JSON-RPC 2.0: it has neither a method nor a result"},"id":"x","jsonrpc":"2.0"}`,
		"",
	}
	if diff := cmp.Diff(want, strings.Split(sent.String(), "\n")); diff != "" {
		t.Errorf("the answers (-want +got):\n%s", diff)
	}
}

// A message that is too long is answered by its ID, wherever that is.
func TestLinesTooLong(t *testing.T) {
	long := strings.Repeat(`\",\"id\":7`, maxMessageLine/9)
	for _, one := range []struct{ message, id string }{
		{`{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"` + long + `"}}`, "1"},
		{`{"method":"x","params":{"a":"` + long + `"},"jsonrpc":"2.0","id":"two"}`, `"two"`},
		{`{"params":{"a":"` + long + `"},"id" : 3, "jsonrpc":"2.0", "method":"x" } ` + "\r", "3"},
		{`{"method":"x","params":{"id":4,"a":"` + long + `"}}`, "null"},
		{`{"method":"x","params":{"a":"` + long + `","id":5}}`, "null"},
		{`{"method":"x","id":[],"params":{"a":"` + long + `"}}`, "null"},
		{`"` + long + `"`, "null"},
	} {
		l, sent := connected(t, io.NopCloser(strings.NewReader(one.message+"\n")))
		if _, err := l.Read(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("then: %v", err)
		}
		if got := sent.String(); !strings.Contains(got, `"id":`+one.id+`,`) {
			t.Errorf("%.60s is answered with %s", one.message, got)
		}
	}
}

// A connection that is closed, or whose context has ended, is not read on.
func TestLinesAreClosed(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	l, _ := connected(t, in)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Read(t.Context())
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after Close: %v", err)
	}
}

// A clip has the whole of what fits, and else the first and the last part, in whatever pieces it was written.
func TestClip(t *testing.T) {
	for _, size := range []int{0, 1, budget - 1, budget, budget + 1, 2 * budget, 2*budget + 1, 5 * budget} {
		var all strings.Builder
		for i := 0; all.Len() < size; i++ {
			fmt.Fprintf(&all, "%d ", i)
		}
		text := all.String()[:size]
		for _, piece := range []int{7, 1000, budget, 3 * budget} {
			c := new(clip)
			for rest := text; rest != ""; {
				n := min(piece, len(rest))
				c.write([]byte(rest[:n]))
				rest = rest[n:]
			}
			for _, most := range []int64{100, budget / 2, budget} {
				want := text
				if int64(size) > most {
					want = text[:most/2] + fmt.Sprintf("\n[… %d bytes left out …]\n", int64(size)-most) + text[int64(size)-(most-most/2):]
				}
				if got, left := c.text(most); got != want || left != (got != text) {
					t.Errorf("%d bytes in pieces of %d: at most %d are %.80q …, want %.80q …", size, piece, most, got, want)
				}
			}
			if len(c.head)+cap(c.tail) > 8*budget {
				t.Errorf("it holds %d bytes", len(c.head)+cap(c.tail))
			}
		}
	}
}

// A clip stays within its size and breaks no character, whatever the bytes are.
func TestClipIsClean(t *testing.T) {
	for _, piece := range []string{"\x00", "\xff", "a\xff", "é", "xé€", "𝄞\xf0", "\xed\xa0\x80"} {
		for _, size := range []int{1000, 40000, 400000} {
			text := strings.Repeat(piece, size/len(piece))
			got, left := clipText(text, 20001)
			if len(got) > 20001+50 || !utf8.ValidString(got) || strings.Contains(got, "\x00") || left != (got != clean(text)) {
				t.Errorf("%d times %q is clipped to %d bytes, %t", size/len(piece), piece, len(got), left)
			}
			if utf8.ValidString(text) && strings.ContainsRune(got, utf8.RuneError) {
				t.Errorf("%d times %q has broken characters", size/len(piece), piece)
			}
		}
	}
}

// Pages of output have every character once, wherever entries and pages end, and however the streams are interleaved.
func TestPositions(t *testing.T) {
	out, errs := []byte(strings.Repeat("xé€𝄞\n", 20)), []byte(strings.Repeat("é𝄞!", 30))
	for entry := 1; entry < 12; entry++ {
		var entries []sandpit.LogEntry
		for o, e := out, errs; len(o)+len(e) > 0; {
			for _, s := range []struct {
				name string
				rest *[]byte
			}{{stdout, &o}, {stderr, &e}} {
				if n := min(entry, len(*s.rest)); n > 0 {
					entries = append(entries, sandpit.LogEntry{Seq: uint64(2*len(entries) + 5), Stream: s.name, Data: (*s.rest)[:n]})
					*s.rest = (*s.rest)[n:]
				}
			}
		}
		for page := 8; page < 40; page++ {
			var all strings.Builder
			for after, more := "", true; more; {
				at, err := parsePosition(after)
				if err != nil {
					t.Fatal(err)
				}
				more = false
				room := page
				for _, e := range entries {
					if e.Seq <= at.query() {
						continue
					}
					text, whole := at.take(e, room, room == page)
					all.WriteString(text)
					if room -= len(text); !whole {
						more = true
						break
					}
				}
				if at.String() == after {
					t.Fatalf("entries of %d, pages of %d: it does not get past %s", entry, page, after)
				}
				after = at.String()
			}
			got := all.String()
			if strings.ContainsRune(got, utf8.RuneError) || len(got) != len(out)+len(errs) || strings.Count(got, "𝄞") != 50 || strings.Count(got, "€") != 20 {
				t.Fatalf("entries of %d, pages of %d: %q", entry, page, got)
			}
		}
	}
	for _, wrong := range []string{"x", "-1", "1.2", "1.2.3.4", "1.-1..", "0.1..", "1.0..", "1.0.c3a9.", "1.0.zz.", " 1", "01"} {
		if p, err := parsePosition(wrong); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q is %+v, %v", wrong, p, err)
		}
	}
}

// Two streams share the budget: what one of them leaves, the other one has.
func TestShares(t *testing.T) {
	for _, one := range []struct{ stdout, stderr, wantOut, wantErr int64 }{
		{0, 0, 0, 0},
		{10, 20, 10, 20},
		{1 << 30, 0, budget, 0},
		{1 << 30, 100, budget - 100, 100},
		{100, 1 << 30, 100, budget - 100},
		{1 << 30, 1 << 30, budget / 2, budget / 2},
	} {
		o := &output{stdout: clip{size: one.stdout}, stderr: clip{size: one.stderr}}
		if got := o.shares(); got != [2]int64{one.wantOut, one.wantErr} {
			t.Errorf("%d and %d bytes have %v", one.stdout, one.stderr, got)
		}
	}
}

// The audit learns what a message is about, and nothing that may be secret.
func TestDescribe(t *testing.T) {
	call := func(tool, args string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
	}
	const little, pictures = 16 * budget, 16*budget + 4*maxPicture
	for _, one := range []struct {
		body string
		want Subject
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, Subject{Method: "tools/list", Detail: "tools/list"}},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, Subject{Method: "notifications/cancelled", Detail: "notifications/cancelled", Vital: true}},
		{call("run_command", `{"sandbox":"box","command":"secret"}`), Subject{Method: "tools/call", Sandbox: "box", Detail: `tool "run_command" command of 8 bytes`, Memory: little}},
		{call("write_file", `{"sandbox":"box","path":"/a\n","content":"secret"}`), Subject{Method: "tools/call", Sandbox: "box", Detail: `tool "write_file" path "/a\n" content of 8 bytes`, Memory: little}},
		{call("read_file", `{"sandbox":7}`), Subject{Method: "tools/call", Detail: `tool "read_file"`, Memory: pictures}},
		{call("remove_sandbox", `{"sandbox":"box"}`), Subject{Method: "tools/call", Sandbox: "box", Detail: `tool "remove_sandbox"`, Vital: true, Memory: little}},
		{call("x", `[]`), Subject{Method: "tools/call", Detail: `tool "x"`, Memory: little}},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandpit://box/files/a"}}`, Subject{Method: "resources/read", Sandbox: "box", Detail: `resources/read "sandpit://box/files/a"`, Memory: 4 * maxResource}},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandpit://b%6fx/files/a"}}`, Subject{Method: "resources/read", Sandbox: "box", Detail: `resources/read "sandpit://b%6fx/files/a"`, Memory: 4 * maxResource}},
	} {
		got, err := Describe([]byte(one.body))
		if diff := cmp.Diff(one.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", one.body, err, diff)
		}
	}
	// Other spellings of a key do not count, as they do not for the SDK.
	const run = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_command","arguments":{"sandbox":"i1","command":"x"`
	ran := Subject{Method: "tools/call", Sandbox: "i1", Detail: `tool "run_command" command of 3 bytes`, Memory: little}
	for _, body := range []string{
		run + `},"Name":"remove_sandbox","Arguments":{"sandbox":"i2","path":"/harmless"}}}`,
		run + `}},"Method":"notifications/cancelled"}`,
		run + `}},"METHOD":"ping"}`,
		run + `}},"PARAMS":{"name":"show_policy","arguments":{"sandbox":"i2"}}}`,
		run + `,"Sandbox":"i2","\u017fandbox":"i3"}}}`,
	} {
		got, err := Describe([]byte(body))
		if diff := cmp.Diff(ran, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", body, err, diff)
		}
	}
	for _, body := range []string{
		run + `}},"method":"ping"}`,
		run + `}},"params":{}}`,
		run + `},"name":null}}`,
		run + `},"n\u0061me":"show_policy"}}`,
		run + `},"arguments":{}}}`,
		run + `,"sandbox":"i2"}}}`,
		run + `}}} {"method":"ping"}`,
	} {
		if got, err := Describe([]byte(body)); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%s is %+v, %v", body, got, err)
		}
	}
	for _, body := range []string{"", "nope", "[]", "{}", `"x"`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":[],"method":"ping"}`} {
		if _, err := Describe([]byte(body)); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// What is offered names only what is offered, and all of the text is there if everything is.
func TestTextsNameOnlyWhatIsOffered(t *testing.T) {
	for _, name := range append(Names(), "") {
		for _, readOnly := range []bool{false, true} {
			r := &registry{opt: Options{ReadOnly: readOnly}}
			if name != "" {
				r.opt.Tools = []string{name}
			}
			texts := []string{r.only(instructions)}
			for _, tool := range (&registry{opt: r.opt}).addAll() {
				texts = append(texts, r.only(tool.text))
			}
			for _, text := range texts {
				if len(text) < 60 {
					t.Errorf("of %q, %t remains %q", name, readOnly, text)
				}
				for _, other := range new(registry).addAll() {
					if strings.Contains(text, other.name) && !r.has(other.name) {
						t.Errorf("%q, %t: %q names %s", name, readOnly, text, other.name)
					}
				}
			}
		}
	}
	all := new(registry)
	if all.only(instructions) != instructions {
		t.Errorf("the instructions are %q", all.only(instructions))
	}
}

// Every tool has a text for the model, and every argument one that says what it means.
func TestToolsAreDescribed(t *testing.T) {
	s, err := newServer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s == nil || len(Names()) != 22 {
		t.Errorf("the names are %q", Names())
	}
	for _, tool := range new(registry).addAll() {
		if len(tool.text) < 60 || tool.title == "" || tool.readOnly && tool.destructive {
			t.Errorf("%s is described as %+v", tool.name, tool)
		}
	}
}
