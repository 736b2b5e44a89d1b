#include "textflag.h"

// func rawClone(flags, stack uintptr, s *state) (r uintptr)
//
// clone(flags, stack, &s.pidfd, 0, 0), where s.pidfd is the first field of s.
// The child calls s.entry, the second word of s, with s on its new stack and
// never returns. It is called as Go code calls Go code, by the address of the
// function itself (ABIInternal: the argument in the first register; the
// goroutine's register has kept its value): a wrapper for assembly would look
// up the thread's own data, which is not the child's.
TEXT ·rawClone(SB),NOSPLIT,$0-32
	MOVD	flags+0(FP), R0
	MOVD	stack+8(FP), R1
	MOVD	s+16(FP), R2
	MOVD	R2, R20
	MOVD	ZR, R3
	MOVD	ZR, R4
	MOVD	$220, R8
	SVC
	CBZ	R0, child
	MOVD	R0, r+24(FP)
	RET
child:
	MOVD	ZR, R29
	SUB	$32, RSP	// where the callee may keep its argument
	MOVD	8(R20), R9
	MOVD	R20, R0
	BL	(R9)
	BRK	$1

// func rawClone3(args *cloneArgs, size uintptr, s *state) (r uintptr)
TEXT ·rawClone3(SB),NOSPLIT,$0-32
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	s+16(FP), R20
	MOVD	$435, R8
	SVC
	CBZ	R0, child
	MOVD	R0, r+24(FP)
	RET
child:
	MOVD	ZR, R29
	SUB	$32, RSP	// where the callee may keep its argument
	MOVD	8(R20), R9
	MOVD	R20, R0
	BL	(R9)
	BRK	$1

// func rawVfork(flags uintptr) (r uintptr)
//
// clone(flags, 0, 0, 0, 0) for CLONE_VM|CLONE_VFORK. The return address stays
// in the link register, so that the child can't overwrite it on the shared stack.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-16
	MOVD	flags+0(FP), R0
	MOVD	ZR, R1
	MOVD	ZR, R2
	MOVD	ZR, R3
	MOVD	ZR, R4
	MOVD	$220, R8
	SVC
	MOVD	R0, r+8(FP)
	RET
