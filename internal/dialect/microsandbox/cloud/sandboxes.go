package cloud

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// sandboxRoutes returns the routes of sandboxes.
func sandboxRoutes() []route {
	const all, one = "/v1/sandboxes", onePath
	return []route{
		{method: http.MethodGet, path: all, id: "listSandboxes", handle: listSandboxes},
		{method: http.MethodGet, path: one, id: "getSandbox", named: true, handle: getSandbox},
		{method: http.MethodPost, path: all, id: "createSandbox", audited: true, handle: createSandbox},
		{method: http.MethodPost, path: one + "/start", id: "startSandbox", named: true, handle: startSandbox},
		{method: http.MethodPost, path: one + "/stop", id: "stopSandbox", named: true, vital: true, handle: stopSandbox},
		{method: http.MethodGet, path: one + "/logs", id: "followLogs", handle: followLogs},
		{method: http.MethodDelete, path: one, id: "removeSandbox", named: true, vital: true, handle: removeSandbox},
	}
}

// sandbox is a sandbox as the API describes it.
type sandbox struct {
	ID        string     `json:"id"`
	OrgID     string     `json:"org_id"`
	Name      string     `json:"name"`
	Slug      string     `json:"slug"`
	Status    string     `json:"status"`
	Reason    *string    `json:"status_reason"`
	Spec      *spec      `json:"spec,omitempty"`
	Ephemeral bool       `json:"ephemeral"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at"` // not known
	StoppedAt *time.Time `json:"stopped_at"` // not known
	Failure   *string    `json:"last_failure_message"`
}

// spec is what a sandbox was created with, as far as it is known later and clients need it (see runtime), in the form of a
// request. They refuse all of it if it has another form.
type spec struct {
	Name      string            `json:"name"`
	Image     *source           `json:"image,omitempty"`  // until 0.6
	Source    string            `json:"source,omitempty"` // since 0.7, as the next one
	Reference string            `json:"reference,omitempty"`
	Resources resources         `json:"resources"`
	Runtime   runtime           `json:"runtime"`
	Env       []variable        `json:"env"` // none: each command has those of the sandbox
	Labels    map[string]string `json:"labels"`
	Rlimits   []exactly[rlimit] `json:"rlimits"`
	Mounts    []exactly[mount]  `json:"mounts"`
	Patches   []patch           `json:"patches"` // none
	Network   struct{}          `json:"network"`
	Init      *struct{}         `json:"init"`
	Pull      string            `json:"pull_policy"`
	Profile   string            `json:"security_profile"`
	Lifecycle lifecycle         `json:"lifecycle"`
}

// spec returns what a client that is older or newer knows of a state.
func (s *state) spec(i sandpit.Info, older bool) *spec {
	out := &spec{
		Name: i.Name, Resources: s.Resources, Runtime: s.Runtime, Env: []variable{}, Labels: i.Labels,
		Rlimits: append([]exactly[rlimit]{}, s.Rlimits...), Mounts: append([]exactly[mount]{}, s.Mounts...), Patches: []patch{},
		Pull: cmp.Or(s.Pull, "if_missing"), Profile: cmp.Or(s.Profile, "default"), Lifecycle: s.Lifecycle,
	}
	out.Runtime.Scripts = map[string]string{}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if older {
		out.Image = &source{"oci", s.Reference}
	} else {
		out.Source, out.Reference = "oci", s.Reference
	}
	return out
}

// older reports whether the client is not known to be of 0.7 or later.
func (c *call) older() bool {
	version, ok := strings.CutPrefix(c.R.UserAgent(), "microsandbox-sdk/")
	return !ok || strings.HasPrefix(version, "0.6.")
}

// statusOf returns the status that a state is for clients. One that is paused runs for them: what they do next
// resumes it.
func statusOf(s sandpit.State) string {
	switch s {
	case sandpit.StateCreating:
		return "starting"
	case sandpit.StatePaused:
		return "running"
	}
	return string(s)
}

// describe describes a sandbox.
func (c *call) describe(sb engine.Box) (sandbox, error) {
	info, err := sb.Info(c.Ctx)
	if err != nil {
		return sandbox{}, err
	}
	return c.of(info, sb.Dialect(c.server.Name)), nil
}

