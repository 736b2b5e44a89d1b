package linux

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/seccomp"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// loadingFilter is the step that loads a system call filter.
const loadingFilter = "loading the seccomp filter"

// errnoNotSupp is ENOTSUPP of the kernel, which no header shows to programs: the
// machine's memory for compiled filters is used up (net.core.bpf_jit_limit).
const errnoNotSupp = unix.Errno(524)

// baseFilter returns the filter that every sandbox starts with, encoded, and the
// key by which the guest may load one more.
func baseFilter() (filter []byte, key uint64, err error) {
	program := seccomp.Program(runtime.GOARCH)
	if program == nil {
		return nil, 0, fault.Errorf(sandpit.ErrUnsupported, "creating a sandbox: no seccomp policy exists for %s", runtime.GOARCH)
	}
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	key = binary.NativeEndian.Uint64(b)
	return seccomp.Encode(seccomp.WithKey(program, key)), key, nil
}

// showSockets reports whether programs inside can be passed descriptors by others:
// over a unix socket that a mount shows, and be that mount read-only.
func showSockets(mounts []hostMount) bool {
	return slices.ContainsFunc(mounts, func(m hostMount) bool { return !m.file && !m.NoSockets })
}

// reachesHost reports whether programs inside can get a descriptor by which the
// mode of a host's file can be changed: their own of a writable mount, or another
// program's.
func (c *creation) reachesHost() bool {
	return showSockets(c.mounts) || slices.ContainsFunc(c.mounts, func(m hostMount) bool { return !m.ReadOnly })
}

// confine has the guest load the filter that keeps set-id files off the host, if
// programs can reach files there, and waits until it has, and has taken the ruleset
// that was sent before. Nothing of the sandbox has run yet. It is the same for a
// blank, whose guest has long been running and has a connection.
func (c *creation) confine(ctx context.Context) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[0])
	m := make([]byte, 16) // without the key, which nothing has used up, if no filter is loaded
	if c.reachesHost() {
		operation, flags := seccomp.KeyedLoad(c.key)
		binary.LittleEndian.PutUint64(m, operation)
		binary.LittleEndian.PutUint64(m[8:], flags)
		m = append(m, seccomp.Encode(seccomp.MountProgram(runtime.GOARCH))...)
	}
	_, err = unix.Write(ends[0], m)
	if err == nil {
		err = send(c.socks[0], filterMessage, ends[1:])
	}
	unix.Close(ends[1])
	if err != nil {
		return c.explainDeath(err)
	}
	answer := make([]byte, 4)
	n, _, err := hear(ctx, ends[0], answer, nil)
	if err != nil || n != len(answer) {
		return c.explainAnswer(ctx, nil, err)
	}
	if errno := unix.Errno(binary.LittleEndian.Uint32(answer)); errno != 0 {
		return c.explainStep(&sysprog.StepError{What: loadingFilter, Errno: errno})
	}
	return nil
}
