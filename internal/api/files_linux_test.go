package api_test

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Files are written, read in parts, described, changed and removed.
func TestFiles(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/files"
	at := func(op, path string, more ...string) string {
		return base + op + "?path=" + url.QueryEscape(path) + strings.Join(append([]string{""}, more...), "&")
	}
	var w v1.Written
	s.want(200, &w, ask{method: "PUT", path: at("", "/tmp/d/a b", "parents=true", "mode=0600"), body: "0123456789"})
	if w.Bytes != 10 {
		t.Error(w)
	}
	s.want(200, &w, ask{method: "PUT", path: at("", "/tmp/d/a b", "append=true"), body: "ab"})
	for _, c := range []struct {
		header       string
		status       int
		body, length string
	}{
		{"", 200, "0123456789ab", ""},
		{"bytes=2-4", 206, "234", "bytes 2-4/12"},
		{"bytes=10-", 206, "ab", "bytes 10-11/12"},
		{"bytes=-3", 206, "9ab", "bytes 9-11/12"},
		{"bytes=0-99", 206, "0123456789ab", "bytes 0-11/12"},
		{"bytes=0-1,4-5", 200, "0123456789ab", ""},
		{"lines=1-2", 200, "0123456789ab", ""},
		{"bytes=5-2", 200, "0123456789ab", ""},
	} {
		status, body, h := s.get(ask{method: "GET", path: at("", "/tmp/d/a b"), header: map[string]string{"Range": c.header}})
		if status != c.status || string(body) != c.body || h.Get("Content-Range") != c.length {
			t.Errorf("%q: %d %q %q", c.header, status, body, h.Get("Content-Range"))
		}
		if h.Get("Content-Disposition") != "attachment" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("a browser may show it: %v", h)
		}
	}
	s.refused(416, "invalid_range", ask{method: "GET", path: at("", "/tmp/d/a b"), header: map[string]string{"Range": "bytes=12-"}})
	var info v1.FileInfo
	s.want(200, &info, ask{method: "GET", path: at("/stat", "/tmp/d/a b")})
	if info.Mode != "0600" || info.Size != 12 || info.Type != "file" {
		t.Errorf("%+v", info)
	}
	if status, body, _ := s.get(ask{method: "GET", path: at("", "/proc/version")}); status != 200 || !strings.Contains(string(body), "Linux") {
		t.Errorf("a file without a length: %d %s", status, body)
	}
	s.want(200, nil, ask{method: "PUT", path: at("", "/tmp/closed"), body: "x"})
	s.want(204, nil, ask{method: "PATCH", path: at("", "/tmp/closed", "mode=0")})
	s.want(204, nil, ask{method: "POST", path: at("/mkdir", "/tmp/d/e", "mode=0711")})
	s.want(204, nil, ask{method: "POST", path: at("/symlink", "/tmp/d/l", "target=a%20b")})
	var link v1.Link
	s.want(200, &link, ask{method: "GET", path: at("/readlink", "/tmp/d/l")})
	s.want(200, &info, ask{method: "GET", path: at("/stat", "/tmp/d/l", "follow=false")})
	if link.Target != "a b" || info.Type != "symlink" {
		t.Errorf("%+v %+v", link, info)
	}
	s.want(204, nil, ask{method: "PATCH", path: at("", "/tmp/d/e", "mode=1777")})
	s.want(204, nil, ask{method: "POST", path: base + "/rename?from=/tmp/d/e&to=/tmp/d/f"})
	s.want(204, nil, ask{method: "POST", path: base + "/copy?from=/tmp/d/a%20b&to=/tmp/d/c"})
	s.want(204, nil, ask{method: "POST", path: at("/edit", "/tmp/d/c"), body: v1.FileEdits{Edits: []sandpit.Edit{{Old: "345", New: "needle"}}}})
	var grep v1.GrepResult
	s.want(200, &grep, ask{method: "POST", path: at("/grep", "/tmp/d"), body: v1.Grep{Pattern: "n.edle"}})
	if len(grep.Lines) != 1 || grep.Lines[0].Path != "c" {
		t.Errorf("%+v", grep)
	}
	var list v1.FileList
	s.want(200, &list, ask{method: "GET", path: at("/list", "/tmp/d", "limit=2")})
	if len(list.Entries) != 2 || list.Next == "" || list.Entries[0].Name != "a b" {
		t.Errorf("%+v", list)
	}
	next := list.Next
	list = v1.FileList{}
	s.want(200, &list, ask{method: "GET", path: at("/list", "/tmp/d", "after="+next)})
	if len(list.Entries) != 2 || list.Next != "" || list.Entries[0].Name != "f" || list.Entries[0].Mode != "1777" {
		t.Errorf("%+v", list)
	}
	s.want(200, &list, ask{method: "GET", path: at("/find", "/tmp", "glob=**%2Fc")})
	if len(list.Entries) != 1 || list.Entries[0].Name != "d/c" {
		t.Errorf("%+v", list)
	}
	for _, c := range []struct {
		status int
		code   string
		ask    ask
	}{
		{404, "file_not_found", ask{method: "GET", path: at("", "/tmp/none")}},
		{400, "is_directory", ask{method: "GET", path: at("", "/tmp/d")}},
		{409, "not_empty", ask{method: "DELETE", path: at("", "/tmp/d")}},
		{409, "file_exists", ask{method: "POST", path: at("/mkdir", "/tmp/d")}},
		{400, "not_directory", ask{method: "GET", path: at("/list", "/tmp/d/c")}},
		{403, "permission", ask{method: "GET", path: at("", "/tmp/closed")}},
		{400, "invalid", ask{method: "PATCH", path: at("", "/tmp/d", "mode=9")}},
		{400, "invalid", ask{method: "PATCH", path: at("", "/tmp/d", "mode=")}},
		{400, "invalid", ask{method: "GET", path: at("/list", "")}},
		{400, "invalid", ask{method: "GET", path: at("/list", "/tmp/d", "after=!")}},
		{400, "invalid", ask{method: "POST", path: at("/edit", "/tmp/d/c"), body: v1.FileEdits{Edits: []sandpit.Edit{{Old: "none"}}}}},
	} {
		if e := s.refused(c.status, c.code, c.ask); e.Code != "invalid" && e.Path == "" {
			t.Errorf("%+v says no path", e)
		}
	}
	s.want(204, nil, ask{method: "DELETE", path: at("", "/tmp/d", "recursive=true")})
	s.refused(404, "file_not_found", ask{method: "GET", path: at("/stat", "/tmp/d")})
}

