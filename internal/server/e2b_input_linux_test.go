package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// e2bProcesses calls the process service of a sandbox.
type e2bProcesses struct {
	t       *testing.T
	s       *served
	url     string
	headers []string
}

// on returns the process service of a new sandbox.
func (s *served) e2bProcesses(t *testing.T, url, key string) *e2bProcesses {
	t.Helper()
	return &e2bProcesses{t, s, url + "/process.Process/", []string{"E2b-Sandbox-Id", s.newE2BSandbox(t, url, key, "").SandboxID, "X-API-KEY", key}}
}

// unary makes a call with one message.
func (p *e2bProcesses) unary(method, message string) (status int, answer string) {
	p.t.Helper()
	status, answer, _ = p.s.get("POST", p.url+method, "", message, p.headers...)
	return status, answer
}

// open begins a call with a stream of messages, which the body is. done has all of the answer.
func (p *e2bProcesses) open(method string, body io.Reader, headers ...string) (done <-chan string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), "POST", p.url+method, body)
	if err != nil {
		p.t.Fatal(err)
	}
	headers = append(append([]string{"Content-Type", "application/connect+json"}, p.headers...), headers...)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	all := make(chan string, 1)
	go func() {
		resp, err := p.s.http().Do(r)
		if err != nil {
			all <- err.Error()
			return
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			data = append(data, err.Error()...)
		}
		all <- string(data)
	}()
	return all
}

// run starts a program with a tag, and returns what comes of it when it has ended.
func (p *e2bProcesses) run(tag, program string, args ...string) (ended <-chan string) {
	p.t.Helper()
	config, _ := json.Marshal(map[string]any{"cmd": program, "args": args, "cwd": "/tmp"})
	ended = p.open("Start", strings.NewReader(envelope(0, fmt.Sprintf(`{"process":%s,"tag":%q}`, config, tag))))
	testkit.Until(p.t, "the program runs", func() bool {
		_, list := p.unary("List", "{}")
		return strings.Contains(list, fmt.Sprintf(`"tag":%q`, tag))
	})
	return ended
}

func startOf(tag string) string {
	return envelope(0, fmt.Sprintf(`{"start":{"process":{"tag":%q}}}`, tag))
}

func dataOf(kind string, data []byte) string {
	return envelope(0, `{"data":{"input":{"`+kind+`":"`+base64.StdEncoding.EncodeToString(data)+`"}}}`)
}

// A stream of input reaches the process in order, one message after the other, and its end leaves the input open.
// Streams that are damaged, stall or outlive their process end with the error that says so.
func TestE2BInputStreams(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	ended := p.run("cat", "head", "-n", "3")
	const success = "\x00\x00\x00\x00\x02{}" + "\x02\x00\x00\x00\x02{}"
	send := func(want string, body string, headers ...string) {
		t.Helper()
		// The length of the body is not known before it ends, as with SDKs.
		if got := <-p.open("StreamInput", io.MultiReader(strings.NewReader(body)), headers...); !strings.Contains(got, want) {
			t.Errorf("%.100q: %q, want %q", body, got, want)
		}
	}
	send(success, startOf("cat"))
	send(success, startOf("cat")+dataOf("stdin", []byte("a"))+envelope(0, `{"keepalive":{}}`)+dataOf("stdin", []byte("b\n"))+dataOf("stdin", nil))
	for body, want := range map[string]string{
		"":                                       "invalid_argument",
		"\x00\x00":                               "within an envelope",
		startOf("none"):                          `"not_found","message":"no running process has the tag none`,
		envelope(1, "{"):                         "compressed",
		envelope(0, "{}"):                        "invalid_argument",
		envelope(0, `{"keepalive":{}}`):          "names no process",
		dataOf("stdin", []byte("lost\n")):        "names no process",
		startOf("cat") + startOf("cat"):          "has named its process",
		startOf("cat") + "\x00":                  "within an envelope",
		startOf("cat") + "\x00\x00\x00\x00\x09{": "within an envelope",
		startOf("cat") + "\x00\x7f\xff\xff\xff{": "more than 67108864 bytes (send the input in parts)",
		startOf("cat") + envelope(2, "{}"):       "compressed",
		startOf("cat") + envelope(0, "[1"):       "not valid",
	} {
		send(`"error":{"code":`, body)
		send(want, body)
	}
	silent, keep := io.Pipe()
	timed := p.open("StreamInput", io.MultiReader(strings.NewReader(startOf("cat")), silent), "Connect-Timeout-Ms", "300")
	if got := <-timed; !strings.Contains(got, "deadline_exceeded") {
		t.Errorf("a stream whose time is over: %q", got)
	}
	_ = keep.Close()
	send(success, startOf("cat")+dataOf("stdin", []byte("c\nd\n")))
	if got := <-ended; !strings.Contains(got, `"end":{"exitCode":0`) {
		t.Errorf("the program: %q", got)
	}

	// A program that does not read holds up the stream, and its end ends it.
	ended = p.run("sleep", "sleep", "1000")
	body, to := io.Pipe()
	defer to.Close()
	stuck := p.open("StreamInput", body)
	took := make(chan int, 1)
	go func() {
		sent := 0
		for message := startOf("sleep"); ; message = dataOf("stdin", make([]byte, 1<<20)) {
			n, err := io.WriteString(to, message)
			sent += n
			if err != nil {
				took <- sent
				return
			}
		}
	}()
	testkit.Until(t, "the stream is open", func() bool { return s.figure("sandpit_open_streams") == 2 })
	if status, answer := p.unary("SendSignal", `{"process":{"tag":"sleep"},"signal":"SIGNAL_SIGKILL"}`); status != 200 {
		t.Errorf("the signal: %d %s", status, answer)
	}
	if got := <-stuck; !strings.Contains(got, `"code":"not_found"`) {
		t.Errorf("input that a program does not take: %q", got)
	}
	if n := <-took; n > 32<<20 {
		t.Errorf("%d bytes were taken for a program that reads none", n)
	}
	<-ended

	// A client that sends nothing more learns of the end of the process, too.
	ended = p.run("idle", "sleep", "1000")
	quiet, end := io.Pipe()
	defer end.Close()
	idle := p.open("StreamInput", io.MultiReader(strings.NewReader(startOf("idle")), quiet))
	testkit.Until(t, "the stream is open", func() bool { return s.figure("sandpit_open_streams") == 2 })
	p.unary("SendSignal", `{"process":{"tag":"idle"},"signal":"SIGNAL_SIGKILL"}`)
	if got := <-idle; !strings.Contains(got, "the process has ended") {
		t.Errorf("a silent stream whose process has ended: %q", got)
	}
	<-ended
	admin := s.unix()
	defer admin.Close()
	var list struct{ Entries []struct{ Detail string } }
	if err := admin.Call(t.Context(), "GET", "/v1/audit?action=e2b.streamInput&limit=1000", nil, &list); err != nil || !strings.Contains(fmt.Sprint(list), "tag idle") {
		t.Errorf("the audit has %v, %v", list, err)
	}
}

