/** @file A small attention kernel on the CPU for the tests of the checker, right or with a chosen
 * mistake: fp32, tiles of keys, online softmax, P rounded to the type of the inputs or not. */
#ifndef SIMULATED_KERNEL_H
#define SIMULATED_KERNEL_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/check.h"
#include "host/io/random.h"
#include "host/masks/mask.h"

enum { BLOCK_M = 64, BLOCK_N = 32, LARGEST_DIM = 256 };

typedef enum InputKind {
  INPUT_NORMAL,
  INPUT_OUTLIER,
  INPUT_SPIKY,
  INPUT_CONSTANT,
  INPUT_PEAKED, /* a few keys decide a row, and V has large elements, most of them in a column */
  INPUT_SINK,
  INPUT_PARALLEL /* most of each V is in one direction, either way, so that a row may cancel */
} InputKind;
enum { INPUT_KINDS = 7 };

/** What the kernel does wrong; all zero for a right kernel. */
typedef struct Mistakes {
  int64_t lost_key_plus_1; /**< this key is left out */
  int64_t stale_v_tile;    /**< this tile (not 0) is multiplied by the V of the tile before */
  bool top_left, no_division, wrong_kv_head;
  bool keeps_o, keeps_l; /**< not rescaled */
  bool zero_tail;        /**< rows of zeros past the last key take part */
  bool whole_tile;       /**< the tile on the diagonal is not masked */
  bool log2_lse;
  bool short_p;    /**< P is rounded to 2 bits of mantissa */
  float scales[3]; /**< errors of the scales of Q, K and V: 0.02 is 2 % too large */
  int columns;     /**< which wrong_column() takes the place of column d of Q, or of K */
  bool columns_of_k;
} Mistakes;

typedef struct Trial {
  Problem problem;
  uint16_t *q, *k, *v;
  float *scales[3];             /**< of Q, K and V: 1 unless the type is e4m3 */
  uint8_t *o_block, *lse_block; /**< with guards */
  uint16_t *o;
  float *lse;
  bool multiplies_masked_keys; /**< as the step would describe itself */
  bool keeps_m; /**< the kernel raises m only if a sum of P is too large: P may exceed 1 */
} Trial;

static inline int64_t elements(int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
  return batch * heads * rows * dim;
}

static inline Strides dense_strides(int heads, int rows, int dim, bool bnhd) {
  const int64_t n = rows, d = dim;
  if (bnhd) return (Strides){.batch = heads * n * d, .head = d, .row = heads * d};
  return (Strides){.batch = heads * n * d, .head = n * d, .row = d};
}

static inline void set_strides(Problem *p, bool bnhd) {
  p->q_strides = p->o_strides = dense_strides(p->q_heads, p->q_len, p->head_dim, bnhd);
  p->k_strides = p->v_strides = dense_strides(p->kv_heads, p->kv_len, p->head_dim, bnhd);
}

/** One of 65536 normal numbers: as good as a new one here, and many times faster. */
static inline double pooled_normal(uint64_t seed, uint32_t tensor, int64_t index) {
  static double pool[1 << 16];
  if (pool[0] == 0) {
    for (int i = 0; i < 1 << 16; ++i) pool[i] = random_normal(1, 0, (uint64_t)i);
  }
  return pool[random_bits(seed, tensor, (uint64_t)index) & 0xffff];
}

static inline double draw_input(InputKind kind, uint64_t seed, uint32_t tensor, int64_t index) {
  if (kind == INPUT_CONSTANT) return 0.5;
  const double x = pooled_normal(seed, tensor, index);
  if (kind == INPUT_PEAKED && tensor == 0) return 3 * x;
  if (kind == INPUT_PEAKED && tensor == 2) {
    const bool large = random_uniform(seed, tensor + 10, (uint64_t)index) < 0.01;
    return large || (uint64_t)index % 32 == seed % 64 ? 10 * x : x;
  }
  if (kind != INPUT_OUTLIER || random_uniform(seed, tensor + 10, (uint64_t)index) > 0.001) return x;
  return x + 10 * pooled_normal(seed, tensor + 20, index);
}

static inline double *draw_tensor(InputKind kind, uint64_t seed, uint32_t tensor, int64_t count) {
  double *x = malloc(sizeof *x * (size_t)count);
  for (int64_t i = 0; i < count; ++i) x[i] = draw_input(kind, seed, tensor, i);
  return x;
}

