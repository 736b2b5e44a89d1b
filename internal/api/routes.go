package api

import (
	"slices"

	"github.com/sandpit-dev/sandpit/internal/gate"
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
	Form    bool     // the body may also be multipart/form-data, with In as the part command and bytes as the part stdin
	Raw     string   // media type of a body that is not JSON; empty: none
	Status  int      // of success
	Out     any      // the JSON of the answer: a value of its type; nil: none
	Also    []int    // other statuses with the answer of a success; if errors have the status, too, it may also be an Error
	Fails   []string // codes of errors beside those that follow from the other fields; see Codes
	Other   []string // media types of other answers
	Feed    *Feed    // the events of a stream; nil: none
	Upgrade bool     // the connection is made something else

	Ticket  bool // a ticket may stand for the key
	Open    bool // no key is needed
	Admin   bool // an administrator's
	Guarded bool // recorded before it is done

	// Vital requests end something or take rights away. They are carried out also when the
	// audit is full or the key has used up its share of it, and entered later.
	Vital bool

	// EndsWithClient says that what a request has begun is undone, or ends, when its client leaves. Other
	// requests with an Idempotency-Key are then carried out to their end.
	EndsWithClient bool

	// Appends says that a PUT may add to what is there, so that it may have an Idempotency-Key.
	Appends bool

	// ShowsSecret says that the answer has the field "secret", which is not kept for repeated
	// requests.
	ShowsSecret bool

	// IgnoresIdempotency says that each request is carried out, whatever its Idempotency-Key: its
	// answer can be used only once, or it changes nothing and its answer is content of files.
	IgnoresIdempotency bool

	vitalIf     func(*gate.Call) bool // gate.Route.VitalIf
	selfAudited bool                  // its handler calls Call.Intend, when it knows more
	handle      func(*call) error
}

// Param is a parameter.
type Param struct {
	Name     string
	Type     string // "string", "integer", "number", "boolean", "date-time"
	Doc      string
	Required bool
	Enum     []string
	Many     bool // it may be repeated
	Most     int  // of an integer that is bounded; 0: it is not
}

// filled reports whether the parameter has a value where it is given: the page after an empty
// position is the first.
func (p Param) filled() bool { return p.Name != "after" || p.Type != "string" }

func path(doc string) Param { return Param{Name: "path", Type: "string", Required: true, Doc: doc} }

func flag(name, doc string) Param { return Param{Name: name, Type: "boolean", Doc: doc} }

const (
	octets    = "application/octet-stream"
	plainText = "text/plain"
	html      = "text/html"
)

// Routes returns everything that can be asked, in the order of the reference. The
// routes of a resource are in its file, with their handlers.
func Routes() []Route {
	all := slices.Concat(
		sandboxRoutes(), egressRoutes(), portRoutes(), previewRoutes(),
		execRoutes(), processRoutes(), codeRoutes(),
		asUser(failing(onFiles(), fileRoutes())), asUser(failing(onFiles(), archiveRoutes())),
		eventRoutes(), webhookRoutes(), secretRoutes(), imageRoutes(), policyRoutes(), keyRoutes(), namespaceRoutes(), ticketRoutes(), auditRoutes(), dialectRoutes(), serverRoutes(), docsRoutes(),
	)
	for i := range all {
		if all[i].repeatable() {
			all[i].Headers = append(all[i].Headers, Param{Name: headerKeyOnce, Type: "string", Doc: "1 to 255 bytes, unique to this request, such as a random UUID. The request can then be repeated safely."})
		}
	}
	return all
}

const (
	sandboxes  = "/v1/sandboxes"
	oneSandbox = sandboxes + "/{sb}"
)
