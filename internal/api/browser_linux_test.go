package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/browsertest"
)

// terminal runs a command at a terminal over a WebSocket. %q is its URL.
const terminal = `new Promise(done => {
	const ws = new WebSocket(%q, "sandpit.v1"), got = {out: ""}
	ws.binaryType = "arraybuffer"
	ws.onopen = () => ws.send(JSON.stringify({argv: ["/bin/sh"], env: {PS1: ""}, terminal: {rows: 24, cols: 80}}))
	ws.onmessage = m => {
		const b = new Uint8Array(m.data), text = new TextDecoder().decode(b.subarray(1))
		if (b[0] == 1) ws.send(new Uint8Array([16, ...new TextEncoder().encode("stty size; echo $((6 * 7)); exit 3\n")]))
		if (b[0] == 2) got.out += text
		if (b[0] == 5) got.exit = JSON.parse(text).exit_code
		if (b[0] == 6) got.reason = JSON.parse(text).reason
	}
	ws.onclose = e => done({...got, protocol: ws.protocol, code: e.code})
})`

// events follows events. %q is the URL.
const events = `new Promise((begun, failed) => {
	const es = new EventSource(%q)
	es.addEventListener("begin", e => begun(JSON.parse(e.data).seq))
	es.onerror = () => failed("refused")
	window.paused = new Promise(ok => es.addEventListener("sandbox.paused", e => { es.close(); ok(JSON.parse(e.data).sandbox) }))
})`

// A page in a browser opens a terminal and an event stream with tickets, once each and only
// from an allowed origin.
func TestBrowser(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>t</title>")
	})
	allowed, other := httptest.NewServer(page), httptest.NewServer(page)
	t.Cleanup(allowed.Close)
	t.Cleanup(other.Close)
	browser := browsertest.Open(t, allowed.URL)
	s := serve(t, func(o *options) { o.Origins = []string{allowed.URL} })
	sb := s.create(aliceKey, v1.Spec{})
	ws := func() string { return strings.Replace(s.base, "http", "ws", 1) + s.ticket(aliceKey, execPath(sb)) }
	type outcome struct {
		Out, Reason, Protocol string
		Exit, Code            int
	}
	open := func(url string) (got outcome) {
		browser.Eval(fmt.Sprintf(terminal, url), &got)
		return got
	}
	url := ws()
	if got := open(url); !strings.Contains(got.Out, "24 80\r\n42\r\n") || got.Exit != 3 || got.Reason != v1.EndEnded || got.Protocol != v1.Subprotocol || got.Code != 1000 {
		t.Errorf("the terminal: %+v", got)
	}
	if got := open(url); got != (outcome{Code: 1006}) {
		t.Errorf("with a used ticket: %+v", got)
	}

	var seq uint64
	browser.Eval(fmt.Sprintf(events, s.base+s.ticket(aliceKey, "/v1/events")), &seq)
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/pause", key: aliceKey})
	var id string
	if browser.Eval("window.paused", &id); seq == 0 || id != sb.ID {
		t.Errorf("events since %d: %q", seq, id)
	}
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/resume", key: aliceKey})

	browser.Go(other.URL)
	if got := open(ws()); got != (outcome{Code: 1006}) {
		t.Errorf("from another origin: %+v", got)
	}
	var refused string
	browser.Eval(fmt.Sprintf(events, s.base+s.ticket(aliceKey, "/v1/events"))+`.catch(e => e)`, &refused)
	if refused != "refused" {
		t.Errorf("events from another origin: %q", refused)
	}
}
