#include "host/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SIMT_BACKEND
#include <simt.h>
#endif

#include "host/base/memory.h"
#include "host/io/inputs.h"

/** Uploads `count` elements; those of e4m3 have one byte each on the device. */
static bool upload_tensor(Dtype dtype, const void **pointer, const uint16_t *source, size_t count,
                          const char *what, Error *error) {
  if (dtype != DTYPE_E4M3) return device_upload(pointer, source, 2 * count, what, error);
  uint8_t *packed = malloc(count);
  if (packed == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", what);
  for (size_t i = 0; i < count; i++) packed[i] = (uint8_t)source[i];
  const bool ok = device_upload(pointer, packed, count, what, error);
  free(packed);
  return ok;
}

static bool upload_scales(const Problem *p, const Inputs *inputs, Tensors *t, Error *error) {
  const size_t bytes = sizeof(float) * (size_t)p->batch * (size_t)p->kv_heads;
  const float **const scales[] = {&t->q_scales, &t->k_scales, &t->v_scales};
  static const char *const NAMES[] = {"scales of Q", "scales of K", "scales of V"};
  for (int i = 0; i < 3; i++) {
    if (inputs->scales[i] == NULL) continue;
    if (!device_upload((const void **)scales[i], inputs->scales[i], bytes, NAMES[i], error))
      return false;
  }
  return true;
}

/** K and V; those of a decode step are longer than some sequences, and may be in pages. */
static bool upload_kv(const Problem *p, const Inputs *inputs, Tensors *t, Error *error) {
  const size_t count = (size_t)p->batch * p->kv_heads * p->kv_len * p->head_dim;
  const Cache *cache = &inputs->cache;
  return step.decode == NULL
             ? upload_tensor(p->dtype, &t->k, inputs->k, count, "K", error) &&
                   upload_tensor(p->dtype, &t->v, inputs->v, count, "V", error)
             : device_cache_upload(p, cache, &p->k_strides, inputs->k, &t->k, "K", error) &&
                   device_cache_upload(p, cache, &p->v_strides, inputs->v, &t->v, "V", error);
}

const char *const DTYPE_NAMES[3] = {"fp16", "bf16", "e4m3"};

double device_tensors_bytes(const Problem *p) {
  const double q_rows = (double)p->batch * p->q_heads * p->q_len;
  const double kv_rows = (double)p->batch * p->kv_heads * p->kv_len;
  const double inputs = p->head_dim * ((double)element_bytes(p->dtype) * q_rows +
                                       2.0 * (double)element_bytes(cache_dtype(p)) * kv_rows);
  const double gradients = step.backward == NULL ? 0 : 2 * p->head_dim * q_rows + inputs;
  return inputs + 2 * p->head_dim * q_rows + sizeof(float) * q_rows + gradients;
}

bool device_tensors_create(const Problem *p, const Inputs *inputs, DeviceTensors *t, Error *error) {
  const size_t q_rows = (size_t)p->batch * p->q_heads * p->q_len, q_count = q_rows * p->head_dim;
  t->o_bytes = 2 * q_count;
  t->lse_bytes = sizeof(float) * q_rows;
  if (step.backward != NULL) {
    return upload_tensor(p->dtype, &t->tensors.q, inputs->q, q_count, "Q", error) &&
           upload_kv(p, inputs, &t->tensors, error);
  }
  const bool allocated =
      upload_tensor(p->dtype, &t->tensors.q, inputs->q, q_count, "Q", error) &&
      upload_kv(p, inputs, &t->tensors, error) && upload_scales(p, inputs, &t->tensors, error) &&
      device_allocate((void **)&t->o_block, t->o_bytes + 2 * GUARD_BYTES, "O", error) &&
      device_allocate((void **)&t->lse_block, t->lse_bytes + 2 * GUARD_BYTES, "LSE", error);
  if (!allocated) return false;
#ifdef SIMT_BACKEND
  simt_guard_allocation(t->o_block, GUARD_BYTES);
  simt_guard_allocation(t->lse_block, GUARD_BYTES);
#endif
  t->tensors.o = t->o_block + GUARD_BYTES;
  t->tensors.lse = (float *)(void *)(t->lse_block + GUARD_BYTES);
  return true;
}

size_t device_free_bytes(size_t taken) {
  size_t free_bytes = 0, total_bytes;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  free_bytes = free_bytes > taken ? free_bytes - taken : 0;
#ifdef SIMT_BACKEND
  const double left = memory_left_bytes();
  if (left < (double)free_bytes) free_bytes = left > 0 ? (size_t)left : 0;
#endif
  return free_bytes;
}

bool device_workspace_create(const Problem *problem, size_t free_bytes, DeviceTensors *t,
                             Error *error) {
  t->heads = heads_at_a_time(problem, free_bytes);
  if (step.workspace_bytes == NULL) return true;
  if (t->heads == 0) {
    return fail(
        error, EXIT_DEVICE,
        "needs %zu bytes of device memory beside the tensors, but only %zu are free",
        step.workspace_bytes(problem) * (step.backward != NULL ? (size_t)group_size(problem) : 1),
        free_bytes);
  }
  t->workspace_bytes = (step.decode != NULL ? 1 : (size_t)t->heads) * step.workspace_bytes(problem);
  if (t->workspace_bytes == 0) return true;
  if (!device_allocate(&t->tensors.workspace, t->workspace_bytes, "workspace", error)) return false;
  t->backward.workspace = t->tensors.workspace;
  if (!step.workspace_zero) return true;
  t->zero_bytes = step.zero_bytes == NULL ? t->workspace_bytes : step.zero_bytes(problem);
  return device_ok(cudaMemset(t->tensors.workspace, 0, t->zero_bytes), "workspace", error);
}

/** cudaMemset() fills bytes; this copies what is filled already behind itself. */
static bool poison(uint8_t *block, size_t bytes, const char *what, Error *error) {
  uint16_t guard[GUARD_BYTES / 2];
  for (int i = 0; i < GUARD_BYTES / 2; i++) guard[i] = OUTPUT_POISON;
  bool ok = device_ok(cudaMemcpy(block, guard, sizeof guard, cudaMemcpyHostToDevice), what, error);
  for (size_t done = sizeof guard; ok && done < bytes; done *= 2) {
    const size_t count = done < bytes - done ? done : bytes - done;
    ok = device_ok(cudaMemcpy(block + done, block, count, cudaMemcpyDeviceToDevice), what, error);
  }
  return ok;
}

bool device_outputs_poison(DeviceTensors *t, Error *error) {
  if (step.backward != NULL) {
    for (int g = 0; g < GRADIENTS; g++) {
      if (!poison(t->gradient_blocks[g], t->gradient_bytes[g] + 2 * GUARD_BYTES, gradient_name(g),
                  error)) {
        return false;
      }
    }
    return true;
  }
  return poison(t->o_block, t->o_bytes + 2 * GUARD_BYTES, "O", error) &&
         poison(t->lse_block, t->lse_bytes + 2 * GUARD_BYTES, "LSE", error);
}

static bool download(uint8_t **block, const uint8_t *source, size_t bytes, const char *what,
                     Error *error) {
  *block = malloc(bytes);
  if (*block == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", what);
  return device_ok(cudaMemcpy(*block, source, bytes, cudaMemcpyDeviceToHost), what, error);
}

/** Counts the bytes of the workspace that are not 0. */
static bool look_at_workspace(const DeviceTensors *t, HostOutputs *outputs, Error *error) {
  uint8_t *bytes = NULL;
  if (t->zero_bytes == 0) return true;
  const size_t count = t->zero_bytes;
  const bool ok = download(&bytes, t->tensors.workspace, count, "workspace", error);
  for (size_t i = count; ok && i-- > 0;) {
    if (bytes[i] == 0) continue;
    outputs->workspace_left++;
    outputs->workspace_first = i;
  }
  free(bytes);
  return ok;
}

/** dQ, dK and dV with their guards. */
static bool download_gradients(const DeviceTensors *t, HostOutputs *outputs, Error *error) {
  for (int g = 0; g < GRADIENTS; g++) {
    uint8_t **block = &outputs->gradient_blocks[g];
    const size_t bytes = t->gradient_bytes[g];
    if (!download(block, t->gradient_blocks[g], bytes + 2 * GUARD_BYTES, gradient_name(g), error)) {
      return false;
    }
    outputs->gradients[g] = (const void *)(*block + GUARD_BYTES);
    outputs->gradient_guards[g][0] = *block;
    outputs->gradient_guards[g][1] = *block + GUARD_BYTES + bytes;
  }
  return look_at_workspace(t, outputs, error);
}

bool device_outputs_differ(const DeviceTensors *t, const HostOutputs *a, const HostOutputs *b) {
  bool differ = false;
  for (int g = 0; step.backward != NULL && g < GRADIENTS; g++)
    differ |= memcmp(a->gradients[g], b->gradients[g], t->gradient_bytes[g]) != 0;
  if (step.backward != NULL) return differ;
  return memcmp(a->o, b->o, t->o_bytes) != 0 || memcmp(a->lse, b->lse, t->lse_bytes) != 0;
}

bool device_outputs_download(const DeviceTensors *t, HostOutputs *outputs, Error *error) {
  *outputs = (HostOutputs){.o = NULL};
  if (step.backward != NULL) return download_gradients(t, outputs, error);
  uint8_t *o = NULL, *lse = NULL;
  const bool ok = download(&o, t->o_block, t->o_bytes + 2 * GUARD_BYTES, "O", error) &&
                  download(&lse, t->lse_block, t->lse_bytes + 2 * GUARD_BYTES, "LSE", error);
  *outputs = (HostOutputs){.o_block = o, .lse_block = lse};
  if (!ok) return false;
  outputs->o = (const void *)(o + GUARD_BYTES);
  outputs->lse = (const void *)(lse + GUARD_BYTES);
  outputs->o_guard[0] = o;
  outputs->o_guard[1] = o + GUARD_BYTES + t->o_bytes;
  outputs->lse_guard[0] = lse;
  outputs->lse_guard[1] = lse + GUARD_BYTES + t->lse_bytes;
  outputs->o_elements = t->o_bytes / 2;
  return look_at_workspace(t, outputs, error);
}

void device_outputs_free(HostOutputs *outputs) {
  free(outputs->o_block);
  free(outputs->lse_block);
  for (int g = 0; g < GRADIENTS; g++) free(outputs->gradient_blocks[g]);
  *outputs = (HostOutputs){0};
}

void device_tensors_free(DeviceTensors *t) {
  cudaFree((void *)t->tensors.q);
  cudaFree((void *)t->tensors.k);
  cudaFree((void *)t->tensors.v);
  cudaFree((void *)t->tensors.q_scales);
  cudaFree((void *)t->tensors.k_scales);
  cudaFree((void *)t->tensors.v_scales);
  cudaFree(t->o_block);
  cudaFree(t->lse_block);
  cudaFree(t->tensors.workspace);
  cudaFree((void *)t->backward.o);
  cudaFree((void *)t->backward.lse);
  cudaFree((void *)t->backward.d_o);
  for (int g = 0; g < GRADIENTS; g++) cudaFree(t->gradient_blocks[g]);
  device_decode_free(t);
  *t = (DeviceTensors){0};
}
