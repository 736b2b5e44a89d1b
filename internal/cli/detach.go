package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// DefaultDetachKeys are the keys that detach from a process, as with Docker: ^P^Q.
const DefaultDetachKeys = "\x10\x11"

// ParseDetachKeys reads keys in Docker's notation: "ctrl-p,ctrl-q", "ctrl-],d". Empty text is
// no keys.
func ParseDetachKeys(text string) (keys string, err error) {
	if text == "" {
		return "", nil
	}
	for key := range strings.SplitSeq(text, ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(key), "ctrl-")
		switch {
		case ctrl && len(name) == 1 && (name[0] >= 'a' && name[0] <= 'z' || strings.Contains("@[\\]^_", name)):
			keys += string(rune(name[0] & 0x1f))
		case !ctrl && len(key) == 1 && key[0] > ' ' && key[0] < 0x7f:
			keys += key
		default:
			return "", sandpit.WithHint(fmt.Errorf("%q is not a key", key), "write ctrl-a to ctrl-z, ctrl-@, ctrl-[, ctrl-\\, ctrl-], ctrl-^, ctrl-_ or a character, with commas between them")
		}
	}
	return keys, nil
}

// detachKeys passes keys on to a process up to a sequence that detaches from it. What may be
// its beginning waits for the key that follows.
type detachKeys struct {
	io.WriteCloser
	keys     string       // "": none detach
	detach   func() error // may be nil if none do
	keepOpen bool         // Close does nothing: the input belongs to the process

	pressed int // of keys: they are held back
}

// settlePatience is how long a process may take to read what was typed before the keys.
const settlePatience = time.Second

// errDetached is the cause of a context that the keys have ended.
var errDetached = errors.New("detached by keys")

func (d *detachKeys) Write(p []byte) (int, error) {
	if d.keys == "" {
		return d.WriteCloser.Write(p)
	}
	pass := make([]byte, 0, len(p)+len(d.keys))
	for _, key := range p {
		if key != d.keys[d.pressed] {
			pass = append(pass, d.keys[:d.pressed]...)
			d.pressed = 0
		}
		if key != d.keys[d.pressed] {
			pass = append(pass, key)
			continue
		}
		if d.pressed++; d.pressed == len(d.keys) {
			if len(pass) > 0 {
				_, _ = d.WriteCloser.Write(pass) // also a process that has closed its input can be left
			}
			if in, ok := d.WriteCloser.(interface{ Settle(time.Duration) }); ok {
				in.Settle(settlePatience) // what is still on its way when this program ends gets lost
			}
			if err := d.detach(); err != nil {
				return 0, err
			}
			d.keepOpen = true
			return 0, errDetached
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

// Close closes the input, unless it is to be kept open.
func (d *detachKeys) Close() error {
	if d.keepOpen {
		return nil
	}
	return d.WriteCloser.Close()
}
