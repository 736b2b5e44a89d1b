package cli

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// keysInput is an input that keeps what is written.
type keysInput struct {
	bytes.Buffer
	closed bool
}

func (k *keysInput) Close() error {
	k.closed = true
	return nil
}

func TestDetachKeys(t *testing.T) {
	for _, tt := range []struct {
		keys, typed, passed string
		detached            bool
	}{
		{"ctrl-p,ctrl-q", "ls\r\x10x\x11\x10\x10y", "ls\r\x10x\x11\x10\x10y", false},
		{"ctrl-p,ctrl-q", "ls\r\x10", "ls\r", false}, // the last one waits
		{"ctrl-p,ctrl-q", "ls\r\x10\x11rest", "ls\r", true},
		{"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10", true},
		{"ctrl-],d", "\x1de\x1dd", "\x1de", true},
		{"ctrl-]", "a\x1d", "a", true},
		{"", "\x10\x11", "\x10\x11", false},
	} {
		keys, err := ParseDetachKeys(tt.keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, len(tt.typed)} { // key by key, and all in one read
			in, detached := new(keysInput), false
			d := &detachKeys{WriteCloser: in, keys: keys, detach: func() error { detached = true; return nil }}
			for part := range slices.Chunk([]byte(tt.typed), size) {
				if _, err = d.Write(part); err != nil {
					break
				}
			}
			_ = d.Close()
			if detached != tt.detached || errors.Is(err, errDetached) != detached || in.closed == detached || in.String() != tt.passed {
				t.Errorf("%s, %q, %d at a time: %q was passed on, detached %v, closed %v, %v", tt.keys, tt.typed, size, in, detached, in.closed, err)
			}
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "ctrl-pp", "pq", ",", "p,,q", " ", "ctrl-p ctrl-q", "é"} {
		if keys, err := ParseDetachKeys(text); err == nil {
			t.Errorf("%q is %q", text, keys)
		}
	}
}