/** Rounds a tensor, with `strides`, to bits of the problem's type; sets its scales. Frees x. */
static inline uint16_t *round_tensor(const Problem *p, double *x, int heads, int rows,
                                     const Strides *strides, float **scales) {
  const int64_t count = elements(p->batch, heads, rows, p->head_dim);
  const int group = heads / p->kv_heads;
  uint16_t *bits = malloc(sizeof *bits * (size_t)count);
  *scales = malloc(sizeof **scales * (size_t)(p->batch * p->kv_heads));
  for (int head = 0; head < p->batch * p->kv_heads; ++head) {
    double most = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int row = 0; row < group * rows; ++row) {
        const int64_t first = row_offset(strides, head / p->kv_heads,
                                         head % p->kv_heads * group + row / rows, row % rows);
        for (int64_t i = first; i < first + p->head_dim; ++i) {
          most = fmax(most, fabs(x[i]));
          if (pass == 1) bits[i] = element_bits(p->dtype, x[i] / (double)(*scales)[head]);
        }
      }
      (*scales)[head] = p->dtype == DTYPE_E4M3 ? (float)(most / E4M3_LARGEST) : 1;
    }
  }
  free(x);
  return bits;
}

/** How many keys a query attends, counted from the first key. */
static inline int64_t keys_of(const Problem *p, int q) {
  const Mask mask = mask_simple(p);
  return mask_row_end(&mask, 0, 0, q, 1);
}

/** Every query becomes four times a key, plus noise. */
static inline void make_spiky(const Problem *p, uint64_t seed, const double *k, double *x) {
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      for (int q = 0; q < p->q_len; ++q) {
        const int64_t keys = keys_of(p, q), to = row_offset(&p->q_strides, b, h, q);
        if (keys == 0) continue;
        const int64_t key = (int64_t)(random_bits(seed, 7, (uint64_t)q) % (uint64_t)keys);
        const int64_t from = row_offset(&p->k_strides, b, kv_head_of(p, h), key);
        for (int d = 0; d < p->head_dim; ++d) {
          x[to + d] = 4 * k[from + d] + 0.1 * x[to + d];
        }
      }
    }
  }
}

/** Each V becomes the same vector, times 3 or -3, plus noise. */
static inline void make_parallel(const Problem *p, uint64_t seed, double *v) {
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->kv_heads; ++h) {
      for (int key = 0; key < p->kv_len; ++key) {
        const double factor = random_bits(seed, 9, (uint64_t)key) % 2 == 0 ? 3 : -3;
        double *row = v + row_offset(&p->v_strides, b, h, key);
        for (int d = 0; d < p->head_dim; ++d) {
          row[d] = 0.1 * row[d] + factor * pooled_normal(seed, 10, d);
        }
      }
    }
  }
}

/** Key 0 gets a large score, different for each query, and its V becomes 0. In every fourth trial
 * other P may be subnormal in fp32, or 0. */
static inline void make_sink(const Problem *p, uint64_t seed, double *q, double *k, double *v) {
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      const int kv_head = kv_head_of(p, h);
      for (int row = 0; row < p->q_len; ++row) {
        const double score =
            (seed % 4 == 0 ? 110 : 11) * random_uniform(seed, 8, (uint64_t)(h * p->q_len + row));
        q[row_offset(&p->q_strides, b, h, row)] = score;
      }
      for (int key = 0; key < p->kv_len; ++key) k[row_offset(&p->k_strides, b, kv_head, key)] = 0;
      for (int d = 0; d < p->head_dim; ++d) {
        k[row_offset(&p->k_strides, b, kv_head, 0) + d] = d == 0 ? sqrt(p->head_dim) : 0;
        v[row_offset(&p->v_strides, b, kv_head, 0) + d] = 0;
      }
    }
  }
}

static inline void poison(void *target, size_t bytes) {
  for (size_t i = 0; i < bytes / 2; ++i) ((uint16_t *)target)[i] = OUTPUT_POISON;
}

