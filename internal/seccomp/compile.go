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

// Compile translates the policy for an architecture. It takes milliseconds:
// Program has the result.
func Compile(a Arch) []Instruction {
	all := newPolicy().intervals(a)
	c := compiler{rets: map[Action]int{}}
	tree := c.tree(all, plan(all, len(a.names)), 0, len(all))
	tree = c.emit(Instruction{Code: opLoad, K: offNumber})
	c.jump(opJEq, a.Audit, tree, c.ret(Kill))
	c.emit(Instruction{Code: opLoad, K: offArch})
	slices.Reverse(c.rev)
	return c.rev
}

// plan finds the tree over the intervals in which the paths to all system calls
// are shortest in sum, by dynamic programming. The result at [i][j] is where to
// split the intervals i to j-1.
func plan(all []interval, known int) [][]int {
	n := len(all)
	// An interval weighs as many system calls as are in it; all else weighs next
	// to nothing, but something, so that its paths are no longer than they must.
	weight := make([]int, n+1) // sums
	for i := range all {
		end := known
		if i+1 < n {
			end = min(known, int(all[i+1].first))
		}
		w := 1
		if calls := end - int(all[i].first); calls > 0 {
			w = 64 * calls
		}
		weight[i+1] = weight[i] + w
	}
	cost := make([][]int, n+1)
	split := make([][]int, n+1)
	for i := range cost {
		cost[i], split[i] = make([]int, n+1), make([]int, n+1)
	}
	for size := 2; size <= n; size++ {
		for i := 0; i+size <= n; i++ {
			j := i + size
			best := math.MaxInt
			for k := i + 1; k < j; k++ {
				if c := cost[i][k] + cost[k][j]; c < best {
					best, split[i][j] = c, k
				}
			}
			cost[i][j] = best + weight[j] - weight[i]
		}
	}
	return split
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

// tree emits the search among the intervals i to j-1, with A the number.
func (c *compiler) tree(all []interval, split [][]int, i, j int) int {
	if j-i == 1 {
		return c.decision(all[i].then)
	}
	k := split[i][j]
	yes := c.tree(all, split, k, j)
	no := c.tree(all, split, i, k)
	return c.jump(opJGe, all[k].first, yes, no)
}

// decision emits a decision. It may change A.
func (c *compiler) decision(d decision) int {
	if a, ok := d.(Action); ok {
		return c.ret(a)
	}
	ch := d.(choice)
	place := c.decision(ch.other)
	load := Instruction{Code: opLoad, K: offArgs + 8*uint32(ch.arg)}
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
