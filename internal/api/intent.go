package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Intend is gate.Call.Intend, and takes the Idempotency-Key of a call without JSON.
func (c *call) Intend(detail string) error {
	if err := c.Call.Intend(detail); err != nil {
		return err
	}
	return c.once()
}

// intendFor is Intend with the details that a body has.
func (c *call) intendFor(body any) error {
	if !c.route.Guarded {
		return nil
	}
	if s, ok := body.(*v1.Signal); ok { // a program may do anything at another one
		c.Vital = syscall.Signal(s.Signal) == syscall.SIGKILL
	}
	if err := c.Call.Intend(c.detailOf(body)); err != nil {
		return err
	}
	return c.once()
}

// subject is what a call is about, beside the sandbox: a process, a port, a key,
// a webhook, a secret or a file.
func subject(r *http.Request) string {
	for _, p := range [...]struct{ name, what string }{{"p", "process "}, {"port", "port "}, {"preview", "preview "}, {"context", "context "}, {"secret", "secret "}, {"id", ""}} {
		v := r.PathValue(p.name)
		if v == "" {
			continue
		}
		if q := r.URL.Query(); p.name == "secret" {
			for _, whose := range [...]string{"scope", "sandbox"} {
				if of := q.Get(whose); of != "" {
					v += " " + whose + " " + strconv.Quote(gate.Bounded(of))
				}
			}
		}
		return p.what + v
	}
	return r.URL.Query().Get("path") + ofUser(r)
}

// ofUser says as whom a request about files acts, if it says so itself.
func ofUser(r *http.Request) string {
	user := r.URL.Query().Get("user")
	if user == "" {
		return ""
	}
	return " as " + strconv.Quote(gate.Bounded(user))
}

// detailOf says in a few words what a request is about. Of a command it names
// the program alone: arguments may be secrets.
func (c *call) detailOf(body any) string {
	switch b := body.(type) {
	case *v1.Spec:
		return "image " + strconv.Quote(b.Image) + " name " + strconv.Quote(b.Name) + secretsOf(b) + egressOfSpec(b)
	case *v1.Exec:
		return programOf(&b.Command)
	case *v1.Command:
		return programOf(b)
	case *v1.Code:
		return "code of " + strconv.Itoa(len(b.Code)) + " bytes context " + strconv.Quote(gate.Bounded(b.Context)) + " language " + strconv.Quote(gate.Bounded(b.Language))
	case *v1.NewContext:
		return "context " + strconv.Quote(gate.Bounded(b.ID)) + " language " + strconv.Quote(gate.Bounded(b.Language))
	case *v1.Change:
		return changeOf(b)
	case *v1.Egress:
		return egressOfBody(b)
	case *v1.Signal:
		return subject(c.R) + " signal " + strconv.Itoa(b.Signal)
	case *v1.Commit:
		return "image " + strconv.Quote(sandpit.SavedImages+b.Name)
	case *v1.ImagePull:
		return "image " + strconv.Quote(b.Image)
	case *v1.ImageTag:
		return "image " + strconv.Quote(gate.Bounded(b.Image)) + " names " + strconv.Quote(gate.Bounded(strings.Join(b.Names, " ")))
	case *v1.NewKey:
		detail := "name " + strconv.Quote(b.Name) + " namespace " + strconv.Quote(b.Namespace) + " policy " + strconv.Quote(b.Policy)
		if b.Admin {
			detail += " administrator"
		}
		return detail
	case *v1.NewTicket:
		return "for GET " + strconv.Quote(gate.Bounded(b.Path))
	case *v1.NewWebhook:
		return "" // its URL may hold a secret
	}
	return subject(c.R)
}

// secretsOf names the secrets that a sandbox is to use.
func secretsOf(b *v1.Spec) string {
	var names []string
	for _, u := range b.Secrets {
		name := strconv.Quote(gate.Bounded(u.Name))
		if u.Value != "" {
			name += " of its own"
		}
		if u.Env {
			name += " as env"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return " secrets " + gate.Bounded(strings.Join(names, ", "))
}

// egressOfSpec says what a new sandbox is to reach.
func egressOfSpec(b *v1.Spec) string {
	if b.Egress == nil {
		return ""
	}
	return " egress " + egressOfBody(b.Egress)
}

// egressOfBody says what a sandbox is to reach. Rules and addresses hold no secrets.
func egressOfBody(b *v1.Egress) string {
	var parts []string
	if b.Preset != "" {
		parts = append(parts, "preset "+strconv.Quote(gate.Bounded(b.Preset)))
	}
	for _, p := range [...]struct {
		what string
		all  []string
	}{{"allow", b.Allow}, {"deny", b.Deny}, {"resolve", b.Resolve}, {"dns", b.DNS}} {
		if len(p.all) > 0 {
			parts = append(parts, p.what+" "+strconv.Quote(gate.Bounded(strings.Join(p.all, ","))))
		}
	}
	if b.Bounds != nil {
		parts = append(parts, "bounds")
	}
	return strings.Join(parts, " ")
}

// changeOf says what of a sandbox is to be changed, and the names of labels alone: their
// values may be long.
func changeOf(b *v1.Change) string {
	var parts []string
	if b.Name != nil {
		parts = append(parts, "name "+strconv.Quote(gate.Bounded(*b.Name)))
	}
	if len(b.Labels) > 0 {
		parts = append(parts, "labels "+gate.Bounded(strings.Join(slices.Sorted(maps.Keys(b.Labels)), ",")))
	}
	if l := b.Limits; l != nil {
		parts = append(parts, "limits")
		if l.Memory != nil {
			parts = append(parts, fmt.Sprintf("memory=%d", *l.Memory))
		}
		if l.CPUs != nil {
			parts = append(parts, fmt.Sprintf("cpus=%g", *l.CPUs))
		}
		if l.Pids != nil {
			parts = append(parts, fmt.Sprintf("pids=%d", *l.Pids))
		}
	}
	return strings.Join(parts, " ")
}

func programOf(in *v1.Command) string {
	c, err := in.Sandpit()
	if err != nil {
		return "" // it is about to be refused
	}
	program, arguments := "program of the image", len(c.Argv)
	switch {
	case c.Script != "":
		return "script of " + strconv.Itoa(len(c.Script)) + " bytes"
	case len(c.Entrypoint) > 0:
		program, arguments = "program "+strconv.Quote(gate.Bounded(c.Entrypoint[0])), arguments+len(c.Entrypoint)-1
	case c.FromImage: // which may begin with a program of its own
	case len(c.Argv) > 0:
		program, arguments = "program "+strconv.Quote(gate.Bounded(c.Argv[0])), arguments-1
	}
	return program + " with " + strconv.Itoa(arguments) + " arguments"
}