// A client that sends no whole first message is refused in time.
func TestE2BInputStreamsThatStall(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	silent, keep := io.Pipe()
	defer keep.Close()
	if got := <-p.open("StreamInput", io.MultiReader(strings.NewReader("\x00"), silent)); !strings.Contains(got, "deadline_exceeded") {
		t.Errorf("the beginning of a message and then nothing: %q", got)
	}
}

// A stream of input holds no memory while its client sends nothing, however long the messages before were, and one of output none
// of its request.
func TestE2BStreamsHoldNothingWhileTheyWait(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	ended := p.run("sink", "sh", "-c", "while [ $(head -c 10485760 | wc -c) = 10485760 ]; do echo taken >>/tmp/taken; done")
	var ends []*io.PipeWriter
	var answers []<-chan string
	long := dataOf("stdin", make([]byte, 10<<20))
	for n := range 8 { // together more than a key may have
		from, to := io.Pipe()
		answers = append(answers, p.open("StreamInput", io.MultiReader(strings.NewReader(startOf("sink")), from)))
		ends = append(ends, to)
		if _, err := io.WriteString(to, long); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the program takes it", func() bool {
			_, taken, _ := s.get("GET", url+"/files?path=/tmp/taken", "", "", p.headers...)
			return strings.Count(taken, "taken") == n+1
		})
	}
	padded := envelope(0, `{"process":{"cmd":"sleep","args":["1000"]},"tag":"padded","pad":"`+strings.Repeat("x", 3<<20)+`"}`)
	var padding []<-chan string
	for range 45 {
		padding = append(padding, p.open("Start", strings.NewReader(padded)))
		testkit.Until(t, "one more runs", func() bool {
			_, list := p.unary("List", "{}")
			return strings.Count(list, `"tag":"padded"`) == len(padding)
		})
	}
	for i, end := range ends {
		if _, err := io.WriteString(end, dataOf("stdin", []byte("x"))); err != nil {
			t.Error(err)
		}
		_ = end.Close()
		if got := <-answers[i]; strings.Contains(got, "error") {
			t.Errorf("a stream: %q", got)
		}
	}
	for range padding {
		p.unary("SendSignal", `{"process":{"tag":"padded"},"signal":"SIGNAL_SIGKILL"}`)
	}
	for _, events := range padding {
		if got := <-events; !strings.Contains(got, "signal: killed") {
			t.Errorf("a program: %.200q", got)
		}
	}
	p.unary("SendSignal", `{"process":{"tag":"sink"},"signal":"SIGNAL_SIGKILL"}`)
	<-ended
}

