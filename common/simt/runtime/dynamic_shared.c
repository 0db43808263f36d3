/*
 * Dynamic shared memory, `extern __shared__ unsigned char smem[]` in kernels, with room before and
 * behind it. The linker puts thread-local variables in the order of its objects: the arrays of
 * kernels before this, what belongs to the runtime behind it.
 */
#include "runtime.h"

/** Aligned as the checking build has it of all shared memory. */
_Alignas(
    SHARED_MARGIN) _Thread_local unsigned char simt_shared_space[SHARED_MARGIN + MAX_SHARED_BYTES +
                                                                 SHARED_MARGIN];

/* Only the assembler can give one variable a name within another. */
#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
__asm__(
    ".globl smem\n"
    ".type smem, %tls_object\n"
    ".set smem, simt_shared_space + " AS_TEXT(SHARED_MARGIN) "\n");
