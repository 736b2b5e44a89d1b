// Package client is the [sandpit.Client] for a server, which sandpit serve is:
// on this machine over its unix socket, or elsewhere over TLS. It behaves as
// the engine in-process does, with the same errors, but that its sandboxes
// live on when it is closed.
//
//	c, err := client.New(client.Options{Address: "https://sandpit.example:7070", Key: key})
//	if err != nil { ... }
//	defer c.Close()
//	sb, err := c.Create(ctx, sandpit.Spec{Image: "debian:13"})
//
// Its sandboxes are [sandpit.Lifecycle], [sandpit.ProcessKeeper],
// [sandpit.Networker] and [sandpit.Meter], and the client itself is a [sandpit.Watcher]:
//
//	err = sb.(sandpit.Lifecycle).Pause(ctx)
//
// # Errors
//
// What the server refuses has the kind, the text and the hint that it would
// have in-process; [RequestID] gives the number under which the server has
// written it down. A server that can't be reached, or that falls silent, is
// [sandpit.ErrUnavailable]. Whether a request that ended so was carried out is
// not known, with one exception: no sandbox is made twice.
//
// # Waiting
//
// Every call ends with its context. One that takes a server no time also ends
// by itself when there is no response for a minute. A stream on which nothing has
// come for a minute, not even the sign of life that the server sends three
// times as often, is given up. When a key asks too often, its requests wait for
// their turn, for half a minute at most.
package client
