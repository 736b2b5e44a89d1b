package api

import (
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// call is one request of /v1 on its way.
type call struct {
	*gate.Call
	api   *API
	route *Route

	compared []byte      // SHA-256 of what requests with one Idempotency-Key must have in common
	begun    bool        // it may have changed something, and to repeat it would do more
	repeat   *repeatable // its Idempotency-Key, if it is carried out with one
	runs     string      // the process that it has started in the foreground
	repeated string      // the sandbox and process that it attaches to as a repeated exec
	fore     *foreground // of an exec with a key
}

// sandbox finds the sandbox that the path names. Handlers do that before they touch
// anything.
func (c *call) sandbox() (sandpit.Sandbox, error) {
	sb, err := c.api.opts.Backend.Client(c.Caller).Get(c.Ctx, c.Target)
	if err != nil {
		return nil, c.Untouched(err)
	}
	if c.EntersLater() {
		c.Target = sb.ID() // the same for each of its names: entries that repeat an act are counted together
	}
	return sb, nil
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.W.WriteHeader(http.StatusNoContent)
	return nil
}

// asJSON makes a handler of a function from nothing but the path and query.
func asJSON[Out any](f func(*call) (Out, error)) func(*call) error {
	return func(c *call) error {
		out, err := f(c)
		if err != nil {
			return err
		}
		return c.answer(out)
	}
}

// fromJSON makes a handler of a function from a JSON body.
func fromJSON[In, Out any](f func(*call, *In) (Out, error)) func(*call) error {
	return func(c *call) error {
		in := new(In)
		if err := codec.Read(c.Call, in, codec.MaxBody, c.compare); err != nil {
			return c.Untouched(err)
		}
		if err := c.intendFor(in); err != nil {
			return err
		}
		out, err := f(c, in)
		if err != nil {
			return err
		}
		return c.answer(out)
	}
}

// fromJSONOnly is fromJSON for a function that has nothing to answer.
func fromJSONOnly[In any](f func(*call, *In) error) func(*call) error {
	return func(c *call) error {
		in := new(In)
		if err := codec.Read(c.Call, in, codec.MaxBody, c.compare); err != nil {
			return c.Untouched(err)
		}
		if err := c.intendFor(in); err != nil {
			return err
		}
		if err := f(c, in); err != nil {
			return err
		}
		return c.done()
	}
}

// answer sends what a handler has returned.
func (c *call) answer(out any) error {
	if c.route.Guarded && !c.route.IgnoresIdempotency {
		return codec.Report(c.Call, c.route.Status, out)
	}
	return codec.Answer(c.Call, c.route.Status, out)
}

// only makes a handler of a function that has nothing to answer.
func only(f func(*call) error) func(*call) error {
	return func(c *call) error {
		if err := f(c); err != nil {
			return err
		}
		return c.done()
	}
}

// list is a list that JSON shows as one also when it is empty.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
