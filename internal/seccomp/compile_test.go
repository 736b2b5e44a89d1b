package seccomp

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// interpret runs a program as the kernel does, and returns what it returns and
// after how many instructions. It fails the test where the kernel would not
// have loaded the program.
func interpret(t testing.TB, program []Instruction, arch, nr uint32, args *[6]uint64) (result Action, steps int) {
	t.Helper()
	var data [64]byte // struct seccomp_data
	binary.LittleEndian.PutUint32(data[0:], nr)
	binary.LittleEndian.PutUint32(data[4:], arch)
	binary.LittleEndian.PutUint64(data[8:], 0xDEADBEEFDEADBEEF) // the instruction pointer decides nothing
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(program); pc++ {
		steps++
		in := program[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case opLoad:
			if in.K%4 != 0 || in.K > 60 {
				t.Fatalf("instruction %d loads from %d", pc, in.K)
			}
			acc = binary.LittleEndian.Uint32(data[in.K:])
		case opAnd:
			acc &= in.K
		case opJump:
			pc += int(in.K)
		case opJEq:
			jump(acc == in.K)
		case opJGe:
			jump(acc >= in.K)
		case opJSet:
			jump(acc&in.K != 0)
		case opRet:
			return Action(in.K), steps
		default:
			t.Fatalf("instruction %d has code %#x", pc, in.Code)
		}
	}
	t.Fatalf("the program for %#x %d %#x ends without a return", arch, nr, args)
	return 0, 0
}

// odd are arguments that decide, or nearly do, on any rule.
func odd() []uint64 {
	var vs []uint64
	for _, v := range []uint64{
		0, 1, 2, 3, 4, 5, 6, 9, 10, 16, 17, 33, 35, 38, 40, 58, 62, 132, 136, 262, 0x800, 0x80801, 0x80802, 0x80803,
		tiocSTI, tiocLINUX, tiocSETD, tiocSTI - 1, tiocSTI + 1,
		cloneNew, 0x00020000, 0x10000000, 0x40000000, 0x3D0F00, 0x1200011,
		sIFREG | 0o644, sIFIFO, sIFSOCK, 0x2000 | 0o666, 0x6000, 0x4000, 0xA000, sIFMT, 0x18000, 0x12000,
		mapHugeTLB, mapHugeTLB | 0x22, 0x22, mfdHugeTLB | 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000,
		soAttachFilter, soAttachBPF, soAttachReusePortCBPF, soAttachReusePortEBPF, prGetSeccomp, prSetSeccomp,
		fSetLease, fNotify, fSetDeleg, schedResetOnFork, schedResetOnFork | 1, sISUID | 0o755, sISGID, 0o6755, oCreat, oTmpfile | 1,
		fDupFDCloexec, oAsync, oAsync | 0x800, ipprotoIPv6, ipv6V6Only, soLinger, 31, 100, // TCP_ULP, UDP_ENCAP
		tunGetIff, oAccMode, oTrunc, cloneThread, 0x50F00, cloneThread | 0x10000000, prSetVMA, // of a Go thread
		keyHigh << 32, keyLow << 32, keyHigh<<32 | seccompSetModeFilter, keyLow<<32 | seccompFilterFlagTSYNC, keyHigh, keyLow,
	} {
		vs = append(vs, v, v|1<<32, v|0xFFFFFFFF<<32, v|1<<63)
	}
	return vs
}

// filters are the compiled programs with what they mean.
var filters = []struct {
	name    string
	policy  policy
	program func(string) []Instruction
	compile func(Arch) []Instruction
}{
	{"base", newPolicy(), Program, Compile},
	{"mount", newMountPolicy(), MountProgram, CompileMount},
	{"network", newNetworkPolicy(), func(goarch string) []Instruction { return NetworkProgram(goarch, keyLow) }, CompileNetwork},
}

// eachFilter runs a test for each program of each architecture.
func eachFilter(t *testing.T, f func(t *testing.T, a Arch, p policy, program []Instruction)) {
	for _, a := range Archs() {
		for _, filter := range filters {
			t.Run(a.Name+"/"+filter.name, func(t *testing.T) { f(t, a, filter.policy, filter.program(a.Name)) })
		}
	}
}

