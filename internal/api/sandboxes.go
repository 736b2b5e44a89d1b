package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func sandboxRoutes() []Route {
	const tag = "Sandboxes"
	return []Route{
		{
			Method: http.MethodPost, Path: sandboxes, ID: createID, Tag: tag, Summary: "Create a sandbox",
			Text:           "Responds when the sandbox is running, or with no_start when it is stored. A failed request leaves nothing behind. If a request with an Idempotency-Key names no sandbox, the name is random.",
			EndsWithClient: true,
			In:             v1.Spec{}, Status: http.StatusCreated, Out: v1.Sandbox{}, Guarded: true, Fails: []string{errcode.Exists, errcode.State, errcode.Unsupported, errcode.Integrity, errcode.Protocol, errcode.Closed, errcode.Timeout, errcode.NotFound, errcode.QuotaExceeded}, handle: createSandbox,
		},
		{
			Method: http.MethodGet, Path: sandboxes, ID: "listSandboxes", Tag: tag, Summary: "List sandboxes by the time of creation",
			Text:  "since and until filter by the time of creation. To miss no change afterwards, follow /v1/events with after set to the seq of the first page.",
			Query: pageParams(timeParams(labelParam(), stateParam(), orderParam())...), Status: http.StatusOK, Out: v1.SandboxList{}, handle: asJSON(listSandboxes),
		},
		{
			Method: http.MethodDelete, Path: sandboxes, ID: "removeSandboxes", Tag: tag, Summary: "Remove sandboxes by label, state or time of creation",
			Text:  "At least one filter is required, or all=true. At most 50 sandboxes are removed, the oldest first; next says whether others may match. The response has every sandbox that matched, with an error if it could not be removed.",
			Query: timeParams(labelParam(), stateParam(), flag("all", "Remove all sandboxes; not with a filter"), Param{Name: "after", Type: "string", Doc: "The value of next in the previous response: only newer sandboxes"}), Status: http.StatusOK, Out: v1.RemovedList{}, Guarded: true, Vital: true, selfAudited: true, handle: asJSON(removeSandboxes),
		},
		{Method: http.MethodGet, Path: oneSandbox, ID: "getSandbox", Tag: tag, Summary: "Describe a sandbox", Status: http.StatusOK, Out: v1.Sandbox{}, handle: asJSON(getSandbox)},
		{Method: http.MethodDelete, Path: oneSandbox, ID: "removeSandbox", Tag: tag, Summary: "Remove a sandbox and everything in it", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(removeSandbox)},
		{
			Method: http.MethodPatch, Path: oneSandbox, ID: "updateSandbox", Tag: tag, Summary: "Change the name, labels and limits of a sandbox",
			Text: "Either all changes are made or none. Missing fields stay as they are. The body is a JSON merge patch, whose Content-Type may be " + codec.MergePatch + ": null removes a label, and nothing else can be removed. Memory can't become less than is in use.",
			In:   v1.Change{}, Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, Fails: []string{errcode.Exists}, handle: fromJSON(updateSandbox),
		},
		{Method: http.MethodPost, Path: oneSandbox + "/stop", ID: "stopSandbox", Tag: tag, Summary: "Stop a sandbox: end its processes and keep its files", In: v1.Stop{}, Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, Vital: true, handle: fromJSON(stopSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/start", ID: "startSandbox", Tag: tag, Summary: "Start a sandbox that is stopped, or was created with no_start", Text: "Starting one for the first time is what creating one does otherwise: the caller's present policy decides. After an error it can be started again.", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, Fails: []string{errcode.Integrity, errcode.Unsupported, errcode.Protocol, errcode.QuotaExceeded}, handle: asJSON(startSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/pause", ID: "pauseSandbox", Tag: tag, Summary: "Pause a sandbox: freeze its processes", Text: "Any other request to the sandbox resumes it.", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: asJSON(pauseSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/resume", ID: "resumeSandbox", Tag: tag, Summary: "Resume a paused sandbox", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: asJSON(resumeSandbox)},
		{
			Method: http.MethodPost, Path: oneSandbox + "/commit", ID: "commitSandbox", Tag: tag, Summary: "Save the changed files of a sandbox as an image",
			Text:           "The image is that of the sandbox with one layer more. Only sandboxes of the same namespace can use it. A running sandbox is paused meanwhile. Not saved are what is mounted, /tmp and /dev/shm, files that the server makes itself, and the environment.",
			EndsWithClient: true,
			In:             v1.Commit{}, Status: http.StatusCreated, Out: v1.SavedImage{}, Guarded: true, Fails: []string{errcode.QuotaExceeded, errcode.Unsupported, errcode.Timeout}, handle: fromJSON(commitSandbox),
		},
		{Method: http.MethodPut, Path: oneSandbox + "/lifetime", ID: "setLifetime", Tag: tag, Summary: "Change the lifetime of a sandbox", In: v1.Lifetime{}, Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: fromJSON(setLifetime)},
		{Method: http.MethodGet, Path: oneSandbox + "/metrics", ID: "getMetrics", Tag: tag, Summary: "Get the resource usage of a sandbox", Status: http.StatusOK, Out: v1.Metrics{}, handle: asJSON(getMetrics)},
		{
			Method: http.MethodGet, Path: oneSandbox + "/metrics/history", ID: "getMetricsHistory", Tag: tag, Summary: "Get the resource usage of a sandbox over time",
			Text:  "A sample every 10 seconds, for an hour.",
			Query: pageParams(timeParams()...), Status: http.StatusOK, Out: v1.MetricsHistory{}, handle: asJSON(getHistory),
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/logs", ID: "getLogs", Ticket: true, Tag: tag, Summary: "Get the output of processes",
			Text: "One JSON object per line: seq, time, process, pid, stream, and data in base64. With Accept: text/event-stream each object is an event.",
			Query: append(timeParams(
				Param{Name: "process", Type: "string", Doc: "Its id"},
				Param{Name: "stream", Type: "string", Enum: []string{"stdout", "stderr"}}),
				Param{Name: "after", Type: "integer", Doc: "Only entries with a greater seq. The header Last-Event-ID has the same effect; the greater of both counts. After one that the log has not reached, nothing comes until it has."},
				Param{Name: "tail", Type: "integer", Doc: "Only this number of latest entries"},
				flag("follow", "Follow new entries until the sandbox is removed; not with until")),
			Status: http.StatusOK, Other: []string{stream.Lines, stream.Events}, Feed: logFeed(), handle: getLogs,
		},
	}
}

func listSandboxes(c *call) (v1.SandboxList, error) { return c.sandboxesOf(c.Caller) }

// sandboxesOf returns the page of sandboxes that is asked for, as a caller sees them.
func (c *call) sandboxesOf(who gate.Caller) (v1.SandboxList, error) {
	out := v1.SandboxList{Sandboxes: []v1.Sandbox{}}
	q := c.query()
	list, p := q.sandboxes(), q.page()
	list.After, list.Limit, list.NewestFirst = p.after, p.limit, q.text("order") == orderDesc
	if q.err != nil {
		return out, q.err
	}
	page, err := c.api.opts.Backend.Client(who).List(c.Ctx, list)
	if err != nil {
		return out, err
	}
	for _, info := range page.Sandboxes {
		out.Sandboxes = append(out.Sandboxes, v1.FromInfo(info))
	}
	out.Next, out.Seq = page.Next, page.Seq
	return out, nil
}

// sandboxes returns the filter of sandboxes.
func (q *query) sandboxes() sandpit.ListQuery {
	list := sandpit.ListQuery{States: texts[sandpit.State](q, "state"), Since: q.time("since"), Until: q.time("until")}
	list.Labels, list.HasLabels = q.labels()
	return list
}

func getSandbox(c *call) (v1.Sandbox, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Sandbox{}, err
	}
	return describe(c.Ctx, sb)
}

// describe describes a sandbox.
func describe(ctx context.Context, sb sandpit.Sandbox) (v1.Sandbox, error) {
	info, err := sb.Info(ctx)
	if err != nil {
		return v1.Sandbox{}, err
	}
	return v1.FromInfo(info), nil
}

func removeSandbox(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	return sb.Remove(c.Ctx)
}

// change changes the state of the sandbox and describes it.
func (c *call) change(f func(sandpit.Lifecycle) error) (v1.Sandbox, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Sandbox{}, err
	}
	if err := f(sb); err != nil {
		return v1.Sandbox{}, err
	}
	return describe(c.Ctx, sb)
}

