package dialect

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of RealPath.
const (
	maxLinks    = 40   // symbolic links that are followed (path_resolution(7))
	maxElements = 4096 // of a path that is being resolved
)

// ErrLinks is the error of RealPath for paths with too many symbolic links, such as a loop.
var ErrLinks = gate.Invalid("the path has too many levels of symbolic links", "")

// RealPath returns the path without symbolic links of what an absolute path leads to. The last element may be missing.
func RealPath(ctx context.Context, files interface {
	Lstat(ctx context.Context, path string) (sandpit.FileInfo, error)
}, name string,
) (string, error) {
	at, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		element := rest[0]
		rest = rest[1:]
		switch element {
		case "", ".":
			continue
		case "..": // at has no links
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, element)
		i, err := files.Lstat(ctx, next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && strings.Trim(strings.Join(rest, "/"), "/") == "":
			return next, nil
		case err != nil:
			return "", err
		case i.Mode&fs.ModeSymlink == 0:
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", ErrLinks
		}
		if path.IsAbs(i.Target) {
			at = "/"
		}
		if rest = append(strings.Split(i.Target, "/"), rest...); len(rest) > maxElements {
			return "", ErrLinks
		}
	}
	return at, nil
}