// TestEveryNumber compares the decision about every number, in both
// architectures, with the policy, for many arguments where these decide.
func TestEveryNumber(t *testing.T) {
	eachFilter(t, func(t *testing.T, a Arch, p policy, program []Instruction) {
		some := odd()[:64]
		check := func(nr uint32, args *[6]uint64) {
			t.Helper()
			got, _ := interpret(t, program, a.Audit, nr, args)
			if want := p.lookup(a, nr).evaluate(args); got != want {
				t.Fatalf("number %d %#x: got %v, want %v", nr, args, got, want)
			}
		}
		numbers := []uint32{1 << 16, 1 << 20, x32Bit - 1, x32Bit, x32Bit + 1, x32Bit + 512, 1 << 31, math.MaxUint32 - 1, math.MaxUint32}
		for nr := range uint32(1024) {
			numbers = append(numbers, nr)
		}
		for _, nr := range numbers {
			check(nr, &[6]uint64{})
			if _, ok := p.lookup(a, nr).(choice); !ok {
				continue
			}
			for _, v := range odd() {
				for i := range 6 {
					var args [6]uint64
					args[i] = v
					check(nr, &args)
				}
				for _, w := range some {
					check(nr, &[6]uint64{v, w, 0})
					check(nr, &[6]uint64{v, w, 6})
					check(nr, &[6]uint64{2 | 7<<40, v, w, w})
					check(nr, &[6]uint64{0, solSocket, v, w})
				}
			}
		}
		// Random numbers and arguments.
		r := rand.New(rand.NewPCG(1, uint64(a.Audit)))
		for range 200_000 {
			var args [6]uint64
			for i := range args {
				args[i] = r.Uint64() >> r.IntN(64)
			}
			check(r.Uint32()>>r.IntN(32), &args)
		}
	})
}

// TestForeignArchitecture: any other convention of calling kills.
func TestForeignArchitecture(t *testing.T) {
	eachFilter(t, func(t *testing.T, a Arch, _ policy, program []Instruction) {
		for _, audit := range []uint32{0x40000003 /* i386 */, 0x40000028 /* arm */, 0xC000003E, 0xC00000B7, 0, 0x3E, math.MaxUint32} {
			for _, nr := range []uint32{0, 1, 60, 102, 359, 500, x32Bit} {
				got, _ := interpret(t, program, audit, nr, &[6]uint64{})
				if killed := got == Kill; audit != a.Audit && !killed {
					t.Errorf("architecture %#x number %d: got %v, want kill", audit, nr, got)
				}
			}
		}
	})
}

// TestPolicyIsComplete: every system call of every table is in one group, every
// name in a group is in a table.
func TestPolicyIsComplete(t *testing.T) {
	known := map[string]bool{}
	for _, a := range Archs() {
		if len(a.names) < 400 || a.names[len(a.names)-1] == "" {
			t.Errorf("%s: odd table of %d names", a.Name, len(a.names))
		}
		for _, name := range a.names {
			if name != "" {
				known[name] = true
			}
		}
	}
	grouped := map[string]bool{}
	for _, groups := range [][]group{mountGroups(), networkGroups(), groups()} {
		clear(grouped)
		for _, g := range groups {
			for _, c := range g.calls {
				if grouped[c] {
					t.Errorf("%s stands twice", c)
				}
				if !known[c] {
					t.Errorf("%s is not a system call", c)
				}
				grouped[c] = true
			}
		}
	}
	for name := range known {
		if !grouped[name] {
			t.Errorf("no decision about %s", name)
		}
	}
}

// TestGenerated: the generated programs are those of the policy as it stands.
func TestGenerated(t *testing.T) {
	for _, a := range Archs() {
		for _, f := range filters {
			if diff := cmp.Diff(f.compile(a), f.program(a.Name)); diff != "" {
				t.Errorf("%s %s: run go generate ./internal/seccomp (-compiled +kept):\n%s", a.Name, f.name, diff)
			}
		}
	}
	if Program("riscv64") != nil || MountProgram("riscv64") != nil || NetworkProgram("riscv64", 1) != nil {
		t.Error("a program for an architecture without a policy")
	}
}

// TestGeneratedNumbers: the numbers are those of golang.org/x/sys as required now.
func TestGeneratedNumbers(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	testkit.Need(t, "the program go and the module golang.org/x/sys", err)
	for _, a := range Archs() {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "unix", "zsysnum_linux_"+a.Name+".go"))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for nr, name := range a.names {
			if name != "" {
				got[name] = strconv.Itoa(nr)
			}
		}
		want := map[string]string{}
		for line := range strings.Lines(string(src)) {
			if f := strings.Fields(line); len(f) == 3 && strings.HasPrefix(f[0], "SYS_") && f[0] != "SYS_ARCH_SPECIFIC_SYSCALL" {
				want[strings.ToLower(f[0][4:])] = f[2]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: run go generate ./internal/seccomp (-x/sys +kept):\n%s", a.Name, diff)
		}
	}
}

// TestCostOfLoad bounds what the kernel does at load: the sum of all paths.
func TestCostOfLoad(t *testing.T) {
	for _, a := range Archs() {
		sum, longest := 0, 0
		for nr := range len(a.names) {
			_, n := interpret(t, Program(a.Name), a.Audit, uint32(nr), &[6]uint64{})
			sum += n
			longest = max(longest, n)
		}
		t.Logf("%s: %d instructions, %.1f per system call, at most %d", a.Name, len(Program(a.Name)), float64(sum)/float64(len(a.names)), longest)
		if mean := sum / len(a.names); mean > 12 {
			t.Errorf("%s: %d instructions per system call; the tree has degenerated", a.Name, mean)
		}
	}
}

