#include "host/io/inputs.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/elements.h"
#include "host/io/random.h"

/* Streams of the random numbers: one for each tensor and draw. Tensor i has stream base + i. */
enum {
  STREAM_Q,
  STREAM_K,
  STREAM_V,
  STREAM_D_O,
  STREAM_OUTLIER_DRAW = 8,
  STREAM_OUTLIER = 16,
  STREAM_SINK = 32
};

/* By how much the score of a sink may exceed those of other keys, whose P are then 2^-16 of its P.
 * With more, e4m3 would round many of them to 0, whatever m is. */
static const double LARGEST_LEAD = 11;

static const char *const FILE_NAMES[INPUT_TENSORS] = {"q.npy", "k.npy", "v.npy", "do.npy", "o.npy"};

/* e4m3 times the largest scale; what is less than this is 0, as its scale would be subnormal. */
static const double LARGEST_SCALED = E4M3_LARGEST * (double)FLT_MAX;
static const double SMALLEST_SCALED = E4M3_LARGEST * (double)FLT_MIN;

enum { FLOATS = 1 << NPY_F2 | 1 << NPY_F4 | 1 << NPY_F8 };

static const NpyTypes FP16_TYPES = {FLOATS, "<f2, <f4 or <f8, or <u2 with --dtype bf16"};
static const NpyTypes BF16_TYPES = {FLOATS | 1 << NPY_U2, "<f2, <f4, <f8 or <u2 (bits of bf16)"};
static const NpyTypes E4M3_TYPES = {FLOATS | 1 << NPY_U2 | 1 << NPY_U1,
                                    "<f2, <f4, <f8, <u2 (bits of bf16) or |u1 (bits of e4m3)"};
static const NpyTypes SCALE_TYPES = {1 << NPY_F4, "<f4"};

/** One of the tensors while it is filled. */
typedef struct Tensor {
  uint16_t *data;
  int index; /* in Inputs::files; also the stream */
  int64_t heads, length;
  Strides strides;
  const NpyArray *file;
  const float *scales; /* NULL: none */
} Tensor;

static void describe_tensors(const Problem *p, const Inputs *inputs,
                             Tensor tensors[INPUT_TENSORS]) {
  tensors[0] =
      (Tensor){inputs->q, STREAM_Q, p->q_heads, p->q_len, p->q_strides, &inputs->files[0], NULL};
  tensors[1] =
      (Tensor){inputs->k, STREAM_K, p->kv_heads, p->kv_len, p->k_strides, &inputs->files[1], NULL};
  tensors[2] =
      (Tensor){inputs->v, STREAM_V, p->kv_heads, p->kv_len, p->v_strides, &inputs->files[2], NULL};
  for (int i = 3; i < INPUT_TENSORS; i++) {
    tensors[i] = (Tensor){i == 3 ? inputs->d_o : inputs->o,
                          i,
                          p->q_heads,
                          p->q_len,
                          p->o_strides,
                          &inputs->files[i],
                          NULL};
  }
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

/** The same in inputs with a sink: key 0, whose score is larger by up to LARGEST_LEAD, and V is 0.
 * Column 0 of Q and K alone makes it larger. */
static double sink_value(const Source *source, const Problem *p, int stream, int64_t row, int d) {
  const bool is_sink = row % p->kv_len == 0; /* of K and V */
  if (stream == STREAM_Q && d == 0) {
    return LARGEST_LEAD * random_uniform(source->seed, STREAM_SINK, (uint64_t)row);
  }
  if (stream == STREAM_K && (d == 0 || is_sink)) return d == 0 && is_sink ? sqrt(p->head_dim) : 0;
  if (stream == STREAM_V && is_sink) return 0;
  return random_normal(source->seed, stream, (uint64_t)(row * p->head_dim + d));
}

/** Element d of a row of a tensor; rows are numbered over batch, head and length. */
static double drawn_value(const Source *source, const Problem *p, int stream, int64_t row, int d) {
  const uint64_t seed = source->seed, index = (uint64_t)(row * p->head_dim + d);
  if (source->kind == INPUT_CONSTANT) return 0.5;
  if (source->kind == INPUT_OUTLIER) return outlier(seed, stream, index);
  if (source->kind == INPUT_SINK) return sink_value(source, p, stream, row, d);
  const double x = random_normal(seed, stream, index);
  if (source->kind != INPUT_SPIKY || stream != STREAM_Q) return x;
  const int64_t key = spiky_row(p, source->spiky_keys, row);
  return 4 * random_normal(seed, STREAM_K, (uint64_t)(key * p->head_dim + d)) + 0.1 * x;
}

/** Element `index` of a file of floating-point numbers. */
static double file_number(const NpyArray *file, int64_t index) {
  return file->type == NPY_F8   ? ((const double *)file->data)[index]
         : file->type == NPY_F4 ? ((const float *)file->data)[index]
         : file->type == NPY_U2 ? bf16_bits_to_float(((const uint16_t *)file->data)[index])
                                : half_bits_to_float(((const uint16_t *)file->data)[index]);
}

/** The same in the problem's 16-bit dtype, rounded once. */
static uint16_t file_value(const NpyArray *file, Dtype dtype, int64_t index) {
  const bool same = file->type == NPY_U2 || (file->type == NPY_F2 && dtype == DTYPE_FP16);
  return same ? ((const uint16_t *)file->data)[index]
              : element_bits(dtype, file_number(file, index));
}

/** True if a finite number of a file becomes infinite in the problem's dtype; in e4m3, which has no
 * infinity, if no scale in fp32 suffices. */
static bool overflows(const NpyArray *file, Dtype dtype, int64_t index) {
  if (file->type == NPY_U1) return false;
  if (dtype == DTYPE_E4M3) return fabs(file_number(file, index)) > LARGEST_SCALED;
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
      dtype == DTYPE_FP16   ? "fp16, 65504"
      : dtype == DTYPE_BF16 ? "bf16, 3.39e38"
                            : "e4m3 with a scale in fp32, 1.52e41",
      dtype == DTYPE_FP16 ? ", or use --dtype bf16" : "");
}

