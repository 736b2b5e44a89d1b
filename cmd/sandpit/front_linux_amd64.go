//go:build front

package main

import _ "embed"

// A string, because the linker places it in read-only memory.
//
//go:embed sandpit-whole-amd64.bin
var wholeProgram string
