package server_test

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)


// deflated returns the beginning of a gzip stream with data, whose end does not come.
func deflated(t *testing.T, data string) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff") // RFC 1952
	z, err := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(z, data); err != nil {
		t.Fatal(err)
	}
	if err := z.Flush(); err != nil {
		t.Fatal(err)
	}
	out := b.Bytes()
	return append(out[:10:10], out[12:]...) // without the head of zlib
}

// Clients of E2B that send the longest heads of parts slowly make the server hold little.
func TestE2BFormsHoldLittle(t *testing.T) {
	const n, most = 40, 1 << 20
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	const begin = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n"
	many := strings.Builder{}
	for i := range 9900 {
		fmt.Fprintf(&many, "K%d: v\r\n", i)
	}
	for name, body := range map[string][]byte{"a long line": deflated(t, begin+"X-A: "+strings.Repeat("a", 9<<20)), "many lines": deflated(t, begin+many.String())} {
		t.Run(name, func(t *testing.T) {
			before := int64(heapInUse())
			for range n {
				conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				head := fmt.Sprintf("POST /files?path=/tmp/x HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: %s\r\nE2b-Sandbox-Id: %s\r\nContent-Encoding: gzip\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n", key, box.SandboxID)
				if _, err := conn.Write(append([]byte(head), body...)); err != nil {
					t.Fatal(err)
				}
				_ = conn.SetReadDeadline(time.Now().Add(patience))
				answer := make([]byte, 1<<10)
				if k, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:k]), "HTTP/1.1 413") {
					t.Fatalf("%v, %.300q", err, answer[:k])
				}
			}
			if grown := int64(heapInUse()) - before; grown > n*most {
				t.Errorf("each holds %d bytes", grown/n)
			}
		})
	}
}

// What the answer to an upload of many files has is charged as it grows.
func TestE2BAnswersAreCharged(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	long := "/tmp" + strings.Repeat("/"+strings.Repeat("<", 240), 15) // which JSON makes six times as long
	var body strings.Builder
	for range 4000 {
		body.WriteString("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + long + "\"\r\n\r\n\r\n")
	}
	body.WriteString("--b--\r\n")
	s.e2bCall(t, 413, "needs more of the server's memory", "POST", url+"/files", body.String(), "Content-Type", "multipart/form-data; boundary=b", "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key, "X-Metadata-A", strings.Repeat("<", 3900))
}