/** Rows of a tensor that share a scale. */
static int64_t rows_of_scale(const Problem *p, const Tensor *tensor) {
  return tensor->heads / p->kv_heads * tensor->length;
}

/** Element d of a row before it is rounded. */
static double number(const Source *source, const Problem *p, const Tensor *tensor, int64_t row,
                     int d) {
  return source->kind == INPUT_DIRECTORY ? file_number(tensor->file, row * p->head_dim + d)
                                         : drawn_value(source, p, tensor->index, row, d);
}

/** The same as bits of the problem's dtype, divided by the scale of the row if there is one. */
static uint16_t element(const Source *source, const Problem *p, const Tensor *tensor, int64_t row,
                        int d) {
  const bool file = source->kind == INPUT_DIRECTORY;
  const int64_t index = row * p->head_dim + d;
  if (file && tensor->file->type == NPY_U1) return ((const uint8_t *)tensor->file->data)[index];
  if (file && tensor->scales == NULL) return file_value(tensor->file, p->dtype, index);
  const double scale = tensor->scales == NULL ? 1 : tensor->scales[row / rows_of_scale(p, tensor)];
  return element_bits(p->dtype, number(source, p, tensor, row, d) / scale);
}

/** Chooses the scales of a tensor; NaN are ignored. */
static void find_scales(const Source *source, const Problem *p, const Tensor *tensor,
                        bool one_scale, float *scales) {
  const int64_t count = (int64_t)p->batch * p->kv_heads, rows = rows_of_scale(p, tensor);
  double most = 0;
#pragma omp parallel for reduction(max : most)
  for (int64_t i = 0; i < count; i++) {
    double largest = 0;
    for (int64_t row = i * rows; row < (i + 1) * rows; row++) {
      for (int d = 0; d < p->head_dim; d++) {
        largest = fmax(largest, fabs(number(source, p, tensor, row, d)));
      }
    }
    scales[i] = largest < SMALLEST_SCALED ? 1 : (float)(largest / E4M3_LARGEST);
    most = fmax(most, largest);
  }
  for (int64_t i = 0; one_scale && i < count; i++) {
    scales[i] = most < SMALLEST_SCALED ? 1 : (float)(most / E4M3_LARGEST);
  }
}

/** Fills a tensor. Returns the number of NaN. */
static int64_t fill_tensor(const Source *source, const Problem *p, const Tensor *tensor) {
  const int64_t rows = (int64_t)p->batch * tensor->heads * tensor->length;
  const uint16_t largest = p->dtype == DTYPE_FP16 ? 0x7c00 : p->dtype == DTYPE_BF16 ? 0x7f80 : 0x7e;
  const uint16_t magnitude = p->dtype == DTYPE_E4M3 ? 0x7f : 0x7fff;
  int64_t nan_count = 0;
#pragma omp parallel for reduction(+ : nan_count)
  for (int64_t row = 0; row < rows; row++) {
    uint16_t *target = tensor->data + row / tensor->length / tensor->heads * tensor->strides.batch +
                       row / tensor->length % tensor->heads * tensor->strides.head +
                       row % tensor->length * tensor->strides.row;
    for (int d = 0; d < p->head_dim; d++) {
      target[d] = element(source, p, tensor, row, d);
      nan_count += (target[d] & magnitude) > largest;
    }
  }
  return nan_count;
}

bool inputs_fill(const Problem *p, InputKind kind, uint64_t seed, const int32_t *spiky_keys,
                 bool one_scale, Inputs *inputs, Error *error) {
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
  if (step.backward != NULL && (inputs->d_o = malloc(q_bytes)) == NULL) {
    return fail(error, EXIT_DEVICE, "out of host memory: dO");
  }
  if (inputs->lse != NULL && (inputs->o = malloc(q_bytes)) == NULL) {
    return fail(error, EXIT_DEVICE, "out of host memory: O");
  }
  Tensor tensors[INPUT_TENSORS];
  describe_tensors(p, inputs, tensors);
  const size_t scales_bytes = sizeof(float) * (size_t)p->batch * (size_t)p->kv_heads;
  for (int i = 0; i < 3; i++) {
    if (p->dtype == DTYPE_E4M3 && inputs->scales[i] == NULL) {
      inputs->scales[i] = malloc(scales_bytes);
      if (inputs->scales[i] == NULL) return fail(error, EXIT_DEVICE, "out of host memory: scales");
      find_scales(&source, p, &tensors[i], one_scale, inputs->scales[i]);
    }
    tensors[i].scales = inputs->scales[i];
    inputs->nan_count += fill_tensor(&source, p, &tensors[i]);
    npy_free(&inputs->files[i]);
  }
  for (int i = 3; i < INPUT_TENSORS; i++) {
    if (tensors[i].data != NULL) inputs->nan_count += fill_tensor(&source, p, &tensors[i]);
    npy_free(&inputs->files[i]);
  }
  return true;
}

