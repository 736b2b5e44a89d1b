// Package spawn starts programs for the guest: as another user, with exact
// capabilities, a terminal and a Landlock domain, each below a helper process.
//
// A timeout must kill everything that a program has started, including processes that have
// forked twice into sessions of their own, and nothing else. So each program gets a
// helper: a process that shares the guest's memory, is a child subreaper, starts the
// program, and reaps. Everything that the program starts stays a descendant of its
// helper. Package process kills such a tree by stopping its processes until nothing new
// appears, and then killing them. This needs no cgroup, so it works on every backend. A
// helper is made without copying page tables, so it adds little to a start.
package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// Attr describes a program to start.
type Attr struct {
	Argv       []string // argv[0] and on; at least one
	Candidates []string // paths to try in turn; the first that can be executed is
	Env        []string
	Dir        string // absolute; entered with the user's rights

	SetUser  bool // change to UID, GID and Groups; else keep the guest's
	UID, GID uint32
	Groups   []uint32
	Caps     uint64 // bit set: bounding, permitted and effective set; 0 for ordinary users

	Stdin, Stdout, Stderr int  // descriptors, all above 2; with Terminal the same slave thrice
	Terminal              bool // make Stdin the controlling terminal

	Rlimits     []Rlimit // of the program alone; others are the guest's
	OOMScoreAdj int      // 0 keeps the guest's; only raising works

	// Zygote makes what the program leaves behind children of the guest, and not of the helper.
	Zygote bool

	// On calls f on the thread whose cgroup and Landlock domain the helper and the
	// program inherit, and returns when f has. Nil stands for any thread.
	On func(f func())

	// Made, if set, is called with the helper's process id before the program is executed.
	// A program that may signal its helper can stop it before it has reported; Start then
	// waits until the helper is continued or killed.
	Made func(helper int)
}

// Rlimit is a resource limit of setrlimit(2).
type Rlimit struct {
	Name       string // for errors
	Resource   int
	Soft, Hard uint64
}

// A StartError says why a program could not be started.
type StartError struct {
	Stage string // what was being done, for example "entering /work"
	Errno syscall.Errno
	Dir   bool // the working directory could not be entered
	Exec  bool // the program itself was missing or not executable
	Tried int  // the number of Attr.Candidates
}

// Error returns "stage: errno text".
func (e *StartError) Error() string { return e.Stage + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *StartError) Unwrap() error { return e.Errno }

// NotFound reports whether the program does not exist. That is exit code 127 for a shell;
// every other StartError is 126.
func (e *StartError) NotFound() bool {
	return e.Exec && (e.Errno == syscall.ENOENT || e.Errno == syscall.ENOTDIR)
}

// ErrHelper says that the helper died before it could report, usually because its own
// program killed it.
var ErrHelper = errors.New("its helper died")

// ErrProcessLimit says that there can be no more processes.
var ErrProcessLimit = errors.New("no more processes can be created")

// Status says how a program ended.
type Status struct {
	Wait  syscall.WaitStatus
	Usage syscall.Rusage // of the program and the children that it waited for
}

// Proc is a started program.
type Proc struct {
	pid    int
	helper sysprog.Child
	status *os.File

	wait   func() (Status, error) // of one that was forked
	reaped func()
}

// Forked returns a process that was not started here, with its helper. wait does what Wait does, and reaped
// is called when the helper was reaped.
func Forked(pid, helper int, wait func() (Status, error), reaped func()) *Proc {
	return &Proc{pid: pid, helper: sysprog.Child{PID: helper, PidFD: -1}, wait: wait, reaped: reaped}
}

// PID returns the program's process id.
func (p *Proc) PID() int { return p.pid }

// Helper returns the process id of its helper: an ancestor of everything that it starts.
// The guest, as pid 1, reaps it, and then calls Reaped.
func (p *Proc) Helper() int { return p.helper.PID }

// Reaped frees the resources of the helper. Call it once, after wait has returned Helper.
func (p *Proc) Reaped() {
	p.helper.Release()
	if p.reaped != nil {
		p.reaped()
	}
}

const execStage = "executing the program"

func entering(dir string) string { return "entering " + dir }

// NotEntered returns the error of a working directory that could not be entered.
func NotEntered(dir string, errno syscall.Errno) *StartError {
	return &StartError{Stage: entering(dir), Errno: errno, Dir: true}
}

