package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// sandboxRoutes returns the routes of the control plane.
func sandboxRoutes() []route {
	const (
		get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
		all, one            = "/sandboxes", "/sandboxes/{id}"
	)
	return []route{
		{method: post, path: "/v2" + all, id: "createSandbox", audited: true, handle: createSandbox},
		{method: post, path: all, id: "createSandboxV1", audited: true, handle: createSandbox},
		{method: get, path: "/v2" + all, id: "listSandboxes", handle: listSandboxes},
		{method: get, path: all, id: "listSandboxesV1", handle: listSandboxes},
		{method: get, path: one, id: "getSandbox", handle: getSandbox},
		{method: del, path: one, id: "killSandbox", vital: true, handle: killSandbox},
		{method: post, path: "/v2" + one + "/connect", id: "connectSandbox", handle: connectSandbox},
		{method: post, path: one + "/connect", id: "connectSandboxV1", handle: connectSandbox},
		{method: post, path: one + "/resume", id: "resumeSandbox", handle: resumeSandbox},
		{method: post, path: one + "/timeout", id: "setTimeout", handle: setTimeout},
		{method: post, path: one + "/refreshes", id: "refreshSandbox", handle: refreshSandbox},
		{method: post, path: one + "/pause", id: "pauseSandbox", handle: pauseSandbox},
		{method: get, path: one + "/metrics", id: "getMetrics", handle: getMetrics},
		{method: put, path: one + "/network", id: "setNetwork", handle: setNetwork},
	}
}

// state is what the dialect must know about a sandbox: its data of the dialect.
type state struct {
	Template   string   `json:"template,omitempty"`
	Build      string   `json:"build,omitempty"` // the build of a template that has made it for itself
	AutoResume bool     `json:"autoResume,omitempty"`
	Private    bool     `json:"private,omitempty"`  // its ports are open to nobody without a token
	AllowOut   []string `json:"allowOut,omitempty"` // of its network, where that allows everything in any case
	Keys       []string `json:"keys,omitempty"`     // the public parts of those that created it or connected, the last at the end
}

// stateOf returns the state of a sandbox. One that was not created with this API has the zero state.
func stateOf(sb engine.Box) state { return readState(sb.Dialect(Name)) }

// readState decodes a state. One that can't be understood grants nothing.
func readState(data json.RawMessage) (s state) {
	if dialect.Recall(data, &s) != nil {
		return state{Private: true}
	}
	return s
}

// newSandbox is the request to create a sandbox.
type newSandbox struct {
	TemplateID    string            `json:"templateID"`
	Timeout       *int64            `json:"timeout"` // seconds
	EnvVars       map[string]string `json:"envVars"`
	Metadata      map[string]string `json:"metadata"`
	Secure        *bool             `json:"secure"` // each is
	AllowInternet *bool             `json:"allow_internet_access"`
	Network       *networkConfig    `json:"network"`
	AutoPause     *bool             `json:"autoPause"`
	PauseMemory   *bool             `json:"autoPauseMemory"`
	AutoResume    *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	VolumeMounts []json.RawMessage `json:"volumeMounts"`
	MCP          json.RawMessage   `json:"mcp"`
	IAM          json.RawMessage   `json:"iam"`
}

// defaultLife is the lifetime of sandboxes whose creator asks for none.
const defaultLife = 5 * time.Minute

// spec returns the Spec that a request stands for.
func (n *newSandbox) spec() (sandpit.Spec, error) {
	switch {
	case len(n.VolumeMounts) > 0:
		return sandpit.Spec{}, dialect.Unsupported("volumes are")
	case dialect.Given(n.MCP):
		return sandpit.Spec{}, dialect.Unsupported("the MCP gateway is")
	case dialect.Given(n.IAM):
		return sandpit.Spec{}, dialect.Unsupported("workload tokens (iam) are")
	case n.PauseMemory != nil && !*n.PauseMemory:
		return sandpit.Spec{}, dialect.Unsupported("pausing without keeping the memory is")
	}
	labels, err := labelsOf(n.Metadata)
	if err != nil {
		return sandpit.Spec{}, err
	}
	spec := sandpit.Spec{Labels: labels, Env: environment(n.EnvVars), Limits: sandpit.Limits{Life: defaultLife}}
	if n.Timeout != nil {
		if spec.Limits.Life = seconds(*n.Timeout); *n.Timeout <= 0 {
			return sandpit.Spec{}, gate.Invalid("the timeout must be positive", "")
		}
	}
	if n.AutoPause != nil {
		spec.OnExpiry = sandpit.ExpiryRemove
		if *n.AutoPause {
			spec.OnExpiry = sandpit.ExpiryPause
		}
	}
	spec.Egress, err = n.Network.egress(n.AllowInternet)
	return spec, err
}

