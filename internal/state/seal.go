package state

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A sealer encrypts secrets that must be readable later, so that a copy of the database
// alone reveals none. The key is in a file beside it, with mode 0600: whoever can read the
// directory as this user can read both. On request it is in the keyring of the user.
type sealer struct {
	aead                      cipher.AEAD
	previews, repeats, tokens []byte // keys derived from that of aead
}

const sealKeyLen = 32 // AES-256

// openSealer reads the key, or creates it, in the file or the keyring.
func openSealer(file string, keyring bool) (*sealer, error) {
	key, err := readKey(file, keyring)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, sealKeyLen)
		_, _ = rand.Read(key) // never fails
		if err = writeFile(file, key); err == nil {
			key, err = readKey(file, keyring)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state's key: %w", err)
	}
	if len(key) != sealKeyLen {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrIntegrity, "reading the state's key: %s does not have %d bytes", file, sealKeyLen),
			"restore it from a backup, or remove it and create the webhooks and secrets again (the environments of sandboxes in their records are then lost, too)")
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	s := &sealer{aead: aead}
	if s.previews, err = hkdf.Expand(sha256.New, key, "previews", sha256.Size); err != nil {
		return nil, err
	}
	if s.repeats, err = hkdf.Expand(sha256.New, key, "repeats", sha256.Size); err != nil {
		return nil, err
	}
	s.tokens, err = hkdf.Expand(sha256.New, key, "tokens", sha256.Size)
	return s, err
}

// hash returns a hash of the hash of a request. A request may have short secrets: who has the database, but
// not the key, must not be able to try them all.
func (s *sealer) hash(request [sha256.Size]byte) []byte {
	h := hmac.New(sha256.New, s.repeats)
	h.Write(request[:])
	return h.Sum(nil)
}

// seal encrypts a value. It can be opened only as the value of the same owner.
func (s *sealer) seal(value, owner string) []byte {
	return s.aead.Seal(nil, nil, []byte(value), []byte(owner))
}

func (s *sealer) open(sealed []byte, owner string) (string, error) {
	value, err := s.aead.Open(nil, nil, sealed, []byte(owner))
	if err != nil {
		return "", fault.Errorf(sandpit.ErrIntegrity, "decrypting a secret of the state: it was encrypted with another key")
	}
	return string(value), nil
}

// writeFile writes a file atomically.
func writeFile(file string, data []byte) error {
	f, err := os.OpenFile(file+".part", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file+".part", file)
	}
	if err != nil {
		_ = os.Remove(file + ".part")
	}
	return err
}
