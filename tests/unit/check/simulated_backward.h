/** @file A small backward kernel on the CPU for the tests of the checker, right or with a chosen
 * mistake: fp32, with P and dS rounded to 16 bits or not. O and LSE are of an exact forward pass.
 */
#ifndef SIMULATED_BACKWARD_H
#define SIMULATED_BACKWARD_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/gradient_check.h"
#include "host/io/random.h"
#include "host/masks/mask.h"

enum { TILE = 32 };

/** What the kernel does wrong; all zero for a right kernel. Tiles are counted from 1. */
typedef struct Mistakes {
  bool no_d, plus_d, no_p, no_lse, ds_for_p, all_keys, top_left;
  double dq_factor, dk_factor, dv_factor; /* 0: 1 */
  int dk_away;                            /* rows that dK is stored too far */
  int stale_k_in_s, stale_v_in_dp;        /* of this tile of keys: it is that of the tile before */
  int stale_k_in_dq, stale_q_in_dk, stale_do_in_dv; /* likewise, of keys or queries */
  int lost_query_tile;                              /* of dK and dV */
  bool last_head_alone;                             /* dK and dV are overwritten, not summed up */
} Mistakes;

typedef struct Trial {
  Problem p;
  uint16_t *q, *k, *v, *o, *d_o;
  float *lse;
  bool rounded_p;             /* as Step::rounded_p */
  uint8_t *blocks[GRADIENTS]; /* with guards */
  size_t bytes[GRADIENTS];
} Trial;

static inline double value_at(const Trial *t, const uint16_t *x, const Strides *s, int b, int h,
                              int64_t row, int d) {
  return (double)element_value(t->p.dtype, x[row_offset(s, b, h, row) + d]);
}

static inline double *doubles(size_t count) {
  double *x = calloc(count, sizeof *x);
  if (x == NULL) abort();
  return x;
}

/* s = scale q . k and dp = dO . v, of rows that may be those of other tiles. */
static inline double dot_rows(const Trial *t, bool of_v, int b, int h, int64_t q, int64_t key) {
  const Problem *p = &t->p;
  const int kv = kv_head_of(p, h);
  double sum = 0;
  for (int d = 0; d < p->head_dim; ++d) {
    sum += value_at(t, of_v ? t->d_o : t->q, of_v ? &p->o_strides : &p->q_strides, b, h, q, d) *
           value_at(t, of_v ? t->v : t->k, of_v ? &p->v_strides : &p->k_strides, b, kv, key, d);
  }
  return sum;
}

/* The mask is full or causal. */
static inline bool attends_key(const Problem *p, int64_t q, int64_t key) {
  return attends(p, &(HostBackwardInputs){0}, 0, 0, q, key);
}

/* O and LSE of all rows, exact but for the last rounding. */
static inline void solve_forward(Trial *t) {
  const Problem *p = &t->p;
  double *s = doubles((size_t)p->kv_len);
  for (int i = 0; i < p->batch * p->q_heads * p->q_len; ++i) {
    const int q = i % p->q_len, h = i / p->q_len % p->q_heads, b = i / p->q_len / p->q_heads;
    double max = -INFINITY, sum = 0;
    for (int key = 0; key < p->kv_len; ++key) {
      s[key] = attends_key(p, q, key) ? p->scale * dot_rows(t, false, b, h, q, key) : -INFINITY;
      max = fmax(max, s[key]);
    }
    for (int key = 0; key < p->kv_len; ++key) sum += max > -INFINITY ? exp(s[key] - max) : 0;
    t->lse[i] = (float)(max + log(sum));
    for (int d = 0; d < p->head_dim; ++d) {
      double o = 0;
      for (int key = 0; sum > 0 && key < p->kv_len; ++key) {
        o +=
            exp(s[key] - max) / sum * value_at(t, t->v, &p->v_strides, b, kv_head_of(p, h), key, d);
      }
      t->o[row_offset(&p->o_strides, b, h, q) + d] = element_bits(p->dtype, o);
    }
  }
  free(s);
}

static inline uint16_t *draw_tensor(const Problem *p, uint64_t seed, uint32_t tensor, size_t count,
                                    double outliers) {
  uint16_t *x = malloc(count * sizeof *x);
  for (size_t i = 0; i < count; ++i) {
    const double rare = random_uniform(seed, tensor + 8, i) < outliers ? 10 : 1;
    x[i] = element_bits(p->dtype, rare * random_normal(seed, tensor, i));
  }
  return x;
}

static inline Trial new_trial(const Problem *p, uint64_t seed, double outliers) {
  Trial t = {.p = *p};
  const size_t q_count = gradient_elements(p, GRADIENT_Q);
  const size_t kv_count = gradient_elements(p, GRADIENT_K);
  t.q = draw_tensor(p, seed, 0, q_count, outliers);
  t.k = draw_tensor(p, seed, 1, kv_count, outliers);
  t.v = draw_tensor(p, seed, 2, kv_count, outliers);
  t.d_o = draw_tensor(p, seed, 3, q_count, outliers);
  t.o = calloc(q_count, sizeof *t.o);
  t.lse = calloc(q_count, sizeof *t.lse);
  for (int g = 0; g < GRADIENTS; ++g) {
    t.bytes[g] = 2 * gradient_elements(p, g);
    t.blocks[g] = malloc(t.bytes[g] + 2 * GUARD_BYTES);
    for (size_t i = 0; i < t.bytes[g] + 2 * GUARD_BYTES; ++i) {
      t.blocks[g][i] = (uint8_t)(OUTPUT_POISON >> i % 2 * 8);
    }
  }
  solve_forward(&t);
  return t;
}

