package api_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// frame is one of a stream.
type frame struct {
	kind    byte
	payload []byte
}

// readFrame reads one, pings left out.
func readFrame(r io.Reader) (frame, error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return frame{}, err
		}
		f := frame{head[0], make([]byte, binary.BigEndian.Uint32(head[1:]))}
		if _, err := io.ReadFull(r, f.payload); err != nil || f.kind != v1.FramePing {
			return f, err
		}
	}
}

func execPath(sb v1.Sandbox) string { return "/v1/sandboxes/" + sb.ID + "/exec" }

// A command is run and answered in each of the three ways.
func TestExec(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "cat; echo err >&2; exit 3"}, StdinData: []byte("in")}})
	if out.Stdout != "in" || out.Stderr != "err\n" || out.Result.ExitCode != 3 || out.Process.PID == 0 {
		t.Errorf("%+v", out)
	}
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"printf", `\377`}}}})
	if stdout, stderr := outputOf(t, out); stdout != "\xff" || stderr != "" {
		t.Errorf("%+v", out)
	}
	// A program that can't be started is an error in each of them.
	for _, accept := range []string{"", v1.StreamType, "text/event-stream"} {
		e := s.refused(422, "start_failed", ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"/no/such/program"}}}, header: map[string]string{"Accept": accept}})
		if e.ExitCode != 127 || !strings.Contains(e.Message, "/no/such/program") {
			t.Errorf("%+v", e)
		}
	}

	resp := s.do(ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "echo out; echo err >&2; exit 4"}}, header: map[string]string{"Accept": v1.StreamType}})
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != v1.StreamType {
		t.Fatal(resp.Status, resp.Header)
	}
	got := map[byte]string{}
	var last byte
	for {
		f, err := readFrame(resp.Body)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 && f.kind != v1.FrameStarted {
			t.Errorf("frame %d is the first", f.kind)
		}
		got[f.kind] += string(f.payload)
		last = f.kind
	}
	var p v1.Process
	var res v1.Result
	strict(t, []byte(got[v1.FrameStarted]), &p)
	strict(t, []byte(got[v1.FrameResult]), &res)
	if got[v1.FrameStdout] != "out\n" || got[v1.FrameStderr] != "err\n" || last != v1.FrameEnd || got[last] != `{"reason":"ended"}` || res.ExitCode != 4 || p.PID == 0 {
		t.Errorf("%q", got)
	}

	_, body, _ := s.get(ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: `printf 'a\377'; printf b >&2`}}, header: map[string]string{"Accept": "text/event-stream"}})
	for _, want := range []string{"event: started\ndata: {", "event: stdout\ndata: {\"data\":\"Yf8=\"}\n\n", "event: stderr\ndata: {\"data\":\"Yg==\",\"text\":\"b\"}\n\n", "event: result\ndata: {\"exit_code\":0", "\n\nevent: end\ndata: {\"reason\":\"ended\"}\n\n"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("there is no %q in %q", want, body)
		}
	}

	s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: v1.Exec{}})
	s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "x", Stdin: true}}})
	s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "x"}, StdinData: make([]byte, 1<<20+1)}})
	s.refused(404, "not_found", ask{method: "POST", path: "/v1/sandboxes/none/exec", body: v1.Exec{Command: v1.Command{Script: "x"}}, header: map[string]string{"Accept": v1.StreamType}})
}

// running reports whether a process with that argument runs in the sandbox.
func (s *service) running(sb v1.Sandbox, key, word string) bool {
	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), key: key, body: v1.Exec{Command: v1.Command{Script: fmt.Sprintf(`cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c "slee[p] %s"`, word)}}})
	return strings.TrimSpace(out.Stdout) != "0"
}

