// Package wire is the guest protocol's framing, its messages and its flow
// control: what both ends of a connection between a host and the guest of a
// sandbox have in common. docs/guest-protocol.md is its description; the
// numbers in this package and in that page must agree.
//
// The framing is its own, because a general multiplexer such as yamux has buffers and
// goroutines per stream, which every idle sandbox would pay for.
//
// The package uses the standard library only and starts no goroutine. Every
// decoder bounds what it allocates by what has really arrived.
package wire
