//go:build !linux

package image

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

func unpackTar(string, io.Reader, Limits, int64) (about, error) {
	return about{}, fault.Unsupportedf("only on Linux")
}

func packChanges(context.Context, *quotaWriter, Tree, []string, Limits) (about, error) {
	return about{}, fault.Unsupportedf("only on Linux")
}

func syncFS(int) error { return nil }
