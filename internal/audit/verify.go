package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Summary is the result of a check of an audit. First and Last are the numbers of its
// records. Keep Last and Hash in another place to compare with later.
type Summary struct {
	Files   int    `json:"files"`
	First   uint64 `json:"first"` // more than 1 when old files were dropped
	Last    uint64 `json:"last"`
	Hash    string `json:"hash"` // of the last record
	Crashes int    `json:"crashes"`
	Pending int64  `json:"pending"` // bytes at the end that are not a record: one in progress, or one that a crash cut off
}

// Break is the first place where an audit was damaged or altered. It matches
// sandpit.ErrIntegrity.
type Break struct {
	File string // without its directory
	Line int    // 0: the file as a whole
	Why  string
}

func (b *Break) Error() string {
	if b.Line == 0 {
		return fmt.Sprintf("the audit log is broken at %s: %s", b.File, b.Why)
	}
	return fmt.Sprintf("the audit log is broken at %s, line %d: %s", b.File, b.Line, b.Why)
}

// Unwrap returns sandpit.ErrIntegrity.
func (b *Break) Unwrap() error { return sandpit.ErrIntegrity }

// Anchor is a record that an earlier check found. The zero Anchor is none.
type Anchor struct {
	Seq  uint64
	Hash string
}

// Verify checks an audit, which may be in use. The error is a *Break for the first file
// that is missing, gap, or record that was altered, moved or cut off; the Summary covers
// everything before it. It is sandpit.ErrNotFound if the audit is intact but the known
// record was dropped with an old file.
func Verify(dir string, known Anchor) (Summary, error) {
	v := verifier{dir: dir, last: start()}
	if known.Seq > 0 {
		v.at = append(v.at, link{known.Seq, known.Hash})
	}
	err := v.run(known)
	v.sum.Last, v.sum.Hash = v.last.seq, v.last.hash
	if err == nil || errors.Is(err, sandpit.ErrIntegrity) {
		return v.sum, err
	}
	return v.sum, fmt.Errorf("verifying the audit log in %s: %w", dir, err)
}

type verifier struct {
	dir  string
	sum  Summary
	last link
	at   []link   // that must be in the chain
	drop *dropped // the latest that was said to be dropped
	open *scan    // of the file before, if it did not end with a record
}

func (v *verifier) run(known Anchor) error {
	// The head first: what comes after it is more, never less.
	noted, headErr := link{}, error(nil)
	if f, err := os.Open(filepath.Join(v.dir, fileHead)); err == nil {
		noted, headErr = readHead(f)
		f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	} else {
		headErr = errors.New("it is missing")
	}
	all, err := files(v.dir)
	if err != nil {
		return err
	}
	if noted.seq > 0 {
		v.at = append(v.at, noted)
	}
	if len(all) == 0 {
		if noted.seq > 0 || known.Seq > 0 {
			return &Break{filepath.Base(fileName(v.dir, 1)), 0, "all its files are missing"}
		}
		return nil
	}
	first := all[0]
	var firstPrev string
	for i, n := range all {
		if i > 0 && n != all[i-1]+1 {
			return &Break{filepath.Base(fileName(v.dir, all[i-1]+1)), 0, "the file is missing"}
		}
		prev, err := v.file(n, i == 0)
		if err != nil {
			return err
		}
		if i == 0 {
			firstPrev = prev
		}
		v.sum.Files++
	}
	name := filepath.Base(fileName(v.dir, first))
	switch {
	case first > 1 && (v.drop == nil || v.drop.File < first-1 || v.drop.File == first-1 && v.drop.Hash != firstPrev):
		return &Break{filepath.Base(fileName(v.dir, first-1)), 0, "the file is missing, although it had not expired"}
	case first == 1 && firstPrev != start().hash:
		return &Break{name, 1, "it does not start with the first record"}
	}
	last := filepath.Base(fileName(v.dir, all[len(all)-1]))
	if v.open != nil {
		v.sum.Pending = v.open.rest
	}
	for _, must := range v.at {
		if must.seq > v.last.seq {
			why := fmt.Sprintf("it was truncated: records %d to %d are missing at its end", v.last.seq+1, must.seq)
			if v.open != nil {
				return &Break{last, v.open.lines + 1, why + "; after it there is an invalid record: " + v.open.why.Error()}
			}
			return &Break{last, 0, why}
		}
	}
	if headErr != nil {
		return &Break{fileHead, 0, headErr.Error()}
	}
	switch {
	case known.Seq == 0 || known.Seq >= v.sum.First:
		return nil
	case known.Seq < v.sum.First-1:
		// Anyone who can write here can also have files dropped.
		return sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the known record %d has expired; the chain is intact from record %d on", known.Seq, v.sum.First),
			"check against a later record, and store the last one more often than files expire")
	case known.Hash != firstPrev:
		return &Break{name, 1, fmt.Sprintf("it does not follow record %d as it was before before", known.Seq)}
	}
	return nil
}

// file checks one file, and returns the hash that its first record follows.
func (v *verifier) file(n uint64, first bool) (prev string, err error) {
	name := filepath.Base(fileName(v.dir, n))
	f, err := os.Open(fileName(v.dir, n))
	if err != nil {
		return "", err
	}
	defer f.Close()
	var after *link
	if !first {
		after = &v.last
	}
	s, err := scanFile(f, after, func(line []byte, at link, lineNo int) error {
		if lineNo == 1 {
			before, _, err := checkLine(line)
			if err != nil {
				return err
			}
			prev = before.hash
			if first {
				v.sum.First = at.seq
			}
		}
		for _, must := range v.at {
			if must.seq == at.seq && must.hash != at.hash {
				return &Break{name, lineNo, fmt.Sprintf("record %d is not the original one", at.seq)}
			}
		}
		return nil
	})
	if err != nil {
		return prev, err
	}
	if s.lines > 0 {
		if err := v.join(n, name, s.head); err != nil {
			return prev, err
		}
		v.last = s.last
	} else if v.open != nil {
		return prev, v.brokenBefore(n)
	}
	if s.rest > 0 || s.lines == 0 {
		// The end of a crash, if the next file says so.
		if s.why == nil {
			s.why = errors.New("it is empty")
		}
		v.open = &s
	}
	return prev, nil
}

// join checks what the first record of a file says of the files before it.
func (v *verifier) join(n uint64, name string, h *head) error {
	if h.File != n {
		return &Break{name, 1, fmt.Sprintf("it is a renamed copy of file %d", h.File)}
	}
	if v.open != nil {
		if t := h.Torn; v.open.rest > 0 && (t == nil || t.File != n-1 || t.Bytes != v.open.rest || t.SHA256 != v.open.sum) {
			return v.brokenBefore(n)
		}
		v.open = nil
		v.sum.Crashes++
	}
	if h.Dropped != nil {
		v.drop = h.Dropped
	}
	return nil
}

// brokenBefore is the break of a file whose end is not a record, and that was not
// there when the next one was begun.
func (v *verifier) brokenBefore(n uint64) error {
	return &Break{filepath.Base(fileName(v.dir, n-1)), v.open.lines + 1, v.open.why.Error()}
}
