/*
 * void simt_switch(void **save, void *load)
 *
 * Only what the ABI lets a function expect to survive a call needs saving. The stack pointer tells
 * where the rest is.
 */
#if defined(__x86_64__)
        .text
        .globl  simt_switch
        .globl  simt_switch_resume
        .type   simt_switch, @function
        .type   simt_switch_resume, @function
simt_switch:
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
simt_switch_resume:
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        ret
        .size   simt_switch, .-simt_switch
#endif
        .section .note.GNU-stack, "", %progbits