// Times between SIGTERM and SIGKILL.
const (
	defaultGrace = 10 * time.Second
	maxGrace     = 10 * time.Minute
)

func stopSandbox(c *call, in *v1.Stop) (v1.Sandbox, error) {
	grace := defaultGrace
	if in.Grace != nil {
		if !(*in.Grace >= 0 && *in.Grace <= maxGrace.Seconds()) {
			return v1.Sandbox{}, c.Untouched(gate.Invalid("grace must be a number of seconds, at most 600", ""))
		}
		grace = v1.Duration(*in.Grace)
	}
	return c.change(func(l sandpit.Lifecycle) error { return l.Stop(c.Ctx, grace) })
}

func startSandbox(c *call) (v1.Sandbox, error) {
	return c.change(func(l sandpit.Lifecycle) error { return l.Restart(c.Ctx) })
}

func pauseSandbox(c *call) (v1.Sandbox, error) {
	return c.change(func(l sandpit.Lifecycle) error { return l.Pause(c.Ctx) })
}

// ownLabels begins the labels of images by which Sandpit knows them: see engine.BuildLabel.
const ownLabels = "dev.sandpit."

func commitSandbox(c *call, in *v1.Commit) (v1.SavedImage, error) {
	ask, err := in.Sandpit()
	if err != nil {
		return v1.SavedImage{}, c.Untouched(err)
	}
	for name := range ask.Labels {
		if strings.HasPrefix(name, ownLabels) {
			return v1.SavedImage{}, gate.Invalid(fmt.Sprintf("the label %.80q is Sandpit's own", name), "choose a name that does not begin with "+ownLabels)
		}
	}
	sb, err := c.sandbox()
	if err != nil {
		return v1.SavedImage{}, err
	}
	committer, ok := sb.(sandpit.Committer)
	if !ok {
		return v1.SavedImage{}, fault.Errorf(sandpit.ErrUnsupported, "this server saves no images of sandboxes")
	}
	if err := c.OpenStream(); err != nil {
		return v1.SavedImage{}, err
	}
	saved, err := committer.Commit(c.Ctx, ask)
	return v1.SavedImage{Reference: saved.Name, Digest: saved.Digest, Size: saved.Size, LeftOut: list(saved.LeftOut)}, err
}

