package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Query selects records. Empty fields match everything. A Namespace matches also the records of
// those nested in it, whose Namespace is NAMESPACE/NESTED.
type Query struct {
	Sandbox, Namespace, Caller, Action, RequestID string

	Since, Until time.Time
	After        uint64 // records with a greater Seq
	Denied       bool   // only refused requests

	Progress func(file string) // called before each file, and each thousand records; nil: not called
}

func (q *Query) matches(r *Record) bool {
	for _, f := range [...][2]string{{q.Sandbox, r.Sandbox}, {q.Caller, r.Caller}, {q.Action, r.Action}, {q.RequestID, r.RequestID}} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	if q.Namespace != "" && r.Namespace != q.Namespace && !strings.HasPrefix(r.Namespace, q.Namespace+"/") {
		return false
	}
	return r.Seq > q.After && !(q.Denied && r.Allowed) &&
		(q.Since.IsZero() || !r.Time.Before(q.Since)) && (q.Until.IsZero() || r.Time.Before(q.Until))
}

// Search passes the matching records of an audit to a function, oldest first. The audit may
// be in use. Search skips malformed lines, and at the end returns an error with their
// number, which matches sandpit.ErrIntegrity.
func Search(ctx context.Context, dir string, q Query) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		all, err := files(dir)
		if err != nil {
			yield(Record{}, fmt.Errorf("searching the audit log: %w", err))
			return
		}
		odd := 0
		for i, n := range all {
			if q.Progress != nil {
				q.Progress(fileName(dir, n))
			}
			if i+1 < len(all) && skips(fileName(dir, all[i+1]), &q) {
				continue
			}
			more, bad, err := searchFile(ctx, fileName(dir, n), &q, yield)
			if err != nil {
				yield(Record{}, fmt.Errorf("searching the audit log: %w", err))
				return
			}
			if !more {
				return
			}
			odd += bad
		}
		if odd > 0 {
			yield(Record{}, sandpit.WithHint(fault.Errorf(sandpit.ErrIntegrity, "searching the audit log: %d lines are not records", odd), "check it with 'sandpit audit verify'"))
		}
	}
}

// skips reports whether all that comes before a file is too old for a query.
func skips(next string, q *Query) bool {
	if q.After == 0 && q.Since.IsZero() {
		return false
	}
	line, err := firstLine(next)
	if err != nil {
		return false
	}
	before, this, err := checkLine(line)
	if err != nil {
		return false
	}
	r, _, err := decode(line, this.seq)
	// A second, because calls that come at once are recorded in any order.
	return err == nil && (before.seq <= q.After && q.After > 0 || !q.Since.IsZero() && r.Time.Add(time.Second).Before(q.Since))
}

// searchFile gives the records of a file that match, while more is wanted.
func searchFile(ctx context.Context, name string, q *Query, yield func(Record, error) bool) (more bool, odd int, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, 0, nil // dropped meanwhile
	}
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	if q.After > 0 {
		begin, err := behind(f, q.After)
		if err == nil {
			_, err = f.Seek(begin, io.SeekStart)
		}
		if err != nil {
			return false, 0, err
		}
	}
	br := bufio.NewReaderSize(f, 2*maxLine)
	long := false // in the middle of a line that is too long
	for n := 1; ; n++ {
		if n%1000 == 0 {
			if ctx.Err() != nil {
				return false, odd, ctx.Err()
			}
			if q.Progress != nil {
				q.Progress(name)
			}
		}
		line, err := br.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			long = true
			continue
		case errors.Is(err, io.EOF):
			return true, odd, nil // an incomplete line is being written, or was cut off by a crash
		case err != nil:
			return false, odd, err
		}
		if long {
			long = false
			odd++
			continue
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if seq, ok := seqOf(line); ok && seq <= q.After {
			continue // to check and decode it takes a hundred times as long
		}
		_, this, err := checkLine(line)
		if err != nil {
			odd++
			continue
		}
		r, _, err := decode(line, this.seq)
		if err != nil {
			odd++
			continue
		}
		if q.matches(&r) && !yield(r, nil) {
			return false, odd, nil
		}
	}
}

// searchStep is as much of a file, in bytes, as is rather read than searched.
const searchStep = 4 * maxLine

// behind returns where in a file to begin to read for the records behind a
// number: at the beginning of a line. A page of a long search so costs as much
// at its end as at its beginning.
func behind(f *os.File, seq uint64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 2*maxLine)
	low, high := int64(0), info.Size()
	for high-low > searchStep {
		middle := low + (high-low)/2
		n, err := f.ReadAt(buf, middle)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		end := bytes.IndexByte(buf[:n], '\n')
		at, ok := seqOf(buf[end+1 : n])
		switch {
		case end < 0 || !ok:
			return low, nil // no records: they are read, and counted
		case at <= seq:
			low = middle + int64(end) + 1
		default:
			high = middle
		}
	}
	return low, nil
}

// seqOf returns the number that a line says, without checking it.
func seqOf(line []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(lineSeq))
	digits, _, ok2 := bytes.Cut(rest, []byte(","))
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	return seq, ok && ok2 && err == nil
}
