#include "host/io/inputs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "float16.h"
#include "host/io/random.h"

/* Streams of the generator. Each tensor has one, and one for each further draw. */
enum {
  STREAM_Q,
  STREAM_K,
  STREAM_V,
  STREAM_OUTLIER_DRAW = 8,
  STREAM_OUTLIER = 16,
  STREAM_TARGET = 24
};

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

/** Row of K, counted through batch and heads, that a spiky query resembles: one that it attends. */
static int64_t target_row(const Problem *p, const Mask *mask, uint64_t seed, int64_t row,
                          KeySpan *spans) {
  const int64_t q = row % p->q_len;
  const int64_t head = row / p->q_len % p->q_heads;
  const int64_t batch = row / p->q_len / p->q_heads;
  const int count = mask_row(mask, (int)batch, (int)head, (int)q, spans);
  int64_t attended = 0;
  for (int i = 0; i < count; i++) attended += spans[i].end - spans[i].first;
  if (attended == 0) { /* any: it does not matter */
    spans[0] = (KeySpan){0, p->kv_len};
    attended = p->kv_len;
  }
  int64_t chosen = (int64_t)(random_bits(seed, STREAM_TARGET, row) % (uint64_t)attended);
  int i = 0;
  for (; chosen >= spans[i].end - spans[i].first; i++) chosen -= spans[i].end - spans[i].first;
  const int64_t kv_head = head / (p->q_heads / p->kv_heads);
  return (batch * p->kv_heads + kv_head) * p->kv_len + spans[i].first + chosen;
}

/** Element d of a row of a tensor; rows are counted through batch, head and length. `target` is the
 * row of K that a spiky query resembles. */
static double drawn_value(const Options *o, const Problem *p, int stream, int64_t row,
                          int64_t target, int d) {
  const uint64_t index = (uint64_t)(row * p->head_dim + d);
  switch (o->input) {
    case INPUT_OUTLIER:
      return outlier(o->seed, stream, index);
    case INPUT_CONSTANT:
      return 0.5;
    case INPUT_SPIKY:
      if (stream == STREAM_Q) {
        const uint64_t target_index = (uint64_t)(target * p->head_dim + d);
        return 4 * random_normal(o->seed, STREAM_K, target_index) +
               0.1 * random_normal(o->seed, stream, index);
      }
      return random_normal(o->seed, stream, index);
    default:
      return random_normal(o->seed, stream, index);
  }
}

/** Element `index` of a file in the problem's dtype, rounded once. */
static uint16_t file_value(const NpyArray *file, Dtype dtype, int64_t index) {
  switch (file->type) {
    case NPY_F8:
      return round_to(dtype, ((const double *)file->data)[index]);
    case NPY_F4:
      return round_to(dtype, ((const float *)file->data)[index]);
    case NPY_F2: {
      const uint16_t bits = ((const uint16_t *)file->data)[index];
      return dtype == DTYPE_FP16 ? bits : double_to_bf16_bits(half_bits_to_float(bits));
    }
    default: /* NPY_U2 holds the bits of bf16 */
      return ((const uint16_t *)file->data)[index];
  }
}

static void fill_row(const Options *o, const Problem *p, const Inputs *inputs, const Tensor *tensor,
                     int64_t row, int64_t target_key, uint16_t *target) {
  for (int d = 0; d < p->head_dim; d++) {
    target[d] = o->input == INPUT_DIRECTORY
                    ? file_value(&inputs->files[tensor->index], p->dtype, row * p->head_dim + d)
                    : round_to(p->dtype, drawn_value(o, p, tensor->index, row, target_key, d));
  }
}

/** Returns the number of NaN, or -1 if memory runs out. */
static int64_t fill_tensor(const Options *o, const Problem *p, const Mask *mask,
                           const Inputs *inputs, const Tensor *tensor) {
  const int64_t rows = (int64_t)p->batch * tensor->heads * tensor->length;
  const uint16_t infinity = p->dtype == DTYPE_FP16 ? 0x7c00 : 0x7f80;
  const bool resembles = o->input == INPUT_SPIKY && tensor->index == STREAM_Q;
  int64_t nan_count = 0;
  int failures = 0;
#pragma omp parallel reduction(+ : nan_count, failures)
  {
    KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(mask));
    failures += spans == NULL;
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      if (spans == NULL) continue;
      uint16_t *target = tensor->data +
                         row / tensor->length / tensor->heads * tensor->strides.batch +
                         row / tensor->length % tensor->heads * tensor->strides.head +
                         row % tensor->length * tensor->strides.row;
      const int64_t key = resembles ? target_row(p, mask, o->seed, row, spans) : 0;
      fill_row(o, p, inputs, tensor, row, key, target);
      for (int d = 0; d < p->head_dim; d++) nan_count += (target[d] & 0x7fff) > infinity;
    }
    free(spans);
  }
  return failures == 0 ? nan_count : -1;
}

