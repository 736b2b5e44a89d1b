// Package embedded has the guest program, embedded in the sandpit binary.
//
// `make build` builds cmd/sandpit-guest for the target architecture into this
// folder and then builds with the tag guestembed. A plain `go build` or
// `go install` has no guest to embed: Guest then returns nil and the program
// serves as its own guest.
package embedded

import "unsafe"

// Guest returns the static guest program for this program's architecture, or nil if none is
// embedded. The bytes are in this program's read-only data: the call is free, and the
// caller must not write to them.
func Guest() []byte {
	if program == "" {
		return nil
	}
	// A string is embedded, not a byte slice, because the linker places it in
	// read-only memory.
	return unsafe.Slice(unsafe.StringData(program), len(program))
}
