package state

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/secret"
)

// maxSecrets bounds the secrets of a namespace.
const maxSecrets = 256

func secretOwner(namespace, name string) string {
	return "secret " + strconv.Quote(namespace) + " " + strconv.Quote(name)
}

// PutSecret adds a secret, or replaces the one of its namespace with its name, which keeps its
// CreatedAt. It returns ErrQuota if the namespace has 256, and the secret as it is stored, without
// the value.
func (s *Store) PutSecret(ctx context.Context, x secret.Secret) (secret.Secret, error) {
	binding, err := json.Marshal(x.Binding)
	if err != nil {
		return secret.Secret{}, fmt.Errorf("storing the secret %s: %w", x.Name, err)
	}
	err = s.update(ctx, func(t *tx) error {
		var count int
		if err := t.row("SELECT count(*) FROM stored_secrets WHERE namespace=? AND name<>?", []any{x.Namespace, x.Name}, &count); err != nil {
			return err
		}
		if count >= maxSecrets {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "storing a secret: the limit of %d secrets is reached", count), "remove a secret first")
		}
		_, err := t.exec(`INSERT INTO stored_secrets (namespace, name, binding, value, created, rotated) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (namespace, name) DO UPDATE SET binding=excluded.binding, value=excluded.value, rotated=excluded.rotated`,
			x.Namespace, x.Name, string(binding), s.seal.seal(x.Value, secretOwner(x.Namespace, x.Name)), x.CreatedAt.UnixNano(), x.RotatedAt.UnixNano())
		if err != nil {
			return err
		}
		x, err = secretIn(t, x.Namespace, x.Name, nil)
		return err
	})
	return x, err
}

// RotateSecret replaces the value of a secret. It returns ErrNotFound if there is none, and the
// secret as it is stored, without the value.
func (s *Store) RotateSecret(ctx context.Context, namespace, name, value string, at time.Time) (x secret.Secret, err error) {
	err = s.update(ctx, func(t *tx) error {
		if x, err = secretIn(t, namespace, name, nil); err != nil {
			return err
		}
		x.RotatedAt = at.UTC()
		_, err := t.exec("UPDATE stored_secrets SET value=?, rotated=? WHERE namespace=? AND name=?", s.seal.seal(value, secretOwner(namespace, name)), at.UnixNano(), namespace, name)
		return err
	})
	return x, err
}

// DeleteSecret removes a secret. It returns ErrNotFound if there is none.
func (s *Store) DeleteSecret(ctx context.Context, namespace, name string) error {
	return s.updateVitally(ctx, func(t *tx) error {
		res, err := t.exec("DELETE FROM stored_secrets WHERE namespace=? AND name=?", namespace, name)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return noSecret(name)
		}
		return nil
	})
}

// Secret returns a secret of a namespace, with its value. It returns ErrNotFound if there is none,
// and ErrIntegrity if the value can't be opened.
func (s *Store) Secret(ctx context.Context, namespace, name string) (x secret.Secret, err error) {
	var sealed []byte
	err = s.view(ctx, func(t *tx) (err error) {
		x, err = secretIn(t, namespace, name, &sealed)
		return err
	})
	if err == nil {
		x.Value, err = s.seal.open(sealed, secretOwner(namespace, name))
	}
	return x, err
}

// SecretsOf returns the secrets of a namespace by their names, without their values.
func (s *Store) SecretsOf(ctx context.Context, namespace string) ([]secret.Secret, error) {
	return list(ctx, s, "SELECT namespace, name, binding, created, rotated FROM stored_secrets WHERE namespace=? ORDER BY name", func(scan scanner) (secret.Secret, error) {
		return scanSecret(scan)
	}, namespace)
}

// secretIn returns a secret, and its sealed value if that is wanted.
func secretIn(t *tx, namespace, name string, sealed *[]byte) (secret.Secret, error) {
	if sealed == nil {
		sealed = new([]byte)
	}
	x, err := scanSecret(func(into ...any) error {
		return t.row("SELECT namespace, name, binding, created, rotated, value FROM stored_secrets WHERE namespace=? AND name=?", []any{namespace, name}, into...)
	}, sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return x, noSecret(name)
	}
	return x, err
}

func noSecret(name string) error {
	return fault.Errorf(sandpit.ErrNotFound, "no secret is named %q", fault.Clip(name))
}

// scanSecret reads a secret without its value, and further columns.
func scanSecret(scan scanner, more ...any) (x secret.Secret, err error) {
	var (
		binding          string
		created, rotated int64
	)
	if err := scan(append([]any{&x.Namespace, &x.Name, &binding, &created, &rotated}, more...)...); err != nil {
		return x, err
	}
	x.CreatedAt, x.RotatedAt = time.Unix(0, created).UTC(), time.Unix(0, rotated).UTC()
	if err := json.Unmarshal([]byte(binding), &x.Binding); err != nil {
		return x, fmt.Errorf("reading the secret %s: %w: %w", x.Name, sandpit.ErrIntegrity, err)
	}
	return x, nil
}
