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
	binding, sealed, err := s.encodeSecret(x)
	if err != nil {
		return secret.Secret{}, err
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
			x.Namespace, x.Name, binding, sealed, x.CreatedAt.UnixNano(), x.RotatedAt.UnixNano())
		if err != nil {
			return err
		}
		x, err = secretIn(t, x.Namespace, x.Name, nil)
		return err
	})
	return x, err
}

// described is what the database has of a secret in clear.
type described struct {
	secret.Binding
	Login *secret.Login `json:",omitempty"`
}

// structured is the value of a secret with a Login before it is sealed. That of another is the value alone.
type structured struct {
	Value string
	Grant *secret.Grant
}

// encodeSecret returns what the database has of a secret.
func (s *Store) encodeSecret(x secret.Secret) (binding string, sealed []byte, err error) {
	text, err := json.Marshal(described{x.Binding, x.Login})
	value := x.Value
	if x.Login != nil && err == nil {
		var whole []byte
		whole, err = json.Marshal(structured{x.Value, x.Grant})
		value = string(whole)
	}
	if err != nil {
		return "", nil, fmt.Errorf("storing the secret %s: %w", x.Name, err)
	}
	return string(text), s.seal.seal(value, secretOwner(x.Namespace, x.Name)), nil
}

// RotateSecret replaces the value of a secret, also one of a login, which is then none any more. It returns
// ErrNotFound if there is none, and the secret as it is stored, without the value.
func (s *Store) RotateSecret(ctx context.Context, namespace, name, value string, at time.Time) (x secret.Secret, err error) {
	err = s.update(ctx, func(t *tx) error {
		if x, err = secretIn(t, namespace, name, nil); err != nil {
			return err
		}
		x.RotatedAt, x.Login, x.Value = at.UTC(), nil, value
		if err := x.Check(); err != nil {
			return err
		}
		return s.writeSecret(t, x)
	})
	x.Value = ""
	return x, err
}

func (s *Store) writeSecret(t *tx, x secret.Secret) error {
	binding, sealed, err := s.encodeSecret(x)
	if err != nil {
		return err
	}
	_, err = t.exec("UPDATE stored_secrets SET binding=?, value=?, rotated=? WHERE namespace=? AND name=?", binding, sealed, x.RotatedAt.UnixNano(), x.Namespace, x.Name)
	return err
}

// RenewSecret replaces a secret of a login, which had got its value at a time. If it was replaced or removed
// meanwhile, RenewSecret changes nothing and returns false.
func (s *Store) RenewSecret(ctx context.Context, x secret.Secret, was time.Time) (renewed bool, err error) {
	err = s.updateVitally(ctx, func(t *tx) error { // or a refresh token that is valid once would be lost
		now, err := secretIn(t, x.Namespace, x.Name, nil)
		if errors.Is(err, sandpit.ErrNotFound) {
			return nil
		}
		if renewed = err == nil && now.RotatedAt.Equal(was); !renewed {
			return err
		}
		return s.writeSecret(t, x)
	})
	return renewed && err == nil, err
}

// Logins returns the secrets of all namespaces that have a Login, without their values.
func (s *Store) Logins(ctx context.Context) ([]secret.Secret, error) {
	return list(ctx, s, "SELECT namespace, name, binding, created, rotated FROM stored_secrets WHERE json_extract(binding, '$.Login') IS NOT NULL", func(scan scanner) (secret.Secret, error) {
		return scanSecret(scan)
	})
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
	if err == nil && x.Login != nil {
		var whole structured
		if json.Unmarshal([]byte(x.Value), &whole) != nil { // whose error may have a part of it
			return secret.Secret{}, fault.Errorf(sandpit.ErrIntegrity, "reading the secret %s: it is not valid JSON", x.Name)
		}
		x.Value, x.Grant = whole.Value, whole.Grant
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
	var d described
	if err := json.Unmarshal([]byte(binding), &d); err != nil {
		return x, fmt.Errorf("reading the secret %s: %w: %w", x.Name, sandpit.ErrIntegrity, err)
	}
	x.Binding, x.Login = d.Binding, d.Login
	return x, nil
}
