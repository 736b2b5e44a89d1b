//go:build !linux

// Package server is the guest: the first process of a sandbox. It exists on
// Linux only.
package server

import "os"

// Name is the base name of argv[0] that makes a program with this package act as a guest.
const Name = "sandpit-guest"

// Main reports that there is no guest on this system and returns 125.
func Main([]string) int {
	os.Stderr.WriteString(Name + ": the guest of a sandbox runs on Linux only\n")
	return 125
}
