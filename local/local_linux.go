package local

import (
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// beGuest does not return when this program was started as a guest.
func beGuest(args []string) {
	if len(args) > 0 && filepath.Base(args[0]) == linux.GuestName {
		os.Exit(server.Main(args))
	}
}

// open puts the parts together.
func open(opt Options) (sandpit.Client, error) {
	guest := embedded.Guest()
	if guest == nil && !opt.Guest.yes {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "creating sandboxes: this program contains no guest"),
			"call local.Guest first in main, and set Options.Guest to what it returns")
	}
	images, guests := engine.Home(opt.Home)
	rules := policy.Default()
	rules.Default, rules.Max = over(rules.Default, opt.Default), opt.Max
	return engine.New(engine.Options{
		Driver: linux.New(linux.Options{
			Dir: guests, Guest: guest, GuestDigest: embedded.Digest(guest),
			Private: datadir.Private(opt.Home, os.LookupEnv), PrivateOfOthers: datadir.OfOthers,
		}),
		Images:  image.Open(images, image.Options{Fetcher: fetch.New(fetch.Options{UserAgent: "sandpit-go"})}),
		Policy:  rules,
		Network: opt.Network,
		Acquire: image.AcquireOptions{PlainHTTP: opt.PlainHTTP, Mirrors: opt.Mirrors},
	}), nil
}

// over returns l with the fields that are set in by.
func over(l, by sandpit.Limits) sandpit.Limits {
	replace(&l.Memory, by.Memory)
	replace(&l.CPUs, by.CPUs)
	replace(&l.Pids, by.Pids)
	replace(&l.Disk, by.Disk)
	replace(&l.Files, by.Files)
	replace(&l.NoFile, by.NoFile)
	replace(&l.Output, by.Output)
	replace(&l.Life, by.Life)
	return l
}

func replace[T comparable](v *T, by T) {
	var zero T
	if by != zero {
		*v = by
	}
}
