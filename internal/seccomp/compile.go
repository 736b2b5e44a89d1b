package seccomp

import (
	"math"
	"slices"
)

// The operations used, all of which the kernel can emulate at load
// (seccomp_is_const_allow in kernel/seccomp.c).
const (
	opLoad = 0x20 // BPF_LD|BPF_W|BPF_ABS: A = 32 bits of struct seccomp_data at K
	opAnd  = 0x54 // BPF_ALU|BPF_AND|BPF_K
	opJump = 0x05 // BPF_JMP|BPF_JA
	opJEq  = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	opJGe  = 0x35 // BPF_JMP|BPF_JGE|BPF_K
	opJSet = 0x45 // BPF_JMP|BPF_JSET|BPF_K
	opRet  = 0x06 // BPF_RET|BPF_K
)

// Offsets in struct seccomp_data (include/uapi/linux/seccomp.h). Both
// architectures are little-endian: the low half of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// interval is a run of numbers with one decision, up to the next interval.
type interval struct {
	first uint32
	then  decision
}

// intervals returns the whole space of numbers in order.
func (p policy) intervals(a Arch) []interval {
	var all []interval
	add := func(nr uint32) {
		d := p.lookup(a, nr)
		if n := len(all); n > 0 {
			if last, ok := all[n-1].then.(Action); ok && d == decision(last) {
				return
			}
		}
		all = append(all, interval{nr, d})
	}
	for nr := range uint32(len(a.names)) {
		add(nr)
	}
	// Beyond the table the decision changes at these numbers only.
	for _, nr := range []uint32{uint32(len(a.names)), x32Bit, math.MaxUint32} {
		add(nr)
	}
	return all
}

// Compile compiles the policy for an architecture. It takes milliseconds; Program has the
// result.
func Compile(a Arch) []Instruction { return newPolicy().compile(a) }

// CompileMount compiles the policy of MountProgram.
func CompileMount(a Arch) []Instruction { return newMountPolicy().compile(a) }

func (p policy) compile(a Arch) []Instruction {
	c := compiler{rets: map[Action]int{}}
	c.search(plan(p.intervals(a), len(a.names)))
	start := c.emit(Instruction{Code: opLoad, K: offNumber})
	c.jump(opJEq, a.Audit, start, c.ret(Kill))
	c.emit(Instruction{Code: opLoad, K: offArch})
	slices.Reverse(c.rev)
	return c.rev
}

// tree is a search for a number among intervals.
type tree struct {
	// A node: numbers from at on are in high, others in low.
	at        uint32
	low, high *tree

	// A leaf, where low is nil: the decision about all numbers but some.
	then   decision
	except []interval // one number each
}

// What a tree costs at load, in nanoseconds, from measuring: an instruction is
// checked and compiled once, a step is emulated for every system call that
// passes it.
const (
	costInstruction = 300
	costStep        = 5
)

// plan finds the cheapest tree by dynamic programming over all ways to cut the
// intervals.
func plan(all []interval, known int) *tree {
	n := len(all)
	// How many system calls are in the first intervals.
	calls := make([]int, n+1)
	for i := range all {
		end := known
		if i+1 < n {
			end = min(known, int(all[i+1].first))
		}
		calls[i+1] = calls[i] + max(0, end-int(all[i].first))
	}
	cost := make([][]int, n+1)
	best := make([][]func() *tree, n+1)
	for i := range cost {
		cost[i], best[i] = make([]int, n+1), make([]func() *tree, n+1)
	}
	for size := 1; size <= n; size++ {
		for i := 0; i+size <= n; i++ {
			j := i + size
			cost[i][j] = math.MaxInt
			if l, c := leaf(all, i, j, calls[j]-calls[i]); l != nil {
				cost[i][j], best[i][j] = c, func() *tree { return l }
			}
			node := costInstruction + costStep*(calls[j]-calls[i])
			for k := i + 1; k < j; k++ {
				if c := cost[i][k] + cost[k][j] + node; c < cost[i][j] {
					cost[i][j] = c
					best[i][j] = func() *tree { return &tree{at: all[k].first, low: best[i][k](), high: best[k][j]()} }
				}
			}
		}
	}
	return best[0][n]()
}

