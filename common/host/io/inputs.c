#include "host/io/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "float16.h"
#include "host/io/random.h"

/* Streams of the random numbers: one for each tensor and draw. Tensor i has stream base + i. */
enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_OUTLIER_DRAW = 8, STREAM_OUTLIER = 16 };

static const char *const FILE_NAMES[3] = {"q.npy", "k.npy", "v.npy"};

enum { FLOATS = 1 << NPY_F2 | 1 << NPY_F4 | 1 << NPY_F8 };

static const NpyTypes FP16_TYPES = {FLOATS, "<f2, <f4 or <f8, or <u2 with --dtype bf16"};
static const NpyTypes BF16_TYPES = {FLOATS | 1 << NPY_U2, "<f2, <f4, <f8 or <u2 (bits of bf16)"};

/** One of the three tensors while it is filled. */
typedef struct Tensor {
  uint16_t *data;
  int index; /* 0, 1, 2 for Q, K, V; also the stream */
  int64_t heads, length;
  Strides strides;
} Tensor;

static void describe_tensors(const Problem *p, const Inputs *inputs, Tensor tensors[3]) {
  tensors[0] = (Tensor){inputs->q, STREAM_Q, p->q_heads, p->q_len, p->q_strides};
  tensors[1] = (Tensor){inputs->k, STREAM_K, p->kv_heads, p->kv_len, p->k_strides};
  tensors[2] = (Tensor){inputs->v, STREAM_V, p->kv_heads, p->kv_len, p->v_strides};
}

static uint16_t round_to(Dtype dtype, double x) {
  return dtype == DTYPE_FP16 ? double_to_half_bits(x) : double_to_bf16_bits(x);
}

static double outlier(uint64_t seed, int stream, uint64_t index) {
  const double x = random_normal(seed, stream, index);
  if (random_uniform(seed, STREAM_OUTLIER_DRAW + stream, index) >= 0.001) return x;
  return x + 10 * random_normal(seed, STREAM_OUTLIER + stream, index);
}

/** What a tensor is filled with. */
typedef struct Source {
  InputKind kind;
  uint64_t seed;
  const int32_t *spiky_keys;
} Source;

/** Row of K, numbered over batch and heads, that a row of Q resembles in spiky inputs. */
static int64_t spiky_row(const Problem *p, const int32_t *spiky_keys, int64_t row) {
  const int64_t head = row / p->q_len % p->q_heads, batch = row / p->q_len / p->q_heads;
  const int64_t kv_head = head / (p->q_heads / p->kv_heads);
  return (batch * p->kv_heads + kv_head) * p->kv_len + spiky_keys[row];
}

/** Element d of a row of a tensor; rows are numbered over batch, head and length. */
static double drawn_value(const Source *source, const Problem *p, int stream, int64_t row, int d) {
  const uint64_t seed = source->seed, index = (uint64_t)(row * p->head_dim + d);
  if (source->kind == INPUT_CONSTANT) return 0.5;
  if (source->kind == INPUT_OUTLIER) return outlier(seed, stream, index);
  const double x = random_normal(seed, stream, index);
  if (source->kind != INPUT_SPIKY || stream != STREAM_Q) return x;
  const int64_t key = spiky_row(p, source->spiky_keys, row);
  return 4 * random_normal(seed, STREAM_K, (uint64_t)(key * p->head_dim + d)) + 0.1 * x;
}

/** Element `index` of a file of floating-point numbers. */
static double file_number(const NpyArray *file, int64_t index) {
  return file->type == NPY_F8   ? ((const double *)file->data)[index]
         : file->type == NPY_F4 ? ((const float *)file->data)[index]
                                : half_bits_to_float(((const uint16_t *)file->data)[index]);
}

/** The same in the problem's dtype, rounded once. */
static uint16_t file_value(const NpyArray *file, Dtype dtype, int64_t index) {
  const bool same = file->type == NPY_U2 || (file->type == NPY_F2 && dtype == DTYPE_FP16);
  return same ? ((const uint16_t *)file->data)[index] : round_to(dtype, file_number(file, index));
}

/** True if a finite number of a file becomes infinite in the problem's dtype. */
static bool overflows(const NpyArray *file, Dtype dtype, int64_t index) {
  return file->type != NPY_U2 && isfinite(file_number(file, index)) &&
         (file_value(file, dtype, index) & 0x7fff) == (dtype == DTYPE_FP16 ? 0x7c00 : 0x7f80);
}

/** Refuses a file with a number that the dtype cannot hold; names the first one. */
static bool check_range(const char *path, const NpyArray *file, Dtype dtype, Error *error) {
  const int64_t *n = file->shape, count = n[0] * n[1] * n[2] * n[3];
  int64_t first = count;
#pragma omp parallel for reduction(min : first)
  for (int64_t i = 0; i < count; i++) {
    if (i < first && overflows(file, dtype, i)) first = i;
  }
  if (first == count) return true;
  return fail(
      error, EXIT_USAGE,
      "%s: element [%lld, %lld, %lld, %lld] is %g, beyond the largest %s; scale the tensor%s", path,
      (long long)(first / n[3] / n[2] / n[1]), (long long)(first / n[3] / n[2] % n[1]),
      (long long)(first / n[3] % n[2]), (long long)(first % n[3]), file_number(file, first),
      dtype == DTYPE_FP16 ? "fp16, 65504" : "bf16, 3.39e38",
      dtype == DTYPE_FP16 ? ", or use --dtype bf16" : "");
}

