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
	"github.com/sandpit-dev/sandpit/internal/secret"
)

func TestSecrets(t *testing.T) {
	const value, rotated = "the-value-of-this-secret", "the-rotated-value"
	dir := t.TempDir()
	s := openTest(t, dir)
	at := time.Unix(5, 6).UTC()
	x := secret.Secret{
		Namespace: "ns", Name: "x", Value: value, CreatedAt: at, RotatedAt: at,
		Binding: secret.Binding{Service: "openai", Variables: []string{"A"}, Hosts: []string{"example.com"}, Prefix: "sk-", Query: true, Body: true},
	}
	described := x
	described.Value = ""
	if got, err := s.PutSecret(t.Context(), x); err != nil || cmp.Diff(described, got) != "" {
		t.Errorf("put: %+v, %v", got, err)
	}
	other := x
	other.Namespace, other.Value = "", "the-value-of-the-server"
	if _, err := s.PutSecret(t.Context(), other); err != nil {
		t.Error(err)
	}
	if got, err := s.Secret(t.Context(), "ns", "x"); err != nil || cmp.Diff(x, got) != "" {
		t.Errorf("read: %+v, %v", got, err)
	}

	later := at.Add(time.Hour)
	got, err := s.RotateSecret(t.Context(), "ns", "x", rotated, later)
	if err != nil || got.Value != "" || !got.RotatedAt.Equal(later) {
		t.Errorf("rotated: %+v, %v", got, err)
	}
	if got, err := s.Secret(t.Context(), "ns", "x"); err != nil || got.Value != rotated || got.CreatedAt != at || got.RotatedAt != later {
		t.Errorf("read when rotated: %+v, %v", got, err)
	}
	if got, err := s.Secret(t.Context(), "", "x"); err != nil || got.Value != other.Value {
		t.Errorf("the server's: %+v, %v", got, err)
	}
	x.Hosts, x.CreatedAt = []string{"example.org"}, later
	if got, err := s.PutSecret(t.Context(), x); err != nil || got.Hosts[0] != "example.org" || got.CreatedAt != at {
		t.Errorf("replaced: %+v, %v", got, err)
	}

	for i := range maxSecrets - 1 {
		if _, err := s.PutSecret(t.Context(), secret.Secret{Namespace: "ns", Name: fmt.Sprintf("more%03d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.PutSecret(t.Context(), secret.Secret{Namespace: "ns", Name: "one-more", Value: value}); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := s.PutSecret(t.Context(), x); err != nil {
		t.Errorf("replaced while there is no room: %v", err)
	}
	if all, err := s.SecretsOf(t.Context(), "ns"); err != nil || len(all) != maxSecrets || all[0].Name != "more000" || all[0].Value != "" {
		t.Errorf("listed: %d, %v", len(all), err)
	}
	s.Close()

	// A copy of the database tells no value, and can't be read with another key.
	for _, name := range []string{fileDatabase, fileDatabase + "-wal"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, v := range []string{value, rotated, other.Value} {
			if strings.Contains(string(data), v) {
				t.Errorf("a value is in %s", name)
			}
		}
	}
	// No sealed value can take the place of another.
	s = openTest(t, dir)
	if err := s.update(t.Context(), func(t *tx) error {
		_, err := t.exec("UPDATE stored_secrets SET value=(SELECT value FROM stored_secrets WHERE namespace='') WHERE namespace='ns' AND name='x'")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Secret(t.Context(), "ns", "x"); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("with another's value: %v", err)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, fileSeal), make([]byte, sealKeyLen), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)
	if _, err := s.Secret(t.Context(), "", "x"); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("with another key: %v", err)
	}
	if err := s.DeleteSecret(t.Context(), "ns", "x"); err != nil {
		t.Errorf("removed with another key: %v", err)
	}
	missing := func(about string, err error) {
		t.Helper()
		if !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("%s: %v", about, err)
		}
	}
	missing("removed twice", s.DeleteSecret(t.Context(), "ns", "x"))
	_, err = s.Secret(t.Context(), "ns", "x")
	missing("read when removed", err)
	_, err = s.RotateSecret(t.Context(), "ns", "x", value, later)
	missing("rotated when removed", err)
}
