/**
 * @file
 * Functions that kernels may call, for the CPU backend: barriers, warp instructions, atomics, and
 * arithmetic in simt_arithmetic.h. All are forced inline, so that reports name lines of the kernel
 * and not of this file.
 */
#ifndef DEVICE_FUNCTIONS_H
#define DEVICE_FUNCTIONS_H

#include <math.h>
#include <simt.h>

#include <cassert>
#include <cstring>
#include <limits>
#include <type_traits>

/* --- Barriers ------------------------------------------------------------------------------- */

SIMT_FUNCTION(void, __syncthreads, (), (void)simt_barrier(0))

SIMT_FUNCTION(int, __syncthreads_count, (int predicate), (int)simt_barrier(predicate))

SIMT_FUNCTION(int, __syncthreads_or, (int predicate), __syncthreads_count(predicate) != 0)

SIMT_FUNCTION(int, __syncthreads_and, (int predicate), __syncthreads_count(!predicate) == 0)

SIMT_INLINE void __syncwarp(unsigned mask = 0xffffffff) {
  simt_warp_instruction(&simt_syncwarp, mask, nullptr);
}

SIMT_FUNCTION(void, __threadfence, (), simt_thread_fence())

SIMT_FUNCTION(void, __threadfence_system, (), simt_thread_fence())

SIMT_FUNCTION(void, __threadfence_block, (), simt_block_fence())

/** Lets other threads run; the duration is ignored. */
SIMT_FUNCTION(void, __nanosleep, (unsigned), simt_block_fence())

/* --- Warp instructions ---------------------------------------------------------------------- */

