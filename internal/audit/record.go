// Package audit records every decision: the caller, the request, the sandbox, whether it was
// allowed and by which rule, and the outcome.
//
// # Content
//
// A record never has a secret, content of a file, an argument or a variable; of a command it has
// only the program's name. The callers of Append ensure that. This package bounds the length of
// every text as written, and escapes control characters, which could forge a line or control a
// terminal.
//
// # When it is written
//
// Before the handler of a guarded request runs, an intent is appended, and afterwards the
// outcome. A request whose intent can't be written is not carried out. Callers that come
// at the same time share a write. With sync-audit an intent is on the disk before the
// request goes on. Without it, the kernel has the intent, which survives the server but
// not a power cut. An fdatasync would cost far more than the 9 µs of an intent.
//
// New entries push out old ones, so bytes are counted by caller as they are written. The
// bucket of a key fills at the rate at which the key could fill the whole audit within
// audit-time; callers without a key share one bucket. Once a bucket is empty, the key's
// requests are refused, and refusals are counted instead of entered.
//
// Requests that take something away are vital: neither a full disk nor an empty bucket
// holds them up. Package diskfull reserves room for their entries. Entries that can't be
// written even then wait in memory, where requests that found nothing to end make room for
// those that did. While a write hangs, the audit refuses at once, as on a full disk.
//
// # Files
//
// A directory (mode 0700) of files audit-00000001.jsonl, audit-00000002.jsonl, …
// (0600), each of one JSON object per line. They are append-only. A line is
//
//	{"seq":N,"prev":"HEX","time":"…",…,"hash":"HEX"}
//
// seq grows by one from line to line, over all files. hash is the SHA-256, in
// 64 lower-case hexadecimal digits, of the bytes of the line before ,"hash":
// and prev is the hash of the line before, also over the border of a file; that of the first line
// of all is 64 zeros. The bytes themselves are hashed, so no other encoding of the same object
// passes.
//
// The first line of a file has "head", which numbers the file. If a crash cut off the last line of
// the previous file, head.torn gives the number of bytes there that are not a record, and their
// SHA-256. If old files were dropped, head.dropped names the last of them.
//
// The file head, 128 bytes that are overwritten, has the number and the hash of a recent record
// that is on the disk: a log that ends before it was truncated.
//
// The chain reveals every change that does not rewrite the rest. Anyone who can write to the
// directory can make a new chain, so it does not protect against root: keep the last number and
// hash that Verify returns in another place, and compare.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Record is one line of the audit. Its fields are those of the API.
type Record struct {
	Seq       uint64    `json:"-"`
	Time      time.Time `json:"-"`
	RequestID string    `json:"request_id,omitempty"`
	Phase     string    `json:"phase,omitempty"` // PhaseIntent, PhaseEnd
	Caller    string    `json:"caller,omitempty"`
	Key       string    `json:"key,omitempty"` // its public prefix
	Namespace string    `json:"namespace,omitempty"`
	Remote    string    `json:"remote,omitempty"`
	Action    string    `json:"action"`
	Sandbox   string    `json:"sandbox,omitempty"`
	Detail    string    `json:"detail,omitempty"`
	Allowed   bool      `json:"allowed"`
	Rule      string    `json:"rule,omitempty"`
	Status    int       `json:"status,omitempty"`
	Code      string    `json:"code,omitempty"`
	Took      float64   `json:"took_seconds,omitempty"`
	Bytes     int64     `json:"bytes,omitempty"`

	// Vital records may use the reserve on a full disk. They are few.
	Vital bool `json:"-"`
}

// Phases of a call.
const (
	PhaseIntent = "intent" // it is about to take effect
	PhaseEnd    = "end"    // how it ended
)

// ActionOpen is the action of the first line of each file.
const ActionOpen = "audit.open"

// Bounds in bytes. Those of texts apply to the text as it is written, in which a
// character may be an escape of six bytes.
const (
	maxText   = 256
	maxDetail = 1024

	// MaxEntry is the longest line that is written, with its newline.
	MaxEntry = 4 << 10

	maxLine = 64 << 10 // that is read: earlier versions bounded texts before they were escaped
)

// head is what the first line of a file says of the files before it.
type head struct {
	File    uint64   `json:"file"`
	Torn    *torn    `json:"torn,omitempty"`
	Dropped *dropped `json:"dropped,omitempty"`
}

