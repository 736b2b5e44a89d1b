package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// maxIdempotencyKey bounds the key of a request that may be sent again, in bytes.
const maxIdempotencyKey = 255

// createSandbox makes a sandbox, once for each Idempotency-Key.
func createSandbox(c *call) error {
	in := new(v1.Spec)
	if err := c.decode(in, maxBody); err != nil {
		return err
	}
	if err := c.intendFor(in); err != nil {
		return err
	}
	key := c.r.Header.Get("Idempotency-Key")
	if key == "" {
		out, err := c.create(c.ctx, in)
		if err != nil {
			return err
		}
		return c.created(out)
	}
	if len(key) > maxIdempotencyKey {
		return invalid("the Idempotency-Key is longer than 255 bytes", "a random UUID is good")
	}
	return c.createOnce(key, in)
}

func (c *call) create(ctx context.Context, in *v1.Spec) (v1.Sandbox, error) {
	began := time.Now()
	sb, err := c.api.opts.Backend.Client(c.caller).Create(ctx, in.Sandpit())
	code := ""
	if err != nil {
		code = v1.CodeOf(err)
	}
	c.api.metrics.created(code, time.Since(began))
	if err != nil {
		return v1.Sandbox{}, err
	}
	c.target = sb.ID() // for the audit
	return describe(ctx, sb)
}

func (c *call) created(out v1.Sandbox) error {
	c.w.Header().Set("Location", sandboxes+"/"+out.ID)
	return c.answer(http.StatusCreated, out)
}

// createOnce carries a request out unless one with the key has been. The
// sandbox gets its name here if it has none, so that it can be found if the
// server dies between making it and noting the answer.
func (c *call) createOnce(key string, in *v1.Spec) error {
	asked, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = newRequestID()
	}
	store := c.api.opts.Idempotency
	earlier, err := store.Begin(c.ctx, Repeatable{Namespace: c.caller.Namespace, Key: key, Hash: sha256.Sum256(asked), Resource: in.Name})
	switch {
	case errors.Is(err, sandpit.ErrInvalid):
		return &refusal{status: http.StatusUnprocessableEntity, code: v1.CodeIdempotencyMismatch, message: "the Idempotency-Key was used for another request", hint: "use a new key for each request"}
	case errors.Is(err, sandpit.ErrState):
		return &sandpit.RetryError{Err: err, After: time.Second}
	case err != nil:
		return err
	case earlier != nil && earlier.Answered && earlier.Response != nil:
		c.w.Header().Set("Idempotent-Replayed", "true")
		c.writeJSON(earlier.Status, earlier.Response)
		return nil
	case earlier != nil:
		in.Name = earlier.Resource
		if sb, err := c.api.opts.Backend.Client(c.caller).Get(c.ctx, in.Name); err == nil {
			return c.replay(store, key, sb, earlier.Answered)
		} else if earlier.Answered {
			return err // it was made, and is gone
		}
	}
	// The store must hear how it went also when the client has left.
	ctx := context.WithoutCancel(c.ctx)
	out, err := c.create(c.ctx, in)
	if err != nil {
		return errors.Join(err, store.Abandon(ctx, c.caller.Namespace, key))
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	if err := store.Finish(ctx, c.caller.Namespace, key, http.StatusCreated, append(body, '\n')); err != nil {
		c.api.opts.Log.Error("an answer can't be kept", "request", c.id, "error", err)
	}
	return c.created(out)
}

// replay answers with a sandbox that an earlier request has made.
func (c *call) replay(store Idempotency, key string, sb sandpit.Sandbox, answered bool) error {
	out, err := describe(c.ctx, sb)
	if err != nil {
		return err
	}
	if !answered {
		body, err := json.Marshal(out)
		if err != nil {
			return err
		}
		if err := store.Finish(context.WithoutCancel(c.ctx), c.caller.Namespace, key, http.StatusCreated, append(body, '\n')); err != nil {
			return err
		}
	}
	c.w.Header().Set("Idempotent-Replayed", "true")
	return c.created(out)
}
