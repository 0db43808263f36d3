/**
 * @file
 * The C library's header, for all that includes it; and behind cuda_runtime.h an assert() for
 * kernels, in which a failure ends the launch and not the program. No guard: as NDEBUG says each
 * time.
 */
#include_next <assert.h>

#if defined(DEVICE_FUNCTIONS_H) && !defined(NDEBUG)
#undef assert
#define assert(condition) \
  ((condition)            \
       ? (void)0          \
       : simt_assert_fail(#condition, __FILE__, __LINE__, __extension__ __PRETTY_FUNCTION__))
#endif
