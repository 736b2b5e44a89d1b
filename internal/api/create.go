package api

import (
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

const createID = "createSandbox"

// createSandbox makes a sandbox.
func createSandbox(c *call) error {
	in := new(v1.Spec)
	if err := codec.Read(c.Call, in, codec.MaxBody, c.compare); err != nil {
		return err
	}
	if err := c.intendFor(in); err != nil {
		return err
	}
	spec, err := in.Sandpit()
	if err != nil {
		return err
	}
	began := time.Now()
	sb, err := c.create(spec)
	code := ""
	if err != nil {
		code = errcode.Of(err)
	}
	c.api.metrics.created(code, time.Since(began))
	if err != nil {
		return err
	}
	if c.repeat != nil {
		c.repeat.made = true
	}
	c.Target = sb.ID() // for the audit
	out, err := describe(c.Ctx, sb)
	if err != nil {
		return err
	}
	return c.created(out)
}

// create makes a sandbox, which has a mark if the request may be repeated.
func (c *call) create(spec sandpit.Spec) (sandpit.Sandbox, error) {
	backend := c.api.opts.Backend
	if c.repeat != nil {
		return backend.CreateMarked(c.Ctx, c.Caller, spec, c.repeat.resource)
	}
	return backend.Client(c.Caller).Create(c.Ctx, spec)
}

func (c *call) created(out v1.Sandbox) error {
	c.W.Header().Set("Location", sandboxes+"/"+out.ID)
	return codec.Report(c.Call, http.StatusCreated, out)
}