static bool open_file(const char *directory, Dtype dtype, int index, Inputs *inputs, Error *error) {
  static const NpyTypes *const types[] = {&FP16_TYPES, &BF16_TYPES, &E4M3_TYPES};
  char path[4096];
  NpyArray *file = &inputs->files[index];
  const int length = snprintf(path, sizeof path, "%s/%s", directory, FILE_NAMES[index]);
  if (length >= (int)sizeof path) {
    return fail(error, EXIT_USAGE, "--input: the path is longer than %zu bytes", sizeof path);
  }
  if (!npy_read(path, *types[dtype], file, error)) return false;
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

/** Reads the scales of a file with bits of e4m3; nothing for another file. */
static bool open_scales(const char *directory, int index, Inputs *inputs, Error *error) {
  char path[4200];
  NpyArray file;
  const int64_t batch = inputs->files[1].shape[0], kv_heads = inputs->files[1].shape[1];
  if (inputs->files[index].type != NPY_U1) return true;
  snprintf(path, sizeof path, "%s/%c_scales.npy", directory, FILE_NAMES[index][0]);
  if (!npy_read(path, SCALE_TYPES, &file, error)) return false;
  inputs->scales[index] = file.data;
  if (file.rank != 2 || file.shape[0] != batch || file.shape[1] != kv_heads) {
    return fail(error, EXIT_USAGE,
                "%s: must be [B, Hkv], one scale for each key/value head: [%lld, %lld]", path,
                (long long)batch, (long long)kv_heads);
  }
  for (int64_t i = 0; i < batch * kv_heads; i++) {
    const float scale = inputs->scales[index][i];
    if (scale >= FLT_MIN && scale <= FLT_MAX) continue;
    return fail(error, EXIT_USAGE,
                "%s: element [%lld, %lld] is %g, must be from 1.18e-38 to 3.4e38", path,
                (long long)(i / kv_heads), (long long)(i % kv_heads), (double)scale);
  }
  return true;
}

/** True if a file is in the directory. */
static bool has_file(const char *directory, const char *name) {
  char path[4200];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return access(path, F_OK) == 0;
}

/** Checks that a tensor of a backward step has the shape of Q. */
static bool open_like_q(const char *directory, Dtype dtype, int index, Inputs *inputs,
                        Error *error) {
  if (!open_file(directory, dtype, index, inputs, error)) return false;
  for (int i = 0; i < 4; i++) {
    if (!same_dimension(directory, inputs, index, 0, i, error)) return false;
  }
  return true;
}

/** Opens do.npy, and o.npy and lse.npy if they are there. */
static bool open_backward(const char *directory, Dtype dtype, Inputs *inputs, Error *error) {
  const bool has_o = has_file(directory, "o.npy"), has_lse = has_file(directory, "lse.npy");
  char path[4200];
  NpyArray file;
  if (!open_like_q(directory, dtype, 3, inputs, error)) return false;
  if (has_o != has_lse) {
    return fail(error, EXIT_USAGE, "%s: has %s but no %s; must have both or neither", directory,
                has_o ? "o.npy" : "lse.npy", has_o ? "lse.npy" : "o.npy");
  }
  if (!has_o) return true;
  if (!open_like_q(directory, dtype, 4, inputs, error)) return false;
  snprintf(path, sizeof path, "%s/lse.npy", directory);
  if (!npy_read(path, SCALE_TYPES, &file, error)) return false;
  inputs->lse = file.data;
  const int64_t *q = inputs->files[0].shape;
  return (file.rank == 3 && file.shape[0] == q[0] && file.shape[1] == q[1] &&
          file.shape[2] == q[2]) ||
         fail(error, EXIT_USAGE, "%s: must be [B, H, N] as q.npy: [%lld, %lld, %lld]", path,
              (long long)q[0], (long long)q[1], (long long)q[2]);
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
  for (int i = 0; i < 3; i++) {
    if (!open_scales(directory, i, inputs, error)) return false;
  }
  if (step.backward != NULL && !open_backward(directory, dtype, inputs, error)) return false;
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
  free(inputs->d_o);
  free(inputs->o);
  free(inputs->lse);
  for (int i = 0; i < INPUT_TENSORS; i++) npy_free(&inputs->files[i]);
  for (int i = 0; i < 3; i++) free(inputs->scales[i]);
  *inputs = (Inputs){0};
}
