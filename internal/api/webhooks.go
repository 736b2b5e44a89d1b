package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func webhookRoutes() []Route {
	const tag = "Events"
	return []Route{
		{Method: http.MethodPost, Path: "/v1/webhooks", ID: "createWebhook", ShowsSecret: true, Tag: tag, Summary: "Create a webhook, which sends events to a URL", In: v1.NewWebhook{}, Status: http.StatusCreated, Out: v1.Webhook{}, Guarded: true, Fails: []string{errcode.Exists, errcode.QuotaExceeded}, handle: fromJSON(createWebhook)},
		{Method: http.MethodGet, Path: "/v1/webhooks", ID: "listWebhooks", Tag: tag, Summary: "List webhooks", Query: pageParams(), Status: http.StatusOK, Out: v1.WebhookList{}, handle: listOf(listWebhooks, webhookPosition, func(part []v1.Webhook, next string) v1.WebhookList { return v1.WebhookList{Webhooks: part, Next: next} })},
		{Method: http.MethodPost, Path: "/v1/webhooks/{id}/test", ID: "testWebhook", Tag: tag, Summary: "Send a test message to a webhook", Text: "The message has the type webhook.test, and is sent once. A namespace can make one test per second.", Status: http.StatusOK, Out: v1.WebhookTest{}, Guarded: true, handle: asJSON(testWebhook)},
		{Method: http.MethodDelete, Path: "/v1/webhooks/{id}", ID: "removeWebhook", Tag: tag, Summary: "Remove a webhook", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(removeWebhook)},
	}
}

// Webhooks manages the URLs to which events are sent.
type Webhooks interface {
	CreateWebhook(ctx context.Context, c gate.Caller, w v1.NewWebhook) (v1.Webhook, error)
	ListWebhooks(ctx context.Context, c gate.Caller) ([]v1.Webhook, error)
	TestWebhook(ctx context.Context, c gate.Caller, id string) (v1.WebhookTest, error)
	DeleteWebhook(ctx context.Context, c gate.Caller, id string) error
}

func createWebhook(c *call, in *v1.NewWebhook) (v1.Webhook, error) {
	hook, err := c.api.opts.Webhooks.CreateWebhook(c.Ctx, c.Caller, *in)
	if err == nil {
		c.Detail = "webhook " + hook.ID // for the audit
	}
	return hook, err
}

func listWebhooks(c *call) ([]v1.Webhook, error) {
	return c.api.opts.Webhooks.ListWebhooks(c.Ctx, c.Caller)
}

func webhookPosition(w v1.Webhook) string { return byTime(w.CreatedAt, w.ID) }

func testWebhook(c *call) (v1.WebhookTest, error) {
	return c.api.opts.Webhooks.TestWebhook(c.Ctx, c.Caller, c.R.PathValue("id"))
}

func removeWebhook(c *call) error {
	err := c.api.opts.Webhooks.DeleteWebhook(c.Ctx, c.Caller, c.R.PathValue("id"))
	if errors.Is(err, sandpit.ErrNotFound) {
		return c.Untouched(err)
	}
	return err
}
