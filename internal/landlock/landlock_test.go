package landlock

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestAccess(t *testing.T) {
	for _, tt := range []struct {
		abi           int
		handled, file Access
	}{
		{1, 0x1FF2, 0x2},
		{2, 0x3FF2, 0x2},
		{3, 0x7FF2, 0x4002},
		{7, 0x7FF2, 0x4002},
		{99, 0x7FF2, 0x4002}, // what later versions know is not handled
	} {
		if got := HandledAccess(tt.abi); got != tt.handled {
			t.Errorf("version %d: handled %#x, want %#x", tt.abi, got, tt.handled)
		}
		if got := FileAccess(tt.abi); got != tt.file {
			t.Errorf("version %d: file %#x, want %#x", tt.abi, got, tt.file)
		}
		if got := WriteAccess(tt.abi); got&^HandledAccess(tt.abi) != 0 || got&FileAccess(tt.abi) != FileAccess(tt.abi) {
			t.Errorf("version %d: write %#x is not between file and handled", tt.abi, got)
		}
		if got := WriteAccess(tt.abi); got&(MakeChar|MakeBlock) != 0 {
			t.Errorf("version %d: devices can be made", tt.abi)
		}
	}
}

func TestLayout(t *testing.T) {
	var want bytes.Buffer
	if err := binary.Write(&want, binary.NativeEndian, uint64(HandledAccess(3))); err != nil {
		t.Fatal(err)
	}
	if got := RulesetAttr(HandledAccess(3)); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("ruleset: got %x, want %x", got, want.Bytes())
	}
	want.Reset()
	// struct landlock_path_beneath_attr is packed: 12 bytes.
	for _, v := range []any{uint64(WriteFile), int32(-1)} {
		if err := binary.Write(&want, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	if got := PathBeneath(WriteFile); !bytes.Equal(got, want.Bytes()) || int32(binary.NativeEndian.Uint32(got[ParentFD:])) != -1 {
		t.Errorf("rule: got %x, want %x", got, want.Bytes())
	}
}
