//go:build !linux

// Package claim reserves unique numbered resources. It is for Linux.
package claim
