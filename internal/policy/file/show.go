package file

import (
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Document is a complete policy in the terms of the file: as JSON it can be put into one, where
// it inherits nothing.
type Document struct {
	// Unrestricted says that there are no rules except the limits, as for the owner of the
	// machine. The file has no such field.
	Unrestricted bool `json:"unrestricted,omitempty"`

	Images     []policy.Image   `json:"images"`
	Defaults   Limits           `json:"defaults"`
	Maximum    Maximum          `json:"maximum"`
	OnExpiry   []sandpit.Expiry `json:"on-expiry"`
	Sandboxes  int              `json:"sandboxes"`
	CreateRate any              `json:"creates-per-second"` // a number, or "unlimited"
	Previews   any              `json:"previews"`           // the longest time, or false
	OpenPorts  any              `json:"open-ports"`         // true, "loopback", or false
	Saved      any              `json:"saved-images"`       // bytes, "unlimited", or false
	Contexts   int              `json:"contexts"`           // of a sandbox
	Mounts     []string         `json:"mounts"`
	Write      []string         `json:"write-paths"` // "/": everywhere
	Egress     []string         `json:"egress"`      // rules and presets that may be asked for
	Deny       []string         `json:"deny"`        // rules that each sandbox denies
	Resolve    []string         `json:"resolve"`     // addresses that may be named
	Secrets    []string         `json:"secrets"`     // names of secrets that may be used
}

// Maximum are limits, and bounds of traffic: numbers, small sizes as text with a unit, or "unlimited".
type Maximum struct {
	Limits
	Connections    int64 `json:"connections,omitempty"`
	NewConnections int64 `json:"new-connections,omitempty"` // per second
	Sent           any   `json:"sent"`
	Received       any   `json:"received"`
	Bandwidth      any   `json:"bandwidth"` // bytes per second, each way
}

// Limits are sizes in bytes, or small ones as text with a unit, and times as text. A missing one has no bound, which only the
// owner of the machine has.
type Limits struct {
	Memory int64   `json:"memory,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	Pids   int64   `json:"pids,omitempty"`
	Disk   int64   `json:"disk,omitempty"`
	Files  int64   `json:"files,omitempty"`
	NoFile int64   `json:"nofile,omitempty"`
	Output any     `json:"output,omitempty"`
	Life   string  `json:"life,omitempty"`
	Idle   string  `json:"idle"` // or "never"
}

// Show returns a policy as a Document.
func Show(p policy.Policy) Document {
	r := p.Rules
	if r == nil {
		r = &policy.Rules{Egress: []string{string(sandpit.EgressAll)}, Resolve: []string{"0.0.0.0/0", "::/0"}, Secrets: []string{"*"}, OnExpiry: []sandpit.Expiry{sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause}, Previews: policy.DefaultPreviews, OpenPorts: policy.OpenOnLoopback, Saved: policy.Unlimited, Contexts: sandpit.MaxContexts}
	}
	d := Document{
		Unrestricted: p.Rules == nil,
		Images:       r.Images, Defaults: limitsOf(p.Default), OnExpiry: r.OnExpiry,
		Egress: orNone(r.Egress), Deny: orNone(r.Deny), Resolve: orNone(r.Resolve), Secrets: orNone(r.Secrets),
		Maximum: Maximum{
			Limits: limitsOf(p.Max), Connections: r.Traffic.Connections, NewConnections: r.Traffic.NewConnections,
			Sent: orUnlimited(r.Traffic.Sent), Received: orUnlimited(r.Traffic.Received), Bandwidth: orUnlimited(r.Traffic.Bandwidth),
		},
		Sandboxes: r.Sandboxes, CreateRate: unlimited, Previews: false, OpenPorts: r.OpenPorts == policy.OpenEverywhere, Saved: false, Contexts: r.Contexts, Mounts: []string{}, Write: []string{everywhere},
	}
	if r.CreateRate > 0 {
		d.CreateRate = r.CreateRate
	}
	if r.Previews > 0 {
		d.Previews = notation.FormatDuration(r.Previews)
	}
	if r.OpenPorts == policy.OpenOnLoopback {
		d.OpenPorts = r.OpenPorts
	}
	switch r.Saved {
	case 0:
	case policy.Unlimited:
		d.Saved = unlimited
	default:
		d.Saved = size(r.Saved)
	}
	if d.Images == nil {
		d.Images = []policy.Image{}
	}
	for _, m := range r.Mounts {
		text := m.Source
		if m.Write {
			text += ":rw"
		}
		d.Mounts = append(d.Mounts, text)
	}
	if r.Write != nil {
		d.Write = r.Write
	}
	d.Defaults.Idle, d.Maximum.Idle = orNever(r.Idle), orNever(r.MaxIdle)
	return d
}

func orNone(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
}

func orUnlimited(n int64) any {
	if n == 0 {
		return unlimited
	}
	return size(n)
}

// size returns a size as the file takes it.
func size(n int64) any {
	if n < minPlain {
		return strconv.FormatInt(n, 10) + "b"
	}
	return n
}

func orNever(d time.Duration) string {
	if d <= 0 {
		return "never"
	}
	return notation.FormatDuration(d)
}

func limitsOf(l sandpit.Limits) Limits {
	shown := Limits{Memory: l.Memory, CPUs: l.CPUs, Pids: l.Pids, Disk: l.Disk, Files: l.Files, NoFile: l.NoFile}
	if l.Output > 0 {
		shown.Output = size(l.Output)
	}
	if l.Life > 0 {
		shown.Life = notation.FormatDuration(l.Life)
	}
	return shown
}
