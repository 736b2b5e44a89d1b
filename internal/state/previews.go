package state

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit/internal/preview"
)

var _ preview.Store = (*Store)(nil)

// PreviewSecret returns the secret with which previews are signed. It is derived from the state's
// key: whoever replaces that file ends all previews.
func (s *Store) PreviewSecret() []byte { return s.seal.previews }

// TokenSecret returns the secret with which access tokens of dialects are signed. It is derived as
// PreviewSecret is.
func (s *Store) TokenSecret() []byte { return s.seal.tokens }

// PutPreview adds a preview, and deletes those that have expired.
func (s *Store) PutPreview(ctx context.Context, p preview.Preview) error {
	return s.update(ctx, func(t *tx) error {
		if _, err := t.exec("DELETE FROM previews WHERE expires<=?", s.now().UnixNano()); err != nil {
			return err
		}
		_, err := t.exec("INSERT INTO previews (id, sandbox, port, namespace, key, name, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			p.ID, p.Sandbox, p.Port, p.Namespace, p.Key, p.Name, p.CreatedAt.UnixNano(), p.ExpiresAt.UnixNano())
		return err
	})
}

// DeletePreview deletes a preview. Deleting a missing one is a no-op.
func (s *Store) DeletePreview(ctx context.Context, id string) error {
	return s.updateVitally(ctx, func(t *tx) error {
		_, err := t.exec("DELETE FROM previews WHERE id=?", id)
		return err
	})
}

// Previews returns the previews that have not expired, of sandboxes that exist.
func (s *Store) Previews(ctx context.Context) ([]preview.Preview, error) {
	const query = "SELECT id, sandbox, port, namespace, key, name, created, expires FROM previews WHERE expires>? AND sandbox IN (SELECT id FROM sandboxes)"
	return list(ctx, s, query, func(scan scanner) (p preview.Preview, err error) {
		var created, expires int64
		err = scan(&p.ID, &p.Sandbox, &p.Port, &p.Namespace, &p.Key, &p.Name, &created, &expires)
		p.CreatedAt, p.ExpiresAt = time.Unix(0, created).UTC(), time.Unix(0, expires).UTC()
		return p, err
	}, s.now().UnixNano())
}
