package main

import (
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// oldState makes the state of a data directory as a server left it that was
// killed with schema 1, on a machine that is no more: with a stopped sandbox, one
// that ran, two keys, of which one was revoked, and a webhook. The directory
// testdata/schema-1 is never changed: every later version has to open it.
func oldState(t *testing.T, home string) (db, token string) {
	t.Helper()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", "schema-1", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	dir := filepath.Join(home, "state")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.key"), []byte(read("state.key")), 0o600); err != nil {
		t.Fatal(err)
	}
	db = filepath.Join(dir, "state.db")
	execute(t, db, "PRAGMA journal_mode=WAL;"+read("state.sql"))
	// What was to end a day later is to end a day from now: the test is not over then.
	execute(t, db, `UPDATE sandboxes SET data = CAST(json_set(CAST(data AS TEXT), '$.deadline', strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '+1 day')) AS BLOB)`)
	return db, strings.TrimSpace(read("token"))
}

func execute(t *testing.T, file, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func TestOldState(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	_, token := oldState(t, home)
	s := startService(t, home, nil)
	c := s.client()
	page, err := c.List(t.Context(), sandpit.ListQuery{})
	if err != nil || len(page.Sandboxes) != 2 {
		t.Fatal(page, err)
	}
	limits := sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64, Disk: 52 << 20, Files: 1 << 18, NoFile: 4096, Output: 1 << 30, Life: 24 * time.Hour}
	if old := page.Sandboxes[0]; old.ID != "fd5nj5t4lnmhqbbo" || old.Name != "old" || old.Labels["made"] != "long ago" || old.Limits != limits || old.OnExpiry != sandpit.ExpiryStop ||
		!old.CreatedAt.Equal(time.Unix(0, 1795240660679264881)) || old.Image != "host" {
		t.Errorf("what was known of it is %+v", old)
	}
	lost := func(info sandpit.Info) bool { return info.State == sandpit.StateFailed && info.Reason != "" }
	if !lost(page.Sandboxes[0]) || !lost(page.Sandboxes[1]) || !strings.Contains(s.log.String(), "gone=2") {
		t.Errorf("the sandboxes of a machine that is no more are %+v", page.Sandboxes)
	}
	var keys v1.KeyList
	if err := c.Call(t.Context(), http.MethodGet, "/v1/keys", nil, &keys); err != nil {
		t.Fatal(err)
	}
	revoked := map[string]bool{}
	for _, k := range keys.Keys {
		revoked[k.Name] = k.RevokedAt != nil
	}
	if len(revoked) != 2 || revoked["ci"] || !revoked["ops"] {
		t.Errorf("the keys are %+v", keys)
	}
	team, err := client.New(client.Options{Address: server.SocketIn(home).String(), Key: token})
	if err != nil {
		t.Fatal(err)
	}
	defer team.Close()
	if page, err := team.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("with the old key: %+v %v", page, err)
	}
	var hooks v1.WebhookList
	if err := c.Call(t.Context(), http.MethodGet, "/v1/webhooks", nil, &hooks); err != nil || len(hooks.Webhooks) != 1 || hooks.Webhooks[0].URL != "https://example.com/hook" {
		t.Errorf("the webhooks are %+v, %v", hooks, err)
	}
	if strings.Contains(s.log.String(), "a webhook could not be loaded") {
		t.Error("the webhook's secret can't be read any more")
	}
	if _, err := c.Create(t.Context(), sandpit.Spec{Name: "new"}); err != nil {
		t.Error(err)
	}
}

// TestNewerState starts on a state of the future: it is refused, and untouched.
func TestNewerState(t *testing.T) {
	home := shortHome(t)
	file, _ := oldState(t, home)
	execute(t, file, "PRAGMA user_version=99")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out, err := commandLineAt(t, home, "serve").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "schema 99") || !strings.Contains(string(out), "hint: use the newer version") {
		t.Errorf("%v %s", err, out)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Error("it has changed the state of the newer version")
	}
}
