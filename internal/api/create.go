package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// maxIdempotencyKey bounds the key of a request that may be sent again, in bytes.
const maxIdempotencyKey = 255

// createSandbox makes a sandbox, once for each Idempotency-Key.
func createSandbox(c *call) error {
	in := new(v1.Spec)
	if err := codec.Read(c.Call, in, codec.MaxBody); err != nil {
		return err
	}
	if err := c.intendFor(in); err != nil {
		return err
	}
	key := c.R.Header.Get("Idempotency-Key")
	if key == "" {
		out, err := c.create(c.Ctx, in)
		if err != nil {
			return err
		}
		return c.created(out)
	}
	if len(key) > maxIdempotencyKey {
		return gate.Invalid("the Idempotency-Key is longer than 255 bytes", "use a random UUID")
	}
	return c.createOnce(key, in)
}

func (c *call) create(ctx context.Context, in *v1.Spec) (v1.Sandbox, error) {
	spec, err := in.Sandpit()
	if err != nil {
		return v1.Sandbox{}, err
	}
	began := time.Now()
	sb, err := c.api.opts.Backend.Client(c.Caller).Create(ctx, spec)
	code := ""
	if err != nil {
		code = errcode.Of(err)
	}
	c.api.metrics.created(code, time.Since(began))
	if err != nil {
		return v1.Sandbox{}, err
	}
	c.Target = sb.ID() // for the audit
	return describe(ctx, sb)
}

func (c *call) created(out v1.Sandbox) error {
	c.W.Header().Set("Location", sandboxes+"/"+out.ID)
	return codec.Answer(c.Call, http.StatusCreated, out)
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
		in.Name = gate.NewRequestID()
	}
	store, client := c.api.opts.Idempotency, c.api.opts.Backend.Client(c.Caller)
	earlier, err := store.Begin(c.Ctx, Repeatable{Namespace: c.Caller.Namespace, Key: key, Hash: sha256.Sum256(asked), Resource: in.Name})
	switch {
	case errors.Is(err, sandpit.ErrInvalid):
		return &gate.Refusal{Code: errcode.IdempotencyMismatch, Message: "the Idempotency-Key was used for another request", Hint: "use a new key for each request"}
	case errors.Is(err, sandpit.ErrState):
		return &sandpit.RetryError{Err: err, After: time.Second}
	case err != nil:
		return err
	case earlier != nil && earlier.Answered:
		return c.replay(client, earlier)
	}
	// From here on the key is this call's, until the store hears how it went: also
	// when the client has left.
	ctx, answered := context.WithoutCancel(c.Ctx), false
	defer func() {
		if answered {
			return
		}
		if err := store.Abandon(ctx, c.Caller.Namespace, key); err != nil {
			c.api.gate.Log().Error("releasing an Idempotency-Key failed", "request", c.ID, "error", err)
		}
	}()
	out, found, err := v1.Sandbox{}, false, error(nil)
	if earlier != nil { // the server died on it
		in.Name = earlier.Resource
		var sb sandpit.Sandbox
		if sb, err = client.Get(c.Ctx, in.Name); err == nil {
			found, c.Target = true, sb.ID()
			out, err = describe(c.Ctx, sb)
		}
	}
	if !found {
		out, err = c.create(c.Ctx, in)
	}
	if err != nil {
		return err
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	answered = true
	if err := store.Finish(ctx, c.Caller.Namespace, key, http.StatusCreated, append(body, '\n')); err != nil {
		c.api.gate.Log().Error("storing a response for its Idempotency-Key failed", "request", c.ID, "error", err)
	}
	if found {
		c.W.Header().Set(headerReplayed, "true")
	}
	return c.created(out)
}

// headerReplayed marks the answer to an earlier request.
const headerReplayed = "Idempotent-Replayed"

// replay gives the answer to an earlier request again. One that was too long to be
// kept is made again, of the sandbox as it is now.
func (c *call) replay(client sandpit.Client, earlier *Earlier) error {
	var made v1.Sandbox
	if earlier.Response == nil {
		sb, err := client.Get(c.Ctx, earlier.Resource)
		if err == nil {
			made, err = describe(c.Ctx, sb)
		}
		if err != nil {
			return err
		}
	} else if err := json.Unmarshal(earlier.Response, &made); err != nil {
		return err
	}
	c.Target = made.ID // for the audit
	c.W.Header().Set(headerReplayed, "true")
	return c.created(made)
}