// A client that vanishes ends its command, however it was run.
func TestVanishedClientEndsItsCommand(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	for i, accept := range []string{"application/json", v1.StreamType, "text/event-stream", "websocket"} {
		word := fmt.Sprint(7000 + i)
		ctx, cancel := context.WithCancel(context.Background())
		if accept == "websocket" {
			conn := s.socket(ctx, execPath(sb), "")
			context.AfterFunc(ctx, func() { _ = conn.CloseNow() })
			if err := conn.Write(ctx, websocket.MessageText, []byte(`{"argv":["sleep","`+word+`"]}`)); err != nil {
				t.Fatal(err)
			}
		} else {
			go func() {
				resp, err := s.try(ctx, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"sleep", word}}}, header: map[string]string{"Accept": accept}})
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
		}
		eventually(t, accept+": it runs", func() bool { return s.running(sb, "", word) })
		cancel()
		eventually(t, accept+": it has ended", func() bool { return !s.running(sb, "", word) })
	}
}

// socket opens a WebSocket.
func (s *service) socket(ctx context.Context, path, key string) *websocket.Conn {
	s.t.Helper()
	opt, base := &websocket.DialOptions{HTTPClient: s.unix, Subprotocols: []string{"other", v1.Subprotocol}}, "ws://sandpit"
	if key != "" {
		opt, base = &websocket.DialOptions{HTTPClient: s.tcp, Subprotocols: opt.Subprotocols, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}}, strings.Replace(s.base, "http", "ws", 1)
	}
	conn, _, err := websocket.Dial(ctx, base+path, opt)
	if err != nil {
		s.t.Fatal(err)
	}
	if conn.Subprotocol() != v1.Subprotocol {
		s.t.Errorf("the subprotocol is %q", conn.Subprotocol())
	}
	conn.SetReadLimit(2 << 20)
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// sendFrame sends a message.
func sendFrame(t *testing.T, conn *websocket.Conn, kind byte, payload string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageBinary, append([]byte{kind}, payload...)); err != nil {
		t.Fatal(err)
	}
}

// receive reads messages until one of a kind holds a text, and returns all output.
func receive(t *testing.T, conn *websocket.Conn, kind byte, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	all := ""
	for {
		_, msg, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, all, err)
		}
		if len(msg) < 1 {
			t.Fatalf("an empty message after %q", all)
		}
		if msg[0] == kind {
			all += string(msg[1:])
			if strings.Contains(all, text) {
				return all
			}
		}
	}
}

