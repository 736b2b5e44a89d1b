package embedded

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Digest identifies the build of an embedded program: 16 hexadecimal digits, or empty for
// bytes that are not a program made by Go, such as nil. It does not read the whole program,
// which would take milliseconds of every start: the first page of a program made by Go has
// its build id, which is a hash of all the rest (see cmd/internal/buildid).
func Digest(program []byte) string {
	head := program[:min(len(program), 4096)]
	if !bytes.Contains(head, []byte("Go\x00\x00")) { // the name of the note that has the build id
		return ""
	}
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(bytes.Clone(head), uint64(len(program))))
	return hex.EncodeToString(sum[:8])
}
