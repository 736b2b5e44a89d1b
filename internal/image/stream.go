package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A layerStream reads the tar of a layer: decompressed, hashed, and held to
// the limits, in a goroutine of its own, so that the disk and the processor
// work at once.
type layerStream struct {
	chunks chan chunk
	free   chan []byte
	stop   chan struct{}
	done   chan struct{}
	cur    []byte
	buf    []byte // of cur, to be given back
	err    error
	hash   hash.Hash
	total  int64 // bytes of the tar; read it after the end
}

type chunk struct {
	data []byte
	err  error
}

// openLayer starts to read a layer of compressed bytes. Close it.
func (s *Store) openLayer(ctx context.Context, compressed io.Reader, size int64, lim Limits) *layerStream {
	l := &layerStream{
		chunks: make(chan chunk, 4), free: make(chan []byte, 4),
		stop: make(chan struct{}), done: make(chan struct{}),
		hash: sha256.New(),
	}
	for range cap(l.free) {
		l.free <- make([]byte, 128<<10)
	}
	go l.produce(ctx, s.opt.Fetcher, compressed, size, lim)
	return l
}

func (s *layerStream) produce(ctx context.Context, fetcher Fetcher, compressed io.Reader, size int64, lim Limits) {
	defer close(s.done)
	send := func(c chunk) bool {
		select {
		case s.chunks <- c:
			return c.err == nil
		case <-s.stop:
			return false
		}
	}
	r, err := io.NopCloser(compressed), error(nil)
	if fetcher != nil { // without one there are only layers that were saved here, which are not compressed
		r, err = fetcher.Decompress(compressed)
	}
	if err != nil {
		send(chunk{err: fmt.Errorf("decompressing: %w", err)})
		return
	}
	defer r.Close()
	for {
		var buf []byte
		select {
		case buf = <-s.free:
		case <-s.stop:
			return
		}
		n, err := io.ReadFull(r, buf)
		s.total += int64(n)
		s.hash.Write(buf[:n])
		c := chunk{data: buf[:n]}
		switch {
		case fault.Move(ctx) != nil:
			c.err = ctx.Err()
		case s.total > lim.LayerBytes:
			c.err = fault.Invalidf("its tar is larger than %d bytes", lim.LayerBytes)
		case s.total > lim.RatioFloor && s.total/lim.Ratio > size:
			c.err = fault.Invalidf("its tar is more than %d times as large as the layer: a decompression bomb", lim.Ratio)
		case err == io.EOF || err == io.ErrUnexpectedEOF && endOf(r):
			c.err = io.EOF
		case err != nil:
			c.err = fault.Invalidf("decompressing: %w", err)
		}
		if !send(c) {
			return
		}
	}
}

// endOf tells the end of a stream from one that is cut short: io.ReadFull says
// io.ErrUnexpectedEOF for both, but only the first goes on to say io.EOF.
func endOf(r io.Reader) bool {
	var b [1]byte
	n, err := r.Read(b[:])
	return n == 0 && err == io.EOF
}

func (s *layerStream) Read(p []byte) (int, error) {
	for len(s.cur) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.buf != nil {
			s.free <- s.buf[:cap(s.buf)]
			s.buf = nil
		}
		c := <-s.chunks
		s.cur, s.buf, s.err = c.data, c.data, c.err
		if c.err != nil && c.err != io.EOF {
			s.cur = nil
		}
	}
	n := copy(p, s.cur)
	s.cur = s.cur[n:]
	return n, nil
}

// digest reads what is left after the end of the archive, and returns the
// digest of the whole tar, in hexadecimal.
func (s *layerStream) digest() (string, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", err
	}
	<-s.done
	return hex.EncodeToString(s.hash.Sum(nil)), nil
}

// Close ends the goroutine.
func (s *layerStream) Close() {
	close(s.stop)
	<-s.done
}
