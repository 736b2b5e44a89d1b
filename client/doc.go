// Package client implements [sandpit.Client] for a Sandpit server (sandpit serve),
// which it reaches over a unix socket on this machine or over TLS elsewhere. It
// behaves like the in-process engine and returns the same errors, except that its
// sandboxes stay when the client is closed.
//
//	c, err := client.New(client.Options{Address: "https://sandpit.example:7070", Key: key})
//	if err != nil { ... }
//	defer c.Close()
//	sb, err := c.Create(ctx, sandpit.Spec{Image: "debian:13"})
//
// Its processes implement [sandpit.Detacher], [sandpit.Backgrounder] and [sandpit.GroupSignaler].
//
// # Errors
//
// An error of the server has the same kind, text and hint as in-process;
// [RequestID] returns the ID of the request in the server's log. If the server
// can't be reached or stops responding, the error matches
// [sandpit.ErrUnavailable]. It is then unknown whether the request was carried
// out, with one exception: Create never creates a sandbox twice.
//
// A stream that breaks off without its last event is resumed where it was, for up to half a
// minute, if it has positions: events and logs. Otherwise its error is an [InterruptedError],
// which has the position.
//
// # Timeouts
//
// Every call ends when its context ends. A call that does not wait for anything in
// the sandbox also fails if there is no response for a minute. A stream fails if
// nothing arrives on it for a minute; the server sends a heartbeat three times as
// often. If the rate limit of the key is exceeded, a request is retried for up to
// half a minute.
package client
