package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/webhook"
)

func TestWebhooks(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	var want []webhook.Hook
	for i := range maxWebhooks {
		h := webhook.Hook{ID: fmt.Sprintf("hook%02d", i), Namespace: "ns", URL: "https://example.com", Secret: webhook.NewSecret(), CreatedAt: time.Unix(1, int64(i)).UTC()}
		if i%2 == 0 {
			h.Kinds = []sandpit.EventKind{sandpit.EventCreated}
		}
		if err := s.PutWebhook(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		want = append(want, h)
	}
	if err := s.PutWebhook(t.Context(), webhook.Hook{ID: "more", Namespace: "ns"}); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("one too many: %v", err)
	}
	if err := s.PutWebhook(t.Context(), webhook.Hook{ID: "hook00", Namespace: "other"}); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("the same again: %v", err)
	}
	got, err := s.Webhooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := s.DeleteWebhook(t.Context(), "other", "hook00"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("another namespace's: %v", err)
	}
	if err := s.DeleteWebhook(t.Context(), "ns", "hook00"); err != nil {
		t.Error(err)
	}
	s.Close()

	// G5: a copy of the database tells no secret, and can't be read with another key.
	data, err := os.ReadFile(filepath.Join(dir, fileDatabase))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range want {
		if strings.Contains(string(data), strings.TrimPrefix(h.Secret, "whsec_")) {
			t.Fatal("a secret is in the database")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fileSeal), make([]byte, sealKeyLen), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)
	if _, err := s.Webhooks(t.Context()); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("with another key: %v", err)
	}

	// Those of a namespace are told without their secrets, which need not be opened.
	want = want[1:]
	for i := range want {
		want[i].Secret = ""
	}
	if got, err = s.WebhooksOf(t.Context(), "ns"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err = s.WebhooksOf(t.Context(), "other"); err != nil || len(got) > 0 {
		t.Errorf("another namespace: %v, %v", got, err)
	}
}
