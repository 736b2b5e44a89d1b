package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// A template is an image that was saved from a sandbox in which steps were carried out (package build), or one that has an
// alias in the policy file. Names of the policy file come first, so that a template can't stand in for one of them.
//
// The ID of a template is its name. A build has an ID of its own.

// templateRoutes returns the routes of templates.
func templateRoutes() []route {
	const one = "/templates/{template}"
	return []route{
		{method: http.MethodPost, path: "/v3/templates", id: "requestBuild", audited: true, handle: requestBuild},
		{method: http.MethodGet, path: one + "/files/{hash}", id: "uploadLink", handle: uploadLink},
		{method: http.MethodPost, path: "/v2" + one + "/builds/{build}", id: "startBuild", audited: true, handle: startBuild},
		{method: http.MethodGet, path: one + "/builds/{build}/status", id: "buildStatus", handle: buildStatus},
		{method: http.MethodGet, path: "/templates", id: "listTemplates", handle: listTemplates},
		{method: http.MethodGet, path: "/templates/aliases/{alias}", id: "findTemplate", handle: findTemplate},
		{method: http.MethodDelete, path: one, id: "removeTemplate", vital: true, handle: removeTemplate},
		{method: http.MethodPost, path: "/templates/tags", id: "assignTags", audited: true, handle: assignTags},
		{method: http.MethodDelete, path: "/templates/tags", id: "removeTags", audited: true, handle: removeTags},
		{method: http.MethodGet, path: one + "/{part}", id: "listTags", handle: listTags},
	}
}

// uploadRoutes returns the routes of those who have the URL of an upload.
func uploadRoutes() []route {
	return []route{
		{method: http.MethodPut, path: "/templates/{template}/files/{hash}", id: "uploadArchive", handle: uploadArchive},
	}
}

// uploadOf is what the name of a sandbox ends with in the token of the upload of one archive. The sandbox is that of one build,
// and so of one template.
func uploadOf(hash string) string { return ".upload." + hash }

// proveUpload is gate.Route.Proof of uploads: their URL has a token in its query.
func (a *api) proveUpload(c *gate.Call) (who gate.Caller, ok bool, err error) {
	given := gate.TakeQuery(c.R, "token")
	if len(given) != 1 {
		return who, false, nil
	}
	sandbox, who, err := a.Tokens.Verify(c.Ctx, given[0])
	if err != nil {
		return gate.Caller{}, false, err
	}
	if c.Target, ok = strings.CutSuffix(sandbox, uploadOf(c.R.PathValue("hash"))); !ok {
		return gate.Caller{}, false, dialect.ErrTokenEnded
	}
	return who, true, nil
}

// resolve returns the image of a template, and whether it is one that was built. unknown is the error if that
// does not exist.
func (a *api) resolve(name string) (image string, built bool, unknown error) {
	image, unknown = a.Image(strings.TrimSuffix(name, ":"+defaultTag))
	if unknown == nil {
		return image, false, nil
	}
	saved, ok := savedAs(name, "")
	if !errors.Is(unknown, sandpit.ErrNotFound) || !ok {
		return "", false, unknown
	}
	return sandpit.SavedImages + saved, true, unknown
}

// baseName returns the name of a template for the images from which SDKs build unless they are told otherwise, and others as they are.
func baseName(image string) string {
	switch strings.TrimSuffix(image, ":latest") {
	case "e2bdev/base":
		return "base"
	case "e2bdev/code-interpreter":
		return "code-interpreter-v1"
	}
	return image
}

// A tag is a name of one build of a template: the image saved:NAME:TAG, or saved:NAME for defaultTag, which is meant by
// a name without a tag.
const (
	defaultTag = "default"
	maxTags    = 32 // in a request
)

// savedAs returns the name of the saved image that a template has under a tag, which the name may contain itself.
func savedAs(name, tag string) (saved string, ok bool) {
	if base, own, has := strings.Cut(name, ":"); has && tag == "" {
		name, tag = base, own
		if tag == "" {
			return "", false
		}
	}
	if tag == "" || tag == defaultTag {
		return name, notation.IsName(name)
	}
	return name + ":" + tag, notation.IsName(name) && notation.IsName(tag)
}

