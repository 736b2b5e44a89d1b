package state

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/keys"
)

var _ keys.Store = (*Store)(nil)

// nano is a time as it is stored: nil for none.
func nano(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixNano()
}

func timeOf(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.Unix(0, n.Int64).UTC()
}

// PutKey adds a key. It returns ErrExists if there is one with its prefix.
func (s *Store) PutKey(ctx context.Context, k keys.Stored) error {
	return s.update(ctx, func(t *tx) error {
		_, err := t.exec("INSERT INTO keys (prefix, hash, namespace, policy, admin, label, created, expires, revoked, used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			k.Prefix, k.Hash[:], k.Namespace, k.Policy, k.Admin, k.Label, k.CreatedAt.UnixNano(), nano(k.ExpiresAt), nano(k.RevokedAt), nano(k.UsedAt))
		if isTaken(err) {
			return fmt.Errorf("adding the key %s: %w", k.Prefix, sandpit.ErrExists)
		}
		return err
	})
}

// Keys returns all keys, oldest first.
func (s *Store) Keys(ctx context.Context) ([]keys.Stored, error) {
	return list(ctx, s, "SELECT prefix, hash, namespace, policy, admin, label, created, expires, revoked, used FROM keys ORDER BY created, prefix", func(scan scanner) (keys.Stored, error) {
		var (
			k                               keys.Stored
			hash                            []byte
			created, expires, revoked, used sql.NullInt64
		)
		if err := scan(&k.Prefix, &hash, &k.Namespace, &k.Policy, &k.Admin, &k.Label, &created, &expires, &revoked, &used); err != nil {
			return k, err
		}
		if len(hash) != sha256.Size {
			return k, fault.Errorf(sandpit.ErrIntegrity, "the key %s has no hash", k.Prefix)
		}
		k.Hash = [sha256.Size]byte(hash)
		k.CreatedAt, k.ExpiresAt, k.RevokedAt, k.UsedAt = timeOf(created), timeOf(expires), timeOf(revoked), timeOf(used)
		return k, nil
	})
}

// RevokeKey records that a key was revoked. Revoking it again is a no-op. It returns
// ErrNotFound if there is no such key.
func (s *Store) RevokeKey(ctx context.Context, prefix string, at time.Time) error {
	return s.updateVitally(ctx, func(t *tx) error {
		res, err := t.exec("UPDATE keys SET revoked=coalesce(revoked, ?) WHERE prefix=?", at.UnixNano(), prefix)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("revoking the key %.20q: %w", prefix, sandpit.ErrNotFound)
		}
		return nil
	})
}

// TouchKeys records when keys were last used, by prefix.
func (s *Store) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	return s.update(ctx, func(t *tx) error {
		for prefix, at := range used {
			if _, err := t.exec("UPDATE keys SET used=? WHERE prefix=?", at.UnixNano(), prefix); err != nil {
				return err
			}
		}
		return nil
	})
}

// DeleteKeys deletes keys. Deleting a missing one is a no-op.
func (s *Store) DeleteKeys(ctx context.Context, prefixes []string) error {
	return s.updateVitally(ctx, func(t *tx) error {
		for _, prefix := range prefixes {
			if _, err := t.exec("DELETE FROM keys WHERE prefix=?", prefix); err != nil {
				return err
			}
		}
		return nil
	})
}
