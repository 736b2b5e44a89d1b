package engine

import (
	"slices"
	"sort"
)

// ring keeps the latest output of a process. A position is the number of bytes before it,
// of both streams together.
type ring struct {
	max   int    // bytes that may be kept now
	buf   []byte // the byte at position p is at p modulo its length
	start int64  // position of the oldest byte kept
	end   int64  // position behind the newest
	runs  []run  // oldest first; the last ends at end
}

// run is contiguous output of one stream.
type run struct {
	stream byte
	end    int64
}

// Streams as numbers.
const (
	stdoutStream byte = 1
	stderrStream byte = 2
)

// Sizes of a ring: small at first, because most processes have little output, with a bound
// on the number of changes between streams.
const (
	minRing = 4 << 10
	maxRuns = 4 << 10
	runSize = 16 // bytes of a run in memory
)

// runsIn returns the maximum number of runs in a ring of a size: as many as take no more
// memory than the bytes.
func runsIn(size int) int { return min(maxRuns, max(size/runSize, 1)) }

// ringCost returns the memory of a ring of a size, in bytes.
func ringCost(size int) int64 { return int64(size + runSize*runsIn(size)) }

// append adds output, and drops the oldest if there is no room.
func (r *ring) append(stream byte, b []byte) {
	if excess := len(b) - r.max; excess > 0 {
		r.end += int64(excess)
		r.start = r.end
		r.runs = append(r.runs[:0], run{stream, r.end})
		b = b[excess:]
	}
	r.grow(len(b))
	for rest := b; len(rest) > 0; {
		n := copy(r.buf[int(r.end%int64(len(r.buf))):], rest)
		r.end += int64(n)
		rest = rest[n:]
	}
	if n := len(r.runs); n > 0 && r.runs[n-1].stream == stream {
		r.runs[n-1].end = r.end
	} else if len(b) > 0 {
		r.runs = append(r.runs, run{stream, r.end})
	}
	r.start = max(r.start, r.end-int64(len(r.buf)))
	drop := 0
	for drop < len(r.runs) && (r.runs[drop].end <= r.start || len(r.runs)-drop > runsIn(r.max)) {
		r.start = max(r.start, r.runs[drop].end)
		drop++
	}
	if drop > 0 {
		r.runs = slices.Delete(r.runs, 0, drop)
	}
}

// grow makes room for n more bytes, as far as allowed.
func (r *ring) grow(n int) {
	need := int(r.end-r.start) + n
	if need <= len(r.buf) || len(r.buf) == r.max {
		return
	}
	size := max(len(r.buf), min(minRing, r.max))
	for size < need && size < r.max {
		size *= 2
	}
	r.resize(min(size, r.max))
}

// resize moves the kept output to a buffer of a size that has room for it.
func (r *ring) resize(size int) {
	buf := make([]byte, size)
	for at := r.start; at < r.end; {
		old := r.buf[int(at%int64(len(r.buf))):]
		old = old[:min(int64(len(old)), r.end-at)]
		at += int64(copy(buf[int(at%int64(size)):], old))
	}
	r.buf = buf
}

// read returns kept output of one stream from a position on. It is valid until the output
// at that position is dropped.
func (r *ring) read(at int64) (stream byte, b []byte) {
	i := sort.Search(len(r.runs), func(i int) bool { return r.runs[i].end > at })
	from := r.buf[int(at%int64(len(r.buf))):]
	return r.runs[i].stream, from[:min(int64(len(from)), r.runs[i].end-at)]
}

// changesFull reports whether the stream has changed so often that output of the
// other one drops the oldest.
func (r *ring) changesFull(stream byte) bool {
	n := len(r.runs)
	return n >= runsIn(r.max) && r.runs[n-1].stream != stream
}

// room returns the number of bytes of a stream that can be appended before anything from a
// position on is dropped.
func (r *ring) room(stream byte, at int64) int {
	if r.changesFull(stream) && at < r.runs[0].end {
		return 0
	}
	return r.max - int(r.end-at)
}

// drop drops all output, and keeps the position.
func (r *ring) drop() {
	r.buf, r.runs, r.start = nil, nil, r.end
}