// Start starts a program and returns when it has been executed. If that fails, the error is
// a *StartError: nothing runs, but the guest must still reap the helper like any child. The
// error matches ErrHelper if the program may run without a helper.
func Start(a *Attr) (*Proc, error) {
	r, w, err := statusPipe()
	if err != nil {
		return nil, err
	}
	defer func() {
		if w >= 0 {
			unix.Close(w)
		}
	}()
	prepare, child, settle, err := programs(a, w)
	if err != nil {
		r.Close()
		return nil, err
	}
	var sup sysprog.Child
	supervise := func() { sup, err = sysprog.Supervise(prepare, child, settle, w) }
	if a.On != nil {
		a.On(supervise)
	} else {
		supervise()
	}
	if err != nil {
		r.Close()
		if errors.Is(err, unix.EAGAIN) {
			err = ErrProcessLimit
		}
		return nil, err
	}
	unix.Close(w)
	w = -1
	if a.Made != nil {
		a.Made(sup.PID)
	}

	var rec sysprog.StartRecord
	err = readRecord(r, unsafe.Slice((*byte)(unsafe.Pointer(&rec)), unsafe.Sizeof(rec)))
	runtime.KeepAlive(prepare)
	runtime.KeepAlive(child)
	runtime.KeepAlive(settle)
	if err != nil {
		r.Close()
		sup.Release()
		return nil, fmt.Errorf("starting a process: %w: %w", ErrHelper, err)
	}
	errno := syscall.Errno(rec.Errno)
	switch {
	case rec.Failed == 0:
		p := &Proc{pid: int(rec.PID), helper: sup, status: r}
		if a.OOMScoreAdj != 0 {
			raiseOOMScore(p.pid, a.OOMScoreAdj)
		}
		return p, nil
	case rec.Failed == sysprog.FailedChild:
		stage := child.Name(int(rec.Step))
		err = &StartError{Stage: stage, Errno: errno, Dir: stage == entering(a.Dir), Exec: stage == execStage, Tried: len(a.Candidates)}
		if rec.Denied != 0 && err.(*StartError).NotFound() {
			err.(*StartError).Errno = syscall.EACCES
		}
	case rec.Failed == sysprog.FailedPrepare:
		err = &StartError{Stage: prepare.Name(int(rec.Step)), Errno: errno}
	case errno == unix.EAGAIN:
		err = ErrProcessLimit
	default:
		err = &StartError{Stage: "creating a process", Errno: errno}
	}
	// The pipe ends when the helper exits, which gives its memory up first.
	_, _ = io.Copy(io.Discard, r)
	r.Close()
	sup.Release()
	return nil, err
}

// Wait blocks until the program has ended. It must be called once. The error
// matches ErrHelper.
func (p *Proc) Wait() (Status, error) {
	if p.wait != nil {
		return p.wait()
	}
	defer p.status.Close()
	var rec sysprog.ExitRecord
	if err := readRecord(p.status, unsafe.Slice((*byte)(unsafe.Pointer(&rec)), unsafe.Sizeof(rec))); err != nil {
		return Status{}, fmt.Errorf("waiting for process %d: %w: %w", p.pid, ErrHelper, err)
	}
	return Status{Wait: syscall.WaitStatus(rec.Status), Usage: rec.Usage}, nil
}

// statusPipe makes a pipe whose write end is above 2.
func statusPipe() (*os.File, int, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "status"), fds[1], nil
}

