package gate

import (
	"github.com/sandpit-dev/sandpit/internal/otlp"
)

// traced starts the span of the call, if there is a tracer.
func (c *Call) traced() {
	if c.gate.opts.Tracer != nil {
		c.span = c.gate.opts.Tracer.Start(c.R.Header.Get("Traceparent"))
	}
}

// endSpan ends the span. Its attributes have the names of OpenTelemetry's semantic
// conventions for HTTP servers.
func (c *Call) endSpan() {
	if c.span == nil {
		return
	}
	c.span.Name = c.operation()
	c.span.Failed = c.status >= 500
	c.span.Attributes = []otlp.Attribute{
		{Key: "http.request.method", Text: c.R.Method},
		{Key: "http.response.status_code", Number: int64(c.status)},
		{Key: "sandpit.request_id", Text: c.ID},
	}
	if c.route != nil && c.route.Path != "" {
		c.span.Attributes = append(c.span.Attributes, otlp.Attribute{Key: "http.route", Text: c.route.Path})
	}
	if c.Target != "" {
		c.span.Attributes = append(c.span.Attributes, otlp.Attribute{Key: "sandpit.sandbox", Text: Bounded(c.Target)})
	}
	if c.code != "" {
		c.span.Attributes = append(c.span.Attributes, otlp.Attribute{Key: "error.type", Text: c.code})
	}
	c.span.End()
}
