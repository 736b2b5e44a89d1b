package state

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// left makes a state directory as a server left it that had an earlier schema.
// The directories that this reads are never changed. A new schema adds one, of the
// release before it, with the same contents: two sandboxes, two keys, a webhook, an
// answer, and since schema 3 a preview.
func left(t *testing.T, schema int) (dir string) {
	t.Helper()
	from := filepath.Join("..", "..", "cmd", "sandpit", "testdata", fmt.Sprintf("schema-%d", schema))
	dir = t.TempDir()
	text, err := os.ReadFile(filepath.Join(from, "state.sql"))
	if err != nil {
		t.Fatalf("what a server with schema %d leaves is not known: %v", schema, err)
	}
	key, err := os.ReadFile(filepath.Join(from, fileSeal))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileSeal), key, 0o600); err != nil {
		t.Fatal(err)
	}
	raw(t, dir, func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), "PRAGMA journal_mode=WAL;"+string(text))
		return err
	})
	return dir
}

// raw looks into a database that no Store has open.
func raw(t *testing.T, dir string, f func(*sql.DB) error) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, fileDatabase))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := f(db); err != nil {
		t.Fatal(err)
	}
}

// rows returns the rows of a query, as text.
func rows(t *testing.T, dir, query string) (all []string) {
	t.Helper()
	raw(t, dir, func(db *sql.DB) error {
		found, err := db.QueryContext(t.Context(), query)
		if err != nil {
			return err
		}
		defer found.Close()
		for found.Next() {
			var row string
			if err := found.Scan(&row); err != nil {
				return err
			}
			all = append(all, row)
		}
		return found.Err()
	})
	return all
}

// TestEverySchema opens what a server left with each schema that there was: it is
// migrated to what a new one is, with everything in it, and has a way back.
func TestEverySchema(t *testing.T) {
	const schemaOf = "SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name"
	fresh := t.TempDir()
	openTest(t, fresh).Close()
	newest := len(migrations())
	for schema := 1; schema <= newest; schema++ {
		t.Run(fmt.Sprint(schema), func(t *testing.T) {
			dir := left(t, schema)
			if got := rows(t, dir, "PRAGMA user_version"); got[0] != fmt.Sprint(schema) {
				t.Fatalf("it has schema %s", got[0])
			}
			const contents = "SELECT id || namespace || name || state || created || data FROM sandboxes"
			before := rows(t, dir, contents)
			secret := schema == 2 || schema == 3 // in a column that the next schema no longer has
			if secret {
				raw(t, dir, func(db *sql.DB) error {
					_, err := db.ExecContext(t.Context(), "UPDATE sandboxes SET secret=(SELECT secret FROM webhooks) WHERE name='old'")
					return err
				})
			}
			s := openTest(t, dir)
			check(t, s)
			if previews, err := s.Previews(t.Context()); err != nil || (len(previews) == 1 && previews[0].Port == 3000) != (schema >= 3) {
				t.Errorf("the previews are %+v, %v", previews, err)
			}
			if err := s.PutSandbox(t.Context(), record(1)); err != nil {
				t.Error(err)
			}
			if err := s.DeleteSandbox(t.Context(), record(1).ID); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, rows(t, dir, contents)); diff != "" {
				t.Errorf("the records: %s", diff)
			}
			const moved = "SELECT name FROM secrets JOIN sandboxes ON sandboxes.id=sandbox WHERE name='old' AND secret=(SELECT secret FROM webhooks)"
			if n := len(rows(t, dir, moved)); (n == 1) != secret {
				t.Errorf("%d secrets are kept", n)
			}
			if diff := cmp.Diff(rows(t, fresh, schemaOf), rows(t, dir, schemaOf)); diff != "" {
				t.Errorf("a new database, and this one, which a step that was released has made otherwise: %s", diff)
			}
			if got := rows(t, dir, "PRAGMA user_version"); got[0] != fmt.Sprint(newest) {
				t.Errorf("it has schema %s now", got[0])
			}
			_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%s.schema-%d", fileDatabase, schema)))
			if kept := err == nil; kept != (schema < newest) {
				t.Errorf("a copy of it was kept: %t", kept)
			}
		})
	}
}

// check looks whether a store has what left has put there.
func check(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background()
	records, err := s.Sandboxes(ctx)
	if err != nil || len(records) != 2 || records[0].Name != "old" || records[1].Name != "running" {
		t.Fatalf("the records are %+v, %v", records, err)
	}
	for _, r := range records {
		var data struct {
			Version int
			Handle  struct{ ID string }
		}
		if err := json.Unmarshal(r.Data, &data); err != nil || data.Version != 1 || data.Handle.ID != r.ID {
			t.Errorf("a record is %s, %v", r.Data, err)
		}
	}
	all, err := s.Keys(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("the keys are %+v, %v", all, err)
	}
	for _, k := range all {
		if len(k.Hash) != 32 || k.RevokedAt.IsZero() == (k.Label == "ops") {
			t.Errorf("a key is %+v", k)
		}
	}
	hooks, err := s.Webhooks(ctx)
	if err != nil || len(hooks) != 1 || hooks[0].URL != "https://example.com/hook" || !strings.HasPrefix(hooks[0].Secret, "whsec_") {
		t.Errorf("the webhooks are %+v, %v", hooks, err)
	}
	s.now = func() time.Time { return time.Unix(1_795_300_000, 0) } // before the answer expired
	hash, err := hex.DecodeString("25232f3044a4bda7f9c496585174e7388b120769052538ddfa8a98b7107d720e")
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := s.BeginRepeatable(ctx, Repeatable{Namespace: "local", Key: "fixture", Hash: [sha256.Size]byte(hash)})
	if err != nil || earlier == nil || !earlier.Answered || earlier.Status != 201 || earlier.Resource != "old" || !json.Valid(earlier.Response) {
		t.Errorf("the answer is %+v, %v", earlier, err)
	}
}