namespace simt {

/** The object representation of a value in the low bytes of an integer, and back. */
template <typename Bits, typename T>
SIMT_INLINE Bits bits_of(T value) {
  static_assert(sizeof(T) <= sizeof(Bits), "only values of up to 8 bytes");
  Bits bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T, typename Bits>
SIMT_INLINE T from_bits(Bits bits) {
  T value;
  __builtin_memcpy((void *)&value, &bits, sizeof value);
  return value;
}

/** Returns the value; the checking build reports an uninitialised float. */
template <typename T>
SIMT_INLINE T checked(T value) {
  return value;
}

#ifdef SIMT_CHECKING
template <>
SIMT_INLINE float checked(float value) {
  if (bits_of<uint32_t>(value) == UINT32_MAX) simt_use_unset();
  return value;
}

/** A float that was converted to double. */
template <>
SIMT_INLINE double checked(double value) {
  if (bits_of<uint64_t>(value) == 0xffffffffe0000000) simt_use_unset();
  return value;
}
#endif

/** True of a number that was converted to double from memory that was never set, where all bits are
 * one: of a float, of fp16 or of bf16. A 16-bit float of it keeps these bits, unlike other NaN, so
 * that a result shows where it comes from. */
SIMT_FUNCTION(bool, is_unset, (double value), bits_of<uint64_t>(value) >= 0xffffe00000000000)

/** Numbers; pairs of 16-bit floats are, too. CUDA promotes smaller ones; the bits are the same. */
template <typename T>
constexpr bool is_word = std::is_convertible<T, double>::value && sizeof(T) <= 8;

/** Infinities; the limits of integers. The 16-bit floats and their pairs are classes. */
template <typename T>
constexpr SimtExtremes extremes_of() {
  if constexpr (std::is_integral<T>::value) {
    return {(uint64_t)std::numeric_limits<T>::max(), (uint64_t)std::numeric_limits<T>::min()};
  } else if constexpr (std::is_same<T, float>::value) {
    return {0x7f800000, 0xff800000};
  } else if constexpr (std::is_same<T, double>::value) {
    return {0x7ff0000000000000, 0xfff0000000000000};
  } else {
    return {0x7c007c007c007c00, 0xfc00fc00fc00fc00};
  }
}

template <typename T>
constexpr SimtExtremes extremes = extremes_of<T>();

template <typename T>
SIMT_INLINE T shuffle(const SimtWarpOperation &operation, unsigned mask, T value, unsigned argument,
                      int width) {
  static_assert(is_word<T>, "shuffles take numbers of up to 8 bytes: shuffle each member");
  const uint64_t bits = bits_of<uint64_t>(checked(value));
  return from_bits<T>(simt_shuffle(&operation, mask, bits, argument, width, &extremes<T>));
}

}  // namespace simt

#define SIMT_SHUFFLE(function, operation, Argument)                                       \
  template <typename T>                                                                   \
  SIMT_FUNCTION(T, function, (unsigned mask, T value, Argument argument, int width = 32), \
                simt::shuffle(operation, mask, value, (unsigned)argument, width))

SIMT_SHUFFLE(__shfl_sync, simt_shuffle_index, int)
SIMT_SHUFFLE(__shfl_up_sync, simt_shuffle_up, unsigned)
SIMT_SHUFFLE(__shfl_down_sync, simt_shuffle_down, unsigned)
SIMT_SHUFFLE(__shfl_xor_sync, simt_shuffle_xor, int)

SIMT_FUNCTION(unsigned, __ballot_sync, (unsigned mask, int predicate),
              simt_vote(&simt_vote_ballot, mask, predicate))
SIMT_FUNCTION(int, __any_sync, (unsigned mask, int predicate),
              simt_vote(&simt_vote_any, mask, predicate) != 0)
SIMT_FUNCTION(int, __all_sync, (unsigned mask, int predicate),
              simt_vote(&simt_vote_all, mask, !predicate) == 0)

namespace simt {

template <typename T>
SIMT_INLINE unsigned match(const SimtWarpOperation &operation, unsigned mask, T value) {
  static_assert(is_word<T>, "matches take numbers of up to 8 bytes");
  return simt_match(&operation, mask, bits_of<uint64_t>(value));
}

}  // namespace simt

/** The lanes of the mask that have the same bits. */
template <typename T>
SIMT_INLINE unsigned __match_any_sync(unsigned mask, T value) {
  return simt::match(simt_match_any, mask, value);
}

/** The mask and 1 if all its lanes have the same bits, or else 0 and 0. */
template <typename T>
SIMT_INLINE unsigned __match_all_sync(unsigned mask, T value, int *predicate) {
  const unsigned lanes = simt::match(simt_match_all, mask, value);
  *predicate = lanes != 0;
  return lanes;
}

#define SIMT_REDUCE(function, T, operation)            \
  SIMT_FUNCTION(T, function, (unsigned mask, T value), \
                (T)simt_reduce(operation, mask, (unsigned)value))

SIMT_REDUCE(__reduce_add_sync, int, SIMT_ATOMIC_ADD)
SIMT_REDUCE(__reduce_add_sync, unsigned, SIMT_ATOMIC_ADD)
SIMT_REDUCE(__reduce_max_sync, int, SIMT_ATOMIC_MAX_SIGNED)
SIMT_REDUCE(__reduce_max_sync, unsigned, SIMT_ATOMIC_MAX_UNSIGNED)
SIMT_REDUCE(__reduce_min_sync, int, SIMT_ATOMIC_MIN_SIGNED)
SIMT_REDUCE(__reduce_min_sync, unsigned, SIMT_ATOMIC_MIN_UNSIGNED)
SIMT_REDUCE(__reduce_and_sync, unsigned, SIMT_ATOMIC_AND)
SIMT_REDUCE(__reduce_or_sync, unsigned, SIMT_ATOMIC_OR)
SIMT_REDUCE(__reduce_xor_sync, unsigned, SIMT_ATOMIC_XOR)

/**
 * Returns only the calling lane: CUDA guarantees no more. Code that expects all lanes in the same
 * branch gets a wrong result here, as it may on a GPU.
 */
SIMT_FUNCTION(unsigned, __activemask, (), simt_active_mask())

/* --- Atomics -------------------------------------------------------------------------------- */

#define SIMT_ATOMIC(function, T, operation, width)                                          \
  SIMT_INLINE T function(T *address, T operand) {                                           \
    const auto bits = simt::bits_of<uint##width##_t>(operand);                              \
    return simt::from_bits<T>(simt_atomic_##width(operation, address, bits, SIMT_RELAXED)); \
  }

SIMT_ATOMIC(atomicAdd, int, SIMT_ATOMIC_ADD, 32)
SIMT_ATOMIC(atomicAdd, unsigned, SIMT_ATOMIC_ADD, 32)
SIMT_ATOMIC(atomicAdd, unsigned long long, SIMT_ATOMIC_ADD, 64)
SIMT_ATOMIC(atomicAdd, float, SIMT_ATOMIC_ADD_FLOAT, 32)
SIMT_ATOMIC(atomicAdd, double, SIMT_ATOMIC_ADD_FLOAT, 64)
SIMT_ATOMIC(atomicMax, int, SIMT_ATOMIC_MAX_SIGNED, 32)
SIMT_ATOMIC(atomicMax, unsigned, SIMT_ATOMIC_MAX_UNSIGNED, 32)
SIMT_ATOMIC(atomicMin, int, SIMT_ATOMIC_MIN_SIGNED, 32)
SIMT_ATOMIC(atomicMin, unsigned, SIMT_ATOMIC_MIN_UNSIGNED, 32)
SIMT_ATOMIC(atomicMax, long long, SIMT_ATOMIC_MAX_SIGNED, 64)
SIMT_ATOMIC(atomicMax, unsigned long long, SIMT_ATOMIC_MAX_UNSIGNED, 64)
SIMT_ATOMIC(atomicMin, long long, SIMT_ATOMIC_MIN_SIGNED, 64)
SIMT_ATOMIC(atomicMin, unsigned long long, SIMT_ATOMIC_MIN_UNSIGNED, 64)
SIMT_ATOMIC(atomicAnd, int, SIMT_ATOMIC_AND, 32)
SIMT_ATOMIC(atomicAnd, unsigned, SIMT_ATOMIC_AND, 32)
SIMT_ATOMIC(atomicAnd, unsigned long long, SIMT_ATOMIC_AND, 64)
SIMT_ATOMIC(atomicOr, int, SIMT_ATOMIC_OR, 32)
SIMT_ATOMIC(atomicOr, unsigned, SIMT_ATOMIC_OR, 32)
SIMT_ATOMIC(atomicOr, unsigned long long, SIMT_ATOMIC_OR, 64)
SIMT_ATOMIC(atomicXor, int, SIMT_ATOMIC_XOR, 32)
SIMT_ATOMIC(atomicXor, unsigned, SIMT_ATOMIC_XOR, 32)
SIMT_ATOMIC(atomicXor, unsigned long long, SIMT_ATOMIC_XOR, 64)
SIMT_ATOMIC(atomicInc, unsigned, SIMT_ATOMIC_COUNT, 32)
SIMT_ATOMIC(atomicDec, unsigned, SIMT_ATOMIC_COUNT_DOWN, 32)
SIMT_ATOMIC(atomicExch, int, SIMT_ATOMIC_EXCHANGE, 32)
SIMT_ATOMIC(atomicExch, unsigned, SIMT_ATOMIC_EXCHANGE, 32)
SIMT_ATOMIC(atomicExch, float, SIMT_ATOMIC_EXCHANGE, 32)
SIMT_ATOMIC(atomicExch, unsigned long long, SIMT_ATOMIC_EXCHANGE, 64)

SIMT_INLINE unsigned atomicSub(unsigned *address, unsigned operand) {
  return atomicAdd(address, 0 - operand);
}

SIMT_INLINE int atomicSub(int *address, int operand) {
  return (int)atomicSub((unsigned *)address, (unsigned)operand);
}

SIMT_INLINE unsigned atomicCAS(unsigned *address, unsigned expected, unsigned desired) {
  return simt_compare_and_swap_32(address, expected, desired);
}

SIMT_INLINE int atomicCAS(int *address, int expected, int desired) {
  return (int)atomicCAS((unsigned *)address, (unsigned)expected, (unsigned)desired);
}

SIMT_INLINE unsigned long long atomicCAS(unsigned long long *address, unsigned long long expected,
                                         unsigned long long desired) {
  return simt_compare_and_swap_64(address, expected, desired);
}

/* --- Loads and stores that say how to cache ------------------------------------------------- */

#define SIMT_LOAD(function) \
  template <typename T>     \
  SIMT_FUNCTION(T, function, (const T *address), *address)

#define SIMT_STORE(function) \
  template <typename T>      \
  SIMT_FUNCTION(void, function, (T * address, T value), *address = value)

SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldcv)
SIMT_LOAD(__ldlu)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwb)
SIMT_STORE(__stwt)

SIMT_FUNCTION(void, __trap, (), simt_trap())

#include <simt_arithmetic.h>

#endif
