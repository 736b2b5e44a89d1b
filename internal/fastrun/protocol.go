// Package fastrun carries one command over one connection to this user's server.
// It serves sandpit run and shell, whose sandbox the server takes from its warm pool and
// removes when the command or the connection has ended, and sandpit exec.
//
// The client writes the head of an HTTP/1.1 request with an Upgrade by hand, so it
// needs neither net/http nor an engine. From then on both ends send frames. The request of a run follows its head at once, so that the whole run takes
// one round trip. The client of an exec waits until the server has agreed, before it reads
// any file that a flag names.
//
// # Frames
//
// The frames of the server are a stream of /v1 as package v1 describes it, from FrameStarted
// to FrameEnd, and those of the client are what it sends over a WebSocket. Both ends add
// frames of types from 32 on: without these, nothing is left that a client of /v1 does
// not know. Nobody sends pings, since an end of a unix socket notices that the other has gone.
//
// # Windows
//
// Everything shares the connection, so neither end may leave any of it unread for long.
// Standard input and each output are sent only as far as the other end has given room: a
// v1.Window for each. A client that does not pass an output on holds up what the command
// writes to it, but not the other output, no signal and no input.
//
// # Who runs the command
//
// The server answers right before the command may begin. If the connection ends before the
// answer, the client runs the command itself. If it ends later, that is an error, because
// the command may have run. A server that is asked to end finishes its runs for 10 s, and
// declines new ones.
//
// A server declines before it has done anything if it is of another version or stands
// at another place (user, user and mount namespaces, root directory), or if there is no
// such sandbox. The caller then makes the sandbox itself, or asks the server in the general
// way. It does so too for what the server can't do in the same way, such as plain HTTP
// registries or an image that is not in the store. Both ways must differ in nothing but
// time: the scripts of the command line are run both ways.
package fastrun

import v1 "github.com/sandpit-dev/sandpit/internal/api/v1"

// The request is a GET of RunPath or of ExecPath. A server that does not know this
// version of Protocol declines.
const (
	RunPath       = "/v1/run"
	Protocol      = "sandpit.command/1"
	HeaderVersion = "Sandpit-Version" // the client's own, which must be the server's
	HeaderPlace   = "Sandpit-Place"   // of a run: where the client stands; see Place
)

// ExecPath returns the path for a command in an existing sandbox.
func ExecPath(sandbox string) string { return "/v1/sandboxes/" + sandbox + "/exec" }

// Bounds, in bytes.
const (
	// MaxRequest bounds the first frame; a command line of 8 MiB is more than
	// execve(2) takes.
	MaxRequest = 10 << 20
)

// Request is the payload of a FrameRequest.
type Request struct {
	Spec    *v1.Spec   `json:"spec,omitempty"` // of a run
	Command v1.Command `json:"command"`
	WorkDir bool       `json:"workdir,omitempty"` // refuse a run whose working directory is not one
	Report  bool       `json:"report,omitempty"`  // send a Report with Info and Metrics
	Denials bool       `json:"denials,omitempty"` // of an exec: send a Report with Denials
}

// Frame types beside those of package v1. S: from the server, C: from the client.
const (
	FrameRequest byte = 32 // C: Request as JSON; always the first
	FrameKill    byte = 33 // C: empty: kill the command and everything that it started
	FrameReport  byte = 36 // S: Report as JSON; before v1.FrameStarted or before v1.FrameEnd

	// FrameBackground, empty, moves the command to the background (C), which is answered
	// in kind when it is done (S).
	FrameBackground byte = 37
)

// Report describes the sandbox. Fields that are not set are not told.
type Report struct {
	NotEnforced []string    `json:"not_enforced,omitempty"` // of a run, before it starts: the default limits that are not
	Info        *v1.Sandbox `json:"info,omitempty"`         // if asked for, a limit was reached, or the start failed
	Metrics     *v1.Metrics `json:"metrics,omitempty"`      // if asked for, and known

	Denials []v1.EgressDenial `json:"denials,omitempty"` // of the sandbox while the command ran, if asked for
}

// Codes of errors in a v1.End, beside those of /v1.
const (
	codeNoWorkDir  = "workdir_missing"
	codeNotWorkDir = "workdir_not_directory"
)
