package conn

import (
	"sync"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Large content is sent several frames at a time, because each write has a fixed cost for
// both ends and wakes the host. So a large buffer has several consecutive blocks, each with
// room for the header of a frame before a full payload.

// BlockSize is the size of one block.
const BlockSize = wire.HeaderSize + wire.MaxData

const maxBlocks = 4

// buffers are of one block.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, BlockSize)
	return &b
}}

// bulks are buffers of maxBlocks.
var bulks = sync.Pool{New: func() any {
	b := make([]byte, maxBlocks*BlockSize)
	return &b
}}

// Buffer returns a buffer of one block.
func Buffer() *[]byte { return buffers.Get().(*[]byte) }

// LargeBuffer returns a buffer of several blocks, for content that does not fit one.
func LargeBuffer() *[]byte { return bulks.Get().(*[]byte) }

// Release releases a buffer of Buffer or LargeBuffer.
func Release(buf *[]byte) {
	if len(*buf) > BlockSize {
		bulks.Put(buf)
	} else {
		buffers.Put(buf)
	}
}

// Payload returns the content of block i of a buffer. The last block may be shorter.
func Payload(buf []byte, i int) []byte {
	return buf[i*BlockSize+wire.HeaderSize : min((i+1)*BlockSize, len(buf))]
}

// Payloads returns the first n bytes of content of a buffer's blocks, one piece per
// block. All but the last are full.
func Payloads(buf []byte, n int) [][]byte {
	pieces := make([][]byte, 0, maxBlocks)
	for i := 0; n > 0; i++ {
		p := Payload(buf, i)
		p = p[:min(n, len(p))]
		pieces = append(pieces, p)
		n -= len(p)
	}
	return pieces
}

// SendBlocks sends the first n bytes of content of a buffer's blocks as fast as there is
// credit, and as many frames in one write as there is credit for.
func (s *Stream) SendBlocks(channel wire.Type, buf []byte, n int) error {
	for n > 0 {
		ready := 0
		for n > 0 {
			k := min(n, wire.MaxData)
			if !s.out.TryTake(k) {
				break
			}
			wire.PutHeader(buf[ready:], wire.Header{Len: k, Type: channel, Stream: s.id})
			ready += wire.HeaderSize + k
			n -= k
			s.c.h.Moved(k)
		}
		if ready > 0 {
			if err := s.c.write(buf[:ready]); err != nil {
				return err
			}
			buf = buf[ready:]
			continue
		}
		k := min(n, wire.MaxData)
		if err := s.Send(channel, buf, k); err != nil {
			return err
		}
		n -= k
		buf = buf[min(BlockSize, len(buf)):]
	}
	return nil
}