// allSavedAs is savedAs for several tags.
func allSavedAs(name string, tags []string) (saved []string, err error) {
	if len(tags) == 0 || len(tags) > maxTags {
		return nil, gate.Invalid(fmt.Sprintf("a request must have 1 to %d tags", maxTags), "")
	}
	for _, tag := range tags {
		s, ok := savedAs(name, tag)
		if !ok || tag == "" {
			return nil, gate.Invalid(fmt.Sprintf("%.80q can't be a template with the tag %.80q", name, tag), notation.NameHint)
		}
		saved = append(saved, s)
	}
	return saved, nil
}

// tagOf returns the template and the tag that a saved image is.
func tagOf(saved string) (name, tag string) {
	name, tag, _ = strings.Cut(saved, ":")
	return name, cmp.Or(tag, defaultTag)
}

// templates returns the templates that the namespace has built: their saved images by name and tag.
func (c *call) templates() (map[string]map[string]dialect.SavedImage, error) {
	all, err := c.api.Saved(c.Ctx, c.Caller)
	templates := map[string]map[string]dialect.SavedImage{}
	for saved, image := range all {
		name, tag := tagOf(saved)
		if templates[name] == nil {
			templates[name] = map[string]dialect.SavedImage{}
		}
		templates[name][tag] = image
	}
	return templates, err
}

func errNoTemplate(name string) error {
	return &gate.Refusal{Code: errcode.NotFound, Message: fmt.Sprintf("no template is named %.80q", name)}
}

// buildIDOf returns the build ID that tags of an image have: SDKs need a UUID.
func buildIDOf(digest string) string {
	d := strings.TrimPrefix(digest, "sha256:") + strings.Repeat("0", 32)
	return d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:32]
}

// assignTags gives a build of a template tags, which other builds of it lose.
func assignTags(c *call) error {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := c.readJSON(&in); err != nil {
		return c.Untouched(err)
	}
	if err := c.Intend(fmt.Sprintf("tags %.200q of template %.80q", strings.Join(in.Tags, " "), in.Target)); err != nil {
		return err
	}
	from, ok := savedAs(in.Target, "")
	if !ok {
		return gate.Invalid(fmt.Sprintf("%.80q is not NAME or NAME:TAG of a template", in.Target), "")
	}
	name, _ := tagOf(from)
	to, err := allSavedAs(name, in.Tags)
	if err != nil {
		return err
	}
	digest, err := c.api.TagSaved(c.Ctx, c.Caller, from, to)
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, map[string]any{"tags": in.Tags, "buildID": buildIDOf(digest)})
}

// removeTags removes tags of a template, and the builds that have no other.
func removeTags(c *call) error {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := c.readJSON(&in); err != nil {
		return c.Untouched(err)
	}
	if err := c.Intend(fmt.Sprintf("tags %.200q of template %.80q", strings.Join(in.Tags, " "), in.Name)); err != nil {
		return err
	}
	saved, err := allSavedAs(in.Name, in.Tags)
	if err != nil {
		return err
	}
	all, err := c.api.Saved(c.Ctx, c.Caller)
	if err != nil {
		return err
	}
	slices.Sort(saved)
	saved = slices.Compact(saved)
	for _, s := range saved {
		if _, ok := all[s]; !ok {
			name, tag := tagOf(s)
			return &gate.Refusal{Code: errcode.NotFound, Message: fmt.Sprintf("the template %.80q has no tag %.80q; nothing was removed", name, tag)}
		}
	}
	for _, s := range saved {
		if err := c.api.RemoveSaved(c.Ctx, c.Caller, s); err != nil {
			return err
		}
	}
	return c.done()
}

