#include "host/masks/host_block_mask.h"

#include "host/device/device.h"
#include "host/device/timing.h"

static const char *const TENSOR_NAMES[MASK_TENSORS] = {
    "kv_num_blocks",       "kv_indices", "block_mask_types", "partial_block_mask_indices",
    "partial_block_masks", "row_spans"};

static bool upload(const HostBlockMask *blocks, DeviceMask *d, Error *error) {
  for (int i = 0; i < MASK_TENSORS; i++) {
    const size_t bytes = blocks->bytes[i];
    d->mask_bytes += bytes;
    if (bytes == 0) continue; /* no slot is PARTIAL, or the other form */
    if (!device_allocate(&d->tensors[i], bytes, TENSOR_NAMES[i], error) ||
        !device_ok(cudaMemcpy(d->tensors[i], blocks->data[i], bytes, cudaMemcpyHostToDevice),
                   TENSOR_NAMES[i], error)) {
      return false;
    }
  }
  d->mask = blocks->mask;
  block_mask_set_pointers(&d->mask, d->tensors);
  return true;
}

static bool prepare(const Problem *problem, const BlockMaskSupport *support, DeviceMask *d,
                    Error *error) {
  d->prepared_bytes = support->prepared_bytes(problem, &d->mask);
  return device_allocate(&d->prepared, d->prepared_bytes, "what is prepared of the mask", error) &&
         device_ok(support->prepare(problem, &d->mask, d->prepared, 0), "preparing the mask",
                   error) &&
         device_ok(cudaDeviceSynchronize(), "preparing the mask", error);
}

bool device_mask_create(const Problem *problem, const Step *s, const HostBlockMask *blocks,
                        DeviceMask *mask, Error *error) {
  *mask = (DeviceMask){0};
  const double start = clock_ms();
  bool ok = upload(blocks, mask, error);
  const double uploaded = clock_ms();
  ok = ok && prepare(problem, s->block_masks, mask, error);
  mask->upload_ms = uploaded - start;
  mask->prepare_ms = clock_ms() - uploaded;
  if (!ok) device_mask_free(mask);
  return ok;
}

void device_mask_free(DeviceMask *mask) {
  for (int i = 0; i < MASK_TENSORS; i++) cudaFree(mask->tensors[i]);
  cudaFree(mask->prepared);
  *mask = (DeviceMask){0};
}
