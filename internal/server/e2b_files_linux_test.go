package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Files are sent in parts and composed of others, and a full disk has a status of its own.
func TestE2BTransfers(t *testing.T) {
	s := newServed(t)
	s.policy("policies:\n  small: {defaults: {disk: 20m}}\n")
	url, _ := s.withE2B()
	key := s.keyOf("small", "small")
	var box e2bBox
	if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/v2/sandboxes", `{"templateID":"base","timeout":600}`, "X-API-KEY", key)), &box); err != nil {
		t.Fatal(err)
	}
	mine := []string{"X-Access-Token", box.EnvdAccessToken}
	octets := append(mine, "Content-Type", "application/octet-stream")
	call := func(status int, text, method, path, body string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, text, method, url+path, body, headers...)
	}
	call(200, "", "POST", "/files?path=a", "0123456789", octets...)
	call(200, "", "POST", "/files?path=/tmp/b", "abc", octets...)
	for asked, want := range map[string]string{"bytes=2-4": "234", "bytes=7-": "789", "bytes=-2": "89", "bytes=1-1": "1"} {
		if got := call(206, "", "GET", "/files?path=a", "", append(mine, "Range", asked, "Accept-Encoding", "gzip")...); got != want {
			t.Errorf("%s is %q", asked, got)
		}
	}
	call(416, `{"code":416,`, "GET", "/files?path=a", "", append(mine, "Range", "bytes=10-")...)
	if got := call(200, "", "HEAD", "/files?path=a", "", mine...); got != "" {
		t.Errorf("HEAD is answered with %q", got)
	}

	compose := func(status int, text, body string, headers ...string) {
		t.Helper()
		call(status, text, "POST", "/files/compose", body, headers...)
	}
	for _, body := range []string{`{}`, `{"source_paths":["a"]}`, `{"destination":"c"}`, `{"source_paths":["a","/home/user/c"],"destination":"c"}`, `{"source_paths":["/tmp"],"destination":"c"}`} {
		status := 400
		if strings.Contains(body, "user/c") {
			status = 404 // before it is there
		}
		compose(status, `{"code":`, body, mine...)
	}
	compose(404, `{"code":404,`, `{"source_paths":["a","nonesuch"],"destination":"c"}`, mine...)
	compose(401, `{"code":401,`, `{"source_paths":["a"],"destination":"c"}`)
	compose(413, `{"code":413,`, `{"source_paths":["a"`+strings.Repeat(`,"a"`, 1000)+`],"destination":"c"}`, mine...)
	call(200, "0123456789", "GET", "/files?path=a", "", mine...)
	compose(200, `{"path":"/home/user/new/c","name":"c","type":"file"}`, `{"source_paths":["a","/tmp/b","a"],"destination":"new/c"}`, mine...)
	if got := call(200, "", "GET", "/files?path=new/c", "", mine...); got != "0123456789abc0123456789" {
		t.Errorf("it is composed as %q", got)
	}
	call(404, "", "GET", "/files?path=a", "", mine...)
	compose(400, `{"code":400,`, `{"source_paths":["new/c"],"destination":"/home/user/new/c"}`, mine...)

	// A source is not the destination by any path: through links to its directory or to itself. Others are removed.
	guest := s.with(key)
	defer guest.Close()
	sb, err := guest.Get(t.Context(), box.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: []string{"sh", "-ec", "mkdir real && ln -s real link && echo -n A >real/a && echo -n B >real/b && ln -s link/a one && ln real/b hard"}, Dir: "/tmp", User: "user"}); err != nil || !out.Success() {
		t.Fatal(out, err)
	}
	for destination, status := range map[string]int{"/tmp/real/a": 400, "/tmp/link/../link/a": 400, "/tmp/one": 400, "/proc/self/root/tmp/link/a": 400} {
		compose(status, `{"code":400,`, `{"source_paths":["/tmp/link/a","/tmp/link/b"],"destination":"`+destination+`"}`, mine...)
		compose(status, `{"code":400,`, `{"source_paths":["/tmp/link/b","/tmp/one"],"destination":"`+destination+`"}`, mine...)
	}
	for name, want := range map[string]string{"real/a": "A", "real/b": "B", "one": "A"} {
		if got := call(200, "", "GET", "/files?path=/tmp/"+name, "", mine...); got != want {
			t.Errorf("after that %s is %q", name, got)
		}
	}
	compose(200, `"name":"hard"`, `{"source_paths":["/tmp/link/a","/tmp/real/b"],"destination":"/tmp/hard"}`, mine...)
	if got := call(200, "", "GET", "/files?path=/tmp/hard", "", mine...); got != "AB" {
		t.Errorf("what had another name of a source is %q", got)
	}
	call(404, "", "GET", "/files?path=/tmp/real/a", "", mine...)
	call(404, "", "GET", "/files?path=/tmp/real/b", "", mine...)

	call(507, `{"code":507,`, "POST", "/files?path=large", strings.Repeat("x", 24<<20), octets...)
	call(404, "", "GET", "/files?path=large", "", mine...)
	call(200, "", "POST", "/files?path=/tmp/b", strings.Repeat("x", 6<<20), octets...)
	call(200, "", "POST", "/files?path=a", strings.Repeat("x", 6<<20), octets...)
	compose(507, `{"code":507,`, `{"source_paths":["a","/tmp/b"],"destination":"new/c"}`, mine...)
	call(200, "0123456789abc", "GET", "/files?path=new/c", "", mine...)
}

// What a client is still sending when its key is revoked is answered with that, and leaves nothing: files, parts of forms, archives
// of builds, and messages.
func TestE2BUploadsEndWithTheirKey(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	admin := s.unix()
	defer admin.Close()
	b := builder{t, s, url, ""}
	for name, x := range map[string]struct{ method, path, kind, half string }{
		"file":    {"POST", "/files?path=/tmp/x", "application/octet-stream", "half"},
		"form":    {"POST", "/files", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/x\"\r\n\r\nhalf"},
		"archive": {"PUT", "", "application/octet-stream", "half"},
		"stream":  {"POST", "/process.Process/Start", "application/connect+json", "\x00\x00\x00\x00\x10{"},
	} {
		owner := s.makeKey(v1.NewKey{Namespace: "e2b"})
		to := url + x.path
		if x.path == "" {
			b.key = owner.Secret
			b.request(name)
			var link struct{ URL string }
			if err := json.Unmarshal([]byte(b.call(201, "", "GET", "/templates/"+name+"/files/aa", "")), &link); err != nil {
				t.Fatal(err)
			}
			to = link.URL
		}
		body, w := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), x.method, to, body)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"E2b-Sandbox-Id": box.SandboxID, "X-Api-Key": owner.Secret, "Content-Type": x.kind} {
			req.Header.Set(name, value)
		}
		answer := make(chan string, 1)
		go func() {
			resp, err := s.http().Do(req)
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			answer <- fmt.Sprint(resp.StatusCode, " ", string(text))
		}()
		if _, err := io.WriteString(w, x.half); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the server reads", func() bool {
			_, page, _ := s.get("GET", "http://sandpit/metrics", "", "")
			return strings.Contains(page, "\nsandpit_open_streams 1\n")
		})
		if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+owner.ID, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got := <-answer; !strings.Contains(got, "the key is no longer valid") || !strings.HasPrefix(got, "401 ") && name != "stream" {
			t.Errorf("%s: %s", name, got)
		}
		_ = w.Close()
	}
	s.e2bCall(t, 404, `{"code":404,`, "GET", url+"/files?path=/tmp/x", "", "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
}
