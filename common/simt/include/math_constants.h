/** @file CUDA's names for special values, for the CPU backend. */
#ifndef MATH_CONSTANTS_H
#define MATH_CONSTANTS_H

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")

#endif
