// Package otlp sends spans to a collector of OpenTelemetry, over HTTP and in
// JSON, as the OpenTelemetry Protocol 1.x specifies
// (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP"). It does what a server needs
// that makes one span for each request. The SDK does more, weighs 8 MB and
// costs a program 2 ms at each start.
package otlp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Bounds of what waits to be sent.
const (
	maxQueue = 2048            // spans; beyond, new ones are dropped and counted
	maxBatch = 512             // spans in one request
	batchFor = 5 * time.Second // how long a span waits for others
	sendTime = 10 * time.Second
)

// Attribute is an attribute of a span: a text, or a number if the text is empty.
type Attribute struct {
	Key    string
	Text   string
	Number int64
}

// Span is a part of a trace. Its fields are set before End.
type Span struct {
	Name       string
	Failed     bool
	Attributes []Attribute

	trace, id, parent string // in hex
	began, ended      time.Time
	exporter          *Exporter
}

// Exporter sends spans. Its methods are safe for concurrent use.
type Exporter struct {
	url     string
	headers map[string]string
	service string
	client  *http.Client
	queue   chan *Span
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
	dropped atomic.Uint64
}

// FromEnvironment returns an exporter that sends by transport, configured by the variables
// OTEL_EXPORTER_OTLP_ENDPOINT, …_TRACES_ENDPOINT, …_HEADERS and OTEL_SERVICE_NAME, or nil
// if no endpoint is set. It returns ErrInvalid for an endpoint that can't be used.
func FromEnvironment(lookup func(string) (string, bool), transport http.RoundTripper) (*Exporter, error) {
	name := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	target, _ := lookup(name)
	whole := target != ""
	if !whole {
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
		if target, _ = lookup(name); target == "" {
			return nil, nil
		}
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%s is not a URL", name), "write it as http://HOST:4318")
	}
	if !whole {
		u = u.JoinPath("v1", "traces")
	}
	e := &Exporter{
		url: u.String(), headers: map[string]string{}, service: "sandpit", client: &http.Client{Transport: transport, Timeout: sendTime},
		queue: make(chan *Span, maxQueue), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if service, _ := lookup("OTEL_SERVICE_NAME"); service != "" {
		e.service = service
	}
	text, _ := lookup("OTEL_EXPORTER_OTLP_HEADERS")
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		if v, err := url.PathUnescape(strings.TrimSpace(value)); err == nil {
			e.headers[strings.TrimSpace(key)] = v
		}
	}
	go e.run()
	return e, nil
}

// Start begins a span, as a child of the one that a traceparent header names, if any (W3C
// Trace Context).
func (e *Exporter) Start(traceparent string) *Span {
	s := &Span{exporter: e, began: time.Now(), id: random(8)}
	s.trace, s.parent = parseParent(traceparent)
	if s.trace == "" {
		s.trace = random(16)
	}
	return s
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// parseParent reads version-traceid-parentid-flags, or returns nothing.
func parseParent(text string) (trace, parent string) {
	f := strings.Split(text, "-")
	if len(f) < 4 || len(f[0]) != 2 || f[0] == "ff" || !isID(f[1], 32) || !isID(f[2], 16) {
		return "", ""
	}
	return f[1], f[2]
}

// isID reports whether s is n digits of lower-case hex, not all 0.
func isID(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}

// End ends the span and queues it for sending.
func (s *Span) End() {
	s.ended = time.Now()
	select {
	case s.exporter.queue <- s:
	default:
		s.exporter.dropped.Add(1)
	}
}

// Dropped returns the number of spans that were not sent.
func (e *Exporter) Dropped() uint64 { return e.dropped.Load() }

// Close sends the queued spans, until ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	e.once.Do(func() { close(e.stop) })
	select {
	case <-e.done:
		e.client.CloseIdleConnections()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run collects spans and sends them.
func (e *Exporter) run() {
	defer close(e.done)
	var batch []*Span
	timer := time.NewTimer(batchFor)
	defer timer.Stop()
	for {
		select {
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) < maxBatch {
				continue
			}
		case <-timer.C:
			timer.Reset(batchFor)
		case <-e.stop:
			for {
				select {
				case s := <-e.queue:
					batch = append(batch, s)
					continue
				default:
				}
				e.send(batch)
				return
			}
		}
		e.send(batch)
		batch = batch[:0]
	}
}

// send sends spans. What the collector doesn't take is dropped: a server does
// not wait for those who watch it.
func (e *Exporter) send(batch []*Span) {
	if len(batch) == 0 {
		return
	}
	if err := e.post(encode(e.service, batch)); err != nil {
		e.dropped.Add(uint64(len(batch)))
	}
}

func (e *Exporter) post(body []byte) error {
	r, err := http.NewRequest(http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	for k, v := range e.headers {
		r.Header.Set(k, v)
	}
	resp, err := e.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector responded %s", resp.Status)
	}
	return nil
}

// What follows is ExportTraceServiceRequest in its JSON form
// (opentelemetry/proto/collector/trace/v1): names in lowerCamelCase, ids in
// hex, 64-bit numbers as strings.
type (
	request struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope      `json:"scope"`
		Spans []spanJSON `json:"spans"`
	}
	scope struct {
		Name string `json:"name"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String string `json:"stringValue,omitempty"`
		Int    string `json:"intValue,omitempty"`
	}
	spanJSON struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		ParentID   string      `json:"parentSpanId,omitempty"`
		Name       string      `json:"name"`
		Kind       int         `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes,omitempty"`
		Status     *status     `json:"status,omitempty"`
	}
	status struct {
		Code int `json:"code"`
	}
)

// Numbers of opentelemetry/proto/trace/v1.
const (
	kindServer  = 2
	statusError = 2
)

func encode(service string, batch []*Span) []byte {
	spans := make([]spanJSON, len(batch))
	for i, s := range batch {
		v := spanJSON{
			TraceID: s.trace, SpanID: s.id, ParentID: s.parent, Name: s.Name, Kind: kindServer,
			Start: strconv.FormatInt(s.began.UnixNano(), 10), End: strconv.FormatInt(s.ended.UnixNano(), 10),
		}
		for _, a := range s.Attributes {
			out := attribute{Key: a.Key, Value: value{String: a.Text}}
			if a.Text == "" {
				out.Value.Int = strconv.FormatInt(a.Number, 10)
			}
			v.Attributes = append(v.Attributes, out)
		}
		if s.Failed {
			v.Status = &status{statusError}
		}
		spans[i] = v
	}
	body, _ := json.Marshal(request{[]resourceSpans{{
		Resource:   resource{[]attribute{{"service.name", value{String: service}}}},
		ScopeSpans: []scopeSpans{{Scope: scope{"github.com/sandpit-dev/sandpit"}, Spans: spans}},
	}}}) // of strings and numbers, which never fails
	return body
}