// A session at a terminal: what is typed is echoed, the size changes, Ctrl-C is
// a signal, and the end is told.
func TestTerminal(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	conn := s.socket(t.Context(), execPath(sb), aliceKey)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["/bin/sh"],"env":["PS1=$ "],"terminal":{"rows":24,"cols":80}}`)); err != nil {
		t.Fatal(err)
	}
	receive(t, conn, v1.FrameStarted, `"terminal":true`)
	sendFrame(t, conn, v1.FrameStdin, "stty size; echo a\"\"b\n")
	if out := receive(t, conn, v1.FrameStdout, "ab\r\n"); !strings.Contains(out, "24 80") {
		t.Errorf("%q", out)
	}
	sendFrame(t, conn, v1.FrameResize, `{"rows":50,"cols":132}`)
	sendFrame(t, conn, v1.FrameStdin, "stty size; sleep 600\n")
	receive(t, conn, v1.FrameStdout, "50 132")
	eventually(t, "sleep runs", func() bool {
		inner := *s
		var out v1.Executed
		inner.want(200, &out, ask{method: "POST", path: execPath(sb), key: aliceKey, body: v1.Exec{Command: v1.Command{Script: `cat /proc/[0-9]*/cmdline | tr '\0' ' '`}}})
		return strings.Contains(out.Stdout, "sleep 600")
	})
	sendFrame(t, conn, v1.FrameSignal, `{"signal":2}`)
	sendFrame(t, conn, v1.FrameStdin, "echo st\"\"ill; exit 7\n")
	receive(t, conn, v1.FrameStdout, "still")
	var res v1.Result
	strict(t, []byte(receive(t, conn, v1.FrameResult, "}")), &res)
	if res.ExitCode != 7 {
		t.Errorf("%+v", res)
	}
	if end := ended(t, conn, websocket.StatusNormalClosure); end.Reason != v1.EndEnded || end.Error != nil {
		t.Errorf("it ended with %+v", end)
	}
}

// ended reads the last message of a WebSocket, which is closed with a code.
func ended(t *testing.T, conn *websocket.Conn, code websocket.StatusCode) (end v1.End) {
	t.Helper()
	strict(t, []byte(receive(t, conn, v1.FrameEnd, "}")), &end)
	if _, msg, err := conn.Read(t.Context()); websocket.CloseStatus(err) != code {
		t.Errorf("after %+v: %q, closed with %v, want %d", end, msg, err, code)
	}
	return end
}

// TestSocketWindows checks that with windows an output that the client has not passed on holds up nothing
// else, and that nobody may send more than there is room for.
func TestSocketWindows(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	open := func(command string) *websocket.Conn {
		conn := s.socket(t.Context(), execPath(sb)+"?windows=true", "")
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(command)); err != nil {
			t.Fatal(err)
		}
		receive(t, conn, v1.FrameStarted, "}")
		return conn
	}
	const much = 8 << 20
	conn := open(`{"script":"head -c 8388608 /dev/zero & read x; echo $x >&2; wait","stdin":true}`)
	got := map[byte]int{}
	all := func(kind byte, n int) {
		t.Helper()
		for got[kind] < n {
			_, msg, err := conn.Read(t.Context())
			if err != nil {
				t.Fatalf("after %v: %v", got, err)
			}
			got[msg[0]] += len(msg) - 1
		}
	}
	all(v1.FrameStdout, v1.Window)
	sendFrame(t, conn, v1.FrameStdin, "through\n")
	all(v1.FrameStderr, len("through\n"))
	if got[v1.FrameStdout] != v1.Window {
		t.Errorf("%d bytes came, of a window of %d", got[v1.FrameStdout], v1.Window)
	}
	for got[v1.FrameStdout] < much {
		sendFrame(t, conn, v1.FramePassed, "\x02\x00\x04\x00\x00") // 256 KiB
		all(v1.FrameStdout, min(got[v1.FrameStdout]+1, much))
	}
	if end := ended(t, conn, websocket.StatusNormalClosure); end.Reason != v1.EndEnded {
		t.Errorf("it ended with %+v", end)
	}

	// Input that is taken is told, and more than there is room for is refused.
	conn = open(`{"argv":["wc","-c"],"stdin":true}`)
	taken := 0
	for range 8 {
		sendFrame(t, conn, v1.FrameStdin, strings.Repeat("x", v1.InputWindow/2))
		for taken -= v1.InputWindow / 2; taken < -v1.InputWindow/2; {
			taken += int(binary.BigEndian.Uint32([]byte(receive(t, conn, v1.FrameTaken, ""))))
		}
	}
	sendFrame(t, conn, v1.FrameEOF, "")
	receive(t, conn, v1.FrameStdout, fmt.Sprintln(4*v1.InputWindow))
	ended(t, conn, websocket.StatusNormalClosure)
	for name, msg := range map[string]string{
		"more input than there is room for": string(rune(v1.FrameStdin)) + strings.Repeat("x", v1.MaxFrame),
		"no output":                         string(rune(v1.FramePassed)) + "\x01\x00\x00\x00\x01",
		"a short count":                     string(rune(v1.FramePassed)) + "\x02\x00",
		"a long count":                      string(rune(v1.FramePassed)) + "\x02\x00\x00\x00\x00\x00\x00",
	} {
		conn := open(`{"argv":["sleep","600"],"stdin":true}`)
		if err := conn.Write(t.Context(), websocket.MessageBinary, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if e := ended(t, conn, 4400); e.Error == nil || e.Error.Code != "invalid" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// What a client may not send over a WebSocket ends its call, with a reason.
func TestSocketRefuses(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	for name, first := range map[string]string{"an unknown field": `{"argvv":[]}`, "nothing to run": `{}`} {
		conn := s.socket(t.Context(), execPath(sb), "")
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
			t.Fatal(err)
		}
		if e := ended(t, conn, 4400); e.Error == nil || e.Reason != v1.EndError || e.Error.Code != "invalid" || e.Error.RequestID == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	conn := s.socket(t.Context(), execPath(sb), "")
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["/no/such/program"]}`)); err != nil {
		t.Fatal(err)
	}
	if e := ended(t, conn, 4422); e.Error == nil || e.Error.Code != "start_failed" || e.Error.ExitCode != 127 {
		t.Errorf("a missing program: %+v", e)
	}
	long := append([]byte{v1.FrameStdin}, make([]byte, v1.MaxFrame+1)...)
	for name, tt := range map[string]struct {
		msg   []byte
		code  string
		close websocket.StatusCode
	}{
		"an empty message":   {nil, "invalid", 4400},
		"an unknown channel": {[]byte{99}, "invalid", 4400},
		"no size":            {[]byte{v1.FrameResize, '['}, "invalid", 4400},
		"too long a signal":  {append([]byte{v1.FrameSignal}, []byte(`{"signal":1}`+strings.Repeat(" ", 5000))...), "invalid", 4400},
		"too long":           {long, "too_large", websocket.StatusMessageTooBig},
		"no windows":         {[]byte{v1.FramePassed, v1.FrameStdout, 0, 0, 0, 1}, "invalid", 4400},
	} {
		conn := s.socket(t.Context(), execPath(sb), "")
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["sleep","600"]}`)); err != nil {
			t.Fatal(err)
		}
		receive(t, conn, v1.FrameStarted, "}")
		if err := conn.Write(t.Context(), websocket.MessageBinary, tt.msg); err != nil {
			t.Fatal(err)
		}
		if e := ended(t, conn, tt.close); e.Error == nil || e.Error.Code != tt.code {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// Other subprotocols, and the wrong version of the protocol.
	offering := map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "sandpit.v2, chat"}
	if e := s.refused(400, "invalid", ask{method: "GET", path: execPath(sb), header: offering}); !strings.Contains(e.Hint, v1.Subprotocol) {
		t.Errorf("the hint is %q", e.Hint)
	}
	s.refused(400, "invalid", ask{method: "GET", path: execPath(sb), header: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "12"}})
	// A request that is not a WebSocket handshake gets the same errors as other malformed requests.
	for head, status := range map[string]int{
		strings.Replace(handshake, "Connection: Upgrade", "Connection: keep-alive", 1): 426,
		strings.Replace(handshake, "Upgrade: websocket", "Upgrade: other", 1):          426,
		handshake + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n":                  400,
	} {
		conn := s.dial()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: sandpit\r\n%s\r\n", execPath(sb), head)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		var e v1.Error
		body, err := io.ReadAll(io.LimitReader(resp.Body, resp.ContentLength))
		strict(t, body, &e)
		if code := map[int]string{400: "invalid", 426: "upgrade_required"}[status]; resp.StatusCode != status || e.Code != code || err != nil {
			t.Errorf("%s: %s %+v, %v", head, resp.Status, e, err)
		}
		resp.Body.Close()
	}
	if log := s.log.String(); strings.Contains(log, "level=ERROR") {
		t.Error(log)
	}
}

// A process in the background is found again, fed, followed and ended.
func TestBackground(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/processes"
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: base, body: v1.Command{Script: "echo begun; cat; exit 5", Stdin: true}})
	if p.ID == "" || !p.Background {
		t.Fatalf("%+v", p)
	}
	one := base + "/" + p.ID
	var list v1.ProcessList
	s.want(200, &list, ask{method: "GET", path: base})
	if len(list.Processes) != 1 || list.Processes[0].ID != p.ID {
		t.Errorf("%+v", list)
	}
	var got v1.Process
	s.want(200, &got, ask{method: "GET", path: fmt.Sprintf("%s/%d", base, p.PID)})
	if got.ID != p.ID || got.Result != nil {
		t.Errorf("%+v", got)
	}
	s.want(200, &got, ask{method: "GET", path: one + "/wait?timeout=0.05"})
	if got.Result != nil {
		t.Errorf("%+v", got)
	}

	// Somebody follows, leaves, and follows again from the start.
	follow := func() *bufio.Reader {
		resp := s.do(ask{method: "GET", path: one + "/output", header: map[string]string{"Accept": "text/event-stream"}})
		t.Cleanup(func() { resp.Body.Close() })
		br := bufio.NewReader(resp.Body)
		for line := ""; !strings.Contains(line, `"text":"begun\n"`); {
			var err error
			if line, err = br.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		return br
	}
	follow()
	again := follow()

	// Over a WebSocket, too; it types.
	conn := s.socket(t.Context(), one+"/attach?stdin=true&history=false", "")
	receive(t, conn, v1.FrameStarted, p.ID)
	sendFrame(t, conn, v1.FrameStdin, "typed\n")
	receive(t, conn, v1.FrameStdout, "typed\n")
	_ = conn.CloseNow()

	s.want(204, nil, ask{method: "POST", path: one + "/stdin", body: "posted\n"})
	s.want(204, nil, ask{method: "POST", path: one + "/stdin?close=true"})
	rest, err := io.ReadAll(again)
	if err != nil || !strings.Contains(string(rest), "typed") || !strings.Contains(string(rest), "posted") || !strings.Contains(string(rest), `"exit_code":5`) {
		t.Errorf("%v: %s", err, rest)
	}
	s.want(200, &got, ask{method: "GET", path: one + "/wait"})
	if got.Result == nil || got.Result.ExitCode != 5 {
		t.Errorf("%+v", got)
	}
	s.refused(404, "not_found", ask{method: "GET", path: base + "/999999"})
	s.refused(404, "not_found", ask{method: "POST", path: one + "/signal", body: v1.Signal{Signal: 15}})
	s.refused(400, "invalid", ask{method: "POST", path: one + "/signal", body: v1.Signal{Signal: 99}})

	s.want(201, &p, ask{method: "POST", path: base, body: v1.Command{Argv: []string{"sleep", "600"}}})
	s.refused(409, "state", ask{method: "POST", path: base + "/" + p.ID + "/stdin", body: "x"})
	s.want(204, nil, ask{method: "DELETE", path: base + "/" + p.ID})
	s.want(200, &got, ask{method: "GET", path: base + "/" + p.ID + "/wait"})
	if got.Result == nil || got.Result.Signal != 9 {
		t.Errorf("%+v", got)
	}
	if e := s.refused(422, "start_failed", ask{method: "POST", path: base, body: v1.Command{Argv: []string{"/etc/passwd"}}}); e.ExitCode != 126 {
		t.Errorf("%+v", e)
	}

	// What was written is in the log.
	s.refused(404, "not_found", ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?process=p999"})
	for _, name := range []string{p.ID, fmt.Sprint(p.PID)} {
		s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?process=" + name})
	}
	_, body, h := s.get(ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?stream=stdout"})
	if h.Get("Content-Type") != "application/x-ndjson" || strings.Count(string(body), "\n") < 3 {
		t.Errorf("%v: %s", h, body)
	}
	entries, last, _ := strings.Cut(string(body), `{"end":`)
	var seq uint64
	for line := range strings.Lines(entries) {
		var entry struct {
			Seq  uint64
			Data []byte
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Seq == 0 || len(entry.Data) == 0 {
			t.Errorf("%v: %s", err, line)
		}
		seq = entry.Seq
	}
	if want := fmt.Sprintf(`{"reason":"ended","seq":%d}}`+"\n", seq); last != want {
		t.Errorf("the last line is %q, want %q", last, want)
	}
	_, body, _ = s.get(ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?tail=1", header: map[string]string{"Accept": "text/event-stream"}})
	if strings.Count(string(body), "event: stdout\n") != 1 || !strings.Contains(string(body), "id: ") {
		t.Errorf("%s", body)
	}
	// A browser that reconnects goes on after what it has, with the URL of before.
	events := func(query, last string) (ids []string) {
		_, body, _ := s.get(ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?stream=stdout" + query, header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": last}})
		for line := range strings.Lines(string(body)) {
			if id, ok := strings.CutPrefix(line, "id: "); ok {
				ids = append(ids, strings.TrimSpace(id))
			}
		}
		return ids[:len(ids)-1] // the last is that of the end, and the same
	}
	all := events("", "")
	for _, query := range []string{"", "&after=0", "&tail=1"} {
		if got := events(query, all[0]); !slices.Equal(got, all[1:]) {
			t.Errorf("resumed after %s of %v with %q: %v", all[0], all, query, got)
		}
	}
	s.refused(400, "invalid", ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs", header: map[string]string{"Last-Event-ID": "x"}})
	s.refused(400, "invalid", ask{method: "GET", path: "/v1/events", header: map[string]string{"Last-Event-ID": "18446744073709551615"}})
	s.refused(400, "invalid", ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/logs?follow=true&until=2026-01-02T03:04:05Z"})
}

// A client that doesn't read is dropped in time, and holds nobody up.
func TestStalledClientIsDropped(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Stall = 300 * time.Millisecond })
	sb := s.create("", v1.Spec{})
	body := `{"script":"while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done # sleep 7100"}`
	conn := s.dial()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: sandpit\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", execPath(sb), v1.StreamType, len(body), body)
	began := time.Now()
	for time.Since(began) < 200*time.Millisecond {
		var out v1.Executed
		s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Argv: []string{"echo", "quick"}}}})
		if out.Stdout != "quick\n" {
			t.Fatalf("%+v", out)
		}
	}
	eventually(t, "its command is ended", func() bool { return !s.running(sb, "", "7100") })
	eventually(t, "the audit says so", func() bool {
		for _, e := range s.audit.all() {
			if e.Action == "exec" && e.Phase == "end" && e.Code != "" {
				return true
			}
		}
		return false
	})
}

// Events are told as they happen, to those whom they concern, and again from
// where a client was.
func TestEvents(t *testing.T) {
	s := serve(t, nil)
	alice := s.do(ask{method: "GET", path: "/v1/events", key: aliceKey})
	defer alice.Body.Close()
	bob := s.do(ask{method: "GET", path: "/v1/events", key: bobKey})
	defer bob.Body.Close()
	sb := s.create(aliceKey, v1.Spec{Name: "watched"})
	br := bufio.NewReader(alice.Body)
	id := ""
	for line := ""; line != "event: sandbox.created\n"; {
		var err error
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if n, ok := strings.CutPrefix(line, "id: "); ok {
			id = strings.TrimSpace(n)
		}
	}
	if data, err := br.ReadString('\n'); err != nil || !strings.Contains(data, sb.ID) {
		t.Errorf("%q, %v", data, err)
	}
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/watched", key: aliceKey})
	later := s.do(ask{method: "GET", path: "/v1/events", key: aliceKey, header: map[string]string{"Last-Event-ID": id}})
	defer later.Body.Close()
	br = bufio.NewReader(later.Body)
	for line := ""; line != "event: sandbox.removed\n"; {
		var err error
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "event: sandbox.created") {
			t.Error("what was told is told again")
		}
	}
	s.create(bobKey, v1.Spec{Name: "bobs"})
	data, err := bufio.NewReader(bob.Body).ReadString('}')
	if err != nil || strings.Contains(data, "watched") || strings.Contains(data, sb.ID) {
		t.Errorf("somebody else is told %q, %v", data, err)
	}
}

// What is not a caller's is not there.
func TestTenants(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{Name: "mine"})
	for _, r := range api.Routes() {
		if !strings.Contains(r.Path, "{sb}") || r.Upgrade {
			continue
		}
		for _, name := range []string{sb.ID, "mine"} {
			path := strings.NewReplacer("{sb}", name, "{p}", "1", "{port}", "80").Replace(r.Path)
			sep := "?"
			for _, p := range r.Query {
				if p.Required {
					path += sep + p.Name + "=0"
					sep = "&"
				}
			}
			a := ask{method: r.Method, path: path, key: bobKey}
			if r.In != nil {
				a.body = map[string]any{}
			}
			s.refused(404, "not_found", a)
		}
	}
	for _, path := range []string{execPath(sb), "/v1/sandboxes/mine/processes/1/attach", "/v1/sandboxes/mine/ports/80/tcp"} {
		s.refused(404, "not_found", ask{method: "GET", path: path, key: bobKey, header: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}})
	}
	s.refused(404, "not_found", ask{method: "GET", path: "/", key: bobKey, header: map[string]string{"Host": "80-" + sb.ID + ".localhost"}})
	var list v1.SandboxList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes", key: bobKey})
	if len(list.Sandboxes) != 0 {
		t.Errorf("%+v", list)
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes/mine", key: aliceKey})
}
