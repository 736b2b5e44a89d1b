//go:build !launcher

package main

import "github.com/sandpit-dev/sandpit/internal/dialect"

// dialects returns the wire APIs of other projects that this program serves.
func dialects() []dialect.Dialect { return nil }
