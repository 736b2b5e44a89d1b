package build

import (
	"context"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// ValidHash reports whether s can be the hash of an archive: it names a file.
func ValidHash(s string) bool {
	return len(s) <= 128 && strings.Trim(s, "0123456789abcdef") == "" && s != ""
}

// archivePath is where an archive is in the sandbox of archives, relative to its home.
func archivePath(hash string) string { return "archive-" + hash }

// HasArchive reports whether the build has an archive. It goes on waiting, for one that may come.
func (b *Build) HasArchive(ctx context.Context, hash string) bool {
	b.idle.Reset(maxIdleTime)
	_, err := b.stage.Files().Lstat(ctx, archivePath(hash))
	return err == nil
}

// Store stores an archive in the sandbox of StageID. The build goes on waiting while the archive comes. Once it has
// begun, it takes none.
func (b *Build) Store(ctx context.Context, stage engine.Box, hash string, archive io.Reader) error {
	_, err := stage.Files().Write(ctx, archivePath(hash), upload{archive, b}, sandpit.WriteOptions{})
	return err
}

// upload keeps a build waiting while an archive comes.
type upload struct {
	io.Reader
	b *Build
}

func (u upload) Read(p []byte) (int, error) {
	if u.b.present() != Waiting {
		return 0, fault.Errorf(sandpit.ErrState, "the build has begun, and takes no more files")
	}
	u.b.idle.Reset(maxIdleTime)
	return u.Reader.Read(p)
}
