package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A refEntry is a name in the store: the file refs/SHA256, named after the
// digest of the name and its platform.
type refEntry struct {
	name     string // canonical: "docker.io/library/debian:13", "oci-archive:/x/y.tar"
	platform string
	image    string // manifest digest, hexadecimal
	at       time.Time
	stamp    string // of an archive: what changes when the file does
}

const refHeader = "sandpit-ref 1"

func (s *Store) refPath(name, platform string) string {
	sum := sha256.Sum256([]byte(name + "\n" + platform))
	return s.dir + "/refs/" + hex.EncodeToString(sum[:])
}

func (e refEntry) encode() []byte {
	return fmt.Appendf(nil, "%s\nname %q\nplatform %q\nimage %q\nat %q\nstamp %q\nend\n", refHeader,
		e.name, e.platform, e.image, strconv.FormatInt(e.at.Unix(), 10), e.stamp)
}

func decodeRef(data []byte) (e refEntry, err error) {
	err = lines(data, refHeader, func(key string, v []string) {
		switch key {
		case "name":
			e.name = first(v)
		case "platform":
			e.platform = first(v)
		case "image":
			e.image = first(v)
		case "at":
			e.at = timeOrZero(first(v))
		case "stamp":
			e.stamp = first(v)
		}
	})
	if err == nil && (e.name == "" || !validHex(e.image)) {
		err = fmt.Errorf("reading image name: the name or image is missing")
	}
	return e, err
}

// readRef looks a name up.
func (s *Store) readRef(name, platform string) (refEntry, bool) {
	fd, err := syscall.Open(s.refPath(name, platform), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return refEntry{}, false
	}
	defer syscall.Close(fd)
	data, err := readFD(fd)
	if err != nil {
		return refEntry{}, false
	}
	e, err := decodeRef(data)
	return e, err == nil && e.name == name && e.platform == platform
}

// readFD reads a small file from where it is.
func readFD(fd int) ([]byte, error) {
	buf := make([]byte, 0, 8<<10)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, cap(buf))
		}
		n, err := syscall.Read(fd, buf[len(buf):cap(buf)])
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return buf, err
		}
		buf = buf[:len(buf)+n]
	}
}

func (s *Store) writeRef(e refEntry) error {
	if err := s.ensure("refs"); err != nil {
		return err
	}
	return s.writeFile(s.refPath(e.name, e.platform), e.encode())
}

// refs returns all names, sorted. Files that can't be read are passed over.
func (s *Store) refs() []refEntry {
	names, _ := filepath.Glob(s.path("refs", "*"))
	list := make([]refEntry, 0, len(names))
	for _, p := range names {
		data, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		if e, err := decodeRef(data); err == nil {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b refEntry) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return strings.Compare(a.platform, b.platform)
	})
	return list
}

// familiar shortens a stored name to what people type.
func familiar(name string) string {
	if strings.HasPrefix(name, SavedScheme+":") {
		if strings.HasPrefix(name, SavedScheme+":"+LocalNamespace+"/") {
			return shownSaved(name)
		}
		return name
	}
	if ref, err := ParseReference(name); err == nil {
		return ref.Familiar()
	}
	return name
}

// Names returns the names in the store that start with prefix, as people type
// them, sorted, and "host" if it does. It is quick enough for completion in a
// shell, and never fails.
func (s *Store) Names(prefix string) []string {
	var names []string
	add := func(n string) {
		if strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	add("host")
	for _, e := range s.refs() {
		add(familiar(e.name))
		if prefix != "" && familiar(e.name) != e.name {
			add(e.name) // typed in full
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
