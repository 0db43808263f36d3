/**
 * @file
 * The same plain C for several vector widths, chosen when the program starts: by functions marked
 * ANY_VECTOR_WIDTH. Where a * b + c is contracted, or the products round, the bits may depend on
 * the choice; their callers see to it that they do not.
 */
#ifndef VECTOR_WIDTH_H
#define VECTOR_WIDTH_H

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define ANY_VECTOR_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ANY_VECTOR_WIDTH
#endif

#endif
