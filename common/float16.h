/**
 * @file
 * fp16 (IEEE binary16) and bf16 as bit patterns: conversion from and to wider types, with rounding
 * to nearest even. Portable integer code, so that every machine gets the same bits, with or without
 * hardware conversions. Used by the host programs and by the CPU backend's half types.
 */
#ifndef FLOAT16_H
#define FLOAT16_H

#include <stdint.h>

/* Kernels of the CPU backend use this file, and the lab would take memcpy() for a use of memory. */

static inline uint32_t float_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

/**
 * Rounds x once, to nearest even, to a 16-bit float with `mantissa_bits` stored mantissa bits and
 * the sign in bit 15. Overflow gives infinity; every NaN becomes 0x7fff, as the GPU's conversions
 * do.
 */
static inline uint16_t round_to_16_bits(double x, int mantissa_bits) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
  const int bias = (1 << (14 - mantissa_bits)) - 1;
  const uint16_t infinity = (uint16_t)(0x7fff >> mantissa_bits << mantissa_bits);
  const int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  uint64_t mantissa = bits & 0xfffffffffffff;

  if (exponent == 1024) return mantissa ? 0x7fff : (uint16_t)(sign | infinity);
  if (exponent > bias) return (uint16_t)(sign | infinity);
  if (exponent < -bias - mantissa_bits - 1) return sign; /* under half the smallest subnormal */

  mantissa |= (uint64_t)1 << 52;
  int dropped = 52 - mantissa_bits;
  uint64_t biased_exponent = 0;
  if (exponent > -bias) {
    biased_exponent = (uint64_t)(exponent + bias - 1); /* the leading 1 adds the missing one */
  } else {
    dropped += 1 - bias - exponent; /* subnormal: the leading 1 is a stored bit */
  }
  const uint64_t half = (uint64_t)1 << (dropped - 1);
  const uint64_t odd = mantissa >> dropped & 1;
  const uint64_t rounded = (mantissa + half - 1 + odd) >> dropped;
  return (uint16_t)(sign | ((biased_exponent << mantissa_bits) + rounded));
}

static inline uint16_t double_to_half_bits(double x) {
  return round_to_16_bits(x, 10);
}

static inline uint16_t double_to_bf16_bits(double x) {
  return round_to_16_bits(x, 7);
}

static inline float half_bits_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  /* As a float's low bits the value is too small by 2^112; the product is exact, subnormals too. */
  const float scaled = float_from_bits(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00 ? 0x7f800000 : 0; /* infinities and NaN */
  return float_from_bits(sign | float_bits(scaled) | special);
}

static inline float bf16_bits_to_float(uint16_t bf16) {
  return float_from_bits((uint32_t)bf16 << 16);
}

#endif