// A client that vanishes while it writes leaves the file as it was.
func TestVanishedWriterChangesNothing(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	path := "/v1/sandboxes/" + sb.ID + "/files?path=/tmp/a"
	s.want(200, nil, ask{method: "PUT", path: path, body: "before"})
	conn := s.dial()
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: sandpit\r\nContent-Length: 1000000\r\n\r\nafter", path)
	recorded := func(phase string) func() bool {
		return func() bool {
			n := 0
			for _, e := range s.audit.all() {
				if e.Action == "writeFile" && e.Phase == phase {
					n++
				}
			}
			return n == 2
		}
	}
	eventually(t, "it has begun", recorded("intent"))
	conn.Close()
	eventually(t, "it has ended", recorded("end"))
	if _, body, _ := s.get(ask{method: "GET", path: path}); string(body) != "before" {
		t.Errorf("the file is %q", body)
	}
}

// Directories go in and out as archives.
func TestArchives(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/files"
	var tarred, gzipped, zipped bytes.Buffer
	zw := gzip.NewWriter(&gzipped)
	tw := tar.NewWriter(io.MultiWriter(&tarred, zw))
	_ = tw.WriteHeader(&tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o755})
	_ = tw.WriteHeader(&tar.Header{Name: "sub/x", Typeflag: tar.TypeReg, Mode: 0o755, Size: 5})
	_, _ = io.WriteString(tw, "hello")
	_ = tw.Close()
	_ = zw.Close()
	z := zip.NewWriter(&zipped)
	f, _ := z.CreateHeader(&zip.FileHeader{Name: "sub/x", Method: zip.Deflate})
	_, _ = io.WriteString(f, "hello")
	link := &zip.FileHeader{Name: "sub/l"}
	link.SetMode(0o777 | 1<<27)
	f, _ = z.CreateHeader(link)
	_, _ = io.WriteString(f, "x")
	_ = z.Close()
	for format, body := range map[string]*bytes.Buffer{"tar": &tarred, "tar.gz": &gzipped, "zip": &zipped} {
		dir := "/tmp/" + format
		s.want(204, nil, ask{method: "POST", path: base + "/mkdir?path=" + dir})
		s.want(204, nil, ask{method: "PUT", path: base + "/archive?path=" + dir + "&format=" + format, body: io.Reader(bytes.NewReader(body.Bytes()))})
		if status, got, _ := s.get(ask{method: "GET", path: base + "?path=" + dir + "/sub/x"}); status != 200 || string(got) != "hello" {
			t.Errorf("%s: %d %q", format, status, got)
		}
		s.refused(400, "invalid", ask{method: "PUT", path: base + "/archive?path=" + dir + "&format=" + format, body: strings.Repeat("no archive at all. ", 100)})
	}
	_, got, h := s.get(ask{method: "GET", path: base + "/archive?path=/tmp/zip"})
	if h.Get("Content-Type") != "application/x-tar" || !bytes.Contains(got, []byte("zip/sub/x")) {
		t.Errorf("%v", h)
	}
	_, got, h = s.get(ask{method: "GET", path: base + "/archive?path=/tmp/zip&format=zip"})
	zr, err := zip.NewReader(bytes.NewReader(got), int64(len(got)))
	if err != nil || h.Get("Content-Type") != "application/zip" {
		t.Fatal(err, h)
	}
	names := map[string]bool{}
	for _, f := range zr.File {
		names[f.Name] = true
	}
	if !names["zip/"] || !names["zip/sub/x"] || !names["zip/sub/l"] {
		t.Errorf("%v", names)
	}
	s.refused(404, "file_not_found", ask{method: "GET", path: base + "/archive?path=/tmp/none"})
	s.refused(404, "file_not_found", ask{method: "GET", path: base + "/archive?path=/tmp/none&format=zip"})

	// Nothing is written outside of the directory.
	var evil bytes.Buffer
	z = zip.NewWriter(&evil)
	f, _ = z.Create("../../escaped")
	_, _ = io.WriteString(f, "x")
	_ = z.Close()
	status, _, _ := s.get(ask{method: "PUT", path: base + "/archive?path=/tmp/zip/sub&format=zip", body: io.Reader(&evil)})
	if status < 400 {
		t.Errorf("an entry outside is taken: %d", status)
	}
	s.refused(404, "file_not_found", ask{method: "GET", path: base + "/stat?path=/tmp/escaped"})
}

