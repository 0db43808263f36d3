#include "host/io/outputs.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "float16.h"
#include "host/io/npy.h"

/** Copies a tensor to `target` in [B, H, N, D] order: 16-bit patterns for fp16, floats for bf16. */
static void gather(Dtype dtype, const int64_t shape[4], const Strides *strides,
                   const uint16_t *source, void *target) {
  const int64_t heads = shape[1], length = shape[2], dim = shape[3];
#pragma omp parallel for
  for (int64_t row = 0; row < shape[0] * heads * length; row++) {
    const uint16_t *from = source + row / length / heads * strides->batch +
                           row / length % heads * strides->head + row % length * strides->row;
    if (dtype == DTYPE_FP16) {
      memcpy((uint16_t *)target + row * dim, from, 2 * (size_t)dim);
    } else {
      float *floats = (float *)target + row * dim;
      for (int d = 0; d < dim; d++) floats[d] = bf16_bits_to_float(from[d]);
    }
  }
}

/* Those of --output and --save-mask, in the order of their creation; one may be in the other. */
static const char *created[2];
static volatile sig_atomic_t created_count;

void outputs_remove_empty(void) {
  while (created_count > 0) rmdir(created[--created_count]); /* fails unless it is empty */
}

static void end_by_signal(int signal_number) {
  outputs_remove_empty();
  raise(signal_number); /* blocked until this returns; its action is the default again */
}

/** Remembers a directory to be removed. Signals that the caller ignores stay ignored. */
static void remember(const char *directory) {
  static const int SIGNALS[] = {SIGINT, SIGTERM, SIGHUP};
  const struct sigaction action = {.sa_handler = end_by_signal,
                                   .sa_flags = SA_RESETHAND | SA_ONSTACK};
  created[created_count] = directory;
  created_count++;
  for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
    struct sigaction previous;
    if (sigaction(SIGNALS[i], NULL, &previous) == 0 && previous.sa_handler != SIG_IGN) {
      sigaction(SIGNALS[i], &action, NULL);
    }
  }
}

bool outputs_directory_create(const char *option, const char *directory, Error *error) {
  struct stat status;
  if (directory == NULL) return true;
  if (mkdir(directory, 0777) == 0) return remember(directory), true;
  int cause = errno;
  if (cause == EEXIST) {
    const bool is_directory = stat(directory, &status) == 0 && S_ISDIR(status.st_mode);
    cause = !is_directory ? ENOTDIR : access(directory, W_OK | X_OK) == 0 ? 0 : errno;
  }
  return cause == 0 || fail(error, cause == ENOSPC ? EXIT_DEVICE : EXIT_USAGE,
                            "%s %s: %s; must be a directory that can be written or created", option,
                            directory, strerror(cause));
}

/** A tensor as a file, in memory that the caller frees; NULL data if there is none. */
static NpyFile make_file(const char *name, Dtype dtype, const int64_t shape[4],
                         const Strides *strides, const uint16_t *source) {
  const bool half = dtype == DTYPE_FP16;
  const size_t elements = (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
  void *ordered = malloc(elements * (half ? sizeof(uint16_t) : sizeof(float)));
  if (ordered != NULL) gather(dtype, shape, strides, source, ordered);
  return (NpyFile){name, half ? NPY_F2 : NPY_F4, 4, shape, ordered};
}

bool outputs_write(const Problem *p, const uint16_t *o, const float *lse, const char *directory,
                   Error *error) {
  const int64_t shape[4] = {p->batch, p->q_heads, p->q_len, p->head_dim};
  const NpyFile files[] = {make_file("o.npy", p->o_dtype, shape, &p->o_strides, o),
                           {"lse.npy", NPY_F4, 3, shape, lse}};
  const bool ok = files[0].data != NULL
                      ? npy_write(directory, files, 2, error)
                      : fail(error, EXIT_DEVICE, "%s/o.npy: out of host memory", directory);
  free((void *)(uintptr_t)files[0].data);
  return ok;
}

bool outputs_write_gradients(const Problem *p, const uint16_t *const gradients[3],
                             const char *directory, Error *error) {
  const int64_t q_shape[4] = {p->batch, p->q_heads, p->q_len, p->head_dim};
  const int64_t kv_shape[4] = {p->batch, p->kv_heads, p->kv_len, p->head_dim};
  const NpyFile files[] = {make_file("dq.npy", p->dtype, q_shape, &p->q_strides, gradients[0]),
                           make_file("dk.npy", p->dtype, kv_shape, &p->k_strides, gradients[1]),
                           make_file("dv.npy", p->dtype, kv_shape, &p->v_strides, gradients[2])};
  const bool made = files[0].data != NULL && files[1].data != NULL && files[2].data != NULL;
  const bool ok = made ? npy_write(directory, files, 3, error)
                       : fail(error, EXIT_DEVICE, "%s/dq.npy: out of host memory", directory);
  for (int i = 0; i < 3; i++) free((void *)(uintptr_t)files[i].data);
  return ok;
}
