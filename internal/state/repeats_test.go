package state

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// The database alone does not tell which of a few requests was sent.
func TestHashesOfRequestsNeedTheKey(t *testing.T) {
	s := openTest(t, t.TempDir())
	ask := Repeatable{Namespace: "ns", Key: "k", Hash: sha256.Sum256([]byte(`{"value":"pin-4711"}`)), Resource: "id1"}
	stored := func() (hash []byte) {
		if _, err := s.BeginRepeatable(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
		err := s.update(t.Context(), func(t *tx) error {
			return t.row("SELECT hash FROM repeats WHERE namespace=? AND key=?", []any{ask.Namespace, ask.Key}, &hash)
		})
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	hash := stored()
	s = openTest(t, t.TempDir())
	if other := stored(); bytes.Equal(hash, other) || bytes.Equal(hash, ask.Hash[:]) || len(hash) != sha256.Size {
		t.Errorf("one request is %x with one key, and %x with another", hash, other)
	}
}

func TestRepeatables(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	now := time.Now()
	s.now = func() time.Time { return now }
	ask := Repeatable{Namespace: "ns", Key: "k", Hash: sha256.Sum256([]byte("body")), Resource: "id1"}
	begin := func(r Repeatable) *Earlier {
		t.Helper()
		e, err := s.BeginRepeatable(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	if e := begin(ask); e != nil {
		t.Fatalf("a new one: %+v", e)
	}
	if _, err := s.BeginRepeatable(t.Context(), ask); !errors.Is(err, sandpit.ErrState) || sandpit.Hint(err) == "" {
		t.Errorf("while it is carried out: %v", err)
	}
	other := ask
	other.Namespace = "other"
	if e := begin(other); e != nil {
		t.Errorf("of another namespace: %+v", e)
	}
	if err := s.FinishRepeatable(t.Context(), "ns", "k", "", 201, []byte("made")); err != nil {
		t.Fatal(err)
	}
	want := &Earlier{Resource: "id1", Answered: true, Status: 201, Response: []byte("made")}
	for range 2 {
		if diff := cmp.Diff(want, begin(ask)); diff != "" {
			t.Error(diff)
		}
	}
	changed := ask
	changed.Hash[0]++
	if _, err := s.BeginRepeatable(t.Context(), changed); !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "used for another request") {
		t.Errorf("another request with the key: %v", err)
	}

	// The server dies while the other is carried out.
	s.Close()
	s = openTest(t, dir)
	s.now = func() time.Time { return now }
	other.Resource = "id2"
	if diff := cmp.Diff(&Earlier{Resource: "id1"}, begin(other)); diff != "" {
		t.Error(diff)
	}
	if _, err := s.BeginRepeatable(t.Context(), other); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("it was taken over: %v", err)
	}
	if err := s.AbandonRepeatable(t.Context(), "other", "k"); err != nil {
		t.Fatal(err)
	}
	if e := begin(other); e != nil {
		t.Errorf("an abandoned one: %+v", e)
	}
	if err := s.FinishRepeatable(t.Context(), "other", "k", "", 201, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Earlier{Resource: "id2", Answered: true, Status: 201}, begin(other)); diff != "" {
		t.Error(diff)
	}

	// A day later.
	now = now.Add(repeatLife)
	if e := begin(ask); e != nil {
		t.Errorf("an expired one: %+v", e)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, "SELECT count(*) FROM repeats"); n != 1 {
		t.Errorf("%d are left", n)
	}
}

func TestRepeatablesAreBounded(t *testing.T) {
	s := openTest(t, t.TempDir())
	fill := fmt.Sprintf("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO repeats (namespace, key, hash, resource, expires) SELECT 'ns', 'old' || i, x'00', '', %d FROM n", maxRepeats, time.Now().Add(time.Hour).UnixNano())
	if _, err := s.tx.conn.ExecContext(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := s.BeginRepeatable(t.Context(), Repeatable{Namespace: "ns", Key: fmt.Sprint("new", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, s, "SELECT count(*) FROM repeats"); n != maxRepeats-trimRepeats+3 {
		t.Errorf("there are %d", n)
	}
	if n := count(t, s, "SELECT count(*) FROM repeats WHERE key='old1'"); n != 0 {
		t.Error("the oldest is still there")
	}
}

// However long the answers are that are forgotten, a transaction deletes few of them: nobody else can
// write meanwhile.
func TestLongAnswersAreForgottenByAndBy(t *testing.T) {
	s := openTest(t, t.TempDir())
	for _, namespace := range []string{"ns", "expired"} {
		expires := time.Now().Add(map[string]time.Duration{"ns": time.Hour, "expired": -time.Hour}[namespace])
		fill := fmt.Sprintf("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO repeats (namespace, key, hash, resource, status, response, expires) SELECT '%s', 'old' || i, x'00', '', 200, zeroblob(%d), %d FROM n", maxAnswers/(1<<20)+10, namespace, 1<<20, expires.UnixNano())
		if _, err := s.tx.conn.ExecContext(t.Context(), fill); err != nil {
			t.Fatal(err)
		}
	}
	const inNamespace = "SELECT count(*) FROM repeats WHERE namespace='ns'"
	before := count(t, s, inNamespace)
	for i := range 12 {
		if _, err := s.BeginRepeatable(t.Context(), Repeatable{Namespace: "ns", Key: fmt.Sprint("new", i)}); err != nil {
			t.Fatal(err)
		}
		now := count(t, s, inNamespace)
		if now < before-1 {
			t.Errorf("a request has forgotten %d answers of 1 MiB", before-now+1)
		}
		before = now
	}
	if n := count(t, s, "SELECT count(*) FROM repeats WHERE namespace='ns' AND response IS NOT NULL"); n > maxAnswers>>20 {
		t.Errorf("there are %d answers of 1 MiB", n)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, "SELECT count(*) FROM repeats WHERE namespace='expired'"); n != 0 {
		t.Errorf("%d are left that have expired", n)
	}
}

func count(t *testing.T, s *Store, query string) (n int) {
	t.Helper()
	if err := s.tx.conn.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
