/**
 * @file
 * A block mask on the device, and what the step prepares from it.
 */
#ifndef HOST_DEVICE_MASK_H
#define HOST_DEVICE_MASK_H

#include <stdbool.h>
#include <stddef.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/masks/block_mask.h"

typedef struct DeviceMask {
  BlockMask mask; /**< in host memory; its tensors are on the device */
  void *tensors[MASK_TENSORS];
  void *prepared;
  size_t mask_bytes, prepared_bytes;
  double upload_ms;  /**< for allocating and copying the tensors, by the host clock */
  double prepare_ms; /**< for allocating for prepare() and running it, by the host clock */
} DeviceMask;

/**
 * Copies a valid mask to the device and runs the step's prepare(). EXIT_DEVICE if memory runs out
 * or a kernel fails. Freed by device_mask_free().
 */
bool device_mask_create(const Problem *problem, const HostBlockMask *blocks, DeviceMask *mask,
                        Error *error);

/** Frees everything; harmless on a zeroed struct. */
void device_mask_free(DeviceMask *mask);

#endif
