package logstore

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
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// place is behind a record.
type place struct {
	segment uint64
	offset  int64
}

// Query returns entries, oldest first. See sandpit.LogQuery. It ends with ctx, with its
// error; one that follows the log also ends, without an error, when the log is closed.
// Entries that were removed meanwhile are missing, which a gap in Seq shows.
func (l *Log) Query(ctx context.Context, q sandpit.LogQuery) iter.Seq2[sandpit.LogEntry, error] {
	return func(yield func(sandpit.LogEntry, error) bool) {
		if err := check(q); err != nil {
			yield(sandpit.LogEntry{}, err)
			return
		}
		if err := l.written(ctx); err != nil {
			yield(sandpit.LogEntry{}, err)
			return
		}
		skip := 0
		if q.Tail > 0 {
			if err := l.read(ctx, &place{}, q, func(sandpit.LogEntry) bool { skip++; return true }); err != nil {
				yield(sandpit.LogEntry{}, err)
				return
			}
			skip = max(0, skip-q.Tail)
		}
		more := true
		emit := func(e sandpit.LogEntry) bool {
			if skip > 0 {
				skip--
				return true
			}
			more = yield(e, nil)
			return more
		}
		for at := (place{}); ; {
			l.mu.Lock()
			changed, closed := l.change(), l.closed && !l.pending.flushing
			l.mu.Unlock()
			if err := l.read(ctx, &at, q, emit); err != nil {
				if more {
					yield(sandpit.LogEntry{}, err)
				}
				return
			}
			if !more || !q.Follow || closed {
				return
			}
			skip = 0
			select {
			case <-changed:
			case <-ctx.Done():
				yield(sandpit.LogEntry{}, ctx.Err())
				return
			}
		}
	}
}

func check(q sandpit.LogQuery) error {
	switch {
	case q.Stream != "" && q.Stream != "stdout" && q.Stream != "stderr":
		return fault.Errorf(sandpit.ErrInvalid, "reading a log: unknown stream %.20q", q.Stream)
	case q.Tail < 0:
		return fault.Errorf(sandpit.ErrInvalid, "reading a log: the number of entries is negative")
	case q.Follow && !q.Until.IsZero():
		return fault.Errorf(sandpit.ErrInvalid, "reading a log: a log that is followed can't have an end time")
	}
	return nil
}

// written waits until what has been entered so far is written.
func (l *Log) written(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for upTo := l.seq; l.pending.flushing && l.pending.done < upTo; {
		ch := l.change()
		l.mu.Unlock()
		select {
		case <-ch:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			return ctx.Err()
		}
	}
	return nil
}

// read gives f the entries behind a place that are there now.
func (l *Log) read(ctx context.Context, at *place, q sandpit.LogQuery, f func(sandpit.LogEntry) bool) error {
	l.mu.Lock()
	segs := slices.Clone(l.segs)
	sizes := make([]int64, len(segs))
	mems := make([][]byte, len(segs))
	for i, s := range segs {
		sizes[i], mems[i] = s.size, s.mem // only ever appended to, while this reads
	}
	l.reading++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.reading--
		l.mu.Unlock()
	}()
	for i, s := range segs {
		if s.number < at.segment || i+1 < len(segs) && segs[i+1].first <= q.After+1 && q.After > 0 {
			continue
		}
		from := int64(headerSize)
		if s.number == at.segment {
			from = max(from, at.offset)
		}
		if from >= sizes[i] {
			continue
		}
		end, on, err := l.readSegment(ctx, s, mems[i], from, sizes[i], q, f)
		*at = place{s.number, end}
		if err != nil || !on {
			return err
		}
	}
	return nil
}

func (l *Log) readSegment(ctx context.Context, s *segment, mem []byte, from, to int64, q sandpit.LogQuery, f func(sandpit.LogEntry) bool) (end int64, on bool, err error) {
	var src io.ReaderAt = bytes.NewReader(mem)
	if l.dir != "" {
		file, err := os.Open(l.path(s.number))
		if errors.Is(err, fs.ErrNotExist) {
			return to, true, nil // removed meanwhile
		}
		if err != nil {
			return from, false, fmt.Errorf("reading a log: %w", err)
		}
		defer file.Close()
		src = file
	}
	on = true
	err = scan(bufio.NewReaderSize(io.NewSectionReader(src, from, to-from), 32<<10), s.first, func(r *record, size int) bool {
		if err = ctx.Err(); err != nil {
			return false
		}
		from += int64(size)
		if r.matches(q) {
			on = r.each(func(e sandpit.LogEntry) bool { return e.Seq <= q.After || f(e) })
		}
		return on
	})
	switch {
	case ctx.Err() != nil:
		return from, false, ctx.Err()
	case errors.Is(err, errTorn):
		return to, on, nil // damaged behind our back: go on with the next one
	case err != nil:
		return from, false, fmt.Errorf("reading a log: %w", err)
	}
	return from, on, nil
}

// matches reports whether entries of the record may be asked for.
func (r *record) matches(q sandpit.LogQuery) bool {
	return r.kind == outputKind && (q.Process == "" || q.Process == r.id) &&
		(q.Stream == "" || q.Stream == streamName(r.stream)) &&
		(q.Since.IsZero() || !time.Unix(0, r.time).Before(q.Since)) && // there are times that have no UnixNano
		(q.Until.IsZero() || time.Unix(0, r.time).Before(q.Until)) &&
		r.seq+uint64(r.entries) > q.After
}
