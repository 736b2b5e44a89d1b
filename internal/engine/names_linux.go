package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/claim"
)

// lockName takes a name among the live sandboxes of a data directory, whose
// image store is given. The kernel frees it when its holder has died, whatever
// it died of. ErrExists when it is taken.
func lockName(images, name string) (release func(), err error) {
	fd, err := claim.Open(filepath.Join(images, "locks", "names"))
	if err != nil {
		return nil, fmt.Errorf("reserving the name %s: %w", name, err)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	if err := claim.Take(fd, int64(h.Sum64()>>2)); err != nil { // an offset in a file has 63 bits
		unix.Close(fd)
		if errors.Is(err, claim.ErrTaken) {
			return nil, fmt.Errorf("name %s: %w", name, sandpit.ErrExists)
		}
		return nil, fmt.Errorf("reserving the name %s: %w", name, err)
	}
	return func() { unix.Close(fd) }, nil
}
