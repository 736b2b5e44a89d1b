package api

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func createWebhook(c *call, in *v1.NewWebhook) (v1.Webhook, error) {
	hook, err := c.api.opts.Webhooks.CreateWebhook(c.Ctx, c.Caller, *in)
	if err == nil {
		c.Detail = "webhook " + hook.ID // for the audit
	}
	return hook, err
}

func listWebhooks(c *call) (v1.WebhookList, error) {
	all, err := c.api.opts.Webhooks.ListWebhooks(c.Ctx, c.Caller)
	return v1.WebhookList{Webhooks: list(all)}, err
}

func deleteWebhook(c *call) error {
	err := c.api.opts.Webhooks.DeleteWebhook(c.Ctx, c.Caller, c.R.PathValue("id"))
	if errors.Is(err, sandpit.ErrNotFound) {
		return c.Untouched(err)
	}
	return err
}

// list is a list that JSON shows as one also when it is empty.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func listImages(c *call) (v1.ImageList, error) {
	all, err := c.api.opts.Backend.Images(c.Ctx, c.Caller)
	return v1.ImageList{Images: list(all)}, err
}

func pullImage(c *call, in *v1.Pull) (v1.Image, error) {
	if in.Image == "" {
		return v1.Image{}, invalid("the image is missing", "set image")
	}
	pull := sandpit.PullPolicy(in.Pull)
	switch pull {
	case "":
		pull = sandpit.PullAlways
	case sandpit.PullAlways, sandpit.PullMissing:
	default:
		return v1.Image{}, invalid("pull must be missing or always", "")
	}
	if err := c.OpenStream(); err != nil {
		return v1.Image{}, err
	}
	return c.api.opts.Backend.PullImage(c.Ctx, c.Caller, in.Image, pull)
}

func removeImage(c *call) error {
	q := c.query()
	if q.err != nil {
		return q.err
	}
	if err := c.Intend("image " + q.text("image")); err != nil {
		return err
	}
	return c.api.opts.Backend.RemoveImage(c.Ctx, c.Caller, q.text("image"))
}

func getPolicy(c *call) (v1.Policy, error) {
	return c.api.opts.Policies.Policy(c.Ctx, c.Caller)
}

func getKeyPolicy(c *call) (v1.Policy, error) {
	return c.api.opts.Policies.KeyPolicy(c.Ctx, c.R.PathValue("id"))
}

func createKey(c *call, in *v1.NewKey) (v1.Key, error) {
	key, err := c.api.opts.Keys.CreateKey(c.Ctx, c.Caller, *in)
	if err == nil {
		c.Detail += "; key " + key.ID // for the audit
	}
	return key, err
}

func listKeys(c *call) (v1.KeyList, error) {
	all, err := c.api.opts.Keys.ListKeys(c.Ctx)
	return v1.KeyList{Keys: list(all)}, err
}

func revokeKey(c *call) error {
	id := c.R.PathValue("id")
	err := c.api.opts.Keys.RevokeKey(c.Ctx, id)
	if errors.Is(err, sandpit.ErrNotFound) {
		return c.Untouched(err)
	}
	c.api.gate.Revoke(id, c.Call) // it is refused also when that can't be written down
	return err
}

func getCapabilities(c *call) (v1.Capabilities, error) {
	caps, err := c.api.opts.Backend.Capabilities(c.Ctx)
	caps.Features = list(caps.Features)
	return caps, err
}

func getVersion(c *call) (v1.Version, error) {
	return v1.Version{Version: c.api.opts.Version, API: "v1", OS: runtime.GOOS, Arch: runtime.GOARCH}, nil
}

// getHealth answers 200 while sandboxes can be made, as far as is known. A server
// that drains refuses the request.
func getHealth(c *call) error {
	n, blocked := c.api.opts.Backend.Stuck()
	switch {
	case blocked:
		return c.answer(http.StatusServiceUnavailable, v1.Health{Status: "unavailable", Stuck: n})
	case n > 0:
		return c.answer(http.StatusOK, v1.Health{Status: "degraded", Stuck: n})
	}
	return c.answer(http.StatusOK, v1.Health{Status: "ok"})
}

// statsTime is how long /metrics waits for the figures of sandboxes.
const statsTime = 5 * time.Second

func showMetrics(c *call) error {
	ctx, cancel := context.WithTimeout(c.Ctx, statsTime)
	defer cancel()
	stats, err := c.api.opts.Backend.Stats(ctx, maxSeries)
	if err != nil {
		return err
	}
	c.W.Header().Set("Content-Type", metricsType)
	_, err = c.W.Write(c.api.metricsPage(stats))
	return err
}
