//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

func groupNames() string { return "none here" }

// measure says that there is nothing to be measured here.
func measure(context.Context, options, io.Writer) (*report, error) {
	return nil, errors.New("measuring: sandboxes are made on Linux only")
}
