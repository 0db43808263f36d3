#define _POSIX_C_SOURCE 200809L
#include "host/io/outputs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "float16.h"
#include "host/io/npy.h"

/** O in [B, H, N, D] order, whatever its layout: 16-bit patterns for fp16, floats for bf16. */
static void gather(const Problem *p, const uint16_t *o, void *target) {
  const int64_t rows = (int64_t)p->batch * p->q_heads * p->q_len;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; row++) {
    const uint16_t *source = o + row / p->q_len / p->q_heads * p->o_strides.batch +
                             row / p->q_len % p->q_heads * p->o_strides.head +
                             row % p->q_len * p->o_strides.row;
    if (p->dtype == DTYPE_FP16) {
      memcpy((uint16_t *)target + row * p->head_dim, source, 2 * (size_t)p->head_dim);
    } else {
      float *floats = (float *)target + row * p->head_dim;
      for (int d = 0; d < p->head_dim; d++) floats[d] = bf16_bits_to_float(source[d]);
    }
  }
}

bool outputs_directory_create(const char *option, const char *directory, bool *created,
                              Error *error) {
  const char *const right = "must be a directory that can be written, or one that can be created";
  struct stat status;
  *created = mkdir(directory, 0777) == 0;
  if (*created) return true;
  if (errno != EEXIST) {
    const int cause = errno;
    return fail(error, cause == ENOSPC ? EXIT_DEVICE : EXIT_USAGE,
                "%s %s: cannot create it: %s; %s", option, directory, strerror(cause), right);
  }
  if (stat(directory, &status) == 0 && !S_ISDIR(status.st_mode)) {
    return fail(error, EXIT_USAGE, "%s %s: is no directory; %s", option, directory, right);
  }
  if (access(directory, W_OK | X_OK) != 0) {
    return fail(error, EXIT_USAGE, "%s %s: cannot write into it: %s; %s", option, directory,
                strerror(errno), right);
  }
  return true;
}

static bool file_path(const char *directory, const char *name, char path[PATH_MAX], Error *error) {
  if (snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX) return true;
  return fail(error, EXIT_DEVICE, "--output: the path is longer than %d bytes", PATH_MAX);
}

static bool draft_lse(const Problem *p, const float *lse, const char *directory, NpyDraft *draft,
                      Error *error) {
  char path[PATH_MAX];
  const int64_t shape[3] = {p->batch, p->q_heads, p->q_len};
  return file_path(directory, "lse.npy", path, error) &&
         npy_draft(path, NPY_F4, 3, shape, lse, draft, error);
}

static bool draft_o(const Problem *p, const uint16_t *o, const char *directory, NpyDraft *draft,
                    Error *error) {
  char path[PATH_MAX];
  const int64_t shape[4] = {p->batch, p->q_heads, p->q_len, p->head_dim};
  const NpyType type = p->dtype == DTYPE_FP16 ? NPY_F2 : NPY_F4;
  if (!file_path(directory, "o.npy", path, error)) return false;
  void *ordered =
      malloc((size_t)p->batch * p->q_heads * p->q_len * p->head_dim * npy_type_bytes(type));
  if (ordered == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", path);
  gather(p, o, ordered);
  const bool ok = npy_draft(path, type, 4, shape, ordered, draft, error);
  free(ordered);
  return ok;
}

bool outputs_write(const Problem *p, const uint16_t *o, const float *lse, const char *directory,
                   Error *error) {
  NpyDraft lse_file = {0}, o_file = {0};
  const bool drafted =
      draft_lse(p, lse, directory, &lse_file, error) && draft_o(p, o, directory, &o_file, error);
  const bool ok = drafted && npy_publish(&lse_file, error) && npy_publish(&o_file, error);
  npy_discard(&lse_file);
  npy_discard(&o_file);
  return ok;
}