// of describes a sandbox with data of the dialect, or without if it was not created with this API.
func (c *call) of(i sandpit.Info, data json.RawMessage) sandbox {
	out := sandbox{ID: i.ID, OrgID: c.Caller.Namespace, Name: i.Name, Slug: i.ID, Status: statusOf(i.State), CreatedAt: i.CreatedAt}
	if i.State == sandpit.StateFailed {
		out.Failure = &i.Reason
	}
	var s state
	if dialect.Recall(data, &s) == nil && s.Reference != "" {
		out.Spec, out.Ephemeral = s.spec(i, c.older()), s.Lifecycle.Ephemeral
	}
	return out
}

// page is a page of a list.
type page struct {
	Data    []sandbox `json:"data"`
	HasMore bool      `json:"has_more"`
	Next    *string   `json:"next_cursor"`
}

// listSandboxes lists the sandboxes of the namespace, a page at a time, the newest first.
func listSandboxes(c *call) error {
	q := c.R.URL.Query()
	list := sandpit.ListQuery{After: q.Get("cursor"), Limit: sandpit.DefaultPage, NewestFirst: true}
	if limit := q.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 {
			return gate.Invalid("limit is not a positive number", "")
		}
		list.Limit = min(n, sandpit.MaxPage)
	}
	if labels := q.Get("labels"); labels != "" {
		if err := json.Unmarshal([]byte(labels), &list.Labels); err != nil {
			return gate.Invalid("labels is not a JSON object of strings", "")
		}
	}
	tenant := c.tenant()
	found, err := tenant.List(c.Ctx, list)
	if err != nil {
		return err
	}
	out := page{Data: make([]sandbox, len(found.Sandboxes)), HasMore: found.Next != ""}
	for i, info := range found.Sandboxes {
		var data json.RawMessage
		if sb, err := tenant.Box(info.ID); err == nil { // otherwise it has just gone
			data = sb.Dialect(c.server.Name)
		}
		out.Data[i] = c.of(info, data)
	}
	if out.HasMore {
		out.Next = &found.Next
	}
	return codec.Answer(c.Call, http.StatusOK, out)
}

// getSandbox describes a sandbox.
func getSandbox(c *call) error {
	sb, err := c.sandbox()
	if errors.Is(err, sandpit.ErrNotFound) {
		if out, ok := c.ended.find(c.Caller.Namespace, c.Target, c.byName()); ok {
			return codec.Answer(c.Call, http.StatusOK, out)
		}
	}
	if err != nil {
		return err
	}
	out, err := c.describe(sb)
	if err != nil {
		return err
	}
	return codec.Answer(c.Call, http.StatusOK, out)
}

// startSandbox starts a sandbox, and waits until it runs.
func startSandbox(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	info, err := sb.Info(c.Ctx)
	if err == nil && info.State == sandpit.StatePaused {
		err = sb.Resume(c.Ctx)
	} else if err == nil {
		err = sb.Restart(c.Ctx)
	}
	if err != nil {
		return err
	}
	return c.report(sb)
}

// stopGrace is the time that processes have to end before they are killed. Clients wait for 10 seconds.
const stopGrace = 5 * time.Second

// stopSandbox stops a sandbox. One that is ephemeral is removed.
func stopSandbox(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	info, err := sb.Info(c.Ctx)
	if err != nil {
		return err
	}
	if info.State != sandpit.StateCreated { // which has nothing to stop
		if err := sb.Stop(c.Ctx, stopGrace); err != nil {
			return err
		}
	}
	out, err := c.describe(sb)
	if err != nil {
		return err
	}
	if out.Ephemeral {
		if err := sb.Remove(c.Ctx); err != nil {
			return err
		}
		c.ended.add(c.Caller.Namespace, out)
	}
	return codec.Report(c.Call, http.StatusOK, out)
}

// report describes a sandbox that was changed.
func (c *call) report(sb engine.Box) error {
	out, err := c.describe(sb)
	if err != nil {
		return err
	}
	return codec.Report(c.Call, http.StatusOK, out)
}

// message is the answer to what has nothing else to say.
type message struct {
	Message string `json:"message"`
}

// removeSandbox removes a sandbox.
func removeSandbox(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	if err := sb.Remove(c.Ctx); err != nil {
		return err
	}
	return codec.Report(c.Call, http.StatusOK, message{"the sandbox was removed"})
}