// listTags lists the tags of a template.
func listTags(c *call) error {
	if c.R.PathValue("part") != "tags" {
		return c.Untouched(dialect.Unsupported("this part of templates is"))
	}
	all, err := c.api.Saved(c.Ctx, c.Caller)
	if err != nil {
		return err
	}
	template, out := c.R.PathValue("template"), []map[string]any{}
	for _, saved := range slices.Sorted(maps.Keys(all)) {
		if name, tag := tagOf(saved); name == template {
			out = append(out, map[string]any{"tag": tag, "buildID": buildIDOf(all[saved].Digest), "createdAt": all[saved].Named})
		}
	}
	if len(out) == 0 {
		return errNoTemplate(template)
	}
	return c.answer(http.StatusOK, out)
}

// newBuilds returns the builds of templates.
func (a *api) newBuilds() *build.Builds {
	mark := func(id string) json.RawMessage {
		data, _ := json.Marshal(state{Build: id}) // of strings, which never fails
		return data
	}
	return build.New(build.Host{
		Server: a.Server, Home: homeOf, Own: ownName,
		Stage: func(ctx context.Context, caller gate.Caller, life time.Duration, id string) (engine.Box, error) {
			image, err := a.Image("base")
			if err != nil {
				return nil, err
			}
			return a.Tenant(caller).CreateFor(ctx, sandpit.Spec{Image: image, Limits: sandpit.Limits{Life: life}}, Name, mark(id))
		},
		Make: func(ctx context.Context, caller gate.Caller, spec sandpit.Spec, id string) (engine.Box, error) {
			return a.create(ctx, a.Tenant(caller), spec, false, mark(id))
		},
	})
}

// buildRequest is the request for a build.
type buildRequest struct {
	Name   string   `json:"name"`
	Alias  string   `json:"alias"` // what old SDKs have as the name
	Tags   []string `json:"tags"`
	CPUs   *float64 `json:"cpuCount"`
	Memory *int64   `json:"memoryMB"`
}

// requestBuild begins a build, which waits for its files and steps.
func requestBuild(c *call) error {
	in := new(buildRequest)
	if err := c.readJSON(in); err != nil {
		return c.Untouched(err)
	}
	name, tag, tagged := strings.Cut(cmp.Or(in.Name, in.Alias), ":")
	if err := c.Intend(fmt.Sprintf("template %.80q", name)); err != nil {
		return err
	}
	tags := in.Tags
	if tagged {
		tags = append(tags, tag)
	}
	if len(tags) == 0 {
		tags = []string{defaultTag}
	}
	saved, err := allSavedAs(name, tags)
	if err != nil {
		return err
	}
	switch _, err := c.api.Image(name); {
	case !notation.IsName(name):
		return gate.Invalid(fmt.Sprintf("%.80q can't be the name of a template", name), notation.NameHint)
	case err == nil:
		return &gate.Refusal{Code: errcode.Exists, Message: fmt.Sprintf("the operator has given the name %q to an image", name), Hint: "use another name"}
	case in.CPUs != nil && (*in.CPUs <= 0 || *in.CPUs > 1<<10), in.Memory != nil && (*in.Memory <= 0 || *in.Memory > 1<<30):
		return gate.Invalid("cpuCount or memoryMB is out of range", "")
	}
	request := build.Request{Template: name, Saved: saved}
	if in.CPUs != nil {
		request.Limits.CPUs = *in.CPUs
	}
	if in.Memory != nil {
		request.Limits.Memory = *in.Memory << 20
	}
	b, err := c.api.builds.Request(c.Ctx, c.Caller, request)
	if err != nil {
		return err
	}
	c.Target = b.StageID()
	return c.answer(http.StatusAccepted, map[string]any{
		"templateID": name, "buildID": b.ID(), "public": false, "names": []string{name}, "tags": tags, "aliases": []string{name},
	})
}

