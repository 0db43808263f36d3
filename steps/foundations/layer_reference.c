#include "layer_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "float16.h"
#include "foundation.h"

enum { SAMPLED_ROWS = 24, MOST_PARTS = 3, MOST_INPUTS = 4 };
static const double MOST_WORK = 5e9; /* operations of a layer that is computed as a whole */

/** One of the two computations: the tensors that it has so far. */
typedef struct Chain {
  bool rounds;
  double *tensors[LAYER_TENSORS];
} Chain;

static Chain ref, base = {.rounds = true};

/** What each tensor is computed from. */
static const int INPUTS[LAYER_TENSORS][MOST_INPUTS] = {
    [LAYER_QKV] = {LAYER_X, LAYER_W_QKV},
    [LAYER_LSE] = {LAYER_QKV, LAYER_QKV},
    [LAYER_O] = {LAYER_QKV, LAYER_QKV},
    [LAYER_Y] = {LAYER_O, LAYER_W_O},
    [LAYER_D_O] = {LAYER_D_Y, LAYER_W_O},
    [LAYER_D_W_O] = {LAYER_O, LAYER_D_Y},
    [LAYER_D_QKV] = {LAYER_QKV, LAYER_LSE, LAYER_O, LAYER_D_O},
    [LAYER_D_X] = {LAYER_D_QKV, LAYER_W_QKV},
    [LAYER_D_W_QKV] = {LAYER_X, LAYER_D_QKV},
};

static int channels(const Layer *l) {
  return l->heads * l->head_dim;
}

static double scale(const Layer *l) {
  return 1 / sqrt(l->head_dim);
}

static int64_t tokens(const Layer *l) {
  return (int64_t)l->sequences * l->n;
}

static bool is_weight(LayerTensor t) {
  return t == LAYER_W_QKV || t == LAYER_W_O || t == LAYER_D_W_QKV || t == LAYER_D_W_O;
}

static bool is_fp32(LayerTensor t) {
  return t == LAYER_LSE || t == LAYER_D_W_QKV || t == LAYER_D_W_O;
}

static int64_t rows_of(const Layer *l, LayerTensor t) {
  return is_weight(t) ? channels(l) : tokens(l);
}

static int columns_of(const Layer *l, LayerTensor t) {
  const bool has_three =
      t == LAYER_QKV || t == LAYER_D_QKV || t == LAYER_W_QKV || t == LAYER_D_W_QKV;
  return t == LAYER_LSE ? l->heads : has_three ? layer_qkv_width(l) : channels(l);
}

static double *new_tensor(const Layer *l, LayerTensor t) {
  return foundation_allocate(sizeof(double) * (size_t)rows_of(l, t) * (size_t)columns_of(l, t));
}

/** The tensor as the device has it; LSE, which is [batch, heads, n] there, has a row for a token.
 */
static double *download(const Layer *l, LayerTensor t) {
  const int64_t columns = columns_of(l, t), count = rows_of(l, t) * columns;
  const size_t bytes = (size_t)count * (is_fp32(t) ? sizeof(float) : sizeof(uint16_t));
  void *raw = foundation_allocate(bytes);
  double *values = new_tensor(l, t);
  CHECK(cudaMemcpy(raw, l->at[t], bytes, cudaMemcpyDeviceToHost));
#pragma omp parallel for
  for (int64_t i = 0; i < count; i++) {
    const int64_t token = i / columns, head = i % columns;
    const int64_t from = t != LAYER_LSE ? i : (token / l->n * columns + head) * l->n + token % l->n;
    values[i] = is_fp32(t) ? (double)((const float *)raw)[from]
                           : (double)half_bits_to_float(((const uint16_t *)raw)[from]);
  }
  free(raw);
  return values;
}

/* --- A row of each tensor --- */

static double to_half(double x) {
  return (double)half_bits_to_float(double_to_half_bits(x));
}

static double dot(const double *x, const double *y, int count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; i++) sum += x[i] * y[i];
  return sum;
}