// Where the server has no room for a zip archive is not told, and is no error of a
// file in the sandbox.
func TestNoRoomForAZip(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	e := s.refused(503, "unavailable", ask{method: "PUT", path: "/v1/sandboxes/" + sb.ID + "/files/archive?path=/tmp&format=zip", body: "x"})
	if e.Path != "" || strings.Contains(e.Message, "missing") || !strings.Contains(e.Hint, "tar") {
		t.Errorf("%+v", e)
	}
}

// A zip archive that has to be held is bounded.
func TestZipIsBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Spool = 1000 })
	sb := s.create("", v1.Spec{})
	s.refused(413, "too_large", ask{method: "PUT", path: "/v1/sandboxes/" + sb.ID + "/files/archive?path=/tmp&format=zip", body: strings.Repeat("x", 2000)})
}

// What changes in a directory is told.
func TestWatch(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/files"
	s.refused(404, "file_not_found", ask{method: "GET", path: base + "/watch?path=/tmp/none"})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	resp, err := s.try(ctx, ask{method: "GET", path: base + "/watch?path=/tmp&recursive=true"})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	until := func(event, text string) {
		t.Helper()
		for seen := false; ; {
			line, err := br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "event:") {
				seen = line == "event: "+event+"\n"
			}
			if seen && strings.HasPrefix(line, "data:") && strings.Contains(line, text) {
				return
			}
		}
	}
	until("ready", "")
	s.want(200, nil, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "touch /tmp/new"}}})
	until("create", "new")
}

// listener is a server in the sandbox: what it gets, it sends back.
const listener = `
import http.server, socketserver
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = ("%s %s\n%s" % (self.command, self.path, self.headers)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "a=b")
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8080), H).serve_forever()
`

const echoServer = `
import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 9090)); l.listen()
while True:
    c, _ = l.accept()
    data = b""
    while True:
        b = c.recv(65536)
        if not b: break
        data += b
    c.sendall(b"all: " + data); c.close()
`

