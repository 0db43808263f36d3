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

static bool download(uint8_t **block, const uint8_t *source, size_t bytes, const char *what,
                     Error *error) {
  *block = malloc(bytes);
  if (*block == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", what);
  return device_ok(cudaMemcpy(*block, source, bytes, cudaMemcpyDeviceToHost), what, error);
}

bool outputs_download(const DeviceTensors *t, Outputs *outputs, Error *error) {
  if (!download(&outputs->o_block, t->o_block, t->o_bytes + 2 * GUARD_BYTES, "O", error) ||
      !download(&outputs->lse_block, t->lse_block, t->lse_bytes + 2 * GUARD_BYTES, "LSE", error)) {
    return false;
  }
  const void *o = outputs->o_block + GUARD_BYTES;
  const void *lse = outputs->lse_block + GUARD_BYTES;
  outputs->view = (HostOutputs){
      .o = o,
      .lse = lse,
      .o_guard = {outputs->o_block, outputs->o_block + GUARD_BYTES + t->o_bytes},
      .lse_guard = {outputs->lse_block, outputs->lse_block + GUARD_BYTES + t->lse_bytes},
      .o_elements = t->o_bytes / 2,
  };
  return true;
}

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

static bool draft_lse(const Problem *p, const Outputs *outputs, const char *directory,
                      NpyDraft *draft, Error *error) {
  char path[PATH_MAX];
  const int64_t shape[3] = {p->batch, p->q_heads, p->q_len};
  return file_path(directory, "lse.npy", path, error) &&
         npy_draft(path, NPY_F4, 3, shape, outputs->view.lse, draft, error);
}

static bool draft_o(const Problem *p, const Outputs *outputs, const char *directory,
                    NpyDraft *draft, Error *error) {
  char path[PATH_MAX];
  const int64_t shape[4] = {p->batch, p->q_heads, p->q_len, p->head_dim};
  const NpyType type = p->dtype == DTYPE_FP16 ? NPY_F2 : NPY_F4;
  if (!file_path(directory, "o.npy", path, error)) return false;
  void *ordered = malloc(outputs->view.o_elements * npy_type_bytes(type));
  if (ordered == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", path);
  gather(p, outputs->view.o, ordered);
  const bool ok = npy_draft(path, type, 4, shape, ordered, draft, error);
  free(ordered);
  return ok;
}

bool outputs_write(const Problem *p, const Outputs *outputs, const char *directory, Error *error) {
  NpyDraft lse = {0}, o = {0};
  const bool drafted =
      draft_lse(p, outputs, directory, &lse, error) && draft_o(p, outputs, directory, &o, error);
  const bool ok = drafted && npy_publish(&lse, error) && npy_publish(&o, error);
  npy_discard(&lse);
  npy_discard(&o);
  return ok;
}

void outputs_free(Outputs *outputs) {
  free(outputs->o_block);
  free(outputs->lse_block);
  *outputs = (Outputs){0};
}
