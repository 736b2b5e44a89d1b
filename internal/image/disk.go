package image

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
)

// writeFile writes a small file so that it is there whole or not at all. It is
// not synced to disk: what a power failure leaves of it is not decoded, and so is
// as good as not there.
func (s *Store) writeFile(path string, data []byte) error {
	tmp, err := s.tempFile()
	if err != nil {
		return err
	}
	defer tmp.discard()
	if _, err := tmp.Write(data); err != nil {
		return s.diskError(fmt.Errorf("writing to image store: %w", err))
	}
	if err := tmp.moveTo(path); err != nil {
		return s.diskError(fmt.Errorf("writing to image store: %w", err))
	}
	return nil
}

// removeTree removes a directory that its caller has locked: first its name,
// then what is in it.
func (s *Store) removeTree(path string) error {
	if err := s.ensure("tmp"); err != nil {
		return err
	}
	var b [12]byte
	_, _ = rand.Read(b[:])
	tmp := s.path("tmp", hex.EncodeToString(b[:]))
	if err := os.Rename(path, tmp); err != nil {
		return fmt.Errorf("removing from image store: %w", err)
	}
	return removeAll(tmp)
}
