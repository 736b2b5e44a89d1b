package image

import (
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A Fetcher lets a Store pull images; fetch.New makes one. It is not part of this package
// because it needs an HTTP client and TLS. A program that starts for every sandbox should
// not carry them to use a stored image.
type Fetcher interface {
	// Registry prepares to pull a reference; nothing is sent yet.
	Registry(ref Reference, opt AcquireOptions) (Source, error)

	// Decompress decompresses a layer or archive. Its first bytes tell the format.
	// Uncompressed data is returned as it is.
	Decompress(r io.Reader) (io.ReadCloser, error)

	// Compress compresses with gzip. Close ends the stream, and leaves w open.
	Compress(w io.Writer) io.WriteCloser
}

// ErrNoFetcher is the error of a Store that has no Fetcher and would need one. It matches
// sandpit.ErrUnsupported.
var ErrNoFetcher = sandpit.WithHint(fault.Kind{Err: errors.New("using an image that is not in the store: this program can't pull images"), Kind: sandpit.ErrUnsupported},
	"pull or import it first with 'sandpit images'")
