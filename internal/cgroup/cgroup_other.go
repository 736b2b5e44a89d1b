//go:build !linux

package cgroup

import "github.com/sandpit-dev/sandpit"

// Layout is where groups may be made: nowhere, outside of Linux.
type Layout struct{}

// Group is a made control group. There is none outside of Linux.
type Group struct{}

// Detect returns sandpit.ErrUnsupported.
func Detect() (*Layout, error) { return nil, sandpit.ErrUnsupported }
