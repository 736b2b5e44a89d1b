// Package errcode defines the stable codes of errors in /v1 and in the audit, with their kinds in
// Go and their HTTP statuses. It is separate from the JSON of /v1, so that other dialects can map
// the codes to their own.
package errcode

import (
	"context"
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit"
)

// row is a code, its kind in Go, and its HTTP status. The status is a number because the
// launcher, which has this package, has no net/http.
type row struct {
	Code   string
	Kind   error
	Status int
}

// table has every code. The code of an error is the first one whose kind it matches, so the
// more specific kinds come first.
//
// The class of a status says what a client can do (RFC 9110, 15.5 and 15.6; RFC 6585, 4): after
// 4xx it must change the request or something that it owns; 429 asks it to slow down; after 503 the
// same request may succeed later; after other 5xx somebody else has to act.
func table() []row {
	return []row{
		{Closed, sandpit.ErrClosed, 410},
		{Integrity, sandpit.ErrIntegrity, 502},
		{Protocol, sandpit.ErrProtocol, 502},
		{State, sandpit.ErrState, 409},
		{StartFailed, sandpit.ErrStart, 422},
		{Forbidden, sandpit.ErrForbidden, 403},
		{Unsupported, sandpit.ErrUnsupported, 501},
		{DiskFull, sandpit.ErrDiskFull, 507}, // this and the next two are cases of Overloaded
		{QuotaExceeded, sandpit.ErrQuota, 403},
		{RateLimited, sandpit.ErrRateLimited, 429},
		{Overloaded, sandpit.ErrExhausted, 503},
		{Unavailable, sandpit.ErrUnavailable, 503},
		{IsDirectory, sandpit.ErrIsDirectory, 400},
		{NotDirectory, sandpit.ErrNotDirectory, 400},
		{NotEmpty, sandpit.ErrNotEmpty, 409},
		{NoSpace, sandpit.ErrNoSpace, 507},
		{FileNotFound, fs.ErrNotExist, 404},
		{FileExists, fs.ErrExist, 409},
		{Permission, fs.ErrPermission, 403},
		{NotFound, sandpit.ErrNotFound, 404},
		{Exists, sandpit.ErrExists, 409},
		{Invalid, sandpit.ErrInvalid, 400},
		{Timeout, context.DeadlineExceeded, 504},
		{Canceled, context.Canceled, StatusClientGone},

		// Of the server itself; each is a case of a kind above.
		{Unauthenticated, sandpit.ErrForbidden, 401},
		{TicketInvalid, sandpit.ErrForbidden, 401},
		{PreviewInvalid, sandpit.ErrForbidden, 403},
		{HostRefused, sandpit.ErrForbidden, 421},
		{OriginRefused, sandpit.ErrForbidden, 403},
		{AuditRate, sandpit.ErrRateLimited, 429},
		{TooManyStreams, sandpit.ErrRateLimited, 429},
		{OutputTooLarge, sandpit.ErrQuota, 422},
		{TooLarge, sandpit.ErrInvalid, 413},
		{BodyTimeout, sandpit.ErrUnavailable, 408},
		{InvalidRange, sandpit.ErrInvalid, 416},
		{UnsupportedMedia, sandpit.ErrInvalid, 415},
		{UpgradeRequired, sandpit.ErrInvalid, 426},
		{IdempotencyMismatch, sandpit.ErrInvalid, 422},
		{OutcomeUnknown, sandpit.ErrState, 409},
		{NoRoute, sandpit.ErrUnsupported, 404},
		{MethodNotAllowed, sandpit.ErrUnsupported, 405},
		{AuditUnavailable, sandpit.ErrUnavailable, 503},
		{Draining, sandpit.ErrUnavailable, 503},
		{TooManyConnections, sandpit.ErrUnavailable, 503},
		{Internal, nil, 500},
	}
}

// All returns the codes of all errors.
func All() []string {
	var all []string
	for _, c := range table() {
		all = append(all, c.Code)
	}
	return all
}

