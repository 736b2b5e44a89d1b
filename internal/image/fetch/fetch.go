// Package fetch pulls images from registries, and compresses and decompresses layers. It implements
// image.Fetcher.
package fetch

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Options are settings of a Fetcher. The zero value is good for use.
type Options struct {
	// Getenv looks up environment variables, for the places of credentials.
	// Default os.Getenv.
	Getenv func(string) string

	// UserAgent is sent to registries. Default "sandpit".
	UserAgent string

	// Resolver looks up the names of registries. Default that of package net.
	Resolver *net.Resolver
}

// Fetcher implements image.Fetcher.
type Fetcher struct{ opt Options }

var _ image.Fetcher = (*Fetcher)(nil)

// New returns a Fetcher.
func New(opt Options) *Fetcher {
	if opt.Getenv == nil {
		opt.Getenv = os.Getenv
	}
	if opt.UserAgent == "" {
		opt.UserAgent = "sandpit"
	}
	return &Fetcher{opt}
}

// maxZstdWindow bounds the memory that a zstd layer may ask for, in bytes: what
// "zstd --long" needs (RFC 8878 asks decoders for 8 MiB at least).
const maxZstdWindow = 128 << 20

// Decompress decompresses a layer or archive. Its first bytes tell the format: media types
// are often wrong, and the digest of the result is checked in any case.
func (*Fetcher) Decompress(r io.Reader) (io.ReadCloser, error) {
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
		return nil, fault.Unsupportedf("only gzip, zstd and uncompressed layers are supported")
	}
	return io.NopCloser(br), nil
}

// Compress compresses with gzip, quickly rather than well.
func (*Fetcher) Compress(w io.Writer) io.WriteCloser {
	zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of gzip's own
	}
	return zw
}