/** sums += factor * x */
static void add(double *sums, double factor, const double *x, int count) {
#pragma omp simd
  for (int i = 0; i < count; i++) sums[i] += factor * x[i];
}

/** A row of A B: of A elements a[k * a_step]; B is k_size x columns. */
static void row_times(double *row, const double *a, int64_t a_step, const double *b, int64_t k_size,
                      int columns) {
  for (int64_t k = 0; k < k_size; k++) add(row, a[k * a_step], b + k * columns, columns);
}

/** A row of A B^T: B is columns x k_size. */
static void row_times_transposed(double *row, const double *a, const double *b, int k_size,
                                 int columns) {
  for (int column = 0; column < columns; column++) {
    row[column] = dot(a, b + (int64_t)column * k_size, k_size);
  }
}

/** Head `head` of a token in QKV or dQKV: of all heads, first those of Q, then of K, then of V. */
static double *head_of(const Layer *l, const double *qkv, int64_t token, int head) {
  return (double *)qkv + token * layer_qkv_width(l) + head * l->head_dim;
}

/** The key/value head of a query head, as a head of QKV: of its K, and behind all K of its V. */
static int key_head(const Layer *l, int head) {
  return l->heads + head / (l->heads / l->kv_heads);
}

/** A row of O for a query head, and its LSE. */
static double attend(const Layer *l, const Chain *c, int64_t token, int head, double *o) {
  const int64_t first = token - token % l->n;
  const double *qkv = c->tensors[LAYER_QKV], *q = head_of(l, qkv, token, head);
  const int d = l->head_dim, k_head = key_head(l, head);
  double *scores = foundation_allocate(sizeof(double) * (size_t)l->n);
  double max = -INFINITY, sum = 0;
  for (int64_t key = first; key <= token; key++) {
    scores[key - first] = scale(l) * dot(q, head_of(l, qkv, key, k_head), d);
    max = fmax(max, scores[key - first]);
  }
  memset(o, 0, sizeof(double) * (size_t)d);
  for (int64_t key = first; key <= token; key++) {
    const double p = exp(scores[key - first] - max);
    sum += p;
    add(o, c->rounds ? to_half(p) : p, head_of(l, qkv, key, k_head + l->kv_heads), d);
  }
  for (int i = 0; i < d; i++) o[i] /= sum;
  free(scores);
  return max + log(sum);
}

/** P and scale * dS of a query and a key that it attends to. */
typedef struct Entry {
  double p, ds;
} Entry;

static Entry entry(const Layer *l, const Chain *c, int64_t query, int64_t key, int head) {
  const int d = l->head_dim, k_head = key_head(l, head);
  const double *qkv = c->tensors[LAYER_QKV], *v = head_of(l, qkv, key, k_head + l->kv_heads);
  const int64_t row = query * channels(l) + head * d;
  const double *o = c->tensors[LAYER_O] + row, *d_o = c->tensors[LAYER_D_O] + row;
  const double lse = c->tensors[LAYER_LSE][query * l->heads + head];
  const double s = scale(l) * dot(head_of(l, qkv, query, head), head_of(l, qkv, key, k_head), d);
  const double p = exp(s - lse);
  double difference = dot(d_o, v, d) - dot(d_o, o, d);
  if (!c->rounds) return (Entry){p, scale(l) * p * difference};
  /* It is the difference of two sums in fp32, so its error does not get smaller with it. */
  const double error = 0x1p-22 * sqrt(dot(d_o, d_o, d)) * (sqrt(dot(v, v, d)) + sqrt(dot(o, o, d)));
  difference += (query + key) % 2 ? error : -error;
  const double rounded = l->rounded_p ? to_half(p * 0x1p11) * 0x1p-11 : to_half(p);
  return (Entry){rounded, scale(l) * to_half((l->rounded_p ? rounded : p) * difference)};
}

