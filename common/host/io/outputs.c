#include "host/io/outputs.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "float16.h"
#include "host/io/npy.h"

/** Copies O to `target` in [B, H, N, D] order: 16-bit patterns for fp16, floats for bf16. */
static void gather(const Problem *p, const uint16_t *o, void *target) {
  const int64_t rows = (int64_t)p->batch * p->q_heads * p->q_len;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; row++) {
    const uint16_t *source = o + row / p->q_len / p->q_heads * p->o_strides.batch +
                             row / p->q_len % p->q_heads * p->o_strides.head +
                             row % p->q_len * p->o_strides.row;
    if (p->o_dtype == DTYPE_FP16) {
      memcpy((uint16_t *)target + row * p->head_dim, source, 2 * (size_t)p->head_dim);
    } else {
      float *floats = (float *)target + row * p->head_dim;
      for (int d = 0; d < p->head_dim; d++) floats[d] = bf16_bits_to_float(source[d]);
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

bool outputs_write(const Problem *p, const uint16_t *o, const float *lse, const char *directory,
                   Error *error) {
  const int64_t shape[4] = {p->batch, p->q_heads, p->q_len, p->head_dim};
  const bool half = p->o_dtype == DTYPE_FP16;
  const size_t elements = (size_t)p->batch * p->q_heads * p->q_len * p->head_dim;
  void *ordered = malloc(elements * (half ? sizeof(uint16_t) : sizeof(float)));
  if (ordered == NULL) return fail(error, EXIT_DEVICE, "%s/o.npy: out of host memory", directory);
  gather(p, o, ordered);
  const NpyFile files[] = {{"o.npy", half ? NPY_F2 : NPY_F4, 4, shape, ordered},
                           {"lse.npy", NPY_F4, 3, shape, lse}};
  const bool ok = npy_write(directory, files, 2, error);
  free(ordered);
  return ok;
}
