/**
 * @file
 * Counter-based random numbers: element `index` of stream `tensor` is a function of the seed, the
 * stream and the index alone, so it does not depend on order, threads or platform. Only integer
 * operations and + - * / sqrt are used, which IEEE 754 defines to the last bit.
 */
#ifndef HOST_RANDOM_H
#define HOST_RANDOM_H

#include <stdint.h>

/** 64 bits: SplitMix64 (Steele, Lea, Flood 2014), started at a hash of seed and stream. */
uint64_t random_bits(uint64_t seed, uint32_t tensor, uint64_t index);

/** Uniform in the open interval (0, 1): an odd multiple of 2^-53, so 1 - u is just as likely. */
double random_uniform(uint64_t seed, uint32_t tensor, uint64_t index);

/** N(0, 1) by inverting the distribution function: Wichura's AS 241 (1988), routine PPND16. */
double random_normal(uint64_t seed, uint32_t tensor, uint64_t index);

#endif