// TestKey: the key stands where WithKey puts it, and nowhere else.
func TestKey(t *testing.T) {
	const key = 0x0123456789ABCDEF
	for _, a := range Archs() {
		var changed []uint32
		program := WithKey(Program(a.Name), key)
		for i, in := range program {
			if in != Program(a.Name)[i] {
				changed = append(changed, in.K)
			}
		}
		slices.Sort(changed)
		if diff := cmp.Diff([]uint32{0x01234567, 0x89ABCDEF}, changed); diff != "" {
			t.Errorf("%s: changed instructions (-want +got):\n%s", a.Name, diff)
		}
		nr := uint32(slices.Index(a.names, "seccomp"))
		right, flags := KeyedLoad(key)
		for _, try := range []struct {
			args [6]uint64
			want Action
		}{
			{[6]uint64{right, flags}, Allow},
			{[6]uint64{right ^ 1<<32, flags}, fail(eNOSYS)},
			{[6]uint64{right, flags ^ 1<<63}, fail(eNOSYS)},
			{[6]uint64{keyHigh<<32 | 1, keyLow<<32 | 1}, fail(eNOSYS)},
			{[6]uint64{1, 1}, fail(eNOSYS)},
		} {
			if got, _ := interpret(t, program, a.Audit, nr, &try.args); got != try.want {
				t.Errorf("%s: seccomp with %#x: got %v, want %v", a.Name, try.args[:2], got, try.want)
			}
			if got, _ := interpret(t, MountProgram(a.Name), a.Audit, nr, &try.args); got != fail(eNOSYS) {
				t.Errorf("%s: seccomp with %#x after the second filter: %v", a.Name, try.args[:2], got)
			}
		}
	}
}

// TestFarJumps compiles programs that conditional jumps can't span.
func TestFarJumps(t *testing.T) {
	var all []interval
	for i := range uint32(250) {
		d := decision(fail(errno(i % 997)))
		if i%3 == 0 {
			d = choice{arg: int(i % 6), mask: i, cases: []oneOf{{[]uint32{0}, fail(errno(i % 89))}, {[]uint32{i, i + 1}, Allow}}, other: Kill}
		}
		all = append(all, interval{i * 2, d})
	}
	c := compiler{rets: map[Action]int{}}
	c.search(plan(all, 500))
	c.emit(Instruction{Code: opLoad, K: offNumber})
	slices.Reverse(c.rev)
	if len(c.rev) < 2*maxJump {
		t.Fatalf("%d instructions try nothing", len(c.rev))
	}
	r := rand.New(rand.NewPCG(2, 2))
	for nr := range uint32(600) {
		i := min(int(nr/2), len(all)-1)
		for range 8 {
			var args [6]uint64
			for j := range args {
				args[j] = uint64(nr) &^ uint64(r.Uint32()>>r.IntN(32))
			}
			got, _ := interpret(t, c.rev, 0, nr, &args)
			if want := all[i].then.evaluate(&args); got != want {
				t.Fatalf("number %d %#x: got %v, want %v", nr, args, got, want)
			}
		}
	}
}

// FuzzArguments compares compiled code with the meaning of the policy.
func FuzzArguments(f *testing.F) {
	f.Add(uint32(41), uint64(38), uint64(5), uint64(0), uint64(0))
	f.Add(uint32(16), uint64(0), uint64(1<<32|tiocSTI), uint64(0), uint64(0))
	f.Add(uint32(56), uint64(0x7C020000), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(9), uint64(0), uint64(1<<21), uint64(3), uint64(0x40022))
	f.Add(uint32(x32Bit), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, nr uint32, a0, a1, a2, a3 uint64) {
		args := [6]uint64{a0, a1, a2, a3}
		for _, a := range Archs() {
			for _, filter := range filters {
				got, _ := interpret(t, filter.program(a.Name), a.Audit, nr, &args)
				if want := filter.policy.lookup(a, nr).evaluate(&args); got != want {
					t.Errorf("%s %s: number %d %#x: got %v, want %v", a.Name, filter.name, nr, args, got, want)
				}
			}
		}
	})
}

func TestTable(t *testing.T) {
	got := map[string]string{}
	p := newPolicy()
	for _, a := range Archs() {
		for _, name := range a.names {
			if name == "" {
				continue
			}
			verdict := "by argument"
			if action, ok := p.decide(name).(Action); ok {
				verdict = action.String()
			}
			if strings.HasPrefix(verdict, "0x") {
				t.Errorf("%s: %s has no name for its verdict %s", a.Name, name, verdict)
			}
			if was, ok := got[name]; ok && was != verdict {
				t.Errorf("%s differs by architecture", name)
			}
			got[name] = verdict
		}
	}
	for name, want := range map[string]string{
		"read": "allow", "ioctl": "by argument", "mount": "EPERM", "clone3": "ENOSYS", "sync": "no effect",
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}
