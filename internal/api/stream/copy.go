package stream

import (
	"io"
	"sync"
)

// copyBuffers are for content on its way.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// Buffers lends buffers for content on its way. It is an httputil.BufferPool.
type Buffers struct{}

// Get returns a buffer. Return it with Put.
func (Buffers) Get() []byte { return *copyBuffers.Get().(*[]byte) }

// Put returns a buffer of Get.
func (Buffers) Put(b []byte) { copyBuffers.Put(&b) }

// PlainWriter hides what else a writer can do from io.CopyBuffer, which would
// then use a smaller buffer of its own.
type PlainWriter struct{ io.Writer }

// Copy copies until the end.
func Copy(to io.Writer, from io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(PlainWriter{to}, struct{ io.Reader }{from}, *buf)
}
