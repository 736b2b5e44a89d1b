package server

import (
	"os"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// For tests: what a server finds out about who is connected.
var (
	BesideUs = besideUs
	SameMaps = sameMaps
)

// AuditBounds returns how the audit is kept with these settings, and what the API
// lets callers add to it.
func (s Settings) AuditBounds() (audit.Options, gate.Limits) { return s.auditOptions(), s.limits() }

// Activated returns the names of the sockets that the service manager has passed.
func Activated() (names []string, err error) {
	all, err := activated(os.LookupEnv)
	for _, l := range all {
		names = append(names, l.service)
	}
	return names, err
}

// Checked returns why a server does not start with a dialect, or "".
func Checked(name string, d dialect.Dialect) (why string) {
	defer func() {
		if p := recover(); p != nil {
			why = p.(string)
		}
	}()
	new(server).checked(name, d.New(dialect.Server{}))
	return ""
}