// maxMetadata bounds the entries of metadata, which are labels.
const maxMetadata = 64

// escapeHint says what to do about metadata that is too long as labels.
const escapeHint = "put more into a file of the sandbox; control characters, and = in names, take 8 bytes each"

// labelsOf returns metadata as labels.
func labelsOf(metadata map[string]string) (map[string]string, error) {
	if len(metadata) > maxMetadata {
		return nil, gate.Invalid(fmt.Sprintf("metadata has %d entries, and may have %d", len(metadata), maxMetadata), "put more into a file of the sandbox")
	}
	labels, sum := make(map[string]string, len(metadata)), 0
	for name, value := range metadata {
		key, label := toLabel(name, true), toLabel(value, false)
		switch {
		case len(key) > policy.MaxLabelName:
			return nil, gate.Invalid(fmt.Sprintf("the name %.80q in metadata takes %d bytes, and may take %d", name, len(key), policy.MaxLabelName), escapeHint)
		case len(label) > policy.MaxLabelValue:
			return nil, gate.Invalid(fmt.Sprintf("the value of %.80q in metadata takes %d bytes, and may take %d", name, len(label), policy.MaxLabelValue), escapeHint)
		}
		labels[key], sum = label, sum+len(key)+len(label)
	}
	if sum > policy.MaxLabelSum {
		return nil, gate.Invalid(fmt.Sprintf("metadata takes %d bytes, and may take %d", sum, policy.MaxLabelSum), escapeHint)
	}
	return labels, nil
}

// metadataOfLabels is the reverse of labelsOf.
func metadataOfLabels(labels map[string]string) map[string]string {
	metadata := make(map[string]string, len(labels))
	for name, value := range labels {
		metadata[fromLabel(name)] = fromLabel(value)
	}
	return metadata
}

// labelEscape begins what stands for a character that a label can't have, in the private use area of Unicode: the
// character is that many behind labelEscape, less one. Two stand for labelEscape itself, and one at the end for
// nothing, since the name of a label can't be empty.
const labelEscape = '\U000F0000'

// toLabel returns a text as the name or the value of a label, which have no control characters, and names no "=".
func toLabel(text string, name bool) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == labelEscape:
			b.WriteRune(labelEscape)
		case unicode.IsControl(r), name && r == '=':
			b.WriteRune(labelEscape)
			r += labelEscape + 1
		}
		b.WriteRune(r)
	}
	if name && text == "" {
		b.WriteRune(labelEscape)
	}
	return b.String()
}

