package image

import (
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A Fetcher is what a Store needs to take in images that it does not have:
// fetch.New makes one. It is not part of this package because of what it brings
// along, an HTTP client and TLS among it: a program that starts for every
// sandbox should not carry that to use an image which is there.
type Fetcher interface {
	// Registry prepares to pull a reference; nothing is sent yet.
	Registry(ref Reference, opt AcquireOptions) (Source, error)

	// Decompress undoes what a layer or archive is compressed with, which its
	// first bytes tell. Those of no compression come out as they are.
	Decompress(r io.Reader) (io.ReadCloser, error)

	// Compress packs what is written with gzip. Close ends it, and leaves w open.
	Compress(w io.Writer) io.WriteCloser
}

// ErrNoFetcher is returned by a Store without a Fetcher for what it would need
// one for. It matches sandpit.ErrUnsupported.
var ErrNoFetcher = sandpit.WithHint(fault.Kind{Err: errors.New("using an image that is not in the store: this program can't pull images"), Kind: sandpit.ErrUnsupported},
	"pull or import it first with 'sandpit images'")
