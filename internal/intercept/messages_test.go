package intercept

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// frameOf makes a frame, masked as a client does it.
func frameOf(first byte, text string) []byte {
	return newFrames(nil, true).frame(nil, first, []byte(text))
}

// read returns the messages of frames that a server gets, and its control frames.
func readFrames(t *testing.T, b []byte) (texts, controls []string) {
	t.Helper()
	f := newFrames(nil, true)
	text := ""
	for len(b) > 0 {
		f.head = f.head[:0]
		for !f.whole() {
			f.head = append(f.head, b[0])
			b = b[1:]
		}
		if err := f.begin(); err != nil {
			t.Fatalf("%x: %v", f.head, err)
		}
		payload := make([]byte, f.left)
		for i := range payload {
			payload[i] = b[i] ^ f.mask[i&3]
		}
		b = b[len(payload):]
		if f.head[0]&frameControl != 0 {
			controls = append(controls, string(payload))
			continue
		}
		text += string(payload)
		if f.open = f.head[0]&frameFinal == 0; !f.open {
			texts = append(texts, text)
			text = ""
		}
	}
	return texts, controls
}

// Messages go on with their substitutions, however they are cut into frames and reads.
func TestMessages(t *testing.T) {
	const placeholder, value = "sandpit-the-placeholder", "the-value"
	subs := []substitution{{find: []byte(placeholder), put: []byte(value)}}
	long := strings.Repeat("x", 3*substituteSize) + placeholder + strings.Repeat("y", 1<<16)
	want := []string{"a " + value + " b", "", value, "split " + value, strings.ReplaceAll(long, placeholder, value), "sandpit-the-place"}
	var all []byte
	for _, frame := range [][]byte{
		frameOf(0x81, "a "+placeholder+" b"), frameOf(0x81, ""), frameOf(0x82, placeholder),
		frameOf(0x01, "split sandpit-"), frameOf(0x89, "ping "+placeholder), frameOf(0x00, ""), frameOf(0x00, "the-place"), frameOf(0x80, "holder"),
		frameOf(0x81, long), frameOf(0x81, "sandpit-the-place"), frameOf(0x88, "\x03\xe8"),
	} {
		all = append(all, frame...)
	}
	for _, size := range []int{1, 7, 4096, len(all)} {
		f := newFrames(subs, true)
		var out []byte
		for rest := all; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			next, err := f.pass(rest[:min(size, len(rest))])
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, next...)
		}
		texts, controls := readFrames(t, out)
		if strings.Join(texts, "\n") != strings.Join(want, "\n") || len(controls) != 2 || controls[0] != "ping "+placeholder {
			t.Errorf("in pieces of %d: %.200q %q", size, texts, controls)
		}
	}
	refused := errors.New("refused")
	f := newFrames([]substitution{{find: []byte(placeholder), refuse: func() error { return refused }}}, true)
	if out, err := f.pass(append(frameOf(0x01, "sandpit-the-"), frameOf(0x80, "placeholder")...)); !errors.Is(err, refused) || bytes.Contains(out, []byte("placeholder")) {
		t.Errorf("a placeholder that is refused: %q, %v", out, err)
	}
	for name, bad := range map[string][]byte{
		"no mask":                  {0x81, 1, 'a'},
		"an extension":             append([]byte{0xc1}, frameOf(0x81, "a")[1:]...),
		"a long ping":              frameOf(0x89, strings.Repeat("x", 126)),
		"a ping in parts":          frameOf(0x09, "x"),
		"a part of nothing":        frameOf(0x80, "x"),
		"a message within another": append(frameOf(0x01, "x"), frameOf(0x81, "y")...),
		"an endless frame":         {0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
	} {
		if _, err := newFrames(subs, true).pass(bad); !errors.Is(err, errFrames) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(append(frameOf(0x01, "split sandpit-"), frameOf(0x80, "placeholder")...), 3)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		size = max(1, size%100)
		subs := []substitution{{find: []byte("sandpit-placeholder"), put: []byte("v")}}
		one := newFrames(subs, true)
		parts := newFrames(subs, true)
		whole, err := one.pass(b)
		var out []byte
		var perr error
		for rest := b; len(rest) > 0 && perr == nil; rest = rest[min(size, len(rest)):] {
			var next []byte
			next, perr = parts.pass(rest[:min(size, len(rest))])
			out = append(out, next...)
		}
		if (err == nil) != (perr == nil) || len(out) != len(whole) {
			t.Errorf("whole: %v, in parts: %v", err, perr)
		}
		if len(one.payload) > substituteSize {
			t.Errorf("%d bytes are held", len(one.payload))
		}
	})
}

var _ io.ReadWriteCloser = (*messages)(nil)
