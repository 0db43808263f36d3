/*
 * void simt_switch(void **save, void *load)
 *
 * Only what the ABI lets a function expect to survive a call needs saving. The stack pointer tells
 * where the rest is. The link register returns to the caller on the stack that is loaded.
 */
#if defined(__aarch64__)
        .text
        .globl  simt_switch
        .globl  simt_switch_resume
        .type   simt_switch, %function
        .type   simt_switch_resume, %function
simt_switch:
        sub     sp, sp, #160
        stp     x19, x20, [sp, #0]
        stp     x21, x22, [sp, #16]
        stp     x23, x24, [sp, #32]
        stp     x25, x26, [sp, #48]
        stp     x27, x28, [sp, #64]
        stp     x29, x30, [sp, #80]
        stp     d8, d9, [sp, #96]
        stp     d10, d11, [sp, #112]
        stp     d12, d13, [sp, #128]
        stp     d14, d15, [sp, #144]
        mov     x2, sp
        str     x2, [x0]
        mov     sp, x1
simt_switch_resume:
        ldp     x19, x20, [sp, #0]
        ldp     x21, x22, [sp, #16]
        ldp     x23, x24, [sp, #32]
        ldp     x25, x26, [sp, #48]
        ldp     x27, x28, [sp, #64]
        ldp     x29, x30, [sp, #80]
        ldp     d8, d9, [sp, #96]
        ldp     d10, d11, [sp, #112]
        ldp     d12, d13, [sp, #128]
        ldp     d14, d15, [sp, #144]
        add     sp, sp, #160
        ret
        .size   simt_switch, .-simt_switch

/* Where a new fiber starts: a return address of zero, at which debuggers and unwinders stop. */
        .globl  simt_fiber_begin
        .type   simt_fiber_begin, %function
simt_fiber_begin:
        mov     x30, xzr
        br      x19
        .size   simt_fiber_begin, .-simt_fiber_begin
#endif
        .section .note.GNU-stack, "", %progbits
