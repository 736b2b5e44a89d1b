// Package api serves Sandpit over HTTP: JSON under /v1, streams of frames or
// of server-sent events, WebSockets where bytes go both ways, and a reverse
// proxy to the ports of sandboxes.
//
// The table in routes.go is the whole of it. From the table come the handlers,
// the OpenAPI document and the reference page; package internal/api/openapi
// writes the last two, and a test there keeps them up to date. That needs huma,
// which costs a program 2 ms at each start, and is therefore not linked here.
//
// What a request goes through, in this order, and each step may refuse it:
// bounds of the server (Configure), is it for this host and not from a foreign
// web page (guard.go), who is it (caller.go), not too often and not too many
// streams (limits.go), may he (the route's Admin), is it recorded (audit.go),
// and then the route's handler. Every error is a v1.Error (errors.go).
package api