// Internal is the code of an error that has no kind.
const Internal = "internal"

// Codes of kinds of errors.
const (
	NotFound      = "not_found"      // of sandboxes, processes, images and others, but not of files
	Exists        = "exists"         // the name is in use
	State         = "state"          // not possible in the present state
	Closed        = "closed"         // the sandbox was removed or has failed
	Timeout       = "timeout"        // the server or the sandbox took too long
	Unsupported   = "unsupported"    // by the driver, the machine or the sandbox
	Integrity     = "integrity"      // content is not what its digest says
	Protocol      = "protocol"       // the guest or a registry has broken its protocol
	Invalid       = "invalid"        // the request
	Forbidden     = "forbidden"      // by the policy, or to all but administrators
	StartFailed   = "start_failed"   // the program does not exist or can't be executed; the error has an exit code
	QuotaExceeded = "quota_exceeded" // a limit of the policy, namespace or sandbox; waiting does not help
	RateLimited   = "rate_limited"   // too many requests; Retry-After says when to try again
	Overloaded    = "overloaded"     // the server has no memory or capacity; Retry-After says when to try again
	DiskFull      = "disk_full"      // that of the server
	Unavailable   = "unavailable"    // something that the server needs does not answer
	Canceled      = "canceled"       // the client has left
)

// Codes of errors of files in a sandbox.
const (
	FileNotFound = "file_not_found"
	FileExists   = "file_exists"
	Permission   = "permission"
	IsDirectory  = "is_directory"
	NotDirectory = "not_directory"
	NotEmpty     = "not_empty"
	NoSpace      = "no_space"
)

// Codes of requests that a server refuses before they reach the engine.
const (
	Unauthenticated     = "unauthenticated"      // no key, or one that is not valid (any more)
	TicketInvalid       = "ticket_invalid"       // used, expired, unknown, or for another request
	PreviewInvalid      = "preview_invalid"      // ended, unknown, or for another port
	HostRefused         = "host_refused"         // the request is for another host
	OriginRefused       = "origin_refused"       // a page of an origin that is not allowed
	AuditRate           = "audit_rate"           // this key has used up its share of the audit
	TooManyStreams      = "too_many_streams"     // too many of the caller's are open
	OutputTooLarge      = "output_too_large"     // the answer would exceed what the server holds for one caller
	TooLarge            = "too_large"            // the body of the request
	BodyTimeout         = "body_timeout"         // the body of the request did not arrive in time
	InvalidRange        = "invalid_range"        // the range is not within the file
	UnsupportedMedia    = "unsupported_media"    // the type or encoding of the body
	UpgradeRequired     = "upgrade_required"     // the path needs a WebSocket or another upgrade
	IdempotencyMismatch = "idempotency_mismatch" // the key was used for another request
	OutcomeUnknown      = "outcome_unknown"      // the request, or the first one with its key, was interrupted
	NoRoute             = "no_route"             // this server has no such path
	MethodNotAllowed    = "method_not_allowed"   // nothing can be done with the path in this way
	AuditUnavailable    = "audit_unavailable"    // the request can't be recorded
	Draining            = "draining"             // the server is about to end
	TooManyConnections  = "too_many_connections" // of all, of an address or of a namespace
)

// StatusClientGone is the status that the audit and metrics have for a request whose client
// has left. No client reads it. nginx uses the same number.
const StatusClientGone = 499

// Of returns the code of an error.
func Of(err error) string {
	for _, c := range table() {
		if c.Kind != nil && errors.Is(err, c.Kind) {
			return c.Code
		}
	}
	return Internal
}

// Kind returns the kind of error that a code stands for, or nil for an unknown
// code.
func Kind(code string) error { return find(code).Kind }

// Status returns the HTTP status of a code, or 500 for an unknown one.
func Status(code string) int { return find(code).Status }

func find(code string) row {
	for _, c := range table() {
		if c.Code == code {
			return c
		}
	}
	return row{Status: 500}
}
