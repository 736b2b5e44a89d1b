package server

import (
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/state"
	"github.com/sandpit-dev/sandpit/internal/webhook"
)

// hooks are the webhooks as the API uses them.
type hooks struct {
	store  *state.Store
	sender *webhook.Sender
}

func (h hooks) CreateWebhook(ctx context.Context, c gate.Caller, w v1.NewWebhook) (v1.Webhook, error) {
	hook := webhook.Hook{ID: newName(), Namespace: c.Namespace, URL: w.URL, Secret: w.Secret, CreatedAt: time.Now().UTC()}
	if hook.Secret == "" {
		hook.Secret = webhook.NewSecret()
	}
	for _, kind := range w.Kinds {
		hook.Kinds = append(hook.Kinds, sandpit.EventKind(kind))
	}
	if err := h.sender.Add(hook); err != nil {
		return v1.Webhook{}, fmt.Errorf("creating a webhook: %w", err)
	}
	if err := h.store.PutWebhook(ctx, hook); err != nil {
		h.sender.Remove(hook.ID)
		return v1.Webhook{}, err
	}
	out := webhookOf(hook)
	out.Secret = hook.Secret
	return out, nil
}

func webhookOf(h webhook.Hook) v1.Webhook {
	out := v1.Webhook{ID: h.ID, URL: h.URL, CreatedAt: h.CreatedAt}
	for _, kind := range h.Kinds {
		out.Kinds = append(out.Kinds, string(kind))
	}
	return out
}

func (h hooks) ListWebhooks(ctx context.Context, c gate.Caller) ([]v1.Webhook, error) {
	kept, err := h.store.WebhooksOf(ctx, c.Namespace)
	if err != nil {
		return nil, err
	}
	var out []v1.Webhook
	for _, hook := range kept {
		w := webhookOf(hook)
		status := h.sender.Status(hook.ID)
		w.Failures, w.LastError = status.Failures, status.LastError
		out = append(out, w)
	}
	return out, nil
}

func (h hooks) TestWebhook(ctx context.Context, c gate.Caller, id string) (v1.WebhookTest, error) {
	t, err := h.sender.Test(ctx, c.Namespace, id)
	if err != nil {
		return v1.WebhookTest{}, err
	}
	out := v1.WebhookTest{Delivered: t.Err == nil, Status: t.Status, Took: v1.Seconds(t.Took)}
	if t.Err != nil {
		out.Error = t.Err.Error()
	}
	return out, nil
}

func (h hooks) DeleteWebhook(ctx context.Context, c gate.Caller, id string) error {
	if err := h.store.DeleteWebhook(ctx, c.Namespace, id); err != nil {
		return err
	}
	h.sender.Remove(id)
	return nil
}
