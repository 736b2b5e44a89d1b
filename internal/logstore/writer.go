package logstore

import (
	"bytes"
	"time"
)

const (
	// holdTime is how long a line may wait for its end.
	holdTime = time.Second

	// maxLine is how much of a line waits; of a longer one, a part is entered.
	maxLine = 16 << 10

	// keepBuffer is the largest buffer for a line that is kept for the next one.
	keepBuffer = 4 << 10
)

// Writer records the output of one process.
type Writer struct {
	l    *Log
	id   string
	pid  int
	held [2]held // by stream
}

// held is a line that is not ended.
type held struct {
	data  []byte
	end   int64 // position behind it
	since time.Time
}

// Process returns a Writer for a process. Its id is clipped after 255 bytes.
func (l *Log) Process(id string, pid int) *Writer {
	return &Writer{l: l, id: id[:min(len(id), maxID)], pid: pid}
}

// Write records output that begins at a position of the process's output, both streams
// together. Output that was recorded before, by this program or an earlier one, is not
// recorded again. Write does not wait for the disk, and does not keep b.
func (w *Writer) Write(stream byte, position int64, b []byte) {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	h := &w.held[stream-Stdout]
	known := h.end
	if m := l.marks[w.id]; m != nil {
		known = max(known, m.at[stream-Stdout])
	}
	if skip := min(known-position, int64(len(b))); skip > 0 {
		b, position = b[skip:], position+skip
	}
	now := time.Now()
	for len(b) > 0 {
		if len(h.data) > 0 {
			n := bytes.IndexByte(b, '\n') + 1
			whole := n > 0
			if !whole {
				n = len(b)
			}
			if room := maxLine - len(h.data); n > room {
				n, whole = room, true
			}
			h.data = append(h.data, b[:n]...)
			b, position = b[n:], position+int64(n)
			h.end = position
			if whole || len(h.data) == maxLine {
				w.release(h, stream, now)
			}
			continue
		}
		// As many whole lines as a record takes; of a longer line a part.
		chunk := b[:min(len(b), maxData)]
		n := lastNewline(chunk) + 1
		if n == 0 && len(b) < maxLine {
			h.data, h.end, h.since = append(h.data, b...), position+int64(len(b)), now
			w.wait()
			return
		}
		if n == 0 {
			n = len(chunk)
		}
		l.put(w, stream, position+int64(n), b[:n], now)
		b, position = b[n:], position+int64(n)
	}
}

// Lost reports that output before a position is not available any more. If it was not
// recorded, there is a gap in Seq.
func (w *Writer) Lost(position int64) {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	w.flush(time.Now())
	if m := l.marks[w.id]; m != nil && position <= max(m.at[0], m.at[1]) {
		return
	}
	l.seq++
	l.lost++
}

// lastNewline is bytes.LastIndexByte, which goes byte by byte, in strides: of
// output without lines it would be the greater part of the work.
func lastNewline(b []byte) int {
	const stride = 256
	for end := len(b); end > 0; {
		start := max(end-stride, 0)
		if bytes.IndexByte(b[start:end], '\n') >= 0 {
			return start + bytes.LastIndexByte(b[start:end], '\n')
		}
		end = start
	}
	return -1
}

// wait has the held line written in time.
func (w *Writer) wait() {
	l := w.l
	l.writers[w] = struct{}{}
	if l.timer == nil {
		l.timer = time.AfterFunc(holdTime, l.tick)
	}
}

// tick writes the lines that have waited long enough.
func (l *Log) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	for w := range l.writers {
		w.flush(now.Add(-holdTime))
	}
	l.timer = nil
	if len(l.writers) > 0 {
		l.timer = time.AfterFunc(holdTime/4, l.tick)
	}
}

// release enters the held line.
func (w *Writer) release(h *held, stream byte, now time.Time) {
	w.l.put(w, stream, h.end, h.data, now)
	if h.data = h.data[:0]; cap(h.data) > keepBuffer {
		h.data = nil
	}
}

// flush enters lines that have been held since then or longer.
func (w *Writer) flush(before time.Time) {
	left := false
	for i := range w.held {
		h := &w.held[i]
		switch {
		case len(h.data) == 0:
		case h.since.After(before):
			left = true
		default:
			w.release(h, Stdout+byte(i), h.since)
		}
	}
	if !left {
		delete(w.l.writers, w)
	}
}

// Close records buffered output, after the process has ended.
func (w *Writer) Close() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if !w.l.closed {
		w.flush(time.Now())
	}
}
