// Package e2b serves the API of E2B, so that its SDKs can use Sandpit unmodified.
//
// The API has two parts, which E2B serves under different names and Sandpit on one address. The
// control plane creates, finds and ends sandboxes; callers send their key in X-API-KEY. The data
// plane is what E2B's agent, envd, serves in each sandbox: processes, files and health. Its
// requests name the sandbox in a header, or by the access token that the control plane has given
// out for it (token.go). The paths of the two differ, so that a request needs no other mark.
//
// Processes and files are services of the Connect protocol with its JSON codec (connect.go), and
// files are also sent and received as they are (transfer.go). Ports of a sandbox have host names (ports.go), and one of them
// answers as E2B's code interpreter does (code.go). Templates are saved images (templates.go); their
// builds of templates run in sandboxes of the caller (package build).
//
// What the package must know about a sandbox later is its data of the dialect, so that it survives a restart of the server. Only
// builds in progress, their reports and watchers of files are in memory, and end with the server.
// Facts about the protocol are from the public SDKs (e2b-dev/E2B) and the requests that they send.
package e2b

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
)

// Name is the name of the service.
const Name = "e2b"

// New returns the dialect.
func New() dialect.Dialect {
	return dialect.Dialect{
		Name: Name, Title: "E2B", KeyFormat: keys.E2B, Settings: settings, New: serve,
		Error: func(f gate.Failure) []byte { return plainError(f.Status, f) },
	}
}

// settings are those of the SDKs, for which one URL serves both parts of the API.
func settings(url string) []dialect.Setting {
	return []dialect.Setting{{Name: "E2B_API_URL", Value: url}, {Name: "E2B_SANDBOX_URL", Value: url}, {Name: "E2B_API_KEY", Key: true}}
}

// Headers of requests.
const (
	headerKey     = "X-Api-Key"
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerToken   = "X-Access-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// envdVersion is the version of envd whose behavior this package has. SDKs ask older versions
// for less.
const envdVersion = "0.6.13"

// api serves the dialect.
type api struct {
	dialect.Server
	watchers watchers
	builds   *build.Builds
	signers  signers
	proxy    *portproxy.Proxy
}

// call is one request on its way.
type call struct {
	*gate.Call
	api *api
}

// route is an operation of the dialect.
type route struct {
	method, path, id string
	guarded          bool // although it is a GET
	vital            bool
	audited          bool // the handler calls Intend itself
	handle           func(*call) error
}

// serve returns the dialect as the gate of a server has it.
func serve(s dialect.Server) gate.Dialect {
	a := &api{Server: s}
	a.proxy = a.newProxy()
	dialect.WarnOfData[state](s, Name)
	a.builds = a.newBuilds()
	a.builds.DiscardLeft(slices.DeleteFunc(a.Sandboxes(), func(sb engine.Box) bool { return stateOf(sb).Build == "" }))
	d := gate.Dialect{
		Pick: func(r *http.Request) string {
			if _, ok := a.portOf(r); ok {
				return portID
			}
			return ""
		},
		Credential: func(r *http.Request) (string, bool) { return r.Header.Get(headerKey), false },
		KeyHint:    "set E2B_API_KEY to a key of this server; sandpit key create makes one",
		PathHint:   "this server has no such call of E2B's API",
		Fail:       a.fail,
	}
	add := func(proof func(*gate.Call) (gate.Caller, bool, error), target func(*http.Request) string, routes ...[]route) {
		for _, r := range slices.Concat(routes...) {
			d.Routes = append(d.Routes, gate.Route{
				Method: r.method, Path: r.path, ID: Name + "." + r.id,
				Guarded: r.method != http.MethodGet || r.guarded, Vital: r.vital, SelfAudited: r.audited,
				Proof: proof, Target: target,
				Handle: func(c *gate.Call) error {
					in := &call{c, a}
					return in.notGone(r.handle(in))
				},
			})
		}
	}
	inPath := func(r *http.Request) string { return r.PathValue("id") }
	add(nil, inPath, sandboxRoutes(), templateRoutes(), lackingRoutes())
	add(a.proveUpload, nil, uploadRoutes())
	add(a.proof, a.named, healthRoutes(), processRoutes(), filesystemRoutes(), transferRoutes(), codeRoutes())
	d.Routes = append(d.Routes, a.portRoute())
	return d
}

// onData reports whether a path is one of the data plane.
func onData(path string) bool {
	return rpcPath(path) || onInterpreter(path) || path == filesPath || path == composePath || path == "/health"
}

// fail is gate.Dialect.Fail.
func (a *api) fail(c *gate.Call, f gate.Failure) {
	if t, ok := a.portOf(c.R); ok {
		failPort(c, t, f)
		return
	}
	status := f.Status
	switch {
	case onData(c.R.URL.Path):
		status = dataStatus(f)
	case f.Code == errcode.Closed: // it is just being removed
		status = http.StatusNotFound
	case f.Code == errcode.Overloaded: // for which SDKs have an error
		status = http.StatusTooManyRequests
	}
	switch {
	case rpcPath(c.R.URL.Path):
		failRPC(c, f, status)
	default:
		writeJSON(c.W, status, plainError(status, f))
	}
}

// dataStatus returns the status of a failure of the data plane. SDKs know by 502 that the sandbox
// does not run.
func dataStatus(f gate.Failure) int {
	switch {
	case f.Code == errcode.Closed || f.Code == errcode.State:
		return http.StatusBadGateway
	case f.Code == errcode.Invalid && f.Stage == sandpit.StageUser: // as at E2B
		return http.StatusUnauthorized
	}
	return f.Status
}

// notGone makes an error of the data plane that is about a sandbox that runs one that SDKs do not take for the end of the
// sandbox: that of a mount that is to be removed, for example.
func (c *call) notGone(err error) error {
	if errcode.Of(err) != errcode.State || !onData(c.R.URL.Path) {
		return err
	}
	if _, gone := c.lookAt(); gone != nil {
		return err
	}
	return gate.Invalid(err.Error(), sandpit.Hint(err))
}

// plainError returns an error as all but the Connect services have it. SDKs look at the code in it.
func plainError(status int, f gate.Failure) []byte {
	body, _ := json.Marshal(struct { // of numbers and strings, which never fails
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, f.Text()})
	return body
}

// writeJSON answers with JSON.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body))) // also for the gate, which then lets clients read it that still send
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}