static inline Trial new_trial(const Problem *problem, InputKind kind, uint64_t seed) {
  Trial t = {.problem = *problem};
  const Problem *p = &t.problem;
  const int64_t o_count = elements(p->batch, p->q_heads, p->q_len, p->head_dim);
  const int64_t kv_count = elements(p->batch, p->kv_heads, p->kv_len, p->head_dim);
  double *q = draw_tensor(kind, seed, 0, o_count), *k = draw_tensor(kind, seed, 1, kv_count);
  double *v = draw_tensor(kind, seed, 2, kv_count);
  if (kind == INPUT_SPIKY) make_spiky(p, seed, k, q);
  if (kind == INPUT_SINK) make_sink(p, seed, q, k, v);
  if (kind == INPUT_PARALLEL) make_parallel(p, seed, v);
  t.q = round_tensor(p, q, p->q_heads, p->q_len, &p->q_strides, &t.scales[0]);
  t.k = round_tensor(p, k, p->kv_heads, p->kv_len, &p->k_strides, &t.scales[1]);
  t.v = round_tensor(p, v, p->kv_heads, p->kv_len, &p->v_strides, &t.scales[2]);
  t.o_block = malloc(2 * GUARD_BYTES + (size_t)o_count * 2);
  t.lse_block = malloc(2 * GUARD_BYTES + (size_t)(o_count / p->head_dim) * 4);
  t.o = (uint16_t *)(t.o_block + GUARD_BYTES);
  t.lse = (float *)(t.lse_block + GUARD_BYTES);
  poison(t.o_block, 2 * GUARD_BYTES + (size_t)o_count * 2);
  poison(t.lse_block, 2 * GUARD_BYTES + (size_t)(o_count / p->head_dim) * 4);
  return t;
}

static inline void free_trial(Trial *t) {
  free(t->q);
  free(t->k);
  free(t->v);
  for (int i = 0; i < 3; ++i) free(t->scales[i]);
  free(t->o_block);
  free(t->lse_block);
}

static inline HostInputs trial_inputs(const Trial *t, const Mask *mask) {
  return (HostInputs){t->q, t->k, t->v, mask, t->scales[0], t->scales[1], t->scales[2]};
}