// leaf returns the cheapest leaf for the intervals i to j-1, which hold so many
// system calls, and its cost, or nil.
func leaf(all []interval, i, j, calls int) (*tree, int) {
	if j-i == 1 {
		return &tree{then: all[i].then}, 0
	}
	// The rule is one of the first two decisions, the exceptions are between.
	var found *tree
	var cost int
	for _, in := range all[i:min(i+2, j)] {
		rule, ok := in.then.(Action)
		if !ok {
			continue
		}
		l := &tree{then: rule}
		for k := i; k < j; k++ {
			if all[k].then == decision(rule) {
				continue
			}
			if k+1 == len(all) || all[k+1].first != all[k].first+1 {
				l = nil // no single number
				break
			}
			l.except = append(l.except, all[k])
		}
		if l == nil {
			continue
		}
		m := len(l.except)
		// The exceptions leave the chain after 1, 2, …, m steps.
		c := costInstruction*m + costStep*((calls-m)*m+m*(m+1)/2)
		if found == nil || c < cost {
			found, cost = l, c
		}
	}
	return found, cost
}

// compiler emits a program from its end to its beginning: jumps go forward
// only, so the place that one goes to is known when it is emitted. A place is
// an index in rev.
type compiler struct {
	rev  []Instruction
	rets map[Action]int // the place emitted last that returns an action
}

func (c *compiler) emit(in Instruction) (place int) {
	c.rev = append(c.rev, in)
	return len(c.rev) - 1
}

// maxJump is how far a conditional jump goes.
const maxJump = math.MaxUint8

// ret returns a place that returns the action. It is near enough to be the
// target of the next instruction, even with two more put in between.
func (c *compiler) ret(a Action) int {
	if place, ok := c.rets[a]; ok && len(c.rev)-place-1 <= maxJump-2 {
		return place
	}
	place := c.emit(Instruction{Code: opRet, K: uint32(a)})
	c.rets[a] = place
	return place
}

// jump emits a comparison of A with k that goes to the place yes or no.
func (c *compiler) jump(op uint16, k uint32, yes, no int) int {
	// A detour for the one may push the other out of reach.
	for {
		y, n := len(c.rev)-yes-1, len(c.rev)-no-1
		switch {
		case y > maxJump:
			yes = c.emit(Instruction{Code: opJump, K: uint32(y)})
		case n > maxJump:
			no = c.emit(Instruction{Code: opJump, K: uint32(n)})
		default:
			return c.emit(Instruction{Code: op, Jt: uint8(y), Jf: uint8(n), K: k})
		}
	}
}

// search emits a tree. A is the number.
func (c *compiler) search(t *tree) int {
	if t.low == nil {
		place := c.decision(t.then)
		for _, x := range slices.Backward(t.except) {
			place = c.jump(opJEq, x.first, c.decision(x.then), place)
		}
		return place
	}
	yes := c.search(t.high)
	no := c.search(t.low)
	return c.jump(opJGe, t.at, yes, no)
}

// decision emits a decision. It may change A.
func (c *compiler) decision(d decision) int {
	if a, ok := d.(Action); ok {
		return c.ret(a)
	}
	ch := d.(choice)
	place := c.decision(ch.other)
	load := Instruction{Code: opLoad, K: offArgs + 8*uint32(ch.arg)}
	if ch.high {
		load.K += 4
	}
	if len(ch.cases) == 1 && slices.Equal(ch.cases[0].values, []uint32{0}) && ch.mask != 0 {
		c.jump(opJSet, ch.mask, place, c.decision(ch.cases[0].then))
		return c.emit(load)
	}
	for _, o := range slices.Backward(ch.cases) {
		then := c.decision(o.then)
		for _, v := range slices.Backward(o.values) {
			place = c.jump(opJEq, v, then, place)
		}
	}
	if ch.mask != 0 {
		c.emit(Instruction{Code: opAnd, K: ch.mask})
	}
	return c.emit(load)
}
