/**
 * @file
 * The results in host memory, and as files.
 */
#ifndef HOST_OUTPUTS_H
#define HOST_OUTPUTS_H

#include "attention.h"
#include "host/check.h"
#include "host/device.h"
#include "host/error.h"

/** Copies of O and LSE with their guards. */
typedef struct Outputs {
  uint8_t *o_block, *lse_block;
  HostOutputs view; /**< into the blocks, as the checker wants it */
} Outputs;

/** Copies O, LSE and the guards from the device. */
bool outputs_download(const DeviceTensors *tensors, Outputs *outputs, Error *error);

/**
 * Creates `directory` if it does not exist and writes o.npy, [B, H, N, D], and lse.npy, [B, H, N].
 * O is <f2 for fp16 and <f4, which holds it exactly, for bf16. EXIT_DEVICE if it cannot be written.
 */
bool outputs_write(const Problem *problem, const Outputs *outputs, const char *directory,
                   Error *error);

/** Frees both; harmless on a zeroed struct. */
void outputs_free(Outputs *outputs);

#endif