func readRecord(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// programs puts together what the helper does for itself, what the child does
// up to the exec, and what the helper does afterwards.
func programs(a *Attr, status int) (prepare, child, settle *sysprog.Program, err error) {
	prepare, child, settle = new(sysprog.Program), new(sysprog.Program), new(sysprog.Program)

	// The helper holds no descriptor but these. Its signals stay blocked.
	if !a.Zygote {
		prepare.Call("becoming a subreaper", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_CHILD_SUBREAPER), sysprog.Int(1))
	}
	keep := []int{a.Stdin, a.Stdout, a.Stderr, status}
	slices.Sort(keep)
	keep = slices.Compact(keep)
	next := 3
	for _, fd := range keep {
		if fd < 3 {
			return nil, nil, nil, fmt.Errorf("starting a process: descriptor %d is too low", fd)
		}
		if fd > next {
			closeRange(prepare, next, fd-1)
		}
		next = fd + 1
	}
	closeRange(prepare, next, -1)

	child.Call("starting a session", unix.SYS_SETSID)
	for to, from := range []int{a.Stdin, a.Stdout, a.Stderr} {
		child.Call("setting up standard streams", unix.SYS_DUP3, sysprog.Int(from), sysprog.Int(to), sysprog.Int(0))
	}
	if a.Terminal {
		child.Call("taking the terminal", unix.SYS_IOCTL, sysprog.Int(0), sysprog.Int(unix.TIOCSCTTY), sysprog.Int(0))
	}
	child.ResetSignals()
	child.Call("setting the umask", unix.SYS_UMASK, sysprog.Int(0o022))
	child.Call("forbidding new privileges", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_NO_NEW_PRIVS), sysprog.Int(1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	for c := range 64 {
		bit := uint64(1) << c
		if RootCapabilities&bit != 0 && a.Caps&bit == 0 {
			// EPERM: a guest without CAP_SETPCAP has none to give away.
			child.Call("dropping capabilities", unix.SYS_PRCTL, sysprog.Int(unix.PR_CAPBSET_DROP), sysprog.Int(c)).Ignore(unix.EPERM, unix.EINVAL)
		}
	}
	if a.SetUser {
		groups := []byte{0}
		for i, g := range a.Groups {
			if i == 0 {
				groups = nil
			}
			groups = binary.NativeEndian.AppendUint32(groups, g)
		}
		child.Call("setting groups", unix.SYS_SETGROUPS, sysprog.Int(len(a.Groups)), child.Bytes(groups))
		child.Call("setting the group", unix.SYS_SETRESGID, sysprog.Int(a.GID), sysprog.Int(a.GID), sysprog.Int(a.GID))
		child.Call("setting the user", unix.SYS_SETRESUID, sysprog.Int(a.UID), sysprog.Int(a.UID), sysprog.Int(a.UID))
	}
	child.Call("setting capabilities", unix.SYS_CAPSET, child.Bytes(CapHeader()), child.Bytes(CapData(a.Caps, 0)))
	child.Call(entering(a.Dir), unix.SYS_CHDIR, child.Str(a.Dir))

	// Last: not even a limit of 0 keeps the program from being executed as its user.
	for _, l := range a.Rlimits {
		lim := binary.NativeEndian.AppendUint64(nil, l.Soft)
		lim = binary.NativeEndian.AppendUint64(lim, l.Hard)
		child.Call("setting the rlimit "+l.Name, unix.SYS_PRLIMIT64, sysprog.Int(0), sysprog.Int(l.Resource), child.Bytes(lim), sysprog.Int(0))
	}

	argv, err := child.Strs(a.Argv)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading arguments: %w", err)
	}
	env, err := child.Strs(a.Env)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading the environment: %w", err)
	}
	for i, path := range a.Candidates {
		c := child.Call(execStage, unix.SYS_EXECVE, child.Str(path), argv, env)
		if i < len(a.Candidates)-1 {
			c.Ignore(unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		}
	}

	for _, fd := range keep {
		if fd != status {
			settle.Call("closing", unix.SYS_CLOSE, sysprog.Int(fd)).Ignore(unix.EBADF)
		}
	}
	return prepare, child, settle, nil
}

func closeRange(p *sysprog.Program, first, last int) {
	p.Call("closing descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(first), sysprog.Int(uint32(last)), sysprog.Int(0))
}

// CapHeader returns struct __user_cap_header_struct for the calling thread, version
// _LINUX_CAPABILITY_VERSION_3 (capset(2)).
func CapHeader() []byte {
	b := binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
	return binary.NativeEndian.AppendUint32(b, 0)
}

// CapData returns two of struct __user_cap_data_struct, with caps as the effective and the
// permitted set.
func CapData(caps, inheritable uint64) []byte {
	var b []byte
	for i := range 2 {
		b = binary.NativeEndian.AppendUint32(b, uint32(caps>>(32*i)))
		b = binary.NativeEndian.AppendUint32(b, uint32(caps>>(32*i)))
		b = binary.NativeEndian.AppendUint32(b, uint32(inheritable>>(32*i)))
	}
	return b
}