// fromLabel is the reverse of toLabel.
func fromLabel(label string) string {
	var b strings.Builder
	escaped := false
	for _, r := range label {
		switch {
		case escaped:
			if escaped = false; r > labelEscape {
				r -= labelEscape + 1
			}
		case r == labelEscape:
			escaped = true
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// withOwn returns variables of a command or run, with those that every sandbox of E2B has. Those of the sandbox itself
// must stay as they were when it was held ready.
func withOwn(sb engine.Box, vars map[string]string) []string {
	all := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sb.ID(), "E2B_TEMPLATE_ID": stateOf(sb).Template, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
	maps.Copy(all, vars)
	return environment(all)
}

// seconds returns a number of seconds, at most 100 years of them.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, 100*365*24*60*60)) * time.Second
}

// created is what creating or connecting returns.
type created struct {
	SandboxID       string `json:"sandboxID"`
	TemplateID      string `json:"templateID"`
	ClientID        string `json:"clientID"`
	EnvdVersion     string `json:"envdVersion"`
	EnvdAccessToken string `json:"envdAccessToken,omitempty"`
	TrafficToken    string `json:"trafficAccessToken,omitempty"`
	Domain          string `json:"domain,omitempty"`
}

// clientID is what older SDKs append to the ID of a sandbox for people.
const clientID = "sandpit"

func (c *call) describe(sb engine.Box) created {
	return created{SandboxID: sb.ID(), TemplateID: stateOf(sb).Template, ClientID: clientID, EnvdVersion: envdVersion, EnvdAccessToken: c.token(sb.ID()), TrafficToken: c.token(sb.ID() + traffic), Domain: c.domain()}
}

// domain returns the domain of the host names of ports, as the client reaches it, or "" if it can't.
func (c *call) domain() string {
	domain, host := c.api.Domain, gate.HostName(c.R.Host)
	if strings.HasSuffix(domain, ".localhost") && host != "localhost" && !strings.HasSuffix(host, ".localhost") {
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
			return ""
		}
	}
	if _, port, err := net.SplitHostPort(c.R.Host); err == nil {
		domain = net.JoinHostPort(domain, port)
	}
	return domain
}

// createSandbox creates a sandbox. E2B gives every sandbox root inside, with sudo, and access to the internet. It gets
// the first where the machine has it, and the second, if the request does not mention it, where the policy allows it, too.
func createSandbox(c *call) error {
	in := new(newSandbox)
	if err := c.readJSON(in); err != nil {
		return err
	}
	if err := c.Intend(fmt.Sprintf("template %.80q", in.TemplateID)); err != nil {
		return err
	}
	spec, err := in.spec()
	if err != nil {
		return err
	}
	var built bool
	var unknown error
	if spec.Image, built, unknown = c.api.resolve(in.TemplateID); unknown != nil && !built {
		return unknown
	}
	kept := state{Template: in.TemplateID, AutoResume: in.AutoResume != nil && in.AutoResume.Enabled, Private: in.Network != nil && in.Network.PublicTraffic != nil && !*in.Network.PublicTraffic}
	kept.AllowOut = in.Network.redundant(spec.Egress)
	kept.Keys, _ = addKey(nil, c.Caller.Key)
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	sb, err := c.api.create(c.Ctx, c.tenant().Waiting(createWait), spec, in.AllowInternet != nil || in.Network.mentionsEgress(), data)
	switch {
	case built && errors.Is(err, sandpit.ErrNotFound):
		return unknown
	case err != nil:
		return err
	}
	c.Target = sb.ID() // for the audit
	if built {
		if err := build.StartProgram(c.Ctx, sb, withOwn(sb, nil)); err != nil {
			return errors.Join(err, sb.Remove(context.WithoutCancel(c.Ctx)))
		}
	}
	return c.answer(http.StatusCreated, c.describe(sb))
}

// createWait is the longest that a create waits for capacity. SDKs give up after a minute, and would not see the reason.
const createWait = 5 * time.Second

// create is Server.Create, with root inside where the machine can do that.
func (a *api) create(ctx context.Context, t *engine.Tenant, spec sandpit.Spec, asked bool, data json.RawMessage) (engine.Box, error) {
	spec.RootInside = a.Features(ctx)[feature.Users]
	return a.Create(ctx, t, spec, asked, Name, data)
}

// info describes a sandbox.
type info struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int64             `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	Metadata     map[string]string `json:"metadata"`
	VolumeMounts []struct{}        `json:"volumeMounts"`

	*details
}

// details are what only the description of one sandbox has.
type details struct {
	EnvdAccessToken string         `json:"envdAccessToken,omitempty"`
	AllowInternet   bool           `json:"allowInternetAccess"`
	Network         *networkConfig `json:"network,omitempty"`
	Lifecycle       lifecycle      `json:"lifecycle"`
	Domain          string         `json:"domain,omitempty"`
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// cpuCount returns the number of CPUs that SDKs are told: a whole one.
func cpuCount(l sandpit.Limits) int64 { return max(int64(l.CPUs+0.5), 1) }

func infoOf(i sandpit.Info, s state) info {
	out := info{
		SandboxID: i.ID, TemplateID: s.Template, ClientID: clientID, StartedAt: i.CreatedAt, EndAt: i.ExpiresAt,
		CPUCount: cpuCount(i.Limits), MemoryMB: i.Limits.Memory >> 20, DiskSizeMB: i.Limits.Disk >> 20,
		State: "running", EnvdVersion: envdVersion, Metadata: metadataOfLabels(i.Labels), VolumeMounts: []struct{}{},
	}
	if isPaused(i) {
		out.State = "paused"
	}
	if out.TemplateID == "" {
		out.TemplateID = i.Image
	}
	if i.Name != i.ID {
		out.Alias = i.Name
	}
	return out
}

// getSandbox describes a sandbox.
func getSandbox(c *call) error {
	sb, i, err := c.live()
	if err != nil {
		return err
	}
	e, err := sb.Egress(c.Ctx)
	if err != nil {
		return err
	}
	s := stateOf(sb)
	out := infoOf(i, s)
	out.details = &details{EnvdAccessToken: c.token(sb.ID()), AllowInternet: e.Asked(), Network: networkOf(e, s), Lifecycle: lifecycle{"kill", s.AutoResume}, Domain: c.domain()}
	if i.OnExpiry == sandpit.ExpiryPause {
		out.Lifecycle.OnTimeout = "pause"
	}
	return c.answer(http.StatusOK, out)
}

// expired reports whether the time of a sandbox that is then removed is over. The engine removes it a little later, so
// that the results of what it ends can come. For clients it is gone.
func expired(i sandpit.Info) bool { return timeIsOver(i) && i.OnExpiry != sandpit.ExpiryPause }

// timeIsOver reports whether the time of a running sandbox is over. One that is then paused counts as paused.
func timeIsOver(i sandpit.Info) bool {
	return i.State == sandpit.StateRunning && !i.ExpiresAt.IsZero() && time.Until(i.ExpiresAt) <= 0
}

// isPaused reports whether a sandbox is paused, or about to be.
func isPaused(i sandpit.Info) bool { return i.State == sandpit.StatePaused || timeIsOver(i) }

// live finds and describes the sandbox that a request to the control plane names, unless it is stopped or has
// failed: E2B has no such sandboxes.
func (c *call) live() (engine.Box, sandpit.Info, error) {
	sb, err := c.sandbox()
	if err != nil {
		return nil, sandpit.Info{}, err
	}
	i, err := sb.Info(c.Ctx)
	switch {
	case err != nil:
	case i.State == sandpit.StateStopped || i.State == sandpit.StateFailed:
		err = c.Untouched(&gate.Refusal{Code: errcode.NotFound, Message: fmt.Sprintf("sandbox %s is %s", i.ID, i.State)})
	case expired(i):
		err = c.Untouched(&gate.Refusal{Code: errcode.NotFound, Message: fmt.Sprintf("sandbox %s has reached its end", i.ID)})
	}
	return sb, i, err
}

// maxListed is the largest page of a list, as E2B has it.
const maxListed = 100

// listSandboxes lists the sandboxes of the namespace, a page at a time.
func listSandboxes(c *call) error {
	q := c.R.URL.Query()
	list := sandpit.ListQuery{After: q.Get("nextToken"), Limit: sandpit.DefaultPage, NewestFirst: q.Get("order") != "asc"}
	if limit := q.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > maxListed {
			return gate.Invalid(fmt.Sprintf("the limit %.40q is not a number from 1 to %d", limit, maxListed), "ask for further pages with nextToken")
		}
		list.Limit = n
	}
	if after := q.Get("startedAfter"); after != "" {
		t, err := time.Parse(time.RFC3339, after)
		if err != nil {
			return gate.Invalid("startedAfter is not a time", "use RFC 3339")
		}
		list.Since = t.Add(1)
	}
	names := q["state"]
	if len(names) == 0 {
		names = []string{"running,paused"}
	}
	for name := range strings.SplitSeq(strings.Join(names, ","), ",") {
		switch name {
		case "running":
			list.States = append(list.States, sandpit.StateRunning)
		case "paused":
			list.States = append(list.States, sandpit.StatePaused)
		default:
			return gate.Invalid(fmt.Sprintf("the state %.40q is not known", name), "use running or paused")
		}
	}
	var err error
	if list.Labels, err = metadata(q.Get("metadata")); err != nil {
		return err
	}
	tenant := c.tenant()
	page, err := tenant.List(c.Ctx, list)
	if err != nil {
		return err
	}
	out := []info{}
	for _, i := range page.Sandboxes {
		if expired(i) {
			continue
		}
		sb, err := tenant.Box(i.ID)
		if err != nil { // it has just gone
			continue
		}
		if timeIsOver(i) && !slices.Contains(list.States, sandpit.StatePaused) {
			continue
		}
		s := stateOf(sb)
		if one := infoOf(i, s); s.Build == "" && (q.Get("template") == "" || q.Get("template") == one.TemplateID) {
			out = append(out, one)
		}
	}
	if page.Next != "" {
		c.W.Header().Set("X-Next-Token", page.Next)
	}
	return c.answer(http.StatusOK, out)
}

// metadata parses the filter of a list. SDKs encode its names and values twice.
func metadata(query string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, gate.Invalid("metadata is not a query", "")
	}
	out := map[string]string{}
	for name, all := range values {
		plain, err := url.PathUnescape(name)
		value, err2 := url.PathUnescape(all[0])
		if err != nil || err2 != nil {
			return nil, gate.Invalid("metadata is not a query", "")
		}
		out[toLabel(plain, true)] = toLabel(value, false)
	}
	return out, nil
}

// killSandbox removes a sandbox.
func killSandbox(c *call) error {
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	if err := sb.Remove(c.Ctx); err != nil {
		return err
	}
	return c.done()
}

// lifeRequest is the body of requests that change the lifetime.
type lifeRequest struct {
	Timeout   *int64 `json:"timeout"`  // seconds
	Duration  *int64 `json:"duration"` // the same
	Memory    *bool  `json:"memory"`
	AutoPause *bool  `json:"autoPause"`
}

func (c *call) lifeRequest() (*lifeRequest, error) {
	in := new(lifeRequest)
	if err := c.readJSON(in); err != nil {
		return nil, c.Untouched(err)
	}
	if in.Memory != nil && !*in.Memory {
		return nil, c.Untouched(dialect.Unsupported("sandboxes without their memory are"))
	}
	return in, nil
}

// connectSandbox resumes a sandbox if it is paused. Its lifetime becomes longer, and never shorter.
func connectSandbox(c *call) error { return c.wake(true) }

// resumeSandbox is what SDKs used before connectSandbox.
func resumeSandbox(c *call) error { return c.wake(false) }

func (c *call) wake(running bool) error {
	in, err := c.lifeRequest()
	if err != nil {
		return err
	}
	sb, i, err := c.live()
	if err != nil {
		return err
	}
	status, life := http.StatusOK, defaultLife
	if in.Timeout != nil {
		life = seconds(*in.Timeout)
	}
	switch {
	case isPaused(i):
		status = http.StatusCreated
		err = c.resume(sb, i, func() error { return c.extend(sb, life, in.AutoPause, false) })
	case running:
		err = c.extend(sb, life, in.AutoPause, true)
	default:
		err = &gate.Refusal{Code: errcode.State, Message: "the sandbox is not paused"}
	}
	if err != nil {
		return err
	}
	if err := c.rememberKey(sb); err != nil {
		return err
	}
	return c.answer(status, c.describe(sb))
}

// resume resumes a sandbox, which i describes, and sets its lifetime with extend.
func (c *call) resume(sb engine.Box, i sandpit.Info, extend func() error) error {
	if err := sb.Resume(c.Ctx); err != nil {
		return err
	}
	if err := extend(); err != nil || !timeIsOver(i) {
		return err
	}
	return sb.Resume(c.Ctx) // it may have been paused meanwhile
}

// rememberKey lets the caller sign URLs of a sandbox.
func (c *call) rememberKey(sb engine.Box) error {
	if _, added := addKey(stateOf(sb).Keys, c.Caller.Key); !added {
		return nil
	}
	return c.change(sb, func(s *state) { s.Keys, _ = addKey(s.Keys, c.Caller.Key) })
}

// change changes the state of a sandbox.
func (c *call) change(sb engine.Box, change func(*state)) error {
	return sb.ChangeDialect(c.Ctx, Name, func(data json.RawMessage) (json.RawMessage, error) {
		var s state
		if err := dialect.Recall(data, &s); err != nil {
			return nil, err
		}
		change(&s)
		return json.Marshal(s)
	})
}

// extend sets the lifetime of a sandbox from now on. With longer, it never becomes shorter.
func (c *call) extend(sb engine.Box, life time.Duration, autoPause *bool, longer bool) error {
	change := sandpit.Lifetime{Life: max(life, time.Second)}
	if autoPause != nil {
		change.OnExpiry = sandpit.ExpiryRemove
		if *autoPause {
			change.OnExpiry = sandpit.ExpiryPause
		}
	}
	i, err := sb.Info(c.Ctx)
	if err != nil {
		return err
	}
	if longer && !i.ExpiresAt.Before(time.Now().Add(change.Life)) {
		if change.Life = 0; change.OnExpiry == "" {
			return nil
		}
	}
	return sb.SetLifetime(c.Ctx, change)
}

// setTimeout sets the lifetime from now on.
func setTimeout(c *call) error {
	in, err := c.lifeRequest()
	if err != nil {
		return err
	}
	if in.Timeout == nil || *in.Timeout < 0 {
		return gate.Invalid("timeout is missing or negative", "")
	}
	sb, i, err := c.live()
	if err != nil {
		return err
	}
	switch {
	case *in.Timeout > 0:
		err = c.extend(sb, seconds(*in.Timeout), nil, false)
	case i.OnExpiry != sandpit.ExpiryPause:
		err = sb.Remove(c.Ctx)
	case i.State == sandpit.StateRunning:
		err = sb.Pause(c.Ctx)
	}
	if err != nil {
		return err
	}
	return c.done()
}

// refreshSandbox makes the lifetime longer.
func refreshSandbox(c *call) error {
	in, err := c.lifeRequest()
	if err != nil {
		return err
	}
	sb, _, err := c.live()
	if err != nil {
		return err
	}
	life := defaultLife
	if in.Duration != nil {
		life = seconds(*in.Duration)
	}
	if err := c.extend(sb, life, nil, true); err != nil {
		return err
	}
	return c.done()
}

// pauseSandbox freezes a sandbox.
func pauseSandbox(c *call) error {
	if _, err := c.lifeRequest(); err != nil {
		return err
	}
	sb, i, err := c.live()
	if err != nil {
		return err
	}
	if i.State == sandpit.StatePaused {
		return &gate.Refusal{Code: errcode.State, Message: "the sandbox is paused already"}
	}
	if err := sb.Pause(c.Ctx); err != nil {
		return err
	}
	return c.done()
}

// metric is the use of resources at one time.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int64     `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of all CPUs of the sandbox
	MemUsed       int64     `json:"memUsed"`    // bytes, as the next four
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// getMetrics lists the use of resources, oldest first.
func getMetrics(c *call) error {
	sb, i, err := c.live()
	if err != nil {
		return err
	}
	all, err := sb.History(c.Ctx, time.Time{})
	if err != nil {
		return err
	}
	if len(all) == 0 && i.State == sandpit.StateRunning {
		now, err := sb.Metrics(c.Ctx)
		if err != nil {
			return err
		}
		all = append(all, sandpit.Sample{Time: time.Now(), Metrics: now})
	}
	q := c.R.URL.Query()
	from, _ := strconv.ParseInt(q.Get("start"), 10, 64)
	to, err := strconv.ParseInt(q.Get("end"), 10, 64)
	if err != nil {
		to = 1 << 62
	}
	out, was := []metric{}, sandpit.Sample{Time: i.CreatedAt}
	for _, s := range all {
		used := 0.0
		if i.Limits.CPUs > 0 {
			used = dialect.CPUPercent(was, s) / i.Limits.CPUs
		}
		if was = s; s.Time.Unix() >= from && s.Time.Unix() <= to {
			out = append(out, metric{
				Timestamp: s.Time, TimestampUnix: s.Time.Unix(), CPUCount: cpuCount(i.Limits), CPUUsedPct: used,
				MemUsed: max(s.Memory, 0), MemTotal: i.Limits.Memory, DiskUsed: max(s.Disk, 0), DiskTotal: i.Limits.Disk,
			})
		}
	}
	return c.answer(http.StatusOK, out)
}
