package cli

import (
	"errors"
	"io"
)

// detachKeys passes keys on to a process up to a sequence that detaches from it, as with
// Docker: ^P^Q. A ^P waits for the key that follows it.
type detachKeys struct {
	io.WriteCloser
	detach   func() error // nil: no keys detach
	keepOpen bool         // Close does nothing: the input belongs to the process

	pressed bool // ^P was the last key, and is held back
}

// errDetached is the cause of a context that the keys have ended.
var errDetached = errors.New("detached by keys")

func (d *detachKeys) Write(p []byte) (int, error) {
	if d.detach == nil {
		return d.WriteCloser.Write(p)
	}
	const ctrlP, ctrlQ = 'P' & 0x1f, 'Q' & 0x1f
	pass := make([]byte, 0, len(p)+1)
	for _, key := range p {
		if d.pressed && key == ctrlQ {
			if err := d.detach(); err != nil {
				return 0, err
			}
			d.keepOpen = true
			return 0, errDetached
		}
		if d.pressed {
			pass = append(pass, ctrlP)
		}
		if d.pressed = key == ctrlP; !d.pressed {
			pass = append(pass, key)
		}
	}
	if len(pass) == 0 {
		return len(p), nil
	}
	if _, err := d.WriteCloser.Write(pass); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (d *detachKeys) Close() error {
	if d.keepOpen {
		return nil
	}
	return d.WriteCloser.Close()
}