static inline HostOutputs trial_outputs(const Trial *t) {
  const Problem *p = &t->problem;
  const size_t rows = (size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len;
  const size_t count = rows * (size_t)p->head_dim;
  return (HostOutputs){.o = t->o,
                       .lse = t->lse,
                       .o_guard = {t->o_block, t->o_block + GUARD_BYTES + count * 2},
                       .lse_guard = {t->lse_block, t->lse_block + GUARD_BYTES + rows * 4},
                       .o_elements = count};
}

static inline uint16_t *trial_row(const Trial *t, int b, int h, int q) {
  return t->o + row_offset(&t->problem.o_strides, b, h, q);
}

static inline float *trial_lse(const Trial *t, int b, int h, int q) {
  return t->lse + ((int64_t)b * t->problem.q_heads + h) * t->problem.q_len + q;
}

/** A column that is read in place of column d; negative: 0. */
static inline int wrong_column(int kind, int d) {
  const int neighbours = d % 16 < 8 ? d : d - 6;
  return (int[]){d, d % 16 < 8 ? d : -1, d % 4 < 3 ? d : -1, d ^ 8, d % 16, neighbours}[kind];
}

static inline void load_row(Dtype dtype, const uint16_t *from, float scale, int dim, int columns,
                            float *to) {
  for (int d = 0; d < dim; ++d) {
    const int column = columns == 0 ? d : wrong_column(columns, d);
    to[d] = column < 0 ? 0 : scale * element_value(dtype, from[column]);
  }
}

/** Online softmax of one row (Milakov, Gimelshein 2018): running maximum m, running sum l. */
typedef struct OnlineRow {
  float q[LARGEST_DIM], o[LARGEST_DIM], m, l;
  bool keeps_m; /* as in Trial */
} OnlineRow;

static inline float dot(const float *a, const float *b, int dim) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

/** The largest sum of exp(s - m) that a lane of mma has, which holds 2 of every 8 keys. */
static inline float largest_sum(const float *s, int keys, float m) {
  float sums[4] = {0}, largest = 0;
  for (int j = 0; j < keys; ++j) {
    sums[j % 8 / 2] += expf(s[j] - m);
    largest = fmaxf(largest, sums[j % 8 / 2]);
  }
  return largest;
}

/** P rounded as the kernel does. */
static inline float round_prob(Dtype dtype, float prob, bool to_short) {
  const float factor = dtype == DTYPE_E4M3 ? E4M3_P_FACTOR : 1;
  int exponent;
  if (!to_short) return element_value(dtype, element_bits(dtype, prob * factor)) / factor;
  const float fraction = frexpf(prob, &exponent); /* 2 bits beside the leading one */
  return ldexpf(nearbyintf(fraction * 8) / 8, exponent);
}

/** The scale of tensor `index` in a key/value head, perhaps with an error. */
static inline float used_scale(const Trial *t, int index, int b, int head,
                               const Mistakes *mistakes) {
  return t->scales[index][b * t->problem.kv_heads + head] * (1 + mistakes->scales[index]);
}

/** One tile of `keys` keys; k and v point to its first rows. */
static inline void online_tile(const Problem *p, const uint16_t *k, const uint16_t *v,
                               float k_scale, float v_scale, int keys, int lost, bool round_p,
                               const Mistakes *mistakes, OnlineRow *row) {
  float s[BLOCK_N], x[LARGEST_DIM], m = row->m;
  for (int j = 0; j < keys; ++j) {
    load_row(p->dtype, k + j * p->k_strides.row, k_scale, p->head_dim,
             mistakes->columns_of_k ? mistakes->columns : 0, x);
    s[j] = j == lost ? -INFINITY : p->scale * dot(row->q, x, p->head_dim);
    m = fmaxf(m, s[j]);
  }
  const float most = p->dtype == DTYPE_E4M3 ? E4M3_LARGEST / E4M3_P_FACTOR : 512;
  if (row->keeps_m && row->m > -INFINITY && largest_sum(s, keys, row->m) <= most) m = row->m;
  const float shift = m == -INFINITY ? 0 : m; /* -inf - -inf would be NaN */
  const float correction = expf(row->m - shift);
  row->m = m;
  if (!mistakes->keeps_l) row->l *= correction;
  for (int d = 0; d < p->head_dim && !mistakes->keeps_o; ++d) row->o[d] *= correction;
  for (int j = 0; j < keys; ++j) {
    float prob = expf(s[j] - shift);
    if (prob < FLT_MIN) prob = 0; /* as ex2.approx.ftz does */
    row->l += prob;
    if (round_p) prob = round_prob(p->dtype, prob, mistakes->short_p);
    load_row(p->dtype, v + j * p->v_strides.row, v_scale, p->head_dim, 0, x);
    for (int d = 0; d < p->head_dim; ++d) row->o[d] += prob * x[d];
  }
}

static inline void simulate_row(Trial *t, int b, int h, int q, bool round_p,
                                const Mistakes *mistakes) {
  const Problem *p = &t->problem;
  OnlineRow row = {.m = -INFINITY, .keeps_m = t->keeps_m};
  load_row(p->dtype, t->q + row_offset(&p->q_strides, b, h, q),
           used_scale(t, 0, b, kv_head_of(p, h), mistakes), p->head_dim,
           mistakes->columns_of_k ? 0 : mistakes->columns, row.q);
  const int head = mistakes->wrong_kv_head ? h % p->kv_heads : kv_head_of(p, h);
  int64_t count = keys_of(p, q);
  if (mistakes->top_left) count = q + 1 < p->kv_len ? q + 1 : p->kv_len;
  if (mistakes->whole_tile && count > 0) {
    const int64_t whole = (count + BLOCK_N - 1) / BLOCK_N * BLOCK_N;
    count = whole < p->kv_len ? whole : p->kv_len;
  }
  for (int64_t first = 0; first < count; first += BLOCK_N) {
    const int keys = (int)(count - first < BLOCK_N ? count - first : BLOCK_N);
    const bool stale = mistakes->stale_v_tile && first / BLOCK_N == mistakes->stale_v_tile;
    const int64_t first_v = stale ? first - BLOCK_N : first;
    const int64_t lost = mistakes->lost_key_plus_1 - 1 - first;
    online_tile(p, t->k + row_offset(&p->k_strides, b, head, first),
                t->v + row_offset(&p->v_strides, b, head, first_v),
                used_scale(t, 1, b, head, mistakes), used_scale(t, 2, b, head, mistakes), keys,
                lost >= 0 && lost < keys ? (int)lost : -1, round_p, mistakes, &row);
  }
  if (mistakes->zero_tail) row.l += (float)((BLOCK_N - count % BLOCK_N) % BLOCK_N) * expf(-row.m);
  uint16_t *o = trial_row(t, b, h, q);
  const float divisor = mistakes->no_division ? 1 : row.l;
  for (int d = 0; d < p->head_dim; ++d) {
    o[d] = element_bits(p->o_dtype, row.l == 0 ? 0 : row.o[d] / divisor);
  }
  const float lse = row.l == 0 ? -INFINITY : row.m + logf(row.l);
  *trial_lse(t, b, h, q) = mistakes->log2_lse ? lse * 1.44269504f : lse;
}

static inline void simulate(Trial *t, bool round_p, const Mistakes *mistakes) {
  const Problem *p = &t->problem;
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      for (int q = 0; q < p->q_len; ++q) simulate_row(t, b, h, q, round_p, mistakes);
    }
  }
}

#endif
