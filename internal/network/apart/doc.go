// Package apart keeps the network stacks of a server's sandboxes in one separate process of the
// same program.
//
// What sandboxes send is parsed there, away from the server's state, keys and sockets. The process
// only dials: it has no capability, no file of the server, nothing of its environment but where roots of TLS are, and, where the server
// runs as root, another user. If it ends, the server starts it again and hands it the interfaces
// and the terms: sandboxes live on, and only their open connections end.
//
//	engine ─ Host ─ socket ─ Process ─ network.Network ─ TUN
//	          └ a duplicate of each TUN          └ dials
//
// # Protocol
//
// Both ends are the same program, and say so first: a message with another version ends the
// connection. A message is its length (32 bits, big endian) and as many bytes of JSON, at most
// maxMessage. A message that asks to join carries the descriptor of the interface beside its length
// (SCM_RIGHTS of unix(7)). The host asks and the process answers, in any order: an answer has the ID
// of its request. The process asks, too, for secrets to be renewed, for ICMP sockets and for /etc/resolv.conf. A process that does not answer in time is
// killed, whatever it was asked for.
package apart
