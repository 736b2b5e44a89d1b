package state

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/webhook"
)

// maxWebhooks bounds the webhooks of a namespace.
const maxWebhooks = 32

// PutWebhook adds a webhook. It returns ErrExists if there is one with its ID, and
// ErrQuota if the namespace has 32.
func (s *Store) PutWebhook(ctx context.Context, h webhook.Hook) error {
	kinds, err := json.Marshal(h.Kinds)
	if err != nil {
		return fmt.Errorf("adding the webhook %s: %w", h.ID, err)
	}
	return s.update(ctx, func(t *tx) error {
		var count int
		if err := t.row("SELECT count(*) FROM webhooks WHERE namespace=?", []any{h.Namespace}, &count); err != nil {
			return err
		}
		if count >= maxWebhooks {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "adding a webhook: the limit of %d webhooks is reached", count), "remove a webhook first")
		}
		_, err := t.exec("INSERT INTO webhooks (id, namespace, url, secret, kinds, created) VALUES (?, ?, ?, ?, ?, ?)",
			h.ID, h.Namespace, h.URL, s.seal.seal(h.Secret, "webhook "+h.ID), string(kinds), h.CreatedAt.UnixNano())
		if isTaken(err) {
			return fmt.Errorf("adding the webhook %s: %w", h.ID, sandpit.ErrExists)
		}
		return err
	})
}

// DeleteWebhook removes a webhook of a namespace. It returns ErrNotFound if there is none.
func (s *Store) DeleteWebhook(ctx context.Context, namespace, id string) error {
	return s.updateVitally(ctx, func(t *tx) error {
		res, err := t.exec("DELETE FROM webhooks WHERE namespace=? AND id=?", namespace, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("removing the webhook %.40q: %w", id, sandpit.ErrNotFound)
		}
		return nil
	})
}

// Webhooks returns the webhooks of all namespaces with their secrets, oldest first. It
// returns ErrIntegrity if a secret can't be opened.
func (s *Store) Webhooks(ctx context.Context) ([]webhook.Hook, error) {
	return list(ctx, s, "SELECT id, namespace, url, kinds, created, secret FROM webhooks ORDER BY created, id", func(scan scanner) (webhook.Hook, error) {
		var sealed []byte
		h, err := scanWebhook(scan, &sealed)
		if err == nil {
			h.Secret, err = s.seal.open(sealed, "webhook "+h.ID)
		}
		return h, err
	})
}

// WebhooksOf returns the webhooks of a namespace, oldest first, without their
// secrets.
func (s *Store) WebhooksOf(ctx context.Context, namespace string) ([]webhook.Hook, error) {
	return list(ctx, s, "SELECT id, namespace, url, kinds, created FROM webhooks WHERE namespace=? ORDER BY created, id", func(scan scanner) (webhook.Hook, error) {
		return scanWebhook(scan)
	}, namespace)
}

// scanWebhook reads a webhook, and further columns.
func scanWebhook(scan scanner, more ...any) (h webhook.Hook, err error) {
	var (
		kinds   string
		created int64
	)
	if err := scan(append([]any{&h.ID, &h.Namespace, &h.URL, &kinds, &created}, more...)...); err != nil {
		return h, err
	}
	h.CreatedAt = time.Unix(0, created).UTC()
	if err := json.Unmarshal([]byte(kinds), &h.Kinds); err != nil {
		return h, fmt.Errorf("reading the webhook %s: %w: %w", h.ID, sandpit.ErrIntegrity, err)
	}
	return h, nil
}