bool inputs_fill(const Options *o, const Problem *p, const Mask *mask, Inputs *inputs,
                 Error *error) {
  const size_t q_bytes = (size_t)2 * p->batch * p->q_heads * p->q_len * p->head_dim;
  const size_t kv_bytes = (size_t)2 * p->batch * p->kv_heads * p->kv_len * p->head_dim;
  inputs->q = malloc(q_bytes);
  inputs->k = malloc(kv_bytes);
  inputs->v = malloc(kv_bytes);
  bool ok = inputs->q != NULL && inputs->k != NULL && inputs->v != NULL;
  Tensor tensors[3];
  describe_tensors(p, inputs, tensors);
  for (int i = 0; ok && i < 3; i++) {
    const int64_t nan_count = fill_tensor(o, p, mask, inputs, &tensors[i]);
    ok = nan_count >= 0;
    inputs->nan_count += nan_count;
    npy_free(&inputs->files[i]);
  }
  return ok || fail(error, EXIT_DEVICE, "out of host memory: the inputs take %zu bytes",
                    q_bytes + 2 * kv_bytes);
}

static bool open_file(const Options *o, int index, Inputs *inputs, Error *error) {
  char path[4096];
  NpyArray *file = &inputs->files[index];
  const int length = snprintf(path, sizeof path, "%s/%s", o->input_directory, FILE_NAMES[index]);
  if (length >= (int)sizeof path) {
    return fail(error, EXIT_USAGE, "--input: the path is longer than %zu bytes", sizeof path);
  }
  if (!npy_read(path, o->dtype == DTYPE_BF16 ? BF16_TYPES : FP16_TYPES, file, error)) return false;
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
  return true;
}

/** Dimension `i` of a file must equal that of another. */
static bool same_dimension(const Options *o, const Inputs *inputs, int file, int other, int i,
                           Error *error) {
  const int64_t found = inputs->files[file].shape[i];
  const int64_t expected = inputs->files[other].shape[i];
  if (found == expected) return true;
  return fail(error, EXIT_USAGE, "%s/%s: dimension %d is %lld, but %lld in %s", o->input_directory,
              FILE_NAMES[file], i, (long long)found, (long long)expected, FILE_NAMES[other]);
}

bool inputs_open(Options *o, Inputs *inputs, Error *error) {
  if (o->input != INPUT_DIRECTORY) return true;
  for (int i = 0; i < 3; i++) {
    if (!open_file(o, i, inputs, error)) return false;
  }
  const bool agree =
      same_dimension(o, inputs, 1, 0, 0, error) && same_dimension(o, inputs, 1, 0, 3, error) &&
      same_dimension(o, inputs, 2, 1, 0, error) && same_dimension(o, inputs, 2, 1, 1, error) &&
      same_dimension(o, inputs, 2, 1, 2, error) && same_dimension(o, inputs, 2, 1, 3, error);
  if (!agree) return false;
  const int64_t *q = inputs->files[0].shape;
  const int64_t *k = inputs->files[1].shape;
  if (q[1] % k[1] != 0) {
    return fail(error, EXIT_USAGE, "%s/k.npy: %lld heads, must divide the %lld of q.npy",
                o->input_directory, (long long)k[1], (long long)q[1]);
  }
  o->batch = (int)q[0];
  o->q_heads = (int)q[1];
  o->q_len = (int)q[2];
  o->head_dim = (int)q[3];
  o->kv_heads = (int)k[1];
  o->kv_len = (int)k[2];
  o->kv_heads_given = o->kv_len_given = true;
  return true;
}

void inputs_blame_files(const Options *o, Error *error) {
  static const struct {
    const char *option, *words;
    int file;
  } DIMENSIONS[] = {{"--batch ", "batch ", 0},       {"--heads ", "heads ", 0},
                    {"--seqlen ", "length ", 0},     {"--head-dim ", "head dimension ", 0},
                    {"--kv-heads ", "kv heads ", 1}, {"--seqlen-kv ", "kv length ", 1}};
  enum { COUNT = sizeof DIMENSIONS / sizeof DIMENSIONS[0] };
  char text[sizeof error->text] = "";
  int file = -1;
  for (const char *c = error->text; *c != '\0';) {
    int i = 0;
    while (i < COUNT && strncmp(c, DIMENSIONS[i].option, strlen(DIMENSIONS[i].option)) != 0) i++;
    const size_t used = strlen(text);
    if (i < COUNT) {
      snprintf(text + used, sizeof text - used, "%s", DIMENSIONS[i].words);
      if (file < 0) file = DIMENSIONS[i].file;
    } else {
      snprintf(text + used, sizeof text - used, "%c", *c);
    }
    c += i < COUNT ? strlen(DIMENSIONS[i].option) : 1;
  }
  if (file < 0) return;
  fail(error, error->code, "%.400s/%s: %.600s", o->input_directory, FILE_NAMES[file], text);
}

void inputs_free(Inputs *inputs) {
  free(inputs->q);
  free(inputs->k);
  free(inputs->v);
  for (int i = 0; i < 3; i++) npy_free(&inputs->files[i]);
  *inputs = (Inputs){0};
}