/** A row of dQKV: what a token's Q, K and V get from the tokens that it sees, and that see it. */
static void attend_backward(const Layer *l, const Chain *c, int64_t token, double *row) {
  const int d = l->head_dim;
  const int64_t first = token - token % l->n, end = first + l->n;
  const double *qkv = c->tensors[LAYER_QKV], *d_o = c->tensors[LAYER_D_O];
  for (int head = 0; head < l->heads; head++) {
    const int k_head = key_head(l, head), v_head = k_head + l->kv_heads;
    for (int64_t key = first; key <= token; key++) {
      add(row + head * d, entry(l, c, token, key, head).ds, head_of(l, qkv, key, k_head), d);
    }
    for (int64_t query = token; query < end; query++) {
      const Entry e = entry(l, c, query, token, head);
      add(row + k_head * d, e.ds, head_of(l, qkv, query, head), d);
      add(row + v_head * d, e.p, d_o + query * channels(l) + head * d, d);
    }
  }
}

/** Computes a row, which must be all 0, from the inputs that the chain has. */
static void compute_row(const Layer *l, const Chain *c, LayerTensor t, int64_t row, double *out) {
  const int columns = columns_of(l, t), width = channels(l), qkv_width = layer_qkv_width(l);
  const double *first = c->tensors[INPUTS[t][0]], *second = c->tensors[INPUTS[t][1]];
  double o[MAX_HEAD_DIM];
  switch (t) {
    case LAYER_QKV:
    case LAYER_Y:
      row_times(out, first + row * width, 1, second, width, columns);
      break;
    case LAYER_D_W_O:
    case LAYER_D_W_QKV:
      row_times(out, first + row, width, second, tokens(l), columns);
      break;
    case LAYER_D_O:
      row_times_transposed(out, first + row * width, second, width, columns);
      break;
    case LAYER_D_X:
      row_times_transposed(out, first + row * qkv_width, second, qkv_width, columns);
      break;
    case LAYER_LSE:
      for (int head = 0; head < l->heads; head++) out[head] = attend(l, c, row, head, o);
      break;
    case LAYER_O:
      for (int head = 0; head < l->heads; head++) attend(l, c, row, head, out + head * l->head_dim);
      break;
    default:
      attend_backward(l, c, row, out);
  }
  for (int i = 0; c->rounds && t != LAYER_LSE && i < columns; i++) {
    out[i] = is_fp32(t) ? (double)(float)out[i] : to_half(out[i]);
  }
}

/* --- The comparison --- */

static bool is_sampled(const Layer *l) {
  const double products = 6.0 * channels(l) * (layer_qkv_width(l) + channels(l));
  return (double)tokens(l) * (products + 30.0 * l->n * channels(l)) > MOST_WORK;
}

/** Gives a chain a tensor: from the device if it is an input, or if the layer is large. */
static void provide(const Layer *l, Chain *c, LayerTensor t) {
  if (c->tensors[t] != NULL) return;
  if (t <= LAYER_D_Y || is_sampled(l)) {
    ref.tensors[t] = base.tensors[t] = download(l, t);
    return;
  }
  for (int i = 0; i < MOST_INPUTS; i++) provide(l, c, INPUTS[t][i]);
  const int64_t rows = rows_of(l, t), columns = columns_of(l, t);
  double *values = new_tensor(l, t);
#pragma omp parallel for schedule(dynamic)
  for (int64_t row = 0; row < rows; row++) compute_row(l, c, t, row, values + row * columns);
  c->tensors[t] = values;
}

/** Row i of the compared ones: all, or the first, the last, and random ones between them. */
static int64_t compared_row(int64_t i, int64_t compared, int64_t rows) {
  if (compared == rows || i == 0) return i;
  if (i == compared - 1) return rows - 1;
  return (int64_t)((double)(i + foundation_float(1, (uint64_t)i)) * (double)rows /
                   (double)compared);
}

/** Lengths of a part of a tensor, over all compared rows: those of Q, K and V are apart. */
typedef struct Lengths {
  double error, base, ref; /* squared */
} Lengths;

