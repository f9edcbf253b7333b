#include "textflag.h"

// func forkSyscall(trap, a1, a2, a3, a4, a5, a6 uintptr) (pid uintptr)
TEXT ·forkSyscall(SB), NOSPLIT, $0-64
	MOVQ $56, AX // clone
	MOVQ $17, DI // SIGCHLD
	XORQ SI, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	XORQ R9, R9
	SYSCALL
	TESTQ AX, AX
	JNE parent
	MOVQ trap+0(FP), AX
	MOVQ a1+8(FP), DI
	MOVQ a2+16(FP), SI
	MOVQ a3+24(FP), DX
	MOVQ a4+32(FP), R10
	MOVQ a5+40(FP), R8
	MOVQ a6+48(FP), R9
	SYSCALL
	XORQ DI, DI
	TESTQ AX, AX
	JGE exit
	MOVQ AX, DI
	NEGQ DI
exit:
	MOVQ $231, AX // exit_group
	SYSCALL
	INT $3
parent:
	MOVQ AX, pid+56(FP)
	RET

// func forkInt80() (pid uintptr)
TEXT ·forkInt80(SB), NOSPLIT, $0-8
	MOVQ $56, AX
	MOVQ $17, DI
	XORQ SI, SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	XORQ R9, R9
	SYSCALL
	TESTQ AX, AX
	JNE parent
	MOVQ $20, AX // getpid of 32 bits
	INT $0x80
	MOVLQSX AX, AX
	XORQ DI, DI
	TESTQ AX, AX
	JGE exit
	MOVQ AX, DI
	NEGQ DI
exit:
	MOVQ $231, AX
	SYSCALL
	INT $3
parent:
	MOVQ AX, pid+0(FP)
	RET
