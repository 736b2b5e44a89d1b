//go:build !linux

package audit

import "os"

// datasync brings a file's content to the disk.
func datasync(f *os.File) error { return f.Sync() }
