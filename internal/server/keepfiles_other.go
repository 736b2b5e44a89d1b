//go:build !linux

package server

// keepFiles does nothing: servers run on Linux.
func keepFiles() {}
