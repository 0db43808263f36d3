/**
 * @file
 * The C library's header; after cuda_runtime.h also an assert() for kernels, whose failure ends the
 * launch and not the program. No include guard: each inclusion evaluates NDEBUG again.
 */
#include_next <assert.h>

#if defined(DEVICE_FUNCTIONS_H) && !defined(NDEBUG)
#undef assert
#define assert(condition) \
  ((condition)            \
       ? (void)0          \
       : simt_assert_fail(#condition, __FILE__, __LINE__, __extension__ __PRETTY_FUNCTION__))
#endif
