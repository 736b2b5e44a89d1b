// Package api is Sandpit's own dialect: routes under /v1, and a reverse proxy to the
// ports of sandboxes. It stands behind a gate.Gate, which lets requests in. Package
// codec reads and writes their JSON. Package stream has everything that goes on after
// the first answer: frames, server-sent events, WebSockets and tunnels.
//
// The file of a resource, such as sandboxes.go or files.go, begins with a table of its
// routes, which is followed by their handlers. Routes returns all tables in the order of
// the reference. Package openapi writes the OpenAPI document and the reference page from
// them, and its test keeps both up to date. It needs huma, which costs a program 2 ms at
// each start, and is therefore not linked here.
//
// Every error is a v1.Error.
package api