static const char *const NAMES[LAYER_TENSORS][MOST_PARTS] = {
    [LAYER_QKV] = {"Q", "K", "V"},
    [LAYER_LSE] = {"LSE"},
    [LAYER_O] = {"O"},
    [LAYER_Y] = {"Y"},
    [LAYER_D_O] = {"dO"},
    [LAYER_D_W_O] = {"dWo"},
    [LAYER_D_QKV] = {"dQ", "dK", "dV"},
    [LAYER_D_X] = {"dX"},
    [LAYER_D_W_QKV] = {"dWq", "dWk", "dWv"},
};

static void compare_row(const Layer *l, LayerTensor t, const double *is, const double *exact,
                        const double *rounded, Lengths *parts) {
  const int q = channels(l), kv = l->kv_heads * l->head_dim;
  for (int i = 0; i < columns_of(l, t); i++) {
    Lengths *part = &parts[i < q ? 0 : (i - q) / kv + 1];
    part->error += (is[i] - exact[i]) * (is[i] - exact[i]);
    part->base += (rounded[i] - exact[i]) * (rounded[i] - exact[i]);
    part->ref += exact[i] * exact[i];
  }
}

/** Compares rows of what the device has with both computations. */
static void compare(const Layer *l, LayerTensor t, const double *is, int64_t compared,
                    Lengths *parts) {
  const int64_t rows = rows_of(l, t), columns = columns_of(l, t);
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < compared; i++) {
    const int64_t row = compared_row(i, compared, rows), at = row * columns;
    double *own = foundation_allocate(2 * sizeof(double) * (size_t)columns);
    const double *exact = own, *rounded = own + columns;
    if (is_sampled(l)) {
      compute_row(l, &ref, t, row, own);
      compute_row(l, &base, t, row, own + columns);
    } else {
      exact = ref.tensors[t] + at, rounded = base.tensors[t] + at;
    }
#pragma omp critical
    compare_row(l, t, is + at, exact, rounded, parts);
    free(own);
  }
}

/** What sums in fp32 may add to the error of a part. A tensor core cuts a sum off after every 16
 * terms, by up to 2^-23 of it. LSE has the limit that it has in the steps. */
static double allowed_in_fp32(const Layer *l, LayerTensor t, double count, double length) {
  if (t == LAYER_LSE) return 1e-4 * sqrt(count) + 1e-5 * length;
  const double terms = t == LAYER_D_W_O || t == LAYER_D_W_QKV ? (double)tokens(l)
                       : t == LAYER_O || t == LAYER_D_QKV     ? (double)l->n
                                                              : (double)layer_qkv_width(l);
  return terms / 16 * 0x1p-23 * length;
}

bool layer_is_right(const Layer *l, LayerTensor t, char note[200]) {
  const int64_t rows = rows_of(l, t), columns = columns_of(l, t);
  const int64_t compared = is_sampled(l) && rows > SAMPLED_ROWS ? SAMPLED_ROWS : rows;
  Lengths parts[MOST_PARTS] = {0};
  bool right = true;
  for (int i = 0; i < MOST_INPUTS; i++) {
    provide(l, &ref, INPUTS[t][i]);
    provide(l, &base, INPUTS[t][i]);
  }
  if (!is_sampled(l)) provide(l, &ref, t), provide(l, &base, t);
  double *is = download(l, t);
  compare(l, t, is, compared, parts);
  for (int64_t i = 0; right && i < rows * columns; i++) {
    if (!isnan(is[i])) continue;
    snprintf(note, 200, "%s: row %lld has a NaN, or was never written", NAMES[t][0],
             (long long)(i / columns));
    right = false;
  }
  for (int i = 0; right && i < MOST_PARTS && NAMES[t][i] != NULL; i++) {
    const double length = sqrt(parts[i].ref), error = sqrt(parts[i].error);
    const double allowed =
        2 * sqrt(parts[i].base) + allowed_in_fp32(l, t, (double)(compared * columns), length);
    right = error <= allowed;
    if (!right) {
      snprintf(note, 200, "%s is wrong by %.2g of its size, %.2g is allowed", NAMES[t][i],
               error / length, allowed / length);
    } else if (compared < rows) {
      snprintf(note, 200, "%lld of %lld rows", (long long)compared, (long long)rows);
    }
  }
  free(is);
  return right;
}
