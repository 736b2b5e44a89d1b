package server_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A create that hangs is called off when its caller leaves; /healthz, /metrics and
// the list say what is stuck, who removes it is told, the others are served, and
// the server ends. The next one cleans up. (The catalogue's L13e and L20.)
func TestStuckSandbox(t *testing.T) {
	s := newServed(t)
	var armed atomic.Bool
	reached, released := make(chan struct{}), make(chan struct{})
	s.change = func(o *server.Options) {
		o.Driver = linux.New(linux.Options{
			Dir: filepath.Join(s.home, "guest"), Guest: embedded.Guest(), GuestDigest: embedded.Digest(embedded.Guest()), KeepDir: server.KeepDir(s.home),
			Fault: func(step string) error {
				if step == "ids" && armed.CompareAndSwap(true, false) {
					close(reached)
					<-released
				}
				return nil
			},
		})
		o.Patience = engine.Patience{Undo: time.Millisecond, Close: 100 * time.Millisecond}
	}
	s.policy("pool: 0\n")
	s.endsBadly = true
	s.start()
	c := s.unix()
	defer c.Close()
	other := create(t, c, "first")

	ctx, leave := context.WithCancel(t.Context())
	armed.Store(true)
	created := make(chan error, 1)
	go func() {
		_, err := c.Create(ctx, sandpit.Spec{Name: "hangs"})
		created <- err
	}()
	<-reached
	if _, body, _ := s.get("GET", "http://sandpit/healthz", "", ""); body != `{"status":"ok"}`+"\n" {
		t.Errorf("before anybody has given up: %s", body)
	}
	leave()
	<-created
	health := ""
	testkit.Until(t, "the server says that something is stuck", func() bool {
		var status int
		status, health, _ = s.get("GET", "http://sandpit/healthz", "", "")
		return status == http.StatusOK && health == `{"status":"degraded","stuck":1}`+"\n"
	}, func() string { return health })
	if n := s.figure("sandpit_stuck"); n != 1 {
		t.Errorf("%d operations are stuck in the metrics", n)
	}
	status, answer, header := s.get("DELETE", "http://sandpit/v1/sandboxes/hangs", "", "")
	if status != http.StatusServiceUnavailable || !strings.Contains(answer, `stuck (step \"ids\", process `) || header.Get("Retry-After") == "" {
		t.Errorf("removing it: %d %s", status, answer)
	}
	if _, list, _ := s.get("GET", "http://sandpit/v1/sandboxes?state=failed", "", ""); !strings.Contains(list, "creating sandbox hangs is stuck") {
		t.Errorf("the list is %s", list)
	}
	if out, err := sandpit.Exec(t.Context(), create(t, c, "second"), "echo", "well"); err != nil || string(out.Stdout) != "well\n" {
		t.Errorf("in another sandbox: %q %v", out.Stdout, err)
	}
	if err := other.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err == nil || !strings.Contains(err.Error(), "sandbox hangs is stuck") {
		t.Errorf("the server has ended with %v", err)
	}
	close(released)

	s.change = nil
	s.start()
	testkit.Until(t, "nothing is left of it", func() bool {
		page, err := c.List(t.Context(), sandpit.ListQuery{})
		return err == nil && len(page.Sandboxes) == 1 && page.Sandboxes[0].Name == "second" && page.Sandboxes[0].State == sandpit.StateRunning
	})
	if _, body, _ := s.get("GET", "http://sandpit/healthz", "", ""); body != `{"status":"ok"}`+"\n" {
		t.Errorf("in the end: %s", body)
	}
}

// A search of the audit that hangs is given up and reported; what it holds up goes on
// alone, and the server serves on. (The catalogue's L13p.)
func TestStuckSearch(t *testing.T) {
	testkit.NeedFull(t, "it waits for four seconds")
	s := newServed(t)
	s.change = func(o *server.Options) {
		o.Patience = engine.Patience{Read: 2 * time.Second, Undo: time.Second}
	}
	s.start()
	const search = "http://sandpit/v1/audit"
	if status, body, _ := s.get("GET", search, "", ""); status != http.StatusOK {
		t.Fatalf("a search: %d %s", status, body)
	}
	// Opening a FIFO that nobody writes to blocks.
	fifo := filepath.Join(server.AuditDir(s.home), "audit-00000099.jsonl")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := s.get("GET", search, "", ""); status != http.StatusServiceUnavailable || !strings.Contains(body, "searching the audit is stuck") || !strings.Contains(body, filepath.Base(fifo)) {
		t.Errorf("one that hangs: %d %s", status, body)
	}
	if _, body, _ := s.get("GET", "http://sandpit/healthz", "", ""); body != `{"status":"degraded","stuck":1}`+"\n" {
		t.Errorf("the health is %s", body)
	}
	c := s.unix()
	defer c.Close()
	if err := create(t, c, "box").Remove(t.Context()); err != nil {
		t.Error(err)
	}
	writer, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err := errors.Join(err, writer.Close()); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "nothing is stuck", func() bool {
		_, body, _ := s.get("GET", "http://sandpit/healthz", "", "")
		return body == `{"status":"ok"}`+"\n"
	})
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := s.get("GET", search, "", ""); status != http.StatusOK || !strings.Contains(body, "createSandbox") {
		t.Errorf("later: %d %s", status, body)
	}
}
