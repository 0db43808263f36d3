/**
 * @file
 * wmma, the matrices of a warp (CUDA C++ Programming Guide, "Warp matrix functions"): 16 x 16 x 16
 * with elements of fp16 or bf16 and sums of fp32. It is made of mma.sync, whose layout it has: with
 * g = lane / 4 and j = 2 * (lane % 4), a lane holds pairs at (g, j), (g + 8, j), (g, j + 8) and
 * (g + 8, j + 8). CUDA leaves the layout open, so a kernel must not depend on it. All is inlined,
 * so that reports name the line of the kernel, see source_line.c.
 */
#ifndef SIMT_MMA_H
#define SIMT_MMA_H

#include <string.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "simt.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

/** x has the elements of this lane, num_elements of them. */
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "wmma on the CPU backend: 16 x 16 x 16 alone");
  static constexpr int num_elements = 8;
  T x[num_elements];
};

namespace detail {
SIMT_INLINE int lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
/** Row and column of element i of this lane. */
SIMT_INLINE int row_of(int i) {
  return lane() / 4 + (i / 2 % 2) * 8;
}
SIMT_INLINE int column_of(int i) {
  return lane() % 4 * 2 + i / 4 * 8 + i % 2;
}
template <typename T>
SIMT_INLINE uint32_t pair(const T *x) {
  uint32_t bits;
  memcpy(&bits, x, sizeof bits);
  return bits;
}
SIMT_INLINE SimtElement element(const __half *) {
  return SIMT_FP16;
}
SIMT_INLINE SimtElement element(const __nv_bfloat16 *) {
  return SIMT_BF16;
}
}  // namespace detail

template <typename Use, typename T, typename Layout>
SIMT_INLINE void fill_fragment(fragment<Use, 16, 16, 16, T, Layout> &to, T value) {
  for (T &x : to.x) x = value;
}

/** `stride` elements from one row to the next, or from one column. */
template <typename Use, typename T, typename Layout>
SIMT_INLINE void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &to, const T *from,
                                  unsigned stride) {
  const bool by_rows = __is_same(Layout, row_major);
  __syncwarp();
  for (int i = 0; i < 8; i++) {
    // Of B, the lane's pairs go down a column: element (column, row) of the layout above.
    const bool is_b = __is_same(Use, matrix_b);
    const int row = is_b ? detail::column_of(i) : detail::row_of(i);
    const int column = is_b ? detail::row_of(i) : detail::column_of(i);
    to.x[i] = from[by_rows ? row * stride + column : column * stride + row];
  }
}

template <typename T>
SIMT_INLINE void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &to, const T *from,
                                  unsigned stride, layout_t layout) {
  __syncwarp();
  for (int i = 0; i < 8; i++) {
    const int row = detail::row_of(i), column = detail::column_of(i);
    to.x[i] = from[layout == mem_row_major ? row * stride + column : column * stride + row];
  }
}

template <typename T>
SIMT_INLINE void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &from,
                                   unsigned stride, layout_t layout) {
  for (int i = 0; i < 8; i++) {
    const int row = detail::row_of(i), column = detail::column_of(i);
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = from.x[i];
  }
  __syncwarp();
}

/** d = a b + c: an mma for the left and one for the right 8 columns. */
template <typename T, typename A, typename B>
SIMT_INLINE void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
                          const fragment<matrix_a, 16, 16, 16, T, A> &a,
                          const fragment<matrix_b, 16, 16, 16, T, B> &b,
                          const fragment<accumulator, 16, 16, 16, float> &c) {
  using detail::pair;
  for (int half = 0; half < 2; half++) {
    const float *sums = &c.x[4 * half];
    // Of B, rows are columns: pairs 0 and 2 belong to the left columns.
    const SimtFloats result =
        simt_mma(SimtFloats{sums[0], sums[1], sums[2], sums[3]},
                 SimtWords{pair(&a.x[0]), pair(&a.x[2]), pair(&a.x[4]), pair(&a.x[6])},
                 pair(&b.x[2 * half]), pair(&b.x[2 * half + 4]), detail::element(a.x));
    for (int i = 0; i < 4; i++) d.x[4 * half + i] = result[i];
  }
}

}  // namespace wmma
}  // namespace nvcuda

#endif
