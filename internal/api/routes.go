package api

import (
	"net/http"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Route is something that can be asked of the server.
type Route struct {
	Method, Path string
	ID           string // the operation's name; in the audit, too
	Tag          string // the chapter of the reference
	Summary      string // one line
	Text         string // more; may be empty
	Query        []Param
	Headers      []Param

	In      any      // the JSON body: a value of its type; nil: none
	Raw     string   // media type of a body that is not JSON; empty: none
	Status  int      // of success
	Out     any      // the JSON of the answer: a value of its type; nil: none
	Also    []int    // other statuses with Out, or an Error, as their answer
	Other   []string // media types of other answers
	Upgrade bool     // the connection is made something else

	Open    bool // no key is needed
	Admin   bool // an administrator's
	Guarded bool // recorded before it is done

	// Vital requests end something or take rights away; of signals, SIGKILL does.
	// They are carried out also when the audit is full or the key has used up its
	// share of it, and entered later.
	Vital bool

	late   bool // its handler tells the audit, when it knows more
	handle func(*call) error
}

// Param is a parameter.
type Param struct {
	Name     string
	Type     string // "string", "integer", "number", "boolean", "date-time"
	Doc      string
	Required bool
	Enum     []string
	Most     int // of an integer that is bounded; 0: it is not
}

func path(doc string) Param { return Param{Name: "path", Type: "string", Required: true, Doc: doc} }

func flag(name, doc string) Param { return Param{Name: name, Type: "boolean", Doc: doc} }

const (
	eventStream = "text/event-stream"
	octets      = "application/octet-stream"
	ndjson      = "application/x-ndjson"
	plainText   = "text/plain"
	html        = "text/html"
)

// Routes returns everything that can be asked, in the order of the reference.
func Routes() []Route {
	return append(append(append(sandboxRoutes(), processRoutes()...), fileRoutes()...), serverRoutes()...)
}

const (
	sandboxes  = "/v1/sandboxes"
	oneSandbox = sandboxes + "/{sb}"
)

func sandboxRoutes() []Route {
	const tag = "Sandboxes"
	state := Param{Name: "state", Type: "string", Enum: []string{"creating", "running", "paused", "stopped", "failed"}}
	return []Route{
		{
			Method: http.MethodPost, Path: sandboxes, ID: "createSandbox", Tag: tag, Summary: "Create a sandbox",
			Text:    "Responds when the sandbox is running. A failed request leaves nothing behind. A request with an Idempotency-Key may be repeated for 24 hours: it is carried out once, and repetitions get the first response with the header Idempotent-Replayed. If such a request names no sandbox, the name is random.",
			Headers: []Param{{Name: "Idempotency-Key", Type: "string", Doc: "1 to 255 characters that no other request has; use a random UUID"}},
			In:      v1.Spec{}, Status: http.StatusCreated, Out: v1.Sandbox{}, Guarded: true, handle: createSandbox,
		},
		{
			Method: http.MethodGet, Path: sandboxes, ID: "listSandboxes", Tag: tag, Summary: "List sandboxes, oldest first",
			Query: []Param{
				{Name: "label", Type: "string", Doc: "KEY=VALUE; if repeated, all must match"},
				state,
				{Name: "limit", Type: "integer", Most: maxPage, Doc: "Default 100, at most 1,000"},
				{Name: "after", Type: "string", Doc: "The value of next in the previous page"},
			},
			Status: http.StatusOK, Out: v1.SandboxList{}, handle: asJSON(listSandboxes),
		},
		{Method: http.MethodGet, Path: oneSandbox, ID: "getSandbox", Tag: tag, Summary: "Describe a sandbox", Status: http.StatusOK, Out: v1.Sandbox{}, handle: asJSON(getSandbox)},
		{Method: http.MethodDelete, Path: oneSandbox, ID: "removeSandbox", Tag: tag, Summary: "Remove a sandbox and everything in it", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(removeSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/stop", ID: "stopSandbox", Tag: tag, Summary: "Stop a sandbox: end its processes and keep its files", In: v1.Stop{}, Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, Vital: true, handle: fromJSON(stopSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/restart", ID: "restartSandbox", Tag: tag, Summary: "Start a stopped sandbox", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: asJSON(restartSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/pause", ID: "pauseSandbox", Tag: tag, Summary: "Pause a sandbox: freeze its processes", Text: "Any other request to the sandbox resumes it.", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: asJSON(pauseSandbox)},
		{Method: http.MethodPost, Path: oneSandbox + "/resume", ID: "resumeSandbox", Tag: tag, Summary: "Resume a paused sandbox", Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: asJSON(resumeSandbox)},
		{Method: http.MethodPut, Path: oneSandbox + "/lifetime", ID: "setLifetime", Tag: tag, Summary: "Change the lifetime of a sandbox", In: v1.Lifetime{}, Status: http.StatusOK, Out: v1.Sandbox{}, Guarded: true, handle: fromJSON(setLifetime)},
		{Method: http.MethodGet, Path: oneSandbox + "/metrics", ID: "getMetrics", Tag: tag, Summary: "Get the resource usage of a sandbox", Status: http.StatusOK, Out: v1.Metrics{}, handle: asJSON(getMetrics)},
		{
			Method: http.MethodGet, Path: oneSandbox + "/metrics/history", ID: "getMetricsHistory", Tag: tag, Summary: "Get the resource usage of a sandbox over time",
			Query: []Param{{Name: "since", Type: "date-time", Doc: "Default: the oldest stored value"}}, Status: http.StatusOK, Out: v1.MetricsHistory{}, handle: asJSON(getHistory),
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/logs", ID: "getLogs", Tag: tag, Summary: "Get the output of processes",
			Text: "One JSON object per line: seq, time, process, pid, stream, and data in base64. With Accept: text/event-stream each object is an event.",
			Query: []Param{
				{Name: "process", Type: "string", Doc: "Its id"},
				{Name: "stream", Type: "string", Enum: []string{"stdout", "stderr"}},
				{Name: "since", Type: "date-time"},
				{Name: "after", Type: "integer", Doc: "Only entries with a greater seq"},
				{Name: "tail", Type: "integer", Doc: "Only this number of latest entries"},
				flag("follow", "Follow new entries until the sandbox is removed"),
			},
			Status: http.StatusOK, Other: []string{ndjson, eventStream}, handle: getLogs,
		},
		{Method: http.MethodGet, Path: oneSandbox + "/ports", ID: "listPorts", Tag: tag, Summary: "List the TCP ports on which programs in a sandbox listen", Status: http.StatusOK, Out: v1.PortList{}, handle: asJSON(listPorts)},
		{
			Method: http.MethodGet, Path: oneSandbox + "/ports/{port}/tcp", ID: "connectPort", Tag: tag, Summary: "Connect to a TCP port of a sandbox",
			Text:   "With Upgrade: tcp the connection carries the raw bytes of the TCP connection, and each direction can be closed separately. A WebSocket carries them in binary messages.",
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, handle: connectPort,
		},
	}
}

func processRoutes() []Route {
	const (
		tag       = "Processes"
		processes = oneSandbox + "/processes"
		one       = processes + "/{p}"
	)
	frames := "Frames (" + v1.StreamType + ") have a type byte, a length of four bytes (big-endian) and a payload: 1 started (a Process), 2 stdout, 3 stderr, 4 lost (a count of bytes in eight), 5 result (a Result, the last), 6 error (an Error, the last), 7 ping, 8 input is no longer read. A client sends 16 stdin, 17 end of stdin, 18 resize (a Size), 19 signal (a Signal)."
	return []Route{
		{
			Method: http.MethodPost, Path: oneSandbox + "/exec", ID: "exec", Tag: tag, Summary: "Run a command and wait for it",
			Text: "The command is killed if the client disconnects. By default the response is JSON, sent when the command has ended. If Accept asks for it, output is streamed: as frames, or as server-sent events with the same names, which carry output as base64 in data and, if it is UTF-8, in text.  " + frames,
			In:   v1.Exec{}, Status: http.StatusOK, Out: v1.Executed{}, Other: []string{v1.StreamType, eventStream}, Guarded: true, handle: execute,
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/exec", ID: "execSocket", Tag: tag, Summary: "Run a command over a WebSocket",
			Text:   "The client's first message is a Command as text. After that each message is one frame, in both directions. Closing the socket kills the command.  " + frames,
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, late: true, handle: executeSocket,
		},
		{Method: http.MethodPost, Path: processes, ID: "startProcess", Tag: tag, Summary: "Start a process in the background", In: v1.Command{}, Status: http.StatusCreated, Out: v1.Process{}, Guarded: true, handle: fromJSON(startProcess)},
		{Method: http.MethodGet, Path: processes, ID: "listProcesses", Tag: tag, Summary: "List processes: running ones and those that ended last", Query: []Param{{Name: "after", Type: "string", Doc: "The value of next in the previous page"}, {Name: "limit", Type: "integer", Most: maxPage, Doc: "Default and maximum 1,000; a page with long command lines has fewer"}}, Status: http.StatusOK, Out: v1.ProcessList{}, handle: asJSON(listProcesses)},
		{Method: http.MethodGet, Path: one, ID: "getProcess", Tag: tag, Summary: "Get a process by its ID or pid", Status: http.StatusOK, Out: v1.Process{}, handle: asJSON(getProcess)},
		{Method: http.MethodDelete, Path: one, ID: "killProcess", Tag: tag, Summary: "Kill a process and its descendants", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(killProcess)},
		{
			Method: http.MethodGet, Path: one + "/wait", ID: "waitProcess", Tag: tag, Summary: "Wait for a process to end",
			Query:  []Param{{Name: "timeout", Type: "number", Doc: "Seconds, at most 3,600, after which the response has no result; default 60"}},
			Status: http.StatusOK, Out: v1.Process{}, handle: asJSON(waitProcess),
		},
		{Method: http.MethodPost, Path: one + "/signal", ID: "signalProcess", Tag: tag, Summary: "Send a signal", In: v1.Signal{}, Status: http.StatusNoContent, Guarded: true, Vital: true, handle: fromJSONOnly(signalProcess)},
		{Method: http.MethodPost, Path: one + "/resize", ID: "resizeProcess", Tag: tag, Summary: "Resize the terminal of a process", In: v1.Size{}, Status: http.StatusNoContent, Guarded: true, handle: fromJSONOnly(resizeProcess)},
		{
			Method: http.MethodPost, Path: one + "/stdin", ID: "writeStdin", Tag: tag, Summary: "Write to the standard input of a process", Query: []Param{flag("close", "Close standard input afterwards")},
			Raw: octets, Status: http.StatusNoContent, Guarded: true, handle: only(writeStdin),
		},
		{
			Method: http.MethodGet, Path: one + "/output", ID: "followOutput", Tag: tag, Summary: "Stream the output of a process", Text: "Disconnecting does not end the process. A slow client loses output and is told how much. The response is a stream of frames, or of server-sent events if Accept asks for them, as for exec.",
			Query: []Param{{Name: "history", Type: "boolean", Doc: "false: omit the output stored so far"}}, Status: http.StatusOK, Other: []string{v1.StreamType, eventStream}, handle: followOutput,
		},
		{
			Method: http.MethodGet, Path: one + "/attach", ID: "attachProcess", Tag: tag, Summary: "Attach to a process over a WebSocket", Text: "Each message is one frame. Closing the socket does not affect the process.",
			Query:  []Param{{Name: "history", Type: "boolean", Doc: "false: omit the output stored so far"}, flag("stdin", "Allow writing to standard input")},
			Status: http.StatusSwitchingProtocols, Upgrade: true, Guarded: true, handle: attachProcess,
		},
	}
}

func fileRoutes() []Route {
	const (
		tag   = "Files"
		files = oneSandbox + "/files"
	)
	mode := Param{Name: "mode", Type: "string", Doc: "In octal"}
	recursive := flag("recursive", "Include the contents of directories")
	after := Param{Name: "after", Type: "string", Doc: "Only entries after this name"}
	limit := Param{Name: "limit", Type: "integer", Most: maxEntries, Doc: "Default 1,000, at most 10,000"}
	formats := func(names ...string) Param {
		return Param{Name: "format", Type: "string", Enum: names, Doc: "Default tar"}
	}
	from, to := Param{Name: "from", Type: "string", Required: true}, Param{Name: "to", Type: "string", Required: true}
	return []Route{
		{Method: http.MethodGet, Path: files, ID: "readFile", Tag: tag, Summary: "Read a file", Text: "Supports a single byte range.", Query: []Param{path("")}, Headers: []Param{{Name: "Range", Type: "string", Doc: "bytes=FROM-TO"}}, Status: http.StatusOK, Other: []string{octets}, Guarded: true, handle: readFile},
		{
			Method: http.MethodPut, Path: files, ID: "writeFile", Tag: tag, Summary: "Write a file", Text: "The file is replaced atomically, unless the content is appended.",
			Query: []Param{path(""), mode, flag("append", "Append to the file"), flag("parents", "Create missing parent directories")}, Raw: octets, Status: http.StatusOK, Out: v1.Written{}, Guarded: true, handle: asJSON(writeFile),
		},
		{Method: http.MethodDelete, Path: files, ID: "removeFile", Tag: tag, Summary: "Remove a file or directory", Query: []Param{path(""), recursive}, Status: http.StatusNoContent, Guarded: true, handle: only(removeFile)},
		{Method: http.MethodGet, Path: files + "/stat", ID: "statFile", Tag: tag, Summary: "Describe a file", Query: []Param{path(""), {Name: "follow", Type: "boolean", Doc: "false: describe a symbolic link itself"}}, Status: http.StatusOK, Out: v1.FileInfo{}, handle: asJSON(statFile)},
		{Method: http.MethodGet, Path: files + "/list", ID: "listFiles", Tag: tag, Summary: "List a directory, sorted by name", Query: []Param{path(""), after, limit}, Status: http.StatusOK, Out: v1.FileList{}, handle: asJSON(listFiles)},
		{Method: http.MethodGet, Path: files + "/find", ID: "findFiles", Tag: tag, Summary: "List all files below a directory", Query: []Param{path(""), {Name: "glob", Type: "string", Doc: "Pattern for the relative path; ** spans directories"}, {Name: "depth", Type: "integer", Doc: "Maximum number of levels; default unlimited"}, after, limit}, Status: http.StatusOK, Out: v1.FileList{}, handle: asJSON(findFiles)},
		{Method: http.MethodPost, Path: files + "/grep", ID: "grepFiles", Tag: tag, Summary: "Search the files below a directory", Query: []Param{path("")}, In: v1.Grep{}, Status: http.StatusOK, Out: v1.GrepResult{}, Guarded: true, handle: fromJSON(grepFiles)},
		{Method: http.MethodPost, Path: files + "/edit", ID: "editFile", Tag: tag, Summary: "Replace exact text in a file", Query: []Param{path("")}, In: v1.Edits{}, Status: http.StatusNoContent, Guarded: true, handle: fromJSONOnly(editFile)},
		{Method: http.MethodPost, Path: files + "/mkdir", ID: "makeDirectory", Tag: tag, Summary: "Create a directory", Query: []Param{path(""), mode, flag("parents", "Create missing parents; an existing directory is not an error")}, Status: http.StatusNoContent, Guarded: true, handle: only(makeDirectory)},
		{Method: http.MethodPost, Path: files + "/rename", ID: "renameFile", Tag: tag, Summary: "Rename a file", Query: []Param{from, to}, Status: http.StatusNoContent, Guarded: true, late: true, handle: only(renameFile)},
		{Method: http.MethodPost, Path: files + "/copy", ID: "copyFile", Tag: tag, Summary: "Copy a file", Query: []Param{from, to, recursive}, Status: http.StatusNoContent, Guarded: true, late: true, handle: only(copyFile)},
		{Method: http.MethodPost, Path: files + "/symlink", ID: "linkFile", Tag: tag, Summary: "Create a symbolic link", Query: []Param{path(""), {Name: "target", Type: "string", Required: true}}, Status: http.StatusNoContent, Guarded: true, handle: only(linkFile)},
		{Method: http.MethodGet, Path: files + "/readlink", ID: "readLink", Tag: tag, Summary: "Read the target of a symbolic link", Query: []Param{path("")}, Status: http.StatusOK, Out: v1.Link{}, handle: asJSON(readLink)},
		{Method: http.MethodPost, Path: files + "/chmod", ID: "changeMode", Tag: tag, Summary: "Change permission bits", Query: []Param{path(""), {Name: "mode", Type: "string", Required: true, Doc: "In octal"}}, Status: http.StatusNoContent, Guarded: true, handle: only(changeMode)},
		{Method: http.MethodGet, Path: files + "/watch", ID: "watchFiles", Tag: tag, Summary: "Watch a directory for changes", Text: "The first event is ready; all changes after it are reported. An overflow event means that some were lost.", Query: []Param{path(""), flag("recursive", "Also watch directories below it")}, Status: http.StatusOK, Other: []string{eventStream}, handle: watchFiles},
		{Method: http.MethodGet, Path: files + "/archive", ID: "downloadArchive", Tag: tag, Summary: "Download a directory or file as an archive", Query: []Param{path(""), formats("tar", "zip")}, Status: http.StatusOK, Other: []string{"application/x-tar", "application/zip"}, Guarded: true, handle: downloadArchive},
		{
			Method: http.MethodPut, Path: files + "/archive", ID: "uploadArchive", Tag: tag, Summary: "Unpack an archive below a directory", Text: "Nothing is ever written outside of the directory.",
			Query: []Param{path("The directory, which must exist"), formats("tar", "tar.gz", "zip")}, Raw: octets, Status: http.StatusNoContent, Guarded: true, handle: only(uploadArchive),
		},
	}
}

func serverRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/events", ID: "followEvents", Tag: tag, Summary: "Follow the events of sandboxes and processes", Text: "The latest 10,000 events are stored. An events.lost event means that some are missing.", Query: []Param{{Name: "after", Type: "integer", Doc: "Only events with a greater seq; default: new events only. The header Last-Event-ID has the same effect."}}, Status: http.StatusOK, Other: []string{eventStream}, handle: followEvents},
		{Method: http.MethodPost, Path: "/v1/webhooks", ID: "createWebhook", Tag: tag, Summary: "Create a webhook, which sends events to a URL", In: v1.NewWebhook{}, Status: http.StatusCreated, Out: v1.Webhook{}, Guarded: true, handle: fromJSON(createWebhook)},
		{Method: http.MethodGet, Path: "/v1/webhooks", ID: "listWebhooks", Tag: tag, Summary: "List webhooks", Status: http.StatusOK, Out: v1.WebhookList{}, handle: asJSON(listWebhooks)},
		{Method: http.MethodDelete, Path: "/v1/webhooks/{id}", ID: "deleteWebhook", Tag: tag, Summary: "Remove a webhook", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: only(deleteWebhook)},
		{Method: http.MethodGet, Path: "/v1/images", ID: "listImages", Tag: tag, Summary: "List images", Status: http.StatusOK, Out: v1.ImageList{}, handle: asJSON(listImages)},
		{Method: http.MethodPost, Path: "/v1/images/pull", ID: "pullImage", Tag: tag, Summary: "Fetch an image", In: v1.Pull{}, Status: http.StatusOK, Out: v1.Image{}, Guarded: true, handle: fromJSON(pullImage)},
		{Method: http.MethodDelete, Path: "/v1/images", ID: "removeImage", Tag: tag, Summary: "Remove an image", Query: []Param{{Name: "image", Type: "string", Required: true, Doc: "Its reference"}}, Status: http.StatusNoContent, Admin: true, Guarded: true, late: true, handle: only(removeImage)},
		{Method: http.MethodGet, Path: "/v1/policy", ID: "getPolicy", Tag: tag, Summary: "Get the caller's policy", Status: http.StatusOK, Out: v1.Policy{}, handle: asJSON(getPolicy)},
		{Method: http.MethodPost, Path: "/v1/keys", ID: "createKey", Tag: tag, Summary: "Create a key", Text: "The response contains the secret, which is not shown again.", In: v1.NewKey{}, Status: http.StatusCreated, Out: v1.Key{}, Admin: true, Guarded: true, handle: fromJSON(createKey)},
		{Method: http.MethodGet, Path: "/v1/keys", ID: "listKeys", Tag: tag, Summary: "List keys", Status: http.StatusOK, Out: v1.KeyList{}, Admin: true, handle: asJSON(listKeys)},
		{Method: http.MethodGet, Path: "/v1/keys/{id}/policy", ID: "getKeyPolicy", Tag: tag, Summary: "Get the policy of a key", Status: http.StatusOK, Out: v1.Policy{}, Admin: true, handle: asJSON(getKeyPolicy)},
		{Method: http.MethodDelete, Path: "/v1/keys/{id}", ID: "revokeKey", Tag: tag, Summary: "Revoke a key", Text: "Requests, streams, sockets and tunnels that use the key are closed. Sandboxes and background processes stay.", Status: http.StatusNoContent, Admin: true, Guarded: true, Vital: true, handle: only(revokeKey)},
		{
			Method: http.MethodGet, Path: "/v1/audit", ID: "searchAudit", Tag: tag, Summary: "Search the audit log, oldest first",
			Query: []Param{
				{Name: "sandbox", Type: "string"},
				{Name: "namespace", Type: "string"},
				{Name: "caller", Type: "string"},
				{Name: "action", Type: "string"},
				{Name: "request_id", Type: "string"},
				{Name: "since", Type: "date-time"},
				{Name: "until", Type: "date-time"},
				flag("denied", "Only denied requests"),
				{Name: "after", Type: "integer"},
				{Name: "limit", Type: "integer", Most: maxPage, Doc: "Default 100, at most 1,000"},
			},
			Status: http.StatusOK, Out: v1.AuditList{}, Admin: true, handle: asJSON(searchAudit),
		},
		{Method: http.MethodGet, Path: "/v1/capabilities", ID: "getCapabilities", Tag: tag, Summary: "Get the capabilities of this machine", Status: http.StatusOK, Out: v1.Capabilities{}, handle: asJSON(getCapabilities)},
		{Method: http.MethodGet, Path: "/v1/version", ID: "getVersion", Tag: tag, Summary: "Get the version of the server", Status: http.StatusOK, Out: v1.Version{}, handle: asJSON(getVersion)},
		{Method: http.MethodGet, Path: "/healthz", ID: "getHealth", Tag: tag, Summary: "Check the health of the server", Status: http.StatusOK, Out: v1.Health{}, Also: []int{http.StatusServiceUnavailable}, Open: true, handle: getHealth},
		{Method: http.MethodGet, Path: "/metrics", ID: "getServerMetrics", Tag: tag, Summary: "Metrics for Prometheus", Status: http.StatusOK, Other: []string{plainText}, Admin: true, handle: showMetrics},
		{Method: http.MethodGet, Path: "/v1/openapi.json", ID: "getOpenAPI", Tag: tag, Summary: "Get this reference as OpenAPI 3.1", Status: http.StatusOK, Other: []string{"application/openapi+json"}, Open: true, handle: showOpenAPI},
		{Method: http.MethodGet, Path: "/docs", ID: "getDocs", Tag: tag, Summary: "Get this reference as a web page", Status: http.StatusOK, Other: []string{html}, Open: true, handle: showDocs},
		{Method: http.MethodGet, Path: "/docs/style.css", ID: "getDocsStyle", Tag: tag, Summary: "Get the style sheet of the web page", Status: http.StatusOK, Other: []string{"text/css"}, Open: true, handle: showStyle},
	}
}

// passingID is the operation of a request to a port of a sandbox.
const passingID = "proxy"

// proxyRoute is what a request to a port of a sandbox counts as.
func proxyRoute() *Route {
	return &Route{ID: passingID, Guarded: true, late: true, handle: forward}
}
