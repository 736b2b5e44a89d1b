package state

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

var _ engine.Store = (*Store)(nil)

// maxRecord bounds the engine's own part of a record, in bytes: far above what
// the largest Spec needs.
const maxRecord = 32 << 20

// PutSandbox writes a record, or replaces the one with the same ID. Its secret, which may be
// large, is written once, and when it is new: see engine.Record. PutSandbox returns ErrExists if another sandbox of
// the namespace has the name.
func (s *Store) PutSandbox(ctx context.Context, r engine.Record) error {
	if r.ID == "" || r.Name == "" || len(r.Data)+len(r.Secret) > maxRecord {
		return fault.Errorf(sandpit.ErrInvalid, "recording the sandbox %.80q: it has no id or name, or is longer than %d bytes", r.ID, maxRecord)
	}
	data := []byte(r.Data)
	if data == nil {
		data = []byte{}
	}
	update := s.update
	switch r.State {
	case sandpit.StateCreating: // nobody was told of it
		update = s.updateLazily
	case sandpit.StateStopped, sandpit.StateFailed:
		update = s.updateVitally
	}
	return update(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO sandboxes (id, namespace, name, state, created, data) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET namespace=excluded.namespace, name=excluded.name, state=excluded.state, created=excluded.created, data=excluded.data`,
			r.ID, r.Namespace, r.Name, string(r.State), r.CreatedAt.UnixNano(), data)
		if isTaken(err) {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrExists, "recording the sandbox %s: another sandbox has that name", r.Name), "choose another name, or omit it")
		}
		if err != nil || r.Secret == nil {
			return err
		}
		var has int
		if err := t.row("SELECT count(*) FROM secrets WHERE sandbox=?", []any{r.ID}, &has); err != nil || has > 0 && !r.NewSecret {
			return err
		}
		_, err = t.exec("INSERT OR REPLACE INTO secrets (sandbox, secret) VALUES (?, ?)", r.ID, s.seal.seal(string(r.Secret), "sandbox "+r.ID))
		return err
	})
}

// DeleteSandbox removes a record. Deleting a missing one is a no-op.
func (s *Store) DeleteSandbox(ctx context.Context, id string) error {
	return s.updateVitally(ctx, func(t *tx) error {
		_, err := t.exec("DELETE FROM sandboxes WHERE id=?", id)
		return err
	})
}

// Sandboxes returns all records, oldest first. A secret that was sealed with another
// key is lost.
func (s *Store) Sandboxes(ctx context.Context) ([]engine.Record, error) {
	return list(ctx, s, "SELECT id, namespace, name, state, created, data, secret FROM sandboxes LEFT JOIN secrets ON sandbox=id ORDER BY created, seq", func(scan scanner) (engine.Record, error) {
		var (
			r       engine.Record
			created int64
			sealed  []byte
		)
		err := scan(&r.ID, &r.Namespace, &r.Name, (*string)(&r.State), &created, (*[]byte)(&r.Data), &sealed)
		r.CreatedAt = time.Unix(0, created)
		if sealed != nil {
			if text, err := s.seal.open(sealed, "sandbox "+r.ID); err == nil {
				r.Secret = []byte(text)
			}
		}
		return r, err
	})
}

type scanner func(into ...any) error

// list returns what a query finds, each row read by one.
func list[T any](ctx context.Context, s *Store, query string, one func(scanner) (T, error), args ...any) ([]T, error) {
	var all []T
	err := s.view(ctx, func(t *tx) error {
		rows, err := t.conn.QueryContext(context.Background(), query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			v, err := one(rows.Scan)
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
