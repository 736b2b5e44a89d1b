package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// A segment is a header and records. All numbers are little-endian.
//
//	header  "SPLOG\x00\x00\x01", then the Seq that its first entry has or will have (8 bytes)
//	record  length of the payload (4), CRC-32 of the payload, IEEE (4), payload
//	payload kind (1), then
//	  output  seq (8), entries (4), time (8: ns since 1970), position (8), pid (4), stream (1), length of the id (1), id, data
//	  mark    position in stdout (8), in stderr (8), length of the id (1), id
//
// The entries of an output record are the lines of its data; the last may lack
// its newline. The position is how much output of the process, both streams
// together, there was up to the end of data. A mark says up to where a process
// has been logged, so that one need not read the segments before this one.
//
// The file of a new segment may have been that of the oldest: then what is in it
// still follows the last record. It is told by an older Seq, if it is a record
// at all.
const (
	magic      = "SPLOG\x00\x00\x01"
	headerSize = len(magic) + 8
	prefixSize = 8 // of a record
	outputSize = 1 + 8 + 4 + 8 + 8 + 4 + 1 + 1
	markSize   = 1 + 8 + 8 + 1

	maxID      = 255
	maxData    = 64 << 10 // bytes of a record's data, and so of an entry
	maxPayload = outputSize + maxID + maxData
)

type kind byte

const (
	outputKind kind = 1
	markKind   kind = 2
)

// errTorn says that a record is incomplete or damaged.
var errTorn = errors.New("damaged record")

// record is what is written at once.
type record struct {
	kind     kind
	seq      uint64 // of the first entry
	entries  uint32
	time     int64
	position int64
	pid      uint32
	stream   byte
	id       string
	data     []byte
	marks    [2]int64 // of a mark
}

func appendHeader(b []byte, seq uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, magic...), seq)
}

// parseHeader returns the first Seq of a segment.
func parseHeader(b []byte) (seq uint64, ok bool) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return 0, false
	}
	seq = binary.LittleEndian.Uint64(b[len(magic):])
	return seq, validSeq(seq)
}

// validSeq reports whether a Seq can be one: they begin with 1, and no log lives
// long enough for more than so many.
func validSeq(n uint64) bool { return n > 0 && n < 1<<62 }

// append appends the encoded record.
func (r *record) append(b []byte) []byte {
	le := binary.LittleEndian
	start := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, byte(r.kind))
	if r.kind == outputKind {
		b = le.AppendUint64(b, r.seq)
		b = le.AppendUint32(b, r.entries)
		b = le.AppendUint64(b, uint64(r.time))
		b = le.AppendUint64(b, uint64(r.position))
		b = le.AppendUint32(b, r.pid)
		b = append(b, r.stream)
	} else {
		b = le.AppendUint64(b, uint64(r.marks[0]))
		b = le.AppendUint64(b, uint64(r.marks[1]))
	}
	b = append(b, byte(len(r.id)))
	b = append(b, r.id...)
	b = append(b, r.data...)
	payload := b[start+prefixSize:]
	le.PutUint32(b[start:], uint32(len(payload)))
	le.PutUint32(b[start+4:], crc32.ChecksumIEEE(payload))
	return b
}

// readRecord reads a record and returns how long it is. The error is io.EOF at
// the end, and errTorn for bytes that are not a record.
func readRecord(src io.Reader) (r record, size int, err error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(src, prefix[:]); err != nil {
		return r, 0, tornUnlessEOF(err)
	}
	n := int(binary.LittleEndian.Uint32(prefix[:]))
	if n < markSize || n > maxPayload {
		return r, 0, errTorn
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(src, payload); err != nil {
		if err == io.EOF {
			return r, 0, errTorn
		}
		return r, 0, tornUnlessEOF(err)
	}
	if crc32.ChecksumIEEE(payload) != binary.LittleEndian.Uint32(prefix[4:]) {
		return r, 0, errTorn
	}
	r, ok := parsePayload(payload)
	if !ok {
		return r, 0, errTorn
	}
	return r, prefixSize + n, nil
}

func tornUnlessEOF(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errTorn
	}
	return err
}

// parsePayload decodes a payload, of which it keeps a part.
func parsePayload(b []byte) (r record, ok bool) {
	le := binary.LittleEndian
	r.kind = kind(b[0])
	switch {
	case r.kind == outputKind && len(b) >= outputSize:
		r.seq, r.entries = le.Uint64(b[1:]), le.Uint32(b[9:])
		r.time, r.position = int64(le.Uint64(b[13:])), int64(le.Uint64(b[21:]))
		r.pid, r.stream = le.Uint32(b[29:]), b[33]
		id := int(b[34])
		if len(b) < outputSize+id {
			return r, false
		}
		r.id, r.data = string(b[outputSize:outputSize+id]), b[outputSize+id:]
		return r, (r.stream == Stdout || r.stream == Stderr) && r.position >= 0 && validSeq(r.seq) && r.entries == countEntries(r.data) && r.entries > 0
	case r.kind == markKind && len(b) >= markSize:
		r.marks = [2]int64{int64(le.Uint64(b[1:])), int64(le.Uint64(b[9:]))}
		r.id = string(b[markSize:])
		return r, int(b[17]) == len(r.id) && r.marks[0] >= 0 && r.marks[1] >= 0
	}
	return r, false
}

// countEntries returns the number of lines in data.
func countEntries(data []byte) uint32 {
	n := bytes.Count(data, []byte{'\n'})
	if len(data) > 0 && data[len(data)-1] != '\n' {
		n++
	}
	return uint32(n)
}

// each calls f with the entries of an output record.
func (r *record) each(f func(sandpit.LogEntry) bool) bool {
	e := sandpit.LogEntry{Seq: r.seq, Time: time.Unix(0, r.time), Process: r.id, PID: int(r.pid), Stream: streamName(r.stream)}
	for rest := r.data; len(rest) > 0; e.Seq++ {
		n := bytes.IndexByte(rest, '\n') + 1
		if n == 0 {
			n = len(rest)
		}
		e.Data = rest[:n:n]
		rest = rest[n:]
		if !f(e) {
			return false
		}
	}
	return true
}

// Streams as they are written.
const (
	Stdout byte = 1
	Stderr byte = 2
)

func streamName(s byte) string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}
