/** @file Opens the files of --input DIR, and checks that they fit each other. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "decode.h"
#include "host/io/input_files.h"
#include "host/io/inputs.h"

static const char *const FILE_NAMES[INPUT_TENSORS] = {"q.npy", "k.npy", "v.npy", "do.npy", "o.npy"};

/* e4m3 times the largest scale. */
static const double LARGEST_SCALED = E4M3_LARGEST * (double)FLT_MAX;

enum { FLOATS = 1 << NPY_F2 | 1 << NPY_F4 | 1 << NPY_F8 };

static const NpyTypes FP16_TYPES = {FLOATS, "<f2, <f4 or <f8, or <u2 with --dtype bf16"};
static const NpyTypes BF16_TYPES = {FLOATS | 1 << NPY_U2, "<f2, <f4, <f8 or <u2 (bits of bf16)"};
static const NpyTypes E4M3_TYPES = {FLOATS | 1 << NPY_U2 | 1 << NPY_U1,
                                    "<f2, <f4, <f8, <u2 (bits of bf16) or |u1 (bits of e4m3)"};
/* Of K and V, where a step takes e4m3 and 16 bits. */
static const NpyTypes FP16_OR_E4M3_TYPES = {
    FLOATS, "<f2, <f4 or <f8, <u2 with --dtype bf16, or |u1 with --kv-dtype e4m3"};
static const NpyTypes BF16_OR_E4M3_TYPES = {
    FLOATS | 1 << NPY_U2, "<f2, <f4, <f8, <u2 (bits of bf16), or |u1 with --kv-dtype e4m3"};
static const NpyTypes SCALE_TYPES = {1 << NPY_F4, "<f4"};

/** True if a finite number of a file becomes infinite in the problem's dtype; in e4m3, which has no
 * infinity, if no scale in fp32 suffices. */
static bool overflows(const NpyArray *file, Dtype dtype, int64_t index) {
  if (file->type == NPY_U1) return false;
  if (dtype == DTYPE_E4M3) return fabs(file_number(file, index)) > LARGEST_SCALED;
  return file->type != NPY_U2 && isfinite(file_number(file, index)) &&
         (file_value(file, dtype, index) & 0x7fff) == (dtype == DTYPE_FP16 ? 0x7c00 : 0x7f80);
}

/** False for an element of K or V that no sequence of a decode step has. */
static bool is_read(const Cache *cache, const int64_t n[4], int64_t index) {
  const int64_t row = index / n[3], block = row / n[2] / n[1];
  return cache->page_table != NULL ? row / n[2] % n[1] < cache->page_rows[block]
         : cache->lengths != NULL  ? row % n[2] < cache->lengths[block]
                                   : true;
}

