//go:build !guestembed

package main

import (
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
)

// ownGuest lets a program without an embedded guest be its own.
func ownGuest(args []string) func() int {
	if len(args) > 0 && filepath.Base(args[0]) == linux.GuestName {
		return func() int { return server.Main(args) }
	}
	return nil
}
