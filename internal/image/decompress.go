package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxZstdWindow bounds the memory that a zstd layer may ask for, in bytes: what
// "zstd --long" needs (RFC 8878 asks decoders for 8 MiB at least).
const maxZstdWindow = 128 << 20

// decompress undoes what a layer or archive is compressed with, which its
// first bytes tell: media types are often wrong, and the digest of the result
// is checked in any case.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	magic, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}): // RFC 1952
		return gzip.NewReader(br)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878
		d, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxZstdWindow),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, unsupportedf("only gzip, zstd and no compression are supported")
	}
	return io.NopCloser(br), nil
}

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
func openLayer(ctx context.Context, compressed io.Reader, size int64, lim Limits) *layerStream {
	s := &layerStream{
		chunks: make(chan chunk, 4), free: make(chan []byte, 4),
		stop: make(chan struct{}), done: make(chan struct{}),
		hash: sha256.New(),
	}
	for range cap(s.free) {
		s.free <- make([]byte, 128<<10)
	}
	go s.produce(ctx, compressed, size, lim)
	return s
}

func (s *layerStream) produce(ctx context.Context, compressed io.Reader, size int64, lim Limits) {
	defer close(s.done)
	send := func(c chunk) bool {
		select {
		case s.chunks <- c:
			return c.err == nil
		case <-s.stop:
			return false
		}
	}
	r, err := decompress(compressed)
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
		case ctx.Err() != nil:
			c.err = ctx.Err()
		case s.total > lim.LayerBytes:
			c.err = invalidf("its tar is larger than %d bytes", lim.LayerBytes)
		case s.total > lim.RatioFloor && s.total/lim.Ratio > size:
			c.err = invalidf("its tar is more than %d times as large as the layer: a decompression bomb", lim.Ratio)
		case err == io.EOF || err == io.ErrUnexpectedEOF && endOf(r):
			c.err = io.EOF
		case err != nil:
			c.err = invalidf("decompressing: %w", err)
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
