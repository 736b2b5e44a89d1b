//go:build launcher

package main

import _ "embed"

// A string, because the linker places it in read-only memory.
//
//go:embed sandpit-full-arm64.bin
var fullProgram string
