// Package api is Sandpit's own dialect: JSON under /v1, streams of frames or
// of server-sent events, WebSockets where bytes go both ways, and a reverse
// proxy to the ports of sandboxes. It stands behind a gate.Gate, which lets requests in.
//
// The file of a resource, such as sandboxes.go or files.go, begins with a table of its
// routes, and has their handlers. Routes lists all tables. From them come the handlers,
// the OpenAPI document and the reference page; package internal/api/openapi
// writes the last two, and a test there keeps them up to date. That needs huma,
// which costs a program 2 ms at each start, and is therefore not linked here.
//
// Every error is a v1.Error.
package api
