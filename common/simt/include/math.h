/**
 * @file
 * The C library's header, without C++17's special functions, Bessel's and others: g++ takes as long
 * to read those as all else that a kernel includes.
 */
#ifdef __cplusplus
#include <cstdint>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include_next <math.h>
