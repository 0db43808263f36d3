/**
 * @file
 * The results in host memory, and as files.
 */
#ifndef HOST_OUTPUTS_H
#define HOST_OUTPUTS_H

#include "attention.h"
#include "host/base/error.h"
#include "host/check/check.h"
#include "host/device/device.h"

/** Copies of O and LSE with their guards. */
typedef struct Outputs {
  uint8_t *o_block, *lse_block;
  HostOutputs view; /**< into the blocks, as the checker wants it */
} Outputs;

/** Copies O, LSE and the guards from the device. */
bool outputs_download(const DeviceTensors *tensors, Outputs *outputs, Error *error);

/**
 * Creates `directory` unless it is there; `created` says whether it was not. EXIT_USAGE, with the
 * name of the option that asked for it, if that cannot be, or if nothing can be written into it.
 * Meant for before the run: a long one must not end with an answer that has nowhere to go.
 */
bool outputs_directory_create(const char *option, const char *directory, bool *created,
                              Error *error);

/**
 * Writes o.npy, [B, H, N, D], and lse.npy, [B, H, N], into a directory, or neither of them. O is
 * <f2 for fp16 and <f4, which holds it exactly, for bf16. EXIT_DEVICE if that fails.
 */
bool outputs_write(const Problem *problem, const Outputs *outputs, const char *directory,
                   Error *error);

/** Frees both; harmless on a zeroed struct. */
void outputs_free(Outputs *outputs);

#endif