// Ports of a sandbox are reached by name, by header and byte by byte. The
// caller's key stays outside.
func TestPorts(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	s.python(sb, aliceKey, listener, 1)
	s.python(sb, aliceKey, echoServer, 2)
	host := "8080-" + sb.ID + ".localhost"
	status, body, h := s.get(ask{method: "GET", path: "/v1/keys?x=y", key: aliceKey, header: map[string]string{"Host": host, "X-Sandpit-Other": "hush"}})
	if status != 200 || !strings.HasPrefix(string(body), "GET /v1/keys?x=y") || h.Get("Set-Cookie") == "" {
		t.Errorf("%d %s", status, body)
	}
	for _, hush := range []string{aliceKey, "hush", "Authorization"} {
		if strings.Contains(string(body), hush) {
			t.Errorf("the sandbox is told %s: %s", hush, body)
		}
	}
	by := map[string]string{"X-Sandpit-Sandbox": sb.ID, "X-Sandpit-Port": "8080"}
	status, body, h = s.get(ask{method: "GET", path: "/x", key: aliceKey, header: by})
	if status != 200 || strings.Contains(string(body), "Sandpit") || h.Get("Content-Security-Policy") != "sandbox" || h.Get("Set-Cookie") != "" {
		t.Errorf("%d %v %s", status, h, body)
	}
	// With its own header for the key, Authorization is the sandbox's.
	status, body, _ = s.get(ask{method: "GET", path: "/x", key: "none", header: map[string]string{"Host": host, "X-Sandpit-Key": aliceKey, "Authorization": "Basic app"}})
	if status != 200 || !strings.Contains(string(body), "Basic app") || strings.Contains(string(body), aliceKey) {
		t.Errorf("%d %s", status, body)
	}
	large := strings.Repeat("x", 3<<20)
	if status, body, _ = s.get(ask{method: "POST", path: "/", key: aliceKey, header: map[string]string{"Host": host}, body: large}); status != 201 || string(body) != large {
		t.Errorf("%d, %d bytes", status, len(body))
	}
	// A page of the sandbox may speak to the sandbox, and not to the server.
	port := strings.TrimPrefix(s.base, "http://127.0.0.1")
	s.want(200, nil, ask{method: "GET", path: "/", key: aliceKey, header: map[string]string{"Host": host + port, "Origin": "http://" + host + port}})
	s.refused(403, "origin_refused", ask{method: "GET", path: "/v1/version", key: aliceKey, header: map[string]string{"Origin": "http://" + host + port}})
	s.refused(401, "unauthenticated", ask{method: "GET", path: "/", key: "none", header: map[string]string{"Host": host}})
	s.refused(503, "unavailable", ask{method: "GET", path: "/", key: aliceKey, header: map[string]string{"Host": "81-" + sb.ID + ".localhost"}})

	// Byte by byte, with one direction closed alone.
	conn := s.dial()
	fmt.Fprintf(conn, "GET %s/ports/9090/tcp HTTP/1.1\r\nHost: sandpit\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nearly ", one, aliceKey)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-Request-Id") == "" {
		t.Fatal(resp, err)
	}
	_, _ = io.WriteString(conn, "late")
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	if got, err := io.ReadAll(br); err != nil || string(got) != "all: early late" {
		t.Errorf("%q, %v", got, err)
	}
	ws := s.socket(t.Context(), one+"/ports/9090/tcp", aliceKey)
	for _, piece := range []string{"over ", "ws", ""} {
		if err := ws.Write(t.Context(), websocket.MessageBinary, []byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	got := ""
	for {
		_, msg, err := ws.Read(ctx)
		if err != nil || len(msg) == 0 {
			break
		}
		got += string(msg)
	}
	if got != "all: over ws" {
		t.Errorf("%q", got)
	}
	if _, msg, err := ws.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("both directions have ended: %q, %v", msg, err)
	}
	ws = s.socket(t.Context(), one+"/ports/9090/tcp", aliceKey)
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("text")); err != nil {
		t.Fatal(err)
	}
	var how websocket.CloseError
	if _, msg, err := ws.Read(ctx); !errors.As(err, &how) || how.Code != 4400 || how.Reason != "invalid" {
		t.Errorf("after a text message: %q, %v", msg, err)
	}
	resp2 := s.do(ask{method: "GET", path: one + "/ports/81/tcp", key: aliceKey, header: map[string]string{"Connection": "Upgrade", "Upgrade": "tcp"}})
	resp2.Body.Close()
	if resp2.StatusCode != 503 {
		t.Errorf("a port that nobody listens on: %s", resp2.Status)
	}
}