// A message that comes byte by byte, each of them in time, is refused after a minute: it holds memory.
func TestE2BInputMessagesThatNeverEnd(t *testing.T) {
	testkit.NeedLong(t, "it takes a minute")
	t.Parallel()
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	ended := p.run("cat", "cat")
	slow, keep := io.Pipe()
	defer keep.Close()
	go func() {
		for err := error(nil); err == nil; time.Sleep(time.Second) {
			_, err = keep.Write([]byte(" "))
		}
	}()
	if got := <-p.open("StreamInput", io.MultiReader(strings.NewReader(startOf("cat")+"\x00\x00\x10\x00\x00"), slow)); !strings.Contains(got, "deadline_exceeded") {
		t.Errorf("a message without end: %q", got)
	}
	p.unary("SendSignal", `{"process":{"tag":"cat"},"signal":"SIGNAL_SIGKILL"}`)
	<-ended
}

// Every call that names a process takes its tag, and the list has tag and directory. Of several processes with a tag, the one
// that was started last is meant.
func TestE2BTags(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	first := p.run("first", "cat")
	call := func(method, rest, want string) {
		t.Helper()
		if status, answer := p.unary(method, `{"process":{"tag":"first"}`+rest+`}`); !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %s", method, status, answer, want)
		}
	}
	if _, list := p.unary("List", "{}"); !strings.Contains(list, `"config":{"cmd":"cat","cwd":"/tmp"}`) {
		t.Errorf("the list: %s", list)
	}
	seen := p.open("Connect", strings.NewReader(envelope(0, `{"process":{"tag":"first"}}`)))
	testkit.Until(t, "it is connected", func() bool { return s.figure("sandpit_open_streams") == 2 })
	call("SendInput", `,"input":{"stdin":"eA=="}`, "{}")
	call("Update", `,"pty":{"size":{"cols":1,"rows":1}}`, "terminal")
	call("CloseStdin", "", "{}")
	for what, events := range map[string]<-chan string{"its start": first, "the connection": seen} {
		if got := <-events; !strings.Contains(got, `"stdout":"eA=="`) || !strings.Contains(got, `"exitCode":0`) {
			t.Errorf("%s: %q", what, got)
		}
	}
	call("SendSignal", `,"signal":"SIGNAL_SIGKILL"`, "no running process has the tag first")
	one := p.run("twice", "sleep", "1000")
	two := p.open("Start", strings.NewReader(envelope(0, `{"process":{"cmd":"sleep","args":["1001"]},"tag":"twice"}`)))
	testkit.Until(t, "both run", func() bool {
		_, list := p.unary("List", "{}")
		return strings.Count(list, `"tag":"twice"`) == 2
	})
	for _, events := range []<-chan string{two, one} {
		if status, answer := p.unary("SendSignal", `{"process":{"tag":"twice"},"signal":"SIGNAL_SIGKILL"}`); status != 200 {
			t.Errorf("the signal: %d %s", status, answer)
		}
		if got := <-events; !strings.Contains(got, "signal: killed") {
			t.Errorf("the program: %q", got)
		}
	}
	if got := <-p.open("Start", strings.NewReader(envelope(0, `{"process":{"cmd":"true"},"tag":"a\n"}`))); !strings.Contains(got, "invalid_argument") {
		t.Errorf("a tag that is not printable: %q", got)
	}
}

// Input of several MiB is taken in one message, as E2B takes it. The refusal of a message that is too large for the server's memory
// says how large it may be.
func TestE2BLargeInput(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	p := s.e2bProcesses(t, url, key)
	ended := p.run("count", "wc", "-c")
	data := make([]byte, 5<<20)
	const which = `{"process":{"tag":"count"}`
	input := func(kind, text string) string { return which + `,"input":{"` + kind + `":"` + text + `"}}` }
	if status, answer := p.unary("SendInput", input("stdin", base64.StdEncoding.EncodeToString(data))); status != 200 {
		t.Errorf("a message: %d %s", status, answer)
	}
	if got := <-p.open("StreamInput", strings.NewReader(startOf("count")+dataOf("stdin", data)+dataOf("stdin", data))); !strings.Contains(got, "{}") || strings.Contains(got, "error") {
		t.Errorf("a stream: %q", got)
	}
	if status, answer := p.unary("SendInput", input("stdin", strings.Repeat("A", 64<<20))); status != 413 || !strings.Contains(answer, "more than 67108864 bytes (send less at once)") {
		t.Errorf("a message that is too large: %d %s", status, answer)
	}
	if status, answer := p.unary("CloseStdin", which+"}"); status != 200 {
		t.Errorf("closing: %d %s", status, answer)
	}
	if got, want := <-ended, base64.StdEncoding.EncodeToString(fmt.Appendln(nil, 3*len(data))); !strings.Contains(got, want) {
		t.Errorf("the program: %q, want %s", got, want)
	}
}
