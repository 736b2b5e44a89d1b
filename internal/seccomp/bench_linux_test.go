package seccomp

import (
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// onThread runs f on a thread of its own, which then ends: a filter can't be
// taken off.
func onThread(f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		f()
	}()
	<-done
}

// load puts a filter on the calling thread alone.
func load(b *testing.B, prog *unix.SockFprog) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		b.Error(err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(prog))); errno != 0 {
		b.Error(errno)
	}
}

// linear compiles the policy as a chain of comparisons, for comparison.
func linear(a Arch) []unix.SockFilter {
	c := compiler{rets: map[Action]int{}}
	p := newPolicy()
	next := c.decision(fail(eNOSYS))
	for nr := len(a.names) - 1; nr >= 0; nr-- {
		if a.names[nr] != "" {
			next = c.jump(opJEq, uint32(nr), c.decision(p.decide(a.names[nr])), next)
		}
	}
	c.emit(Instruction{Code: opLoad, K: offNumber})
	slices.Reverse(c.rev)
	var f []unix.SockFilter
	for _, in := range c.rev {
		f = append(f, unix.SockFilter{Code: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	return f
}

// BenchmarkLoad measures what the kernel takes to load the filter.
func BenchmarkLoad(b *testing.B) {
	a, ok := native()
	if !ok {
		testkit.Lacks(b, "a policy for "+runtime.GOARCH)
	}
	for _, form := range []struct {
		name   string
		filter []unix.SockFilter
	}{{"tree", Filter()}, {"mount", sockFilter(MountProgram(a.Name))}, {"linear", linear(a)}} {
		b.Run(form.name, func(b *testing.B) {
			prog := &unix.SockFprog{Len: uint16(len(form.filter)), Filter: &form.filter[0]}
			var took []time.Duration
			for b.Loop() {
				onThread(func() {
					start := time.Now()
					load(b, prog)
					took = append(took, time.Since(start))
				})
			}
			slices.Sort(took)
			b.ReportMetric(float64(len(form.filter)), "instructions")
			b.ReportMetric(float64(took[len(took)/10].Microseconds()), "p10-µs/load")
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs/load")
			b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "p90-µs/load")
			b.ReportMetric(0, "ns/op") // that is mostly the thread
		})
	}
}

// BenchmarkCall measures what the filter adds to a call: to one that it always
// allows, which the kernel knows after loading, and to two that it must look at.
func BenchmarkCall(b *testing.B) {
	f := Filter()
	if f == nil {
		testkit.Lacks(b, "a policy for "+runtime.GOARCH)
	}
	prog := &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	for _, c := range []struct {
		name string
		call func()
	}{
		{"getppid", func() { unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0) }},
		{"ioctl", func() { unix.RawSyscall(unix.SYS_IOCTL, ^uintptr(0), unix.TCGETS, 0) }},
		{"mmap+munmap", func() {
			p, _, _ := unix.RawSyscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
			unix.RawSyscall(unix.SYS_MUNMAP, p, 4096, 0)
		}},
	} {
		for _, with := range []string{"bare", "filtered"} {
			b.Run(c.name+"/"+with, func(b *testing.B) {
				onThread(func() {
					if with == "filtered" {
						load(b, prog)
					}
					for b.Loop() {
						c.call()
					}
				})
			})
		}
	}
}

// BenchmarkFilter measures what it takes to have the filter.
func BenchmarkFilter(b *testing.B) {
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			Filter()
		}
	})
	b.Run("compiled", func(b *testing.B) {
		a, _ := native()
		for b.Loop() {
			Compile(a)
		}
	})
}
