package file

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Document is a complete policy in the terms of the file: as JSON it can be put into one.
type Document struct {
	// Unrestricted says that there are no rules except the limits, as for the owner of the
	// machine. The file has no such field.
	Unrestricted bool `json:"unrestricted,omitempty"`

	Images     []policy.Image   `json:"images"`
	Defaults   Limits           `json:"defaults"`
	Maximum    Limits           `json:"maximum"`
	OnExpiry   []sandpit.Expiry `json:"on-expiry"`
	Sandboxes  int              `json:"sandboxes"`
	CreateRate float64          `json:"creates-per-second,omitempty"`
	Mounts     []string         `json:"mounts"`
	Write      *[]string        `json:"write-paths,omitempty"` // left out: everywhere
}

// Limits are sizes in bytes and times as text. A missing one has no bound; a missing Idle
// means none.
type Limits struct {
	Memory int64   `json:"memory,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	Pids   int64   `json:"pids,omitempty"`
	Disk   int64   `json:"disk,omitempty"`
	Files  int64   `json:"files,omitempty"`
	NoFile int64   `json:"nofile,omitempty"`
	Output int64   `json:"output,omitempty"`
	Life   string  `json:"life,omitempty"`
	Idle   string  `json:"idle,omitempty"`
}

// Show returns a policy as a Document.
func Show(p policy.Policy) Document {
	r := p.Rules
	if r == nil {
		r = &policy.Rules{OnExpiry: []sandpit.Expiry{sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause}}
	}
	d := Document{
		Unrestricted: p.Rules == nil,
		Images:       r.Images, Defaults: limitsOf(p.Default), Maximum: limitsOf(p.Max), OnExpiry: r.OnExpiry,
		Sandboxes: r.Sandboxes, CreateRate: r.CreateRate, Mounts: []string{},
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
		d.Write = &r.Write
	}
	if r.Idle > 0 {
		d.Defaults.Idle = notation.FormatDuration(r.Idle)
	}
	if r.MaxIdle > 0 {
		d.Maximum.Idle = notation.FormatDuration(r.MaxIdle)
	}
	return d
}

func limitsOf(l sandpit.Limits) Limits {
	shown := Limits{Memory: l.Memory, CPUs: l.CPUs, Pids: l.Pids, Disk: l.Disk, Files: l.Files, NoFile: l.NoFile, Output: l.Output}
	if l.Life > 0 {
		shown.Life = notation.FormatDuration(l.Life)
	}
	return shown
}