func resumeSandbox(c *call) (v1.Sandbox, error) {
	return c.change(func(l sandpit.Lifecycle) error { return l.Resume(c.Ctx) })
}

func updateSandbox(c *call, in *v1.Change) (v1.Sandbox, error) {
	change, err := in.Sandpit()
	if err != nil {
		return v1.Sandbox{}, c.Untouched(err)
	}
	return c.change(func(l sandpit.Lifecycle) error { return l.Update(c.Ctx, change) })
}

func setLifetime(c *call, in *v1.Lifetime) (v1.Sandbox, error) {
	life, err := in.Sandpit()
	if err != nil {
		return v1.Sandbox{}, c.Untouched(err)
	}
	return c.change(func(l sandpit.Lifecycle) error { return l.SetLifetime(c.Ctx, life) })
}

func getMetrics(c *call) (v1.Metrics, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Metrics{}, err
	}
	m, err := sb.Metrics(c.Ctx)
	if err != nil {
		return v1.Metrics{}, err
	}
	return v1.FromMetrics(m, time.Now()), nil
}

func getHistory(c *call) (v1.MetricsHistory, error) {
	out := v1.MetricsHistory{Samples: []v1.Metrics{}}
	q := c.query()
	since, until, p := q.time("since"), q.time("until"), q.cutPage()
	if q.err != nil {
		return out, q.err
	}
	sb, err := c.sandbox()
	if err != nil {
		return out, err
	}
	samples, err := sb.History(c.Ctx, since)
	if err != nil {
		return out, err
	}
	for _, s := range samples {
		if between(s.Time, since, until) {
			out.Samples = append(out.Samples, v1.FromMetrics(s.Metrics, s.Time))
		}
	}
	out.Samples, out.Next = cut(p, out.Samples, func(m v1.Metrics) string { return byTime(m.Time, "") })
	return out, nil
}

// maxSeq is the largest number that JSON readers in other languages hold: of
// their 64-bit floating point.
const maxSeq = 1 << 53

// knownProcess returns an error if neither the sandbox nor its log knows a process: the log keeps
// output longer than the sandbox remembers who wrote it.
func knownProcess(ctx context.Context, sb sandpit.Sandbox, name string) error {
	if name == "" {
		return nil
	}
	_, err := findProcess(ctx, sb, name)
	if !errors.Is(err, sandpit.ErrNotFound) {
		return err
	}
	for _, lerr := range sb.Logs(ctx, sandpit.LogQuery{Process: name, Tail: 1}) {
		return lerr
	}
	return err
}

func getLogs(c *call) error {
	q := c.query()
	log := sandpit.LogQuery{
		Process: q.text("process"), Stream: q.text("stream"), Since: q.time("since"), Until: q.time("until"),
		Tail: int(q.number("tail", math.MaxInt32)), Follow: q.flag("follow", false),
	}
	var resumed bool
	if log.After, resumed = c.after(q); resumed {
		log.Tail = 0 // it bounds what the first request gets
	}
	if log.Follow && !log.Until.IsZero() {
		q.fail("until", "can't be used with follow")
	}
	if q.err != nil {
		return q.err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	if err := knownProcess(c.Ctx, sb, log.Process); err != nil {
		return c.Untouched(err)
	}
	return stream.Follow(c.Call, c.prefers(stream.Lines, stream.Events), stream.Source[sandpit.LogEntry]{
		Live: log.Follow, After: log.After,
		All:  func(ctx context.Context) iter.Seq2[sandpit.LogEntry, error] { return sb.Logs(ctx, log) },
		Name: func(e sandpit.LogEntry) (event string, seq uint64) { return e.Stream, e.Seq },
	})
}
