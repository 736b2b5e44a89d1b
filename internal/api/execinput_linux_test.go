package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// partOf is a part of a multipart body.
type partOf struct {
	name string
	body io.Reader
	head string // "Name: value"
}

// form streams a multipart body.
func form(parts ...partOf) (io.Reader, map[string]string) {
	r, w := io.Pipe()
	m := multipart.NewWriter(w)
	go func() {
		for _, p := range parts {
			h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="` + p.name + `"; filename="f"`}}
			if name, value, ok := strings.Cut(p.head, ": "); ok {
				h.Set(name, value)
			}
			to, err := m.CreatePart(h)
			if err == nil {
				_, err = io.Copy(to, p.body)
			}
			if err != nil {
				return // the server has answered
			}
		}
		_ = m.Close()
		_ = w.Close()
	}()
	return r, map[string]string{"Content-Type": m.FormDataContentType()}
}

func text(s string) io.Reader { return strings.NewReader(s) }

// Standard input of any size and any bytes is a part of its own, and passes through while the
// command runs. What a command does not read holds up nothing.
func TestExecInput(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	content := append(repeated("\r\n--boundary\r\n\x00\xff\xfe any bytes", 10_000_000), "end"...)
	sum := sha256.Sum256(content)
	exec := func(accept, command string, in io.Reader) ask {
		body, header := form(partOf{"command", text(command), ""}, partOf{"stdin", in, "Content-Type: application/octet-stream"})
		header["Accept"] = accept
		return ask{method: "POST", path: execPath(sb), body: body, header: header}
	}
	var out v1.Executed
	s.want(200, &out, exec("", `{"argv":["sha256sum"]}`, bytes.NewReader(content)))
	if out.Stdout != hex.EncodeToString(sum[:])+"  -\n" {
		t.Errorf("%+v", out)
	}
	_, events, _ := s.get(exec("text/event-stream", `{"argv":["sha256sum"],"stdin":true}`, bytes.NewReader(content)))
	if !strings.Contains(string(events), hex.EncodeToString(sum[:])) {
		t.Errorf("the events are %q", events)
	}
	for script, want := range map[string]string{"exit 3": "", "head -c 12": "\r\n--boundary", "exec <&-; echo closed": "closed\n", "sleep 0.3; echo slept": "slept\n"} {
		out = v1.Executed{}
		s.want(200, &out, exec("", `{"script":"`+script+`"}`, bytes.NewReader(content)))
		if out.Stdout != want {
			t.Errorf("%s gives %+v", script, out)
		}
	}
	// Without the part, the input is empty, as in JSON.
	body, header := form(partOf{"command", text(`{"argv":["wc","-c"]}`), "Content-Type: application/json"})
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: body, header: header})
	if strings.TrimSpace(out.Stdout) != "0" {
		t.Errorf("%+v", out)
	}
	// Output comes while input still does.
	r, w := io.Pipe()
	resp := s.do(exec(v1.StreamType, `{"argv":["cat"]}`, r))
	defer resp.Body.Close()
	for _, line := range []string{"first\n", "second\n"} {
		_, _ = io.WriteString(w, line)
		if got := outputFrame(t, resp); got != line {
			t.Errorf("got %q, want %q", got, line)
		}
	}
	w.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
}

// A command whose output is streamed is written to by other requests, if it is started so.
func TestExecInputOfOtherRequests(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	exec := ask{method: "POST", path: execPath(sb), body: `{"argv":["cat"],"stdin":true}`, header: map[string]string{"Accept": v1.StreamType}}
	resp := s.do(exec)
	defer resp.Body.Close()
	kind, b, err := v1.ReadFrame(resp.Body, nil, v1.MaxFrame)
	var p v1.Process
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || kind != v1.FrameStarted || !p.Stdin || p.Background {
		t.Fatalf("got frame %d with %s, %v", kind, b, err)
	}
	stdin := "/v1/sandboxes/" + sb.ID + "/processes/" + p.ID + "/stdin"
	for _, line := range []string{"first\n", "second\n"} {
		s.want(204, nil, ask{method: "POST", path: stdin, body: line})
		if got := outputFrame(t, resp); got != line {
			t.Errorf("got %q, want %q", got, line)
		}
	}
	s.want(204, nil, ask{method: "POST", path: stdin + "?close=true"})
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	// Nobody could write to one that is answered when it has ended, and data are all the input.
	s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: `{"argv":["cat"],"stdin":true}`})
	exec.body = `{"argv":["cat"],"stdin":true,"stdin_data":"eA=="}`
	s.refused(400, "invalid", exec)
}

// outputFrame reads a stream up to the next output.
func outputFrame(t *testing.T, resp *http.Response) string {
	t.Helper()
	for {
		kind, b, err := v1.ReadFrame(resp.Body, nil, v1.MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if kind == v1.FrameStdout {
			return string(b)
		}
	}
}

// A multipart body that is not as it must be is refused, and its command is killed if it has
// begun.
func TestExecInputIsChecked(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	command := partOf{"command", nil, ""}
	for name, c := range map[string]struct {
		status int
		code   string
		parts  []partOf
	}{
		"no part":            {400, "invalid", nil},
		"stdin first":        {400, "invalid", []partOf{{"stdin", text("x"), ""}, command}},
		"an unknown part":    {400, "invalid", []partOf{command, {"other", text("x"), ""}}},
		"two commands":       {400, "invalid", []partOf{command, command}},
		"a part behind":      {400, "invalid", []partOf{command, {"stdin", text("x"), ""}, {"stdin", text("x"), ""}}},
		"no JSON":            {400, "invalid", []partOf{{"command", text("argv"), ""}}},
		"an unknown field":   {400, "invalid", []partOf{{"command", text(`{"argv":["cat"],"x":1}`), ""}}},
		"input twice":        {400, "invalid", []partOf{{"command", text(`{"argv":["cat"],"stdin_data":""}`), ""}, {"stdin", text("x"), ""}}},
		"encoded":            {415, "unsupported_media", []partOf{command, {"stdin", text("eA=="), "Content-Transfer-Encoding: base64"}}},
		"too large":          {413, "too_large", []partOf{{"command", text(`{"script":"` + strings.Repeat("x", 11<<20) + `"}`), ""}}},
		"no sandbox of that": {404, "not_found", []partOf{command, {"stdin", text("x"), ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := *s
			inner.t = t
			for i := range c.parts {
				if c.parts[i].body == nil {
					c.parts[i].body = text(`{"script":"cat; exec sleep 7441"}`)
				}
			}
			body, header := form(c.parts...)
			path := execPath(sb)
			if c.status == 404 {
				path = "/v1/sandboxes/none/exec"
			}
			inner.refused(c.status, c.code, ask{method: "POST", path: path, body: body, header: header})
		})
	}
	for name, body := range map[string]string{
		"no end":    "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\n{\"script\":\"cat; exec sleep 7441\"}\r\n--b\r\nContent-Disposition: form-data; name=\"stdin\"\r\n\r\nx",
		"no body":   "",
		"half head": "--b\r\nContent-Disposition",
	} {
		if e := s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: body, header: map[string]string{"Content-Type": "multipart/form-data; boundary=b"}}); !strings.Contains(e.Message, "multipart") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	s.refused(400, "invalid", ask{method: "POST", path: execPath(sb), body: "x", header: map[string]string{"Content-Type": "multipart/form-data"}})
	if s.running(sb, "", "7441") {
		t.Error("a command goes on")
	}
}