// answer sends a value.
func (c *call) answer(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeJSON(c.W, status, body)
	return nil
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.W.WriteHeader(http.StatusNoContent)
	return nil
}

// tenant returns the engine as the caller sees it.
func (c *call) tenant() *engine.Tenant { return c.api.Tenant(c.Caller) }

// sandbox finds the sandbox that a request to the control plane names.
func (c *call) sandbox() (engine.Box, error) {
	sb, err := c.tenant().Box(c.Target)
	if err != nil {
		return nil, c.Untouched(err)
	}
	return sb, nil
}

// running finds the sandbox that a request to the data plane names. One that is paused is resumed, if it was created so,
// and then lives for the usual time at least, as far as the policy allows that.
func (c *call) running() (engine.Box, error) {
	sb, err := c.lookAt()
	if err != nil {
		return nil, c.Untouched(err)
	}
	if i, err := sb.Info(c.Ctx); err == nil && isPaused(i) {
		err := c.resume(sb, i, func() error {
			if err := c.extend(sb, defaultLife, nil, true); !errors.Is(err, sandpit.ErrForbidden) {
				return err
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return sb, nil
}

// lookAt is running, without resuming the sandbox. A name does not do, which another sandbox may have by now: the right of a
// request may come from a token, which ends with its sandbox.
func (c *call) lookAt() (engine.Box, error) {
	sb, err := c.tenant().BoxByID(c.Target)
	if err != nil {
		if errcode.Of(err) == errcode.NotFound {
			err = errGone
		}
		return nil, err
	}
	info, err := sb.Info(c.Ctx)
	switch {
	case err != nil:
		return nil, asGone(err)
	case expired(info):
		return nil, errGone
	case info.State == sandpit.StateRunning && !timeIsOver(info), isPaused(info) && stateOf(sb).AutoResume:
		return sb, nil
	case timeIsOver(info):
		info.State = sandpit.StatePaused
	}
	return nil, &gate.Refusal{Code: errcode.State, Message: "the sandbox is " + string(info.State), Hint: "connect to it to resume it"}
}

// ending returns the error of work that was ended from outside, if it was because the sandbox ends; else nil. Clients that
// ask then find the sandbox gone.
func (c *call) ending() error {
	_, err := c.lookAt()
	return err
}

// user returns the user that a request to the data plane names: "" for the sandbox's own.
// E2B calls that one "user" in every template.
func user(r *http.Request) string {
	_, credentials, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(credentials))
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(plain), ":")
	return ownUser(name)
}

// ownName is what E2B calls the sandbox's own user in every template.
const ownName = "user"

// ownUser returns "" for the name of the sandbox's own user.
func ownUser(name string) string {
	if name == ownName {
		return ""
	}
	return name
}

// healthRoutes returns the routes that say whether the sandbox runs.
func healthRoutes() []route {
	return []route{
		{method: http.MethodGet, path: "/health", id: "health", handle: health},
	}
}

// health answers 204 if the sandbox runs.
func health(c *call) error {
	if _, err := c.lookAt(); err != nil {
		return c.Untouched(err)
	}
	return c.done()
}
