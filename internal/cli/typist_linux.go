package cli

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// keyHelper is the helper of a typist: a child with all signals blocked, which takes
// interrupts one by one and writes what the kernel says about each to a pipe.
type keyHelper struct {
	typed <-chan time.Time
	child sysprog.Child
	pipe  *os.File
}

const (
	// siKernel is the origin of a signal that the kernel sends for a key (SI_KERNEL of
	// asm-generic/siginfo.h).
	siKernel = 0x80

	// siginfoSize is the size of siginfo_t, in bytes, and siCodeAt the place of si_code.
	siginfoSize, siCodeAt = 128, 8

	// maxInterrupts is the number of interrupts that a helper takes before it ends.
	maxInterrupts = 256
)

func startKeyHelper() (*keyHelper, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	program := &sysprog.Program{}
	set, info := make([]byte, 8), make([]byte, siginfoSize)
	binary.NativeEndian.PutUint64(set, 1<<(unix.SIGINT-1))
	program.Call("asking to end with this program", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(unix.SIGKILL))
	program.Call("finding this program", unix.SYS_GETPPID).Want(uintptr(os.Getpid()))
	program.Call("taking the pipe", unix.SYS_DUP3, sysprog.Int(write.Fd()), sysprog.Int(0), sysprog.Int(0))
	program.Call("closing descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(1), sysprog.Int(^uint32(0)), sysprog.Int(0))
	for range maxInterrupts {
		program.Call("waiting for an interrupt", unix.SYS_RT_SIGTIMEDWAIT, program.Bytes(set), program.Bytes(info), sysprog.Int(0), sysprog.Int(len(set))).Ignore(unix.EINTR).SkipAfterIgnored(1)
		program.Call("reporting it", unix.SYS_WRITE, sysprog.Int(0), program.Bytes(info), sysprog.Int(len(info)))
	}
	child, err := program.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("starting the helper that counts typed interrupts: %w", err)
	}
	typed := make(chan time.Time, maxInterrupts)
	go func() {
		var info [siginfoSize]byte
		for {
			if _, err := io.ReadFull(read, info[:]); err != nil {
				return
			}
			if binary.NativeEndian.Uint32(info[siCodeAt:]) == siKernel {
				typed <- time.Now()
			}
		}
	}()
	return &keyHelper{typed, child, read}, nil
}

func (h *keyHelper) stop() {
	_ = unix.Kill(h.child.PID, unix.SIGKILL) // it has not been waited for, so the pid is its own
	for {
		if _, err := unix.Wait4(h.child.PID, nil, 0, nil); err != unix.EINTR {
			break
		}
	}
	h.child.Release()
	_ = h.pipe.Close()
}