static inline void free_trial(Trial *t) {
  free(t->q);
  free(t->k);
  free(t->v);
  free(t->o);
  free(t->d_o);
  free(t->lse);
  for (int g = 0; g < GRADIENTS; ++g) free(t->blocks[g]);
  *t = (Trial){0};
}

static inline uint16_t *gradient_of(Trial *t, Gradient g) {
  return (uint16_t *)(void *)(t->blocks[g] + GUARD_BYTES);
}

static inline double round_16(const Problem *p, bool rounds, double x) {
  const float x32 = (float)x;
  return rounds ? (double)element_value(p->dtype, element_bits(p->dtype, x32)) : (double)x32;
}

/* The row that takes the place of `row` if its tile is stale. */
static inline int64_t stale(int64_t row, int tile_plus_1) {
  return tile_plus_1 > 1 && row / TILE == tile_plus_1 - 1 ? row - TILE : row;
}

static inline void store_gradient(Trial *t, Gradient g, const double *sums, double factor,
                                  int away) {
  const Problem *p = &t->p;
  const bool keys = g != GRADIENT_Q;
  const int heads = keys ? p->kv_heads : p->q_heads, rows = keys ? p->kv_len : p->q_len;
  const Strides *strides = g == GRADIENT_Q   ? &p->q_strides
                           : g == GRADIENT_K ? &p->k_strides
                                             : &p->v_strides;
  for (int i = 0; i < p->batch * heads * rows; ++i) {
    const int row = i % rows, from = (row + rows - away) % rows;
    for (int d = 0; d < p->head_dim; ++d) {
      gradient_of(t, g)[row_offset(strides, i / rows / heads, i / rows % heads, row) + d] =
          element_bits(p->dtype, factor * sums[(i - row + from) * p->head_dim + d]);
    }
  }
}

/** Computes dQ, dK and dV; `rounds`: as a tensor-core kernel does. */
static inline void simulate(Trial *t, bool rounds, const Mistakes *m) {
  const Problem *p = &t->p;
  const int dim = p->head_dim, group = p->q_heads / p->kv_heads;
  double *dq = doubles(gradient_elements(p, GRADIENT_Q));
  double *dk = doubles(gradient_elements(p, GRADIENT_K)), *dv = doubles(gradient_elements(p, 1));
  for (int i = 0; i < p->batch * p->q_heads * p->q_len; ++i) {
    const int q = i % p->q_len, h = i / p->q_len % p->q_heads, b = i / p->q_len / p->q_heads;
    const int kv = kv_head_of(p, h);
    double row_dot = 0;
    for (int d = 0; d < dim; ++d) {
      row_dot += value_at(t, t->d_o, &p->o_strides, b, h, q, d) *
                 value_at(t, t->o, &p->o_strides, b, h, q, d);
    }
    for (int64_t key = 0; key < p->kv_len; ++key) {
      const bool unmasked = m->all_keys || (m->top_left ? key <= q : attends_key(p, q, key));
      if (!unmasked) continue;
      const double s = p->scale * dot_rows(t, false, b, h, q, stale(key, m->stale_k_in_s));
      const double dp = dot_rows(t, true, b, h, q, stale(key, m->stale_v_in_dp));
      const double prob = exp((float)s - (m->no_lse ? 0 : (double)t->lse[i]));
      const double d_part = m->no_d ? 0 : m->plus_d ? -row_dot : row_dot;
      const double larger = p->dtype == DTYPE_FP16 ? 2048 : 1; /* few are subnormal then */
      const double of_ds =
          m->no_p ? 1 : round_16(p, rounds && t->rounded_p, prob * larger) / larger;
      const double exact = of_ds * ((double)(float)dp - (double)(float)d_part);
      const double ds = round_16(p, rounds, exact), p_16 = round_16(p, rounds, prob);
      const bool of_keys = (!m->last_head_alone || h % group == group - 1) &&
                           (m->lost_query_tile == 0 || q / TILE != m->lost_query_tile - 1);
      for (int d = 0; d < dim; ++d) {
        const int64_t at = ((b * p->kv_heads + kv) * (int64_t)p->kv_len + key) * dim + d;
        dq[(int64_t)i * dim + d] +=
            ds * value_at(t, t->k, &p->k_strides, b, kv, stale(key, m->stale_k_in_dq), d);
        if (!of_keys) continue;
        dk[at] += ds * value_at(t, t->q, &p->q_strides, b, h, stale(q, m->stale_q_in_dk), d);
        dv[at] += (m->ds_for_p ? ds : p_16) *
                  value_at(t, t->d_o, &p->o_strides, b, h, stale(q, m->stale_do_in_dv), d);
      }
    }
  }
  store_gradient(t, GRADIENT_Q, dq, (double)p->scale * (m->dq_factor != 0 ? m->dq_factor : 1), 0);
  store_gradient(t, GRADIENT_K, dk, (double)p->scale * (m->dk_factor != 0 ? m->dk_factor : 1),
                 m->dk_away);
  store_gradient(t, GRADIENT_V, dv, m->dv_factor != 0 ? m->dv_factor : 1, 0);
  free(dq);
  free(dk);
  free(dv);
}

#endif