// uploadLink returns where an archive is to be sent, for the newest build of a template that waits.
func uploadLink(c *call) error {
	hash := c.R.PathValue("hash")
	if !build.ValidHash(hash) {
		return gate.Invalid("the hash of the files is not valid", "use hexadecimal digits")
	}
	b := c.api.builds.Waiting(c.Caller, c.R.PathValue("template"))
	if b == nil {
		return &gate.Refusal{Code: errcode.NotFound, Message: "no build of the template waits for files"}
	}
	if b.HasArchive(c.Ctx, hash) {
		return c.answer(http.StatusCreated, map[string]any{"present": true})
	}
	token := c.token(b.StageID() + uploadOf(hash))
	if token == "" {
		return dialect.Unsupported("uploading without a key is")
	}
	scheme := "http"
	if c.R.TLS != nil || c.R.Header.Get("X-Forwarded-Proto") == "https" { // a false header only breaks the link in the caller's own answer
		scheme = "https"
	}
	link := url.URL{Scheme: scheme, Host: c.R.Host, Path: c.R.URL.Path, RawQuery: url.Values{"token": {token}}.Encode()}
	return c.answer(http.StatusCreated, map[string]any{"present": false, "url": link.String()})
}

// uploadArchive stores an archive. A token is only given out for a valid hash.
func uploadArchive(c *call) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	b := c.api.builds.Find(c.Caller, stateOf(sb).Build)
	if b == nil || b.Template() != c.R.PathValue("template") {
		return dialect.ErrTokenEnded
	}
	if err := b.Store(c.Ctx, sb, c.R.PathValue("hash"), c.Body(-1, 0)); err != nil {
		return err
	}
	c.W.WriteHeader(http.StatusOK)
	return nil
}

// buildStart is what a build does.
type buildStart struct {
	FromImage    string          `json:"fromImage"`
	FromTemplate string          `json:"fromTemplate"`
	Registry     json.RawMessage `json:"fromImageRegistry"`
	Steps        []buildStep     `json:"steps"`
	StartCmd     string          `json:"startCmd"`
	ReadyCmd     string          `json:"readyCmd"`
	Force        bool            `json:"force"` // nothing is taken from an earlier build
}

// buildStep is a step of a build.
type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Hash  string   `json:"filesHash"`
	Force bool     `json:"force"` // as of the whole build, for this step and those after it
}

// resolve returns the image on which the build begins.
func (s *buildStart) resolve(a *api) (string, error) {
	from := s.FromTemplate
	if from == "" {
		from = baseName(s.FromImage)
		if _, err := a.Image(from); err != nil {
			return from, nil // as it is: the policy decides about it
		}
	}
	image, built, err := a.resolve(from)
	if built {
		err = nil
	}
	return image, err
}

// startBuild lets a build begin.
func startBuild(c *call) error {
	in := new(buildStart)
	refused := c.readJSON(in)
	b, err := c.build()
	if err != nil {
		return err
	}
	if err := c.Intend(fmt.Sprintf("template %.80q from %.80q, %d steps", b.Template(), in.FromImage+in.FromTemplate, len(in.Steps))); err != nil {
		return err
	}
	var plan *build.Plan
	if refused == nil {
		plan, refused = in.plan(c.api)
	}
	if refused != nil {
		c.api.builds.Refuse(b, c.Describe(refused))
		return refused
	}
	if err := c.api.builds.Start(b, plan); err != nil {
		return err
	}
	c.W.WriteHeader(http.StatusAccepted)
	return nil
}

// plan returns what a build is to do.
func (in *buildStart) plan(a *api) (*build.Plan, error) {
	if dialect.Given(in.Registry) {
		return nil, dialect.Unsupported("images with credentials of their registry are")
	}
	p := &build.Plan{From: cmp.Or(in.FromTemplate, in.FromImage), Start: in.StartCmd, Ready: in.ReadyCmd, Force: in.Force}
	for _, s := range in.Steps {
		p.Steps = append(p.Steps, build.Step(s))
	}
	err := p.Check()
	if err == nil {
		p.Image, err = in.resolve(a)
	}
	return p, err
}

// build finds the build that a request names.
func (c *call) build() (*build.Build, error) {
	b := c.api.builds.Find(c.Caller, c.R.PathValue("build"))
	if b == nil || b.Template() != c.R.PathValue("template") {
		return nil, c.Untouched(&gate.Refusal{Code: errcode.NotFound, Message: "the build is not known, or ended when the server did", Hint: "build the template again"})
	}
	return b, nil
}

