package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The host image shows this machine's own toolchain: /usr and what belongs to
// it bound read-only, over a skeleton with everything else that a root file
// system needs. The skeleton is a small directory in the store, made once and
// used until the host changes.
//
// Whether it still fits is asked at every start, in two depths. The shallow
// one is a fingerprint of a dozen inodes that change with nearly every
// installation (packages come with links, libraries or users); it names a file
// "host/INDEX" that says which skeleton is meant. The deep one looks at every
// file that would be copied, at most once in deepEvery; it names the skeleton.
//
// Of /usr the driver shows what everybody may read, through a mount on which
// sockets and device nodes are dead.

const (
	// hostVersion is part of every fingerprint: raise it when a skeleton made
	// by an older program no longer fits.
	hostVersion = "sandpit-host 3"

	deepEvery = 10 * time.Minute
)

// shallowPaths lists what the shallow fingerprint looks at. A file that is replaced
// changes its directory, so /etc covers most of what is directly in it.
func shallowPaths() [12]string {
	return [...]string{
		"", "/etc", "/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/localtime",
		"/etc/alternatives", "/etc/ssl/certs", "/usr", "/usr/etc", "/usr/local", "/usr/local/etc",
	}
}

// acquireHost leases the host image.
func (s *Store) acquireHost(ctx context.Context) (*Lease, error) {
	shallow := s.shallowFingerprint()
	index := s.path("host", shallow)
	for range 10 {
		if l, ok := s.openSkeleton(index); ok {
			return l, nil
		}
		err := s.withLock(ctx, "host", func() error { return s.makeSkeleton(index) })
		if err != nil {
			return nil, fmt.Errorf("preparing the host image: %w", err)
		}
	}
	return nil, errors.New("preparing the host image: its skeleton is removed repeatedly")
}

// openSkeleton leases the skeleton that an index file names. It is not ok when
// there is none, or its time has come to be looked at again.
func (s *Store) openSkeleton(index string) (*Lease, bool) {
	name, binds, age, ok := readHostIndex(index)
	if !ok || age > deepEvery {
		return nil, false
	}
	dir := s.path("host", name)
	fd, err := openShared(dir)
	if err != nil {
		return nil, false
	}
	return &Lease{
		fds: []int{fd},
		root: Rootfs{
			Reference: "host",
			Layers:    []string{dir},
			Binds:     binds,
			Config:    hostConfig(),
		},
	}, true
}

// readHostIndex reads an index file: the name of a skeleton, and a path to
// bind on each further line.
func readHostIndex(path string) (name string, binds []Bind, age time.Duration, ok bool) {
	var buf [1024]byte
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, 0, false
	}
	defer syscall.Close(fd)
	n, err := syscall.Read(fd, buf[:])
	var st syscall.Stat_t
	if err != nil || n == 0 || n == len(buf) || syscall.Fstat(fd, &st) != nil {
		return "", nil, 0, false
	}
	text, whole := strings.CutSuffix(string(buf[:n]), "\n")
	name, rest, _ := strings.Cut(text, "\n")
	if !whole || name == "" || strings.Contains(name, "/") {
		return "", nil, 0, false
	}
	for rest != "" {
		var p string
		p, rest, _ = strings.Cut(rest, "\n")
		source, target, ok := strings.Cut(p, "\t")
		if !ok {
			return "", nil, 0, false
		}
		binds = append(binds, Bind{Source: source, Target: target})
	}
	age = max(0, time.Since(time.Unix(st.Mtim.Unix())))
	return name, binds, age, true
}

// shallowFingerprint names the host as it looks now.
func (s *Store) shallowFingerprint() string {
	b := make([]byte, 0, 2048)
	b = append(b, hostVersion...)
	b = binary.LittleEndian.AppendUint32(b, uint32(os.Getuid()))
	b = appendBootID(b)
	host := strings.TrimSuffix(s.opt.HostDir, "/")
	for _, p := range shallowPaths() {
		b = appendStat(b, host+p)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:10])
}

// appendBootID makes skeletons last until the next boot at most, so that they
// need not be synced to disk when they are made.
func appendBootID(b []byte) []byte {
	fd, err := syscall.Open("/proc/sys/kernel/random/boot_id", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return b
	}
	defer syscall.Close(fd)
	var id [40]byte
	n, _ := syscall.Read(fd, id[:])
	return append(b, id[:max(0, n)]...)
}

// appendStat adds what changes when a file changes.
func appendStat(b []byte, path string) []byte {
	if path == "" {
		path = "/"
	}
	b = append(b, path...)
	b = append(b, 0)
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return append(b, '-')
	}
	if path == "/" {
		// Its times change with every mount point and temporary file made in
		// it; only which directory it is matters.
		b = binary.LittleEndian.AppendUint64(b, st.Dev)
		return binary.LittleEndian.AppendUint64(b, st.Ino)
	}
	for _, v := range [...]uint64{
		st.Dev, st.Ino, uint64(st.Size), uint64(st.Mode),
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// makeSkeleton makes the index file true: either what it names still fits, or
// a new skeleton is made. The caller holds the lock.
func (s *Store) makeSkeleton(index string) error {
	if err := s.ensure("host", "tmp"); err != nil {
		return err
	}
	host := strings.TrimSuffix(s.opt.HostDir, "/")
	plan := planHost(host)
	name := plan.fingerprint()
	dir := s.path("host", name)

	if _, err := os.Lstat(dir); err != nil {
		tmp, err := s.tempDir()
		if err != nil {
			return err
		}
		defer tmp.discard()
		if err := plan.make(tmp.path); err != nil {
			return s.diskError(err)
		}
		// The root of a skeleton is what is seen as / inside.
		if err := os.Chmod(tmp.path, 0o755); err != nil {
			return err
		}
		if err := tmp.moveTo(dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return s.diskError(fmt.Errorf("storing skeleton: %w", err))
		}
	}

	var text bytes.Buffer
	fmt.Fprintln(&text, name)
	for _, b := range plan.binds {
		fmt.Fprintf(&text, "%s\t%s\n", b.Source, b.Target)
	}
	if err := s.writeFile(index, text.Bytes()); err != nil {
		return err
	}
	s.sweepHost(index, name)
	return nil
}

// hostBinds returns what the host image shows of this machine as it is now.
func (s *Store) hostBinds() []Bind {
	return planHost(strings.TrimSuffix(s.opt.HostDir, "/")).binds
}

// sweepHost removes skeletons that no longer fit the host and that nobody uses,
// and returns the bytes freed.
func (s *Store) sweepHost(index, name string) int64 {
	var freed int64
	entries, _ := os.ReadDir(s.path("host"))
	for _, e := range entries {
		path := s.path("host", e.Name())
		if !e.IsDir() {
			if path != index {
				_ = os.Remove(path)
			}
			continue
		}
		if e.Name() == name {
			continue
		}
		freed += s.removeUnused(path)
	}
	return freed
}

// pruneHost removes all skeletons but the one that fits the host now.
func (s *Store) pruneHost() int64 {
	index := s.path("host", s.shallowFingerprint())
	name, _, _, _ := readHostIndex(index)
	return s.sweepHost(index, name)
}

// removeUnused removes a directory unless it is in use, and returns the bytes freed.
func (s *Store) removeUnused(path string) int64 {
	fd, ok := s.openUnused(path)
	if !ok {
		return 0
	}
	defer syscall.Close(fd)
	n := diskUsage(path)
	if s.removeTree(path) != nil {
		return 0
	}
	return n
}
