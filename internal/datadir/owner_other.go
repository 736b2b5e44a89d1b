//go:build !unix

package datadir

import "io/fs"

// ours can't be told here; no part of a data directory but settings is used.
func ours(fs.FileInfo) bool { return true }
