package api_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// A file comes with its length, where that is known, and one that becomes shorter
// while it is sent is broken off, not passed off as whole.
func TestLengthOfAFile(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	path := "/v1/sandboxes/" + sb.ID + "/files?path="
	content := repeated("0123456789abcdef\n", 5_000_000)
	for name, key := range map[string]string{"unix": "", "tcp": adminKey} {
		var w v1.Written
		s.want(200, &w, ask{key: key, method: "PUT", path: path + "/tmp/" + name, body: io.Reader(bytes.NewReader(content))})
		status, got, h := s.get(ask{key: key, method: "GET", path: path + "/tmp/" + name})
		if status != 200 || w.Bytes != int64(len(content)) || sha256.Sum256(got) != sha256.Sum256(content) {
			t.Errorf("%s: %d: %d bytes went in and %d came out", name, status, w.Bytes, len(got))
		}
		if h.Get("Content-Length") != strconv.Itoa(len(content)) {
			t.Errorf("%s: %v", name, h)
		}
	}
	if status, got, h := s.get(ask{method: "GET", path: path + "/proc/version"}); status != 200 || len(got) == 0 || h.Get("Content-Length") == "0" {
		t.Errorf("a file that does not tell its length: %d, %q, %v", status, got, h)
	}
	var done v1.Executed
	s.want(200, &done, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: ": > /tmp/empty"}}})
	if status, got, _ := s.get(ask{method: "GET", path: path + "/tmp/empty"}); status != 200 || len(got) > 0 {
		t.Errorf("an empty file: %d, %q", status, got)
	}

	resp := s.do(ask{method: "GET", path: path + "/tmp/unix"})
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	s.want(200, &done, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: ": > /tmp/unix"}}})
	if n, err := io.Copy(io.Discard, resp.Body); n >= int64(len(content)) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes came of %d: %v", n, len(content), err)
	}
}
