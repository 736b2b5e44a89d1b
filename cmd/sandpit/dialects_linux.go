//go:build !launcher

package main

import (
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/e2b"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox"
)

// dialects returns the wire APIs of other projects that this program serves.
func dialects() []dialect.Dialect { return []dialect.Dialect{e2b.New(), microsandbox.New()} }