/** Fills a tensor. Returns the number of NaN. */
static int64_t fill_tensor(const Source *source, const Problem *p, const NpyArray *file,
                           const Tensor *tensor) {
  const int64_t rows = (int64_t)p->batch * tensor->heads * tensor->length;
  const uint16_t infinity = p->dtype == DTYPE_FP16 ? 0x7c00 : 0x7f80;
  int64_t nan_count = 0;
#pragma omp parallel for reduction(+ : nan_count)
  for (int64_t row = 0; row < rows; row++) {
    uint16_t *target = tensor->data + row / tensor->length / tensor->heads * tensor->strides.batch +
                       row / tensor->length % tensor->heads * tensor->strides.head +
                       row % tensor->length * tensor->strides.row;
    for (int d = 0; d < p->head_dim; d++) {
      target[d] = source->kind == INPUT_DIRECTORY
                      ? file_value(file, p->dtype, row * p->head_dim + d)
                      : round_to(p->dtype, drawn_value(source, p, tensor->index, row, d));
      nan_count += (target[d] & 0x7fff) > infinity;
    }
  }
  return nan_count;
}

bool inputs_fill(const Problem *p, InputKind kind, uint64_t seed, const int32_t *spiky_keys,
                 Inputs *inputs, Error *error) {
  const Source source = {kind, seed, spiky_keys};
  const size_t q_bytes = (size_t)2 * p->batch * p->q_heads * p->q_len * p->head_dim;
  const size_t kv_bytes = (size_t)2 * p->batch * p->kv_heads * p->kv_len * p->head_dim;
  inputs->q = malloc(q_bytes);
  inputs->k = malloc(kv_bytes);
  inputs->v = malloc(kv_bytes);
  if (inputs->q == NULL || inputs->k == NULL || inputs->v == NULL) {
    return fail(error, EXIT_DEVICE, "out of host memory: the inputs take %zu bytes",
                q_bytes + 2 * kv_bytes);
  }
  Tensor tensors[3];
  describe_tensors(p, inputs, tensors);
  for (int i = 0; i < 3; i++) {
    inputs->nan_count += fill_tensor(&source, p, &inputs->files[i], &tensors[i]);
    npy_free(&inputs->files[i]);
  }
  return true;
}

static bool open_file(const char *directory, Dtype dtype, int index, Inputs *inputs, Error *error) {
  char path[4096];
  NpyArray *file = &inputs->files[index];
  const int length = snprintf(path, sizeof path, "%s/%s", directory, FILE_NAMES[index]);
  if (length >= (int)sizeof path) {
    return fail(error, EXIT_USAGE, "--input: the path is longer than %zu bytes", sizeof path);
  }
  if (!npy_read(path, dtype == DTYPE_BF16 ? BF16_TYPES : FP16_TYPES, file, error)) return false;
  if (file->rank != 4) {
    return fail(error, EXIT_USAGE, "%s: has %d dimensions, must have 4: [B, H, N, D]", path,
                file->rank);
  }
  for (int i = 0; i < 4; i++) {
    if (file->shape[i] < 1 || file->shape[i] > 1 << 30) {
      return fail(error, EXIT_USAGE, "%s: dimension %d is %lld, must be from 1 to 2^30", path, i,
                  (long long)file->shape[i]);
    }
  }
  return check_range(path, file, dtype, error);
}

/** Checks that dimension `i` of a file equals that of another. */
static bool same_dimension(const char *directory, const Inputs *inputs, int file, int other, int i,
                           Error *error) {
  const int64_t found = inputs->files[file].shape[i];
  const int64_t expected = inputs->files[other].shape[i];
  if (found == expected) return true;
  return fail(error, EXIT_USAGE, "%s/%s: dimension %d is %lld, but %lld in %s", directory,
              FILE_NAMES[file], i, (long long)found, (long long)expected, FILE_NAMES[other]);
}

bool inputs_open(const char *directory, Dtype dtype, Problem *problem, Inputs *inputs,
                 Error *error) {
  for (int i = 0; i < 3; i++) {
    if (!open_file(directory, dtype, i, inputs, error)) return false;
  }
  for (int i = 0; i < 4; i++) {
    const bool shared = i == 0 || i == 3; /* batch and head dimension; K and V agree in all */
    if ((shared && !same_dimension(directory, inputs, 1, 0, i, error)) ||
        !same_dimension(directory, inputs, 2, 1, i, error)) {
      return false;
    }
  }
  const int64_t *q = inputs->files[0].shape;
  const int64_t *k = inputs->files[1].shape;
  if (q[1] % k[1] != 0) {
    return fail(error, EXIT_USAGE, "%s/k.npy: %lld heads, must divide the %lld of q.npy", directory,
                (long long)k[1], (long long)q[1]);
  }
  problem->batch = (int)q[0];
  problem->q_heads = (int)q[1];
  problem->q_len = (int)q[2];
  problem->head_dim = (int)q[3];
  problem->kv_heads = (int)k[1];
  problem->kv_len = (int)k[2];
  return true;
}

void inputs_free(Inputs *inputs) {
  free(inputs->q);
  free(inputs->k);
  free(inputs->v);
  for (int i = 0; i < 3; i++) npy_free(&inputs->files[i]);
  *inputs = (Inputs){0};
}
