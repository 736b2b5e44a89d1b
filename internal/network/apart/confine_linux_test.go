package apart

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/landlock"
)

// confinedName is the name under which the test binary is started to try what the process can't do, and what it has to.
const confinedName = "sandpit-network-confined"

// confined tries it with the arguments: a file that everybody may read, a port of TCP and one of UDP. It prints an error for
// each thing by name.
func confined(file, tcp, udp string) int {
	runtime.LockOSThread() // which has the ruleset, as a binary with cgo can't have it in every thread
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_, unlocked := landlock.Probe()
	restricted := restrictFiles(func(call, arg uintptr) error {
		_, _, errno := unix.RawSyscall(call, arg, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err := restrictCalls(); err != nil || (restricted == nil) != (unlocked == nil) {
		fmt.Fprintln(os.Stderr, err, restricted)
		return 1
	}
	got := map[string]string{}
	note := func(what string, err error) {
		var errno unix.Errno
		switch {
		case err == nil:
			got[what] = ""
		case errors.As(err, &errno):
			got[what] = unix.ErrnoName(errno)
		default:
			got[what] = err.Error()
		}
	}
	call := func(what string, nr uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			note(what, nil)
			return
		}
		note(what, errno)
	}
	read := func(path string) error {
		_, err := os.ReadFile(path)
		return err
	}
	note("another file", read(file))
	note("a file of /proc", read("/proc/self/status"))
	note("the root", func() error { _, err := os.ReadDir("/"); return err }())
	note("writing", func() error { _, err := os.OpenFile(file, os.O_WRONLY, 0); return err }())
	note("creating", func() error { _, err := os.Create(file + ".new"); return err }())
	for _, path := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		err := read(path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		note(path, err)
	}
	note("roots", func() error { _, err := x509.SystemCertPool(); return err }())

	path, argv := append([]byte("/bin/true"), 0), make([]uintptr, 2)
	argv[0] = uintptr(unsafe.Pointer(&path[0]))
	call("executing", unix.SYS_EXECVE, uintptr(unsafe.Pointer(&path[0])), uintptr(unsafe.Pointer(&argv[0])), 0)
	call("a process", unix.SYS_CLONE, uintptr(unix.SIGCHLD))
	call("a namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("entering a namespace", unix.SYS_SETNS, 0, 0)
	call("tracing", unix.SYS_PTRACE, unix.PTRACE_TRACEME)
	call("reading memory", unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid()))
	call("a pidfd", unix.SYS_PIDFD_OPEN, uintptr(os.Getppid()))
	call("a signal", unix.SYS_KILL, uintptr(os.Getppid()))
	call("a signal to a thread of another", unix.SYS_TGKILL, uintptr(os.Getppid()), uintptr(os.Getppid()))
	call("a signal to itself", unix.SYS_TGKILL, uintptr(os.Getpid()), uintptr(unix.Gettid()))
	var pipe [2]int
	note("a pipe", unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	fcntl := func(what string, cmd, arg int) {
		call(what, unix.SYS_FCNTL, uintptr(pipe[0]), uintptr(cmd), uintptr(arg))
	}
	fcntl("an owner of a file", unix.F_SETOWN, os.Getppid())
	fcntl("another owner of a file", unix.F_SETOWN_EX, 0)
	fcntl("the signal of a file", unix.F_SETSIG, int(unix.SIGKILL))
	fcntl("signals of a file", unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK)
	fcntl("not to block", unix.F_SETFL, unix.O_NONBLOCK)
	for kind, options := range map[int]map[string][2]int{
		unix.SOCK_STREAM: {"TLS of the kernel": {unix.SOL_TCP, unix.TCP_ULP}, "no delay": {unix.SOL_TCP, unix.TCP_NODELAY}},
		unix.SOCK_DGRAM:  {"IPsec": {unix.SOL_UDP, unix.UDP_ENCAP}, "a filter of packets": {unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}},
	} {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		for what, o := range options {
			if err == nil {
				note(what, unix.SetsockoptInt(fd, o[0], o[1], 1))
			}
		}
		unix.Close(fd)
	}
	call("mounting", unix.SYS_MOUNT)
	call("bpf", unix.SYS_BPF)
	call("keys", unix.SYS_KEYCTL)
	call("perf", unix.SYS_PERF_EVENT_OPEN)
	call("userfaultfd", unix.SYS_USERFAULTFD)
	call("io_uring", unix.SYS_IO_URING_SETUP, 1)
	call("kexec", unix.SYS_KEXEC_LOAD)
	call("changing a device", unix.SYS_IOCTL, 0, unix.TUNSETIFF)
	call("memfd", unix.SYS_MEMFD_CREATE)
	call("another user", unix.SYS_SETUID, 1)
	call("another filter", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER)
	call("becoming dumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)
	call("a local socket", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
	call("a packet socket", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	call("a raw socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	call("an ICMP socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	call("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	note("listening", func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err }())

	for network, address := range map[string]string{"tcp": tcp, "udp": udp} {
		c, err := net.Dial(network, address)
		if err == nil {
			if _, err = c.Write([]byte("x")); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			c.Close()
		}
		note(network, err)
	}
	note("addresses", func() error { _, err := net.InterfaceAddrs(); return err }())
	note("resolving", func() error {
		_, err := (&net.Resolver{PreferGo: true}).LookupNetIP(context.Background(), "ip", "localhost")
		return err
	}())
	// Threads, memory, and the garbage collector's signals.
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			runtime.LockOSThread()
			for range 100 {
				_ = make([]byte, 1<<20)
			}
			runtime.GC()
		})
	}
	work.Wait()
	if json.NewEncoder(os.Stdout).Encode(got) != nil {
		return 1
	}
	return 0
}

// TestConfined tries from inside of a confined process what one that was taken over would, and what each has to do.
func TestConfined(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if c, err := tcp.Accept(); err == nil {
			_, _ = c.Write([]byte("y"))
			defer c.Close()
			_, _ = c.Read(make([]byte, 2))
		}
	})
	work.Go(func() {
		if _, from, err := udp.ReadFrom(make([]byte, 10)); err == nil {
			_, _ = udp.WriteTo([]byte("y"), from)
		}
	})
	t.Cleanup(func() { tcp.Close(); udp.Close(); work.Wait() })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := &exec.Cmd{Path: self, Args: []string{confinedName, file, tcp.Addr().String(), udp.LocalAddr().String()}, Stderr: &stderr}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var got map[string]string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"writing": "EPERM", "creating": "EPERM", "/etc/hosts": "", "/etc/resolv.conf": "", "roots": "",
		"executing": "ENOSYS", "a process": "EPERM", "a namespace": "ENOSYS", "entering a namespace": "ENOSYS",
		"tracing": "ENOSYS", "reading memory": "ENOSYS", "a pidfd": "ENOSYS", "a signal": "ENOSYS", "a signal to a thread of another": "EPERM", "a signal to itself": "",
		"a pipe": "", "an owner of a file": "EPERM", "another owner of a file": "EPERM", "the signal of a file": "EPERM", "signals of a file": "EPERM", "not to block": "",
		"TLS of the kernel": "ENOPROTOOPT", "IPsec": "ENOPROTOOPT", "a filter of packets": "ENOPROTOOPT", "no delay": "",
		"mounting": "ENOSYS", "bpf": "ENOSYS", "keys": "ENOSYS", "perf": "ENOSYS", "userfaultfd": "ENOSYS", "io_uring": "ENOSYS", "kexec": "ENOSYS", "memfd": "ENOSYS", "changing a device": "EPERM",
		"another user": "ENOSYS", "another filter": "ENOSYS", "becoming dumpable": "EINVAL",
		"a local socket": "EAFNOSUPPORT", "a packet socket": "EAFNOSUPPORT", "a raw socket": "EPERM", "an ICMP socket": "EPROTONOSUPPORT", "vsock": "EAFNOSUPPORT", "listening": "ENOSYS",
		"tcp": "", "udp": "", "addresses": "", "resolving": "",
	}
	if _, err := landlock.Probe(); err == nil {
		want["another file"], want["a file of /proc"], want["the root"] = "EACCES", "EACCES", "EACCES"
	} else {
		want["another file"], want["a file of /proc"], want["the root"] = "", "", ""
	}
	if _, err := (&net.Resolver{PreferGo: true}).LookupNetIP(t.Context(), "ip", "localhost"); err != nil { // here, too
		want["resolving"] = got["resolving"]
	}
	for what, is := range got {
		if w, known := want[what]; !known || is != w {
			t.Errorf("%s: %q, want %q", what, is, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d things were tried, want %d", len(got), len(want))
	}
}
