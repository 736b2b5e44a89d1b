package state

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/zalando/go-keyring"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

const (
	keyringService = "sandpit"          // of the entries in the keyring; the user of each is the file whose key it is
	inKeyring      = "in the keyring\n" // the content of that file, which is shorter than a key
	keyringTime    = 10 * time.Second   // for the keyring, which may wait for somebody to unlock it
	busVariable    = "DBUS_SESSION_BUS_ADDRESS"
)

// readKey returns the content of a key file, after its key was moved to where it is wanted: the keyring of the
// user, or the file. Whenever the move is interrupted, the next call goes on.
func readKey(file string, wantKeyring bool) ([]byte, error) {
	content, err := os.ReadFile(file)
	is := string(content) == inKeyring
	switch {
	case is && err == nil:
		key, err := fromKeyring(file)
		if err != nil || wantKeyring {
			return key, err
		}
		if err := writeFile(file, key); err != nil {
			return nil, err
		}
		_, err = withKeyring("removing the key", func() ([]byte, error) { return nil, keyring.Delete(keyringService, file) })
		return key, err
	case !wantKeyring || err != nil || len(content) != sealKeyLen:
		return content, err
	}
	text := base64.StdEncoding.EncodeToString(content)
	if _, err := withKeyring("storing the key", func() ([]byte, error) { return nil, keyring.Set(keyringService, file, text) }); err != nil {
		return nil, err
	}
	if key, err := fromKeyring(file); err != nil || string(key) != string(content) {
		return nil, errors.Join(err, fault.Errorf(sandpit.ErrIntegrity, "the keyring does not have the key that was stored"))
	}
	return content, writeFile(file, []byte(inKeyring))
}

func fromKeyring(file string) ([]byte, error) {
	return withKeyring("reading the key", func() ([]byte, error) {
		text, err := keyring.Get(keyringService, file)
		if err != nil {
			return nil, err
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("the entry is not a key")
		}
		return key, nil
	})
}

// withKeyring uses the keyring. Errors match sandpit.ErrUnavailable.
func withKeyring(what string, use func() ([]byte, error)) ([]byte, error) {
	type result struct {
		key []byte
		err error
	}
	failed := func(err error) error {
		// Without what it wraps: an ENOENT of the bus's socket must not look like a missing key file.
		return sandpit.WithHint(fault.Errorf(sandpit.ErrUnavailable, "%s: the keyring of this user: %v", what, err),
			"run and unlock a Secret Service, such as gnome-keyring, in the server's session ("+busVariable+")")
	}
	if runtime.GOOS == "linux" && os.Getenv(busVariable) == "" {
		// Or the library would start a bus, of which nobody has the keyring.
		if _, err := os.Stat(filepath.Join("/run/user", strconv.Itoa(os.Getuid()), "bus")); err != nil {
			return nil, failed(errors.New("there is no session bus"))
		}
	}
	done := make(chan result, 1)
	go func() {
		key, err := use()
		done <- result{key, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, failed(r.err)
		}
		return r.key, nil
	case <-time.After(keyringTime):
		return nil, failed(fmt.Errorf("it does not answer for %s; it may be locked", keyringTime))
	}
}
