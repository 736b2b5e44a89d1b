// Package reserve holds room on a disk, to be given up when the disk is full and
// something must be written all the same.
package reserve

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
)

// Size is the room of a reserve, in bytes: some hundred small writes.
const Size = 1 << 20

// File is a reserve: a file that nobody reads. Its methods must not be called at
// the same time.
type File struct {
	path  string
	short bool // it has less than Size
}

// Open takes the room. Where there is too little, or no file can be written, it
// takes what it can: Restore tries again.
func Open(path string) *File {
	f := &File{path: path, short: true}
	f.Restore()
	return f
}

// Release gives all of the room up, for a write that is to follow at once.
func (f *File) Release() {
	f.short = true
	_ = os.Truncate(f.path, 0) // one that can't be given up is no room either
}

// Restore takes the room that is missing, as far as there is any. It costs
// nothing while none is missing.
func (f *File) Restore() {
	if f.short {
		f.short = f.fill() != nil
	}
}

// fill writes what is missing. The bytes are random, so that a file system that
// compresses makes room for all of them.
func (f *File) fill() (err error) {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "writing", Path: f.path, Err: fs.ErrInvalid}
	}
	if err != nil {
		return err
	}
	// In steps of a block: on a full disk the last ones count.
	var block [4096]byte
	random := rand.NewChaCha8([32]byte{})
	for size := info.Size(); size < Size; size += int64(len(block)) {
		_, _ = random.Read(block[:])
		if _, err := file.Write(block[:]); err != nil {
			return err
		}
	}
	return nil
}
