//go:build !linux

// Package claim takes numbered things that exist once. It is for Linux.
package claim
