package state

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// Previews outlive the server, but neither their time nor their sandbox nor their key. The secret
// stays the same.
func TestPreviews(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	begin := time.Unix(1_800_000_000, 1).UTC()
	s.now = func() time.Time { return begin }
	stays, goes := record(1), record(2)
	for _, err := range []error{
		s.PutSandbox(t.Context(), stays), s.PutSandbox(t.Context(), goes),
		s.PutKey(t.Context(), keys.Stored{Key: keys.Key{Prefix: "k1", CreatedAt: begin}}), s.PutKey(t.Context(), keys.Stored{Key: keys.Key{Prefix: "k2", CreatedAt: begin}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(id, sandbox, key string, life time.Duration) preview.Preview {
		t.Helper()
		p := preview.Preview{ID: id, Sandbox: sandbox, Port: 65535, Namespace: "a", Key: key, Name: "me", CreatedAt: begin, ExpiresAt: begin.Add(life)}
		if err := s.PutPreview(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := put("a", stays.ID, "k1", time.Hour)
	put("b", goes.ID, "k1", time.Hour)
	put("c", stays.ID, "k2", time.Hour)
	put("d", stays.ID, "k1", time.Hour)
	put("e", "unknown", "k1", time.Hour)
	put("f", stays.ID, "k1", time.Minute)
	for _, err := range []error{
		s.DeleteSandbox(t.Context(), goes.ID), s.RevokeKey(t.Context(), "k2", begin), s.DeletePreview(t.Context(), "d"), s.DeletePreview(t.Context(), "d"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	secret, tokens := string(s.PreviewSecret()), string(s.TokenSecret())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)
	defer s.Close()
	s.now = func() time.Time { return begin.Add(time.Minute) }
	got, err := s.Previews(t.Context())
	if diff := cmp.Diff([]preview.Preview{want}, got, cmpopts.IgnoreUnexported(preview.Preview{})); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if len(secret) != 32 || string(s.PreviewSecret()) != secret || len(tokens) != 32 || tokens == secret || string(s.TokenSecret()) != tokens {
		t.Errorf("the secret has changed, or has %d bytes", len(secret))
	}
	if err := s.PutPreview(t.Context(), preview.Preview{ID: "g", CreatedAt: begin, ExpiresAt: begin}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "e", "g"}, rows(t, dir, "SELECT id FROM previews ORDER BY id")); diff != "" {
		t.Errorf("after the next one: %s", diff)
	}
}