// torn is the end of a file that is not a record.
type torn struct {
	File   uint64 `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// dropped is the last file that was removed because there were too many.
type dropped struct {
	File uint64 `json:"file"`
	Hash string `json:"hash"` // of its last record
}

// stored is all of a line but its number and hashes.
type stored struct {
	Time time.Time `json:"time"`
	Record
	Head *head `json:"head,omitempty"`
}

// A link is a place in the chain: a record's number and hash.
type link struct {
	seq  uint64
	hash string
}

const hashLen = 2 * sha256.Size

// start is the link before the first record.
func start() link { return link{hash: strings.Repeat("0", hashLen)} }

// body encodes a record, without its number and hashes.
func (r Record) body(at time.Time, h *head) ([]byte, error) {
	for _, s := range []*string{&r.RequestID, &r.Phase, &r.Caller, &r.Key, &r.Namespace, &r.Remote, &r.Action, &r.Sandbox, &r.Rule, &r.Code} {
		*s = clip(*s, maxText)
	}
	r.Detail = clip(r.Detail, maxDetail)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(stored{Time: at.UTC(), Record: r, Head: h}); err != nil {
		return nil, fmt.Errorf("encoding an audit log record: %w", err)
	}
	return escape(bytes.TrimSuffix(buf.Bytes(), []byte("\n"))), nil
}

const clipped = "…"

// clip shortens a text so that it takes at most so many bytes when it is written.
func clip(s string, limit int) string {
	if 6*len(s) <= limit {
		return s
	}
	size, fits := 0, 0 // fits is the end of what leaves room for the mark
	for i, c := range s {
		if size <= limit-len(clipped) {
			fits = i
		}
		if size += written(c); size > limit {
			return s[:fits] + clipped
		}
	}
	return s
}

// written returns how many bytes a character takes at most when it is written.
func written(c rune) int {
	switch {
	case c == '"', c == '\\':
		return 2
	case c < ' ', c == utf8.RuneError, c <= 0xffff && hostile(c):
		return 6
	case hostile(c):
		return 12
	}
	return utf8.RuneLen(c)
}

// escape writes what encoding/json leaves as it is and a terminal might act on:
// DEL, the control characters above it, and those that turn the direction of
// text. They stand in strings only.
func escape(line []byte) []byte {
	if bytes.IndexFunc(line, hostile) < 0 {
		return line
	}
	var b bytes.Buffer
	for _, c := range string(line) {
		switch {
		case !hostile(c):
			b.WriteRune(c)
		case c > 0xffff:
			c -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return b.Bytes()
}

func hostile(c rune) bool { return c >= 0x7f && !strconv.IsPrint(c) }

// Parts of a line around its body.
const (
	lineSeq  = `{"seq":`
	linePrev = `,"prev":"`
	lineBody = `",`
	lineHash = `,"hash":"`
	lineEnd  = `"}`

	// lineFrame is about how many bytes a line has beside its body.
	lineFrame = len(lineSeq) + 10 + len(linePrev) + hashLen + len(lineBody) + len(lineHash) + hashLen + len(lineEnd)
)

// appendLine adds the line of a body that follows a link, and returns the new
// link.
func appendLine(buf []byte, after link, body []byte) ([]byte, link) {
	from := len(buf)
	seq := after.seq + 1
	buf = append(buf, lineSeq...)
	buf = strconv.AppendUint(buf, seq, 10)
	buf = append(buf, linePrev...)
	buf = append(buf, after.hash...)
	buf = append(buf, lineBody...)
	buf = append(buf, body[1:len(body)-1]...)
	sum := sha256.Sum256(buf[from:])
	hash := hex.EncodeToString(sum[:])
	buf = append(buf, lineHash...)
	buf = append(buf, hash...)
	return append(buf, lineEnd+"\n"...), link{seq, hash}
}

// errAltered is why a line is not a record.
var errAltered = errors.New("it was changed: its hash does not match")

// checkLine checks a line without its newline, and returns its link and that
// before it.
func checkLine(line []byte) (before, this link, err error) {
	const tail = len(lineHash) + hashLen + len(lineEnd)
	malformed := errors.New("it is not a record")
	if len(line) < tail || len(line) > maxLine {
		return before, this, malformed
	}
	hashed, end := line[:len(line)-tail], string(line[len(line)-tail:])
	rest, ok := bytes.CutPrefix(hashed, []byte(lineSeq))
	digits, rest, ok2 := bytes.Cut(rest, []byte(linePrev))
	if !ok || !ok2 || len(rest) < hashLen+len(lineBody) || string(rest[hashLen:hashLen+len(lineBody)]) != lineBody {
		return before, this, malformed
	}
	this.seq, err = strconv.ParseUint(string(digits), 10, 64)
	if err != nil || this.seq == 0 {
		return before, this, malformed
	}
	sum := sha256.Sum256(hashed)
	this.hash = hex.EncodeToString(sum[:])
	if end != lineHash+this.hash+lineEnd {
		return before, this, errAltered
	}
	return link{this.seq - 1, string(rest[:hashLen])}, this, nil
}

// decode reads a line that was checked.
func decode(line []byte, seq uint64) (Record, *head, error) {
	var s stored
	if err := json.Unmarshal(line, &s); err != nil {
		return Record{}, nil, fmt.Errorf("it is not a record: %w", err)
	}
	s.Record.Seq, s.Record.Time = seq, s.Time
	return s.Record, s.Head, nil
}
