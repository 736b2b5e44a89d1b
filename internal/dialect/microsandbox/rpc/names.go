package rpc

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// maxName bounds names of sandboxes and namespaces, in bytes.
const maxName = 63

// checkName refuses what can't be the name of a sandbox or namespace. kind is "Sandbox" or "Namespace". Each such
// name is a name of Sandpit, too.
func checkName(kind, name string) error {
	word := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	wrong := ""
	switch {
	case name == "":
		wrong = "cannot be empty"
	case len(name) > maxName:
		wrong = fmt.Sprintf("cannot exceed %d characters", maxName)
	case strings.ContainsFunc(name, func(c rune) bool { return !word(c) && c != '-' && c != '_' }):
		wrong = "can only contain alphanumeric characters, hyphens, or underscores"
	case !word(rune(name[0])):
		wrong = "must start with an alphanumeric character"
	default:
		return nil
	}
	return gate.Invalid(kind+" name "+wrong, "")
}

// Target names a sandbox. It is exported as a part of parameters, of which encoding/json tells the name.
type Target struct {
	Namespace string `json:"namespace"`
	Sandbox   string `json:"sandbox"`
}

func (t *Target) check() error {
	if err := checkName("Sandbox", t.Sandbox); err != nil {
		return err
	}
	return checkName("Namespace", t.Namespace)
}

func (t *Target) where() (namespace, sandbox string) { return t.Namespace, t.Sandbox }

func (*Target) about() string { return "" }