// buildStatus says how far a build is, with the log from an offset on.
func buildStatus(c *call) error {
	b, err := c.build()
	if err != nil {
		return err
	}
	offset, _ := strconv.Atoi(c.R.URL.Query().Get("logsOffset"))
	return c.answer(http.StatusOK, reportOf(b, max(offset, 0)))
}

// linesPerStatus is how many lines of the log a report has, as at E2B. SDKs ask again.
const linesPerStatus = 100

// statusReport is what SDKs are told of a build.
type statusReport struct {
	TemplateID string     `json:"templateID"`
	BuildID    string     `json:"buildID"`
	Status     string     `json:"status"`
	Logs       []string   `json:"logs"`
	Entries    []logEntry `json:"logEntries"`
	Reason     *reason    `json:"reason,omitempty"`
}

// logEntry is a line of a log.
type logEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step,omitempty"`
}

// reason is why a build has failed.
type reason struct {
	Message string     `json:"message"`
	Step    string     `json:"step,omitempty"`
	Log     []logEntry `json:"logEntries"`
}

// reportOf describes a build, with its log from a line on.
func reportOf(b *build.Build, from int) statusReport {
	r := b.Report(from, linesPerStatus)
	out := statusReport{TemplateID: b.Template(), BuildID: b.ID(), Status: r.Status, Logs: []string{}, Entries: entries(r.Log)}
	for _, line := range r.Log {
		out.Logs = append(out.Logs, line.Message)
	}
	if r.Reason != nil {
		out.Reason = &reason{r.Reason.Message, r.Reason.Step, entries(r.Reason.Log)}
	}
	return out
}

func entries(log []build.Line) []logEntry {
	out := make([]logEntry, len(log))
	for i, line := range log {
		out[i] = logEntry(line)
	}
	return out
}

// findTemplate says whether a template exists.
func findTemplate(c *call) error {
	name := strings.TrimSuffix(c.R.PathValue("alias"), ":"+defaultTag)
	if _, err := c.api.Image(name); err != nil {
		all, err := c.templates()
		if err != nil {
			return err
		}
		template, tag, tagged := strings.Cut(name, ":")
		if _, ok := all[template][tag]; all[template] == nil || tagged && !ok {
			return errNoTemplate(name)
		}
	}
	return c.answer(http.StatusOK, map[string]any{"templateID": name, "public": false})
}

// listTemplates lists the templates that the namespace has built.
func listTemplates(c *call) error {
	all, err := c.templates()
	if err != nil {
		return err
	}
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var first, last time.Time
		builds := map[string]bool{}
		for _, image := range all[name] {
			if first.IsZero() || image.Named.Before(first) {
				first = image.Named
			}
			if image.Named.After(last) {
				last = image.Named
			}
			builds[image.Digest] = true
		}
		out = append(out, map[string]any{
			"templateID": name, "buildID": "", "buildStatus": build.Ready, "names": []string{name}, "aliases": []string{name}, "public": false,
			"createdAt": first, "updatedAt": last, "lastSpawnedAt": nil, "createdBy": nil, "spawnCount": 0, "buildCount": len(builds),
			"cpuCount": 0, "memoryMB": 0, "diskSizeMB": 0, "envdVersion": envdVersion,
		})
	}
	return c.answer(http.StatusOK, out)
}

// removeTemplate removes a template that the namespace has built, with all its tags.
func removeTemplate(c *call) error {
	name := strings.TrimSuffix(c.R.PathValue("template"), ":"+defaultTag)
	all, err := c.templates()
	if err != nil {
		return err
	}
	if all[name] == nil {
		return errNoTemplate(name)
	}
	for tag := range all[name] {
		saved, _ := savedAs(name, tag)
		if err := c.api.RemoveSaved(c.Ctx, c.Caller, saved); err != nil {
			return err
		}
	}
	return c.done()
}
