package diskfull

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
)

// ReserveSize is the room of a Reserve, in bytes: some hundred small writes.
const ReserveSize = 1 << 20

// Reserve is a file that nobody reads. It holds room on a disk, which is given up
// when the disk is full and something must be written all the same. Its methods
// must not be called at the same time.
type Reserve struct {
	path  string
	short bool // it has less than ReserveSize
}

// OpenReserve takes the room of a reserve. If there is too little, or no file can
// be written, it takes what it can: Restore tries again.
func OpenReserve(path string) *Reserve {
	r := &Reserve{path: path, short: true}
	r.Restore()
	return r
}

// Release gives up all of the room, for a write that follows at once.
func (r *Reserve) Release() {
	r.short = true
	_ = os.Truncate(r.path, 0) // a reserve that can't be truncated makes no room
}

// Restore takes the room that is missing, as far as there is any. It costs
// nothing while none is missing.
func (r *Reserve) Restore() {
	if r.short {
		r.short = r.fill() != nil
	}
}

// fill writes what is missing. The bytes are random, so that a file system that
// compresses makes room for all of them.
func (r *Reserve) fill() (err error) {
	file, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "writing", Path: r.path, Err: fs.ErrInvalid}
	}
	if err != nil {
		return err
	}
	// In steps of a block: on a full disk the last ones count.
	var block [4096]byte
	random := rand.NewChaCha8([32]byte{})
	for size := info.Size(); size < ReserveSize; size += int64(len(block)) {
		_, _ = random.Read(block[:])
		if _, err := file.Write(block[:]); err != nil {
			return err
		}
	}
	return nil
}
