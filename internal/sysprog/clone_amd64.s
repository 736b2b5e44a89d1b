#include "textflag.h"

// func rawClone(flags, stack uintptr, s *state) (r uintptr)
//
// clone(flags, stack, 0, &s.pidfd, 0), where s.pidfd is the first field of s.
// The child calls s.entry, the second word of s, with s on its new stack and
// never returns. It is called as Go code calls Go code, by the address of the
// function itself (ABIInternal: the argument in the first register; the
// goroutine's register has kept its value): a wrapper for assembly would look
// up the thread's own data, which is not the child's.
TEXT ·rawClone(SB),NOSPLIT,$0-32
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	s+16(FP), R12
	MOVQ	R12, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, r+24(FP)
	RET
child:
	XORL	BP, BP
	XORPS	X15, X15
	SUBQ	$32, SP	// where the callee may keep its argument
	MOVQ	R12, AX
	CALL	8(R12)
	INT	$3

// func rawClone3(args *cloneArgs, size uintptr, s *state) (r uintptr)
TEXT ·rawClone3(SB),NOSPLIT,$0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	s+16(FP), R12
	MOVL	$435, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, r+24(FP)
	RET
child:
	XORL	BP, BP
	XORPS	X15, X15
	SUBQ	$32, SP	// where the callee may keep its argument
	MOVQ	R12, AX
	CALL	8(R12)
	INT	$3

// func rawVfork(flags uintptr) (r uintptr)
//
// clone(flags, 0, 0, 0, 0) for CLONE_VM|CLONE_VFORK. Parent and child share
// this stack, and the child runs first: what it pushes would overwrite the
// return address that the parent is still to pop. It is kept in a register.
TEXT ·rawVfork(SB),NOSPLIT|NOFRAME,$0-16
	MOVQ	flags+0(FP), DI
	XORL	SI, SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	MOVQ	AX, r+8(FP)
	RET
