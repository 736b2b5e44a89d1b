package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// A client whose connection is cut in the middle of its input comes back with the same request:
// the command gets the rest of the input, and is found by the next server too.
func TestExecGoesOn(t *testing.T) {
	srv := newServed(t).start()
	c := srv.unix()
	sb := createOf(t, c, sandpit.Spec{Name: "box"})
	const head = "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\n{\"script\":\"cat >/tmp/in; echo read; until [ -e /tmp/go ]; do sleep 0.05; done; echo ended\"}\r\n--b\r\nContent-Disposition: form-data; name=\"stdin\"\r\n\r\n"
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	size := func() (n int64) {
		if info, err := sb.Files().Stat(t.Context(), "/tmp/in"); err == nil {
			n = info.Size
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("waited in vain until " + what)
			}
		}
	}

	// The connection is cut behind a part of the input.
	conn, err := server.DialHome(t.Context(), srv.home)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/sandboxes/box/exec HTTP/1.1\r\nHost: sandpit\r\nIdempotency-Key: k\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s%s", len(head)+len(content)+100, head, content[:100_000])
	until("a part has come", func() bool { return size() > 0 })
	conn.Close()

	repeat := func(ctx context.Context, key, kind string, body io.Reader) (out v1.Executed, err error) {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return server.DialHome(ctx, srv.home) }}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandpit/v1/sandboxes/box/exec", body)
		if err != nil {
			return out, err
		}
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Idempotency-Key", key)
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return out, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || resp.Header.Get("Idempotent-Replayed") != "true") {
			err = fmt.Errorf("%s %s", resp.Status, text)
		}
		if err == nil {
			err = json.Unmarshal(text, &out)
		}
		return out, err
	}
	again := func(ctx context.Context) (v1.Executed, error) {
		return repeat(ctx, "k", "multipart/form-data; boundary=b", io.MultiReader(strings.NewReader(head), bytes.NewReader(content), strings.NewReader("\r\n--b--\r\n")))
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = again(ctx)
	}()
	until("all has come", func() bool { return size() == int64(len(content)) })
	got, err := sandpit.Shell(t.Context(), sb, "cat /tmp/in")
	if err != nil || !bytes.Equal(got.Stdout, content) {
		t.Errorf("the input has %d bytes, or is another: %v", len(got.Stdout), err)
	}
	leave()
	<-left

	// A command without input is cut off, too.
	const other = `{"script":"echo begun >/tmp/other; until [ -e /tmp/go ]; do sleep 0.05; done; echo ended"}`
	if conn, err = server.DialHome(t.Context(), srv.home); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/sandboxes/box/exec HTTP/1.1\r\nHost: sandpit\r\nIdempotency-Key: other\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(other), other)
	until("the other has begun", func() bool { _, err := sb.Files().Stat(t.Context(), "/tmp/other"); return err == nil })
	_ = conn.Close()
	_ = c.Close()
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}

	srv.start()
	c = srv.unix()
	defer c.Close()
	if sb, err = c.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	// The server does not know how much input the earlier one has passed on, also while a caller
	// without input waits.
	plain, _, _ := strings.Cut(head, "--b\r\nContent-Disposition: form-data; name=\"stdin\"")
	if conn, err = server.DialHome(t.Context(), srv.home); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "POST /v1/sandboxes/box/exec HTTP/1.1\r\nHost: sandpit\r\nAccept: text/event-stream\r\nIdempotency-Key: k\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s--b--\r\n", len(plain)+7, plain)
	read := bufio.NewReader(conn)
	for line := ""; !strings.Contains(line, "event: stdout"); {
		if line, err = read.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := again(ctx); err == nil || !strings.Contains(err.Error(), "outcome_unknown") {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := sandpit.Shell(t.Context(), sb, ">/tmp/go"); err != nil {
		t.Fatal(err)
	}
	if out, err := repeat(t.Context(), "other", "application/json", strings.NewReader(other)); err != nil || out.Stdout != "ended\n" {
		t.Errorf("%+v, %v", out, err)
	}
	until("the first has ended", func() bool {
		all, err := sb.Processes(t.Context())
		return err == nil && !slices.ContainsFunc(all, func(p sandpit.ProcessInfo) bool { return p.Result == nil })
	})
	if out, err := again(t.Context()); err != nil || out.Stdout != "read\nended\n" || out.Result.ExitCode != 0 {
		t.Errorf("%+v, %v", out, err)
	}
}
