#include "host/io/inputs.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "decode.h"
#include "host/io/input_files.h"
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

/* What is less than this is 0 in e4m3, as its scale would be subnormal. */
static const double SMALLEST_SCALED = E4M3_LARGEST * (double)FLT_MIN;

/** One of the tensors while it is filled. */
typedef struct Tensor {
  uint16_t *data;
  int index; /* in Inputs::files; also the stream */
  int64_t heads, length;
  Strides strides;
  const NpyArray *file;
  Dtype dtype;
  const float *scales; /* NULL: none */
  const Cache *cache;  /* of K and V of a decode step; else NULL */
} Tensor;

static void describe_tensors(const Problem *problem, const Inputs *inputs,
                             Tensor tensors[INPUT_TENSORS]) {
  const Problem host = without_pages(problem), *p = &host;
  const Cache *cache = inputs->cache.lengths != NULL ? &inputs->cache : NULL;
  tensors[0] = (Tensor){inputs->q,    STREAM_Q,          p->q_heads, p->q_len,
                        p->q_strides, &inputs->files[0], p->dtype};
  tensors[1] = (Tensor){inputs->k,         STREAM_K,       p->kv_heads, p->kv_len, p->k_strides,
                        &inputs->files[1], cache_dtype(p), NULL,        cache};
  tensors[2] = (Tensor){inputs->v,         STREAM_V,       p->kv_heads, p->kv_len, p->v_strides,
                        &inputs->files[2], cache_dtype(p), NULL,        cache};
  for (int i = 3; i < INPUT_TENSORS; i++) {
    tensors[i] = (Tensor){i == 3 ? inputs->d_o : inputs->o,
                          i,
                          p->q_heads,
                          p->q_len,
                          p->o_strides,
                          &inputs->files[i],
                          p->dtype};
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

/** Rows of a tensor that share a scale. */
static int64_t rows_of_scale(const Problem *p, const Tensor *tensor) {
  return tensor->heads / p->kv_heads * tensor->length;
}

/** The number of a row's first element in the file, whose rows are numbered likewise, or in pages.
 */
static int64_t first_in_file(const Problem *p, const Tensor *tensor, int64_t row) {
  const int head = (int)(row / tensor->length % tensor->heads);
  return tensor->cache == NULL || p->page_size == 0
             ? row * p->head_dim
             : cache_offset(p, tensor->cache, &p->k_strides,
                            (int)(row / tensor->length / tensor->heads), head,
                            (int)(row % tensor->length));
}

/** True for a row past the length of its sequence. */
static bool is_past(const Tensor *tensor, int64_t row) {
  return tensor->cache != NULL &&
         row % tensor->length >= tensor->cache->lengths[row / tensor->length / tensor->heads];
}

/** Element d of a row before it is rounded. */
static double number(const Source *source, const Problem *p, const Tensor *tensor, int64_t row,
                     int d) {
  return source->kind == INPUT_DIRECTORY
             ? file_number(tensor->file, first_in_file(p, tensor, row) + d)
             : drawn_value(source, p, tensor->index, row, d);
}

/** The same as bits of the tensor's dtype, divided by the scale of the row if there is one. */
static uint16_t element(const Source *source, const Problem *p, const Tensor *tensor, int64_t row,
                        int d) {
  const bool file = source->kind == INPUT_DIRECTORY;
  const int64_t index = file ? first_in_file(p, tensor, row) + d : 0;
  if (file && tensor->file->type == NPY_U1) return ((const uint8_t *)tensor->file->data)[index];
  if (file && tensor->scales == NULL) return file_value(tensor->file, tensor->dtype, index);
  const double scale = tensor->scales == NULL ? 1 : tensor->scales[row / rows_of_scale(p, tensor)];
  return element_bits(tensor->dtype, number(source, p, tensor, row, d) / scale);
}

/** Chooses the scales of a tensor; NaN are ignored. Sequences that read pages of a file may have
 * the same page, whose numbers are divided by one scale, so there they have the same scales. */
static void find_scales(const Source *source, const Problem *p, const Tensor *tensor,
                        bool one_scale, float *scales) {
  const int64_t count = (int64_t)p->batch * p->kv_heads, rows = rows_of_scale(p, tensor);
  const bool shared = source->kind == INPUT_DIRECTORY && p->page_size > 0;
  const int64_t different = one_scale ? 1 : shared ? p->kv_heads : count;
  for (int64_t i = 0; i < different; i++) { /* heads i, i + different, ... have one scale */
    double largest = 0;
#pragma omp parallel for reduction(max : largest)
    for (int64_t j = 0; j < count / different * rows; j++) {
      const int64_t row = (i + j / rows * different) * rows + j % rows;
      if (is_past(tensor, row)) continue;
      for (int d = 0; d < p->head_dim; d++) {
        largest = fmax(largest, fabs(number(source, p, tensor, row, d)));
      }
    }
    const float scale = largest < SMALLEST_SCALED ? 1 : (float)(largest / E4M3_LARGEST);
    for (int64_t j = i; j < count; j += different) scales[j] = scale;
  }
}

/** Fills a tensor. Returns the number of NaN. */
static int64_t fill_tensor(const Source *source, const Problem *p, const Tensor *tensor) {
  const int64_t rows = (int64_t)p->batch * tensor->heads * tensor->length;
  const Dtype dtype = tensor->dtype;
  const uint16_t largest = dtype == DTYPE_FP16 ? 0x7c00 : dtype == DTYPE_BF16 ? 0x7f80 : 0x7e;
  const uint16_t magnitude = dtype == DTYPE_E4M3 ? 0x7f : 0x7fff;
  int64_t nan_count = 0;
#pragma omp parallel for reduction(+ : nan_count)
  for (int64_t row = 0; row < rows; row++) {
    uint16_t *target = tensor->data + row / tensor->length / tensor->heads * tensor->strides.batch +
                       row / tensor->length % tensor->heads * tensor->strides.head +
                       row % tensor->length * tensor->strides.row;
    const bool past = is_past(tensor, row);
    for (int d = 0; d < p->head_dim; d++) {
      target[d] = past ? 0 : element(source, p, tensor, row, d);
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
    if (tensors[i].dtype == DTYPE_E4M3 && inputs->scales[i] == NULL) {
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

void inputs_free(Inputs *inputs) {
  free(inputs->q);
  free(inputs->k);
  free(inputs->v);
  free(inputs->d_o);
  free(inputs->o);
  free(inputs->lse);
  for (int i = 0; i < INPUT_TENSORS; i++) npy_free(&inputs->files[i]);
  for (int i = 0; i < 3; i++) free(inputs->scales[i]);
  cache_free(&inputs->cache);
  *inputs = (Inputs){0};
}