// HEAD of a file has the status and headers of GET, and reads nothing of it.
func TestHeadOfFile(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	at := func(path string) string { return "/v1/sandboxes/" + sb.ID + "/files?path=" + path }
	s.want(200, nil, ask{method: "PUT", path: at("/tmp/a") + "&mode=0640", body: "0123456789"})
	s.want(200, nil, ask{method: "PUT", path: at("/tmp/closed") + "&mode=0", body: "x"})
	s.want(204, nil, ask{method: "PATCH", path: "/v1/sandboxes/" + sb.ID + "/files?path=/tmp/closed&mode=0"})
	for _, c := range []struct {
		path, span string
		status     int
		length     string
	}{
		{"/tmp/a", "", 200, "10"},
		{"/tmp/a", "bytes=2-5", 206, "4"},
		{"/tmp/a", "bytes=10-", 416, ""},
		{"/proc/version", "", 200, ""},
		{"/tmp", "", 400, ""},
		{"/tmp/closed", "", 403, ""},
		{"/tmp/none", "", 404, ""},
	} {
		header := map[string]string{"Range": c.span}
		status, _, got := s.get(ask{method: "GET", path: at(c.path), header: header})
		headStatus, body, head := s.get(ask{method: "HEAD", path: at(c.path), header: header})
		if headStatus != c.status || status != c.status || len(body) != 0 {
			t.Errorf("%s %s: GET has status %d, HEAD %d and %d bytes", c.path, c.span, status, headStatus, len(body))
		}
		if c.status >= 300 {
			continue
		}
		if head.Get("Content-Length") != c.length || head.Get("X-Sandpit-Mode") == "" {
			t.Errorf("%s %s: %v", c.path, c.span, head)
		}
		for _, name := range []string{"Content-Type", "Content-Range", "Accept-Ranges", "Last-Modified", "X-Sandpit-Mode"} {
			if head.Get(name) != got.Get(name) {
				t.Errorf("%s %s: %s is %q for GET and %q for HEAD", c.path, c.span, name, got.Get(name), head.Get(name))
			}
		}
	}
	// What is not read is not sent: the audit has the bytes of each answer.
	sent := map[int64]int{}
	for _, e := range s.audit.all() {
		if e.Action == "readFile" && e.Phase == "end" && e.Status == 200 {
			sent[e.Bytes]++
		}
	}
	if sent[0] < 2 || sent[10] != 1 {
		t.Errorf("bytes sent: %v", sent)
	}
}

// Names of files that are not UTF-8 do not end a list.
func TestListOfOddNames(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/files"
	s.want(204, nil, ask{method: "POST", path: base + "/mkdir?path=/tmp/d"})
	for _, name := range []string{"a", "b%FF", "b%FF%20", "c%2B"} {
		s.want(200, nil, ask{method: "PUT", path: base + "?path=/tmp/d/" + name, body: "x"})
	}
	var names []string
	for after, more := "", true; more; {
		var page v1.FileList
		s.want(200, &page, ask{method: "GET", path: base + "/list?path=/tmp/d&limit=1&after=" + after})
		for _, e := range page.Entries {
			info, err := e.Sandpit()
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, info.Name)
		}
		after, more = page.Next, page.Next != ""
	}
	if want := []string{"a", "b\xff", "b\xff ", "c+"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// Each operation takes the user whose rights it has, and the audit says so.
func TestFilesAs(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID + "/files"
	s.refused(400, "invalid", ask{method: "GET", path: base + "/stat?path=/tmp&user=no-such-user"})
	s.refused(400, "invalid", ask{method: "GET", path: base + "/stat?path=/tmp&user="})
	first := ask{method: "PUT", path: base + "?path=/tmp/f&user=1234:2345&mode=0600", body: "x"}
	if os.Geteuid() != 0 { // only one user exists in this sandbox
		s.refused(501, "unsupported", first)
		return
	}
	s.want(200, nil, first)
	var info v1.FileInfo
	s.want(200, &info, ask{method: "GET", path: base + "/stat?path=/tmp/f&user=1234:2345"})
	if info.UID != 1234 || info.GID != 2345 {
		t.Errorf("it belongs to %d:%d", info.UID, info.GID)
	}
	s.refused(403, "permission", ask{method: "GET", path: base + "?path=/tmp/f"})
	if status, body, _ := s.get(ask{method: "GET", path: base + "?path=/tmp/f&user=root"}); status != 200 || string(body) != "x" {
		t.Errorf("root gets %d %s", status, body)
	}
	s.want(204, nil, ask{method: "POST", path: base + "/rename?from=/tmp/f&to=/tmp/g&user=root"})
	said := map[string]bool{}
	for _, e := range s.audit.all() {
		said[e.Detail] = true
	}
	for _, want := range []string{`/tmp/f as "1234:2345"`, `/tmp/f as "root"`, `/tmp/f to /tmp/g as "root"`} {
		if !said[want] {
			t.Errorf("the audit does not have %q: %v", want, said)
		}
	}
}
