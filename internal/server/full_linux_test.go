package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// L15: with what the settings say, one key can't fill the audit before its time,
// nor strangers in a year.
func TestTheAuditLastsAsLongAsPromised(t *testing.T) {
	const inProgress = 2 * 2000 * audit.MaxEntry // requests of a key under way: an intent and an end of each
	for name, tt := range map[string]struct {
		settings server.Settings
		size     int64
		time     time.Duration
	}{
		"by default": {server.Settings{}, 4 << 30, 7 * 24 * time.Hour},
		"large":      {server.Settings{AuditSize: 400 << 30, AuditTime: 90 * 24 * time.Hour}, 400 << 30, 90 * 24 * time.Hour},
		"small":      {server.Settings{AuditSize: 64 << 20, AuditTime: time.Hour}, 64 << 20, time.Hour},
	} {
		files, limits := tt.settings.AuditBounds()
		if got := files.MaxSize * int64(files.MaxFiles); got != tt.size {
			t.Errorf("%s: %d bytes are kept, not %d", name, got, tt.size)
		}
		// An entry is dropped with its file, when that is the oldest of MaxFiles.
		kept := files.MaxSize * int64(files.MaxFiles-1)
		overshoot := min(int64(inProgress), kept/2)
		if added := int64(limits.Audit.Burst) + int64(limits.Audit.Rate*tt.time.Seconds()) + overshoot; added > kept {
			t.Errorf("%s: in %s a key adds up to %d bytes, and %d are kept", name, tt.time, added, kept)
		}
		if added := int64(limits.Strangers.Burst) + int64(limits.Strangers.Rate*(365*24*time.Hour).Seconds()); added > kept {
			t.Errorf("%s: in a year strangers add up to %d bytes, and %d are kept", name, added, kept)
		}
		if limits.Audit.Burst < 8*audit.MaxEntry || limits.Strangers.Burst < 8*audit.MaxEntry {
			t.Errorf("%s: too little at once: %+v", name, limits)
		}
	}
}

// fillDisk adds to a file until the disk is full.
func fillDisk(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// When the state has no room, a create is refused as that and not as one caller's
// doing, and in words that tell nothing of the server's insides.
func TestCreateOnAFullDisk(t *testing.T) {
	srv := newServed(t)
	dir := filepath.Join(srv.home, "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.Tmpfs(t, dir, unix.MS_NOSUID|unix.MS_NODEV, "size=6m,mode=0700")
	srv.start()
	key := srv.keyOf("team", "")
	c := srv.with(key)
	defer c.Close()
	create(t, c, "first")
	filler := filepath.Join(dir, "filler")
	for url, k := range map[string]string{"http://sandpit/v1/keys": "", "http://sandpit/v1/sandboxes": key} {
		status, body := 0, ""
		for i := 0; status < 300 && i < 2000; i++ { // what is there may have a little room
			fillDisk(t, filler)
			status, body, _ = srv.get("POST", url, k, fmt.Sprintf(`{"name":"box%d"}`, i))
		}
		var e v1.Error
		if err := json.Unmarshal([]byte(body), &e); err != nil || status != http.StatusInsufficientStorage || e.Code != "disk_full" || e.Hint == "" || !errors.Is(errcode.Kind(e.Code), sandpit.ErrExhausted) {
			t.Errorf("%s: %d %s %v", url, status, body, err)
		}
		for _, told := range []string{"SQL", "sqlite", "database", srv.home, "(13)"} {
			if strings.Contains(body, told) {
				t.Errorf("%s: the answer tells %q: %s", url, told, body)
			}
		}
	}
	if !strings.Contains(srv.log.String(), "the disk is full") {
		t.Error("the log says nothing")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := srv.get("POST", "http://sandpit/v1/sandboxes", key, `{"name":"later"}`); status != http.StatusCreated {
		t.Errorf("when there is room again: %d %s", status, body)
	}
}

// L14: with a full disk a key is revoked, a sandbox stopped and removed, for good
// and with entries in the audit, whatever else is refused.
func TestFullDiskDisablesNoRevocation(t *testing.T) {
	srv := newServed(t)
	testkit.Tmpfs(t, srv.home, unix.MS_NOSUID|unix.MS_NODEV, "size=48m,mode=0700")
	srv.overTCP()
	srv.start()
	c := srv.unix()
	defer func() { _ = c.Close() }()
	const count = 20
	var revoked []v1.Key
	for i := range count {
		revoked = append(revoked, srv.makeKey(v1.NewKey{Name: fmt.Sprintf("key %d", i), Namespace: "team"}))
	}
	create(t, c, "box")
	create(t, c, "stays")
	use := func(k v1.Key) int {
		status, _, _ := srv.get("GET", "https://"+srv.tcp+"/v1/sandboxes", k.Secret, "")
		return status
	}
	if got := use(revoked[0]); got != http.StatusOK {
		t.Fatalf("a key is answered with %d", got)
	}

	filler := filepath.Join(srv.home, "filler")
	refill := func() {
		t.Helper()
		fillDisk(t, filler)
	}
	refused := false
	for i := 0; !refused && i < 2000; i++ { // what is there may have a little room
		refill()
		var made v1.Key
		refused = c.Call(t.Context(), "POST", "/v1/keys", v1.NewKey{Name: strings.Repeat("x", 100)}, &made) != nil
	}
	if !refused {
		t.Fatal("nothing is refused on a full disk")
	}
	for i, k := range revoked {
		refill()
		if err := c.Call(t.Context(), "DELETE", "/v1/keys/"+k.ID, nil, nil); err != nil {
			t.Errorf("revoking key %d on a full disk: %v", i, err)
		}
		if got := use(k); got != http.StatusUnauthorized {
			t.Errorf("a revoked key is answered with %d", got)
		}
	}
	refill()
	if err := c.Remove(t.Context(), "box"); err != nil {
		t.Errorf("removing on a full disk: %v", err)
	}
	if err := c.Call(t.Context(), "POST", "/v1/sandboxes/stays/stop", v1.Stop{}, nil); err != nil {
		t.Errorf("stopping on a full disk: %v", err)
	}

	// The next server knows, too, when there is room to start in.
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := srv.stop(); err != nil {
		t.Fatal(err)
	}
	srv.start()
	for _, k := range revoked {
		if got := use(k); got != http.StatusUnauthorized {
			t.Errorf("after a restart a revoked key is answered with %d", got)
		}
	}
	again := srv.unix()
	defer again.Close()
	var list v1.SandboxList
	if err := again.Call(t.Context(), "GET", "/v1/sandboxes", nil, &list); err != nil || len(list.Sandboxes) != 1 || list.Sandboxes[0].State != "stopped" {
		t.Errorf("there are %+v, %v", list, err)
	}
	if _, err := audit.Verify(server.AuditDir(srv.home), audit.Anchor{}); err != nil {
		t.Error(err)
	}
	entered := map[string]bool{}
	for r, err := range audit.Search(t.Context(), server.AuditDir(srv.home), audit.Query{}) {
		if err != nil {
			t.Error(err)
		}
		if r.Phase == audit.PhaseIntent {
			entered[r.Action+" "+r.Detail+r.Sandbox] = true
		}
	}
	for _, k := range revoked {
		if !entered["revokeKey "+k.ID] {
			t.Errorf("that %s was revoked is not in the audit", k.ID)
		}
	}
	if !entered["removeSandbox box"] || !entered["stopSandbox stays"] {
		t.Errorf("in the audit are %v", entered)
	}
}