/** Refuses a file with a number that the dtype cannot hold; names the first one. */
static bool check_range(const char *path, const NpyArray *file, Dtype dtype, const Cache *cache,
                        Error *error) {
  const int64_t *n = file->shape, count = n[0] * n[1] * n[2] * n[3];
  int64_t first = count;
#pragma omp parallel for reduction(min : first)
  for (int64_t i = 0; i < count; i++) {
    if (i < first && overflows(file, dtype, i) && is_read(cache, n, i)) first = i;
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

/** The lengths of a decode step's K and V say later which of their numbers matter. */
static bool open_file(const char *directory, Dtype dtype, int index, Inputs *inputs, Error *error) {
  static const NpyTypes *const types[][3] = {
      {&FP16_TYPES, &BF16_TYPES, &E4M3_TYPES},
      {&FP16_OR_E4M3_TYPES, &BF16_OR_E4M3_TYPES, &E4M3_TYPES},
  };
  const bool or_e4m3 = index > 0 && (step.caches & CACHE_E4M3);
  char path[4096];
  NpyArray *file = &inputs->files[index];
  const int length = snprintf(path, sizeof path, "%s/%s", directory, FILE_NAMES[index]);
  if (length >= (int)sizeof path) {
    return fail(error, EXIT_USAGE, "--input: the path is longer than %zu bytes", sizeof path);
  }
  if (!npy_read(path, *types[or_e4m3][dtype], file, error)) return false;
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
  return (step.decode != NULL && index > 0) ||
         check_range(path, file, dtype, &inputs->cache, error);
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
static bool open_scales(const char *directory, const Problem *problem, int index, Inputs *inputs,
                        Error *error) {
  char path[4200];
  NpyArray file;
  const int64_t batch = inputs->files[0].shape[0], kv_heads = problem->kv_heads;
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

/** Opens lengths.npy and, if it is there, page_table.npy, beside K and V of a decode step. */
static bool open_cache(const char *directory, Problem *p, Inputs *inputs, Error *error) {
  char path[4200];
  const int64_t *k = inputs->files[1].shape;
  const bool pages = p->page_size > 0;
  snprintf(path, sizeof path, "%s/lengths.npy", directory);
  if (!cache_read_lengths(path, p->batch, pages ? 1 << 30 : p->kv_len, &inputs->cache, error)) {
    return false;
  }
  if (pages) {
    p->kv_len = cache_longest(&inputs->cache, p->batch);
    snprintf(path, sizeof path, "%s/page_table.npy", directory);
    if (!cache_read_pages(path, p, (int)k[0], &inputs->cache, error)) return false;
  }
  for (int i = 1; i < 3; i++) {
    snprintf(path, sizeof path, "%s/%s", directory, FILE_NAMES[i]);
    if (!check_range(path, &inputs->files[i], cache_dtype(p), &inputs->cache, error)) return false;
  }
  return true;
}

/** Checks that q.npy, k.npy and v.npy fit each other; with pages, K and V have no batch. */
static bool check_shapes(const char *directory, bool pages, const Inputs *inputs, Error *error) {
  if (step.decode != NULL && !pages && inputs->files[1].shape[0] != inputs->files[0].shape[0]) {
    return fail(error, EXIT_USAGE,
                "%s/k.npy: dimension 0 is %lld, but %lld in q.npy; pages need page_table.npy",
                directory, (long long)inputs->files[1].shape[0],
                (long long)inputs->files[0].shape[0]);
  }
  for (int i = 0; i < 4; i++) {
    const bool shared = (i == 0 && !pages) || i == 3; /* K and V agree in all */
    if ((shared && !same_dimension(directory, inputs, 1, 0, i, error)) ||
        !same_dimension(directory, inputs, 2, 1, i, error)) {
      return false;
    }
  }
  const int64_t q_heads = inputs->files[0].shape[1], *k = inputs->files[1].shape;
  if (pages && !is_page_size(k[1])) {
    return fail(
        error, EXIT_USAGE,
        "%s/k.npy: pages of %lld keys, must be 16, 32, 64, 128 or 256 beside page_table.npy",
        directory, (long long)k[1]);
  }
  return q_heads % k[1 + pages] == 0 ||
         fail(error, EXIT_USAGE, "%s/k.npy: %lld heads, must divide the %lld of q.npy", directory,
              (long long)k[1 + pages], (long long)q_heads);
}

bool inputs_open(const char *directory, Problem *problem, Inputs *inputs, Error *error) {
  const bool pages = step.decode != NULL && has_file(directory, "page_table.npy");
  for (int i = 0; i < 3; i++) {
    const Dtype dtype = i == 0 ? problem->dtype : cache_dtype(problem);
    if (!open_file(directory, dtype, i, inputs, error)) return false;
  }
  if (!check_shapes(directory, pages, inputs, error)) return false;
  const int64_t *q = inputs->files[0].shape;
  const int64_t *k = inputs->files[1].shape;
  problem->batch = (int)q[0];
  problem->q_heads = (int)q[1];
  problem->q_len = (int)q[2];
  problem->head_dim = (int)q[3];
  problem->kv_heads = (int)k[1 + pages];
  problem->kv_len = (int)k[2];
  problem->page_size = pages ? (int)k[1] : 0;
  for (int i = 0; i < 3; i++) {
    if (!open_scales(directory, problem, i, inputs, error)) return false;
  }
  return (step.decode == NULL || open_cache(directory, problem, inputs, error)) &&
         (step.backward == NULL || open_backward(directory, problem->dtype, inputs, error));
}
