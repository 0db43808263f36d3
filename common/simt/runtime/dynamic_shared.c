/*
 * Dynamic shared memory, `extern __shared__ unsigned char smem[]` in kernels, with a margin on both
 * sides. The linker places thread-local variables in the order of its object files: the arrays of
 * kernels before this array, the variables of the runtime behind it.
 */
#include "runtime.h"

/** Aligned like all shared memory in the checking build. */
_Alignas(
    SHARED_MARGIN) _Thread_local unsigned char simt_shared_space[SHARED_MARGIN + MAX_SHARED_BYTES +
                                                                 SHARED_MARGIN];

/* Only assembly can define a symbol inside another variable. */
#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
__asm__(
    ".globl smem\n"
    ".type smem, %tls_object\n"
    ".set smem, simt_shared_space + " AS_TEXT(SHARED_MARGIN) "\n");
