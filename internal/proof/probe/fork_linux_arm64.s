#include "textflag.h"

// func forkSyscall(trap, a1, a2, a3, a4, a5, a6 uintptr) (pid uintptr)
TEXT ·forkSyscall(SB), NOSPLIT, $0-64
	MOVD $220, R8 // clone
	MOVD $17, R0 // SIGCHLD
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	SVC
	CBNZ R0, parent
	MOVD trap+0(FP), R8
	MOVD a1+8(FP), R0
	MOVD a2+16(FP), R1
	MOVD a3+24(FP), R2
	MOVD a4+32(FP), R3
	MOVD a5+40(FP), R4
	MOVD a6+48(FP), R5
	SVC
	CMP $0, R0
	BLT failed
	MOVD ZR, R0
	B exit
failed:
	NEG R0, R0
exit:
	MOVD $94, R8 // exit_group
	SVC
	BRK
parent:
	MOVD R0, pid+56(FP)
	RET

// func forkInt80() (pid uintptr)
TEXT ·forkInt80(SB), NOSPLIT, $0-8
	MOVD $220, R8
	MOVD $17, R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	SVC
	CBNZ R0, parent
	MOVD $38, R0 // ENOSYS
	MOVD $94, R8
	SVC
	BRK
parent:
	MOVD R0, pid+0(FP)
	RET
