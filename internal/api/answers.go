package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Codes returns the codes of the errors that the operation answers with, in alphabetical
// order. They follow from what the gate does with its requests, from what the route has, and
// from Route.Fails.
func (r *Route) Codes() []string {
	all := []string{errcode.HostRefused, errcode.OriginRefused, errcode.Draining, errcode.Internal}
	if !r.Open {
		all = append(all, errcode.Unauthenticated, errcode.Forbidden, errcode.RateLimited, errcode.AuditRate,
			errcode.TooManyConnections, errcode.Overloaded, errcode.Unavailable, errcode.Invalid, errcode.UnsupportedMedia)
	}
	if r.Ticket {
		all = append(all, errcode.TicketInvalid)
	}
	if r.Guarded {
		all = append(all, errcode.AuditUnavailable, errcode.DiskFull)
	}
	if r.repeatable() {
		all = append(all, errcode.State, errcode.IdempotencyMismatch, errcode.OutcomeUnknown)
	}
	if r.In != nil {
		all = append(all, errcode.TooLarge)
	}
	if r.In != nil || r.Raw != "" {
		all = append(all, errcode.BodyTimeout)
	}
	if r.Out != nil && !r.Open {
		all = append(all, errcode.OutputTooLarge)
	}
	if r.Upgrade {
		all = append(all, errcode.UpgradeRequired)
	}
	if r.streams() {
		all = append(all, errcode.TooManyStreams)
	}
	if strings.Contains(r.Path, "{") {
		all = append(all, errcode.NotFound)
	}
	if strings.HasPrefix(r.Path, oneSandbox) {
		all = append(all, inSandbox()...)
	}
	all = append(all, r.Fails...)
	slices.Sort(all)
	return slices.Compact(all)
}

// streams reports whether answers may take long, so that they count as open streams.
func (r *Route) streams() bool {
	return !r.Open && (r.Upgrade || r.Raw != "" || len(r.Other) > 0 || r.ID == "waitProcess")
}

// repeatable reports whether requests may have an Idempotency-Key: they change something, and to
// repeat them would do more, or fail: of a PATCH that renames a sandbox, that name is gone. PUT and DELETE
// can be repeated (RFC 9110, 9.2.2), except a PUT that appends.
func (r *Route) repeatable() bool {
	return (r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Appends) && r.Guarded && !r.IgnoresIdempotency
}

// Answers returns the codes of the errors by their statuses.
func (r *Route) Answers() map[int][]string {
	all := map[int][]string{}
	for _, code := range r.Codes() {
		status := errcode.Status(code)
		all[status] = append(all[status], code)
	}
	return all
}

// inSandbox returns the codes of operations on a sandbox, whose guest or kernel may fail.
func inSandbox() []string {
	return []string{errcode.Closed, errcode.State, errcode.Protocol, errcode.Timeout, errcode.Unsupported, errcode.QuotaExceeded}
}

// onFiles returns the codes of operations on files in a sandbox.
func onFiles() []string {
	return []string{errcode.FileNotFound, errcode.FileExists, errcode.Permission, errcode.IsDirectory, errcode.NotDirectory, errcode.NotEmpty, errcode.NoSpace}
}

// failing returns routes, of which each may also fail with the given codes.
func failing(codes []string, routes []Route) []Route {
	for i := range routes {
		routes[i].Fails = append(slices.Clip(codes), routes[i].Fails...)
	}
	return routes
}
