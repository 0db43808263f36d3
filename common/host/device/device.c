#include "host/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SIMT_BACKEND
#include <simt.h>
#endif

#include "host/base/memory.h"
#include "host/io/inputs.h"

/** Linked into programs of the CPU backend only. */
extern const Step step_checked __attribute__((weak));

static bool is_checking;

const Step *step_build(void) {
  return is_checking ? &step_checked : &step;
}

bool step_build_choose(bool checking) {
  if (checking && &step_checked == NULL) return false;
  is_checking = checking;
  return true;
}

static bool upload(const void **pointer, const void *source, size_t bytes, const char *what,
                   Error *error) {
  void *target;
  if (!device_allocate(&target, bytes, what, error)) return false;
  *pointer = target;
  return device_ok(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), what, error);
}

/** Uploads `count` elements; those of e4m3 have one byte each on the device. */
static bool upload_tensor(Dtype dtype, const void **pointer, const uint16_t *source, size_t count,
                          const char *what, Error *error) {
  if (dtype != DTYPE_E4M3) return upload(pointer, source, 2 * count, what, error);
  uint8_t *packed = malloc(count);
  if (packed == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", what);
  for (size_t i = 0; i < count; i++) packed[i] = (uint8_t)source[i];
  const bool ok = upload(pointer, packed, count, what, error);
  free(packed);
  return ok;
}

static bool upload_scales(const Problem *p, const Inputs *inputs, Tensors *t, Error *error) {
  const size_t bytes = sizeof(float) * (size_t)p->batch * (size_t)p->kv_heads;
  return p->dtype != DTYPE_E4M3 ||
         (upload((const void **)&t->q_scales, inputs->scales[0], bytes, "scales of Q", error) &&
          upload((const void **)&t->k_scales, inputs->scales[1], bytes, "scales of K", error) &&
          upload((const void **)&t->v_scales, inputs->scales[2], bytes, "scales of V", error));
}

const char *const DTYPE_NAMES[3] = {"fp16", "bf16", "e4m3"};

double device_tensors_bytes(const Problem *p) {
  const double q_rows = (double)p->batch * p->q_heads * p->q_len;
  const double kv_rows = (double)p->batch * p->kv_heads * p->kv_len;
  const double inputs = (double)element_bytes(p->dtype) * p->head_dim * (q_rows + 2 * kv_rows);
  const double gradients = step.backward == NULL ? 0 : 2 * p->head_dim * q_rows + inputs;
  return inputs + 2 * p->head_dim * q_rows + sizeof(float) * q_rows + gradients;
}

bool device_tensors_create(const Problem *p, const Inputs *inputs, DeviceTensors *t, Error *error) {
  const size_t q_rows = (size_t)p->batch * p->q_heads * p->q_len, q_count = q_rows * p->head_dim;
  const size_t kv_count = (size_t)p->batch * p->kv_heads * p->kv_len * p->head_dim;
  t->o_bytes = 2 * q_count;
  t->lse_bytes = sizeof(float) * q_rows;
  if (step.backward != NULL) {
    return upload_tensor(p->dtype, &t->tensors.q, inputs->q, q_count, "Q", error) &&
           upload_tensor(p->dtype, &t->tensors.k, inputs->k, kv_count, "K", error) &&
           upload_tensor(p->dtype, &t->tensors.v, inputs->v, kv_count, "V", error);
  }
  const bool allocated =
      upload_tensor(p->dtype, &t->tensors.q, inputs->q, q_count, "Q", error) &&
      upload_tensor(p->dtype, &t->tensors.k, inputs->k, kv_count, "K", error) &&
      upload_tensor(p->dtype, &t->tensors.v, inputs->v, kv_count, "V", error) &&
      upload_scales(p, inputs, &t->tensors, error) &&
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
  t->workspace_bytes = (size_t)t->heads * step.workspace_bytes(problem);
  if (!device_allocate(&t->tensors.workspace, t->workspace_bytes, "workspace", error)) return false;
  t->backward.workspace = t->tensors.workspace;
  return (!step.workspace_zero ||
          device_ok(cudaMemset(t->tensors.workspace, 0, t->workspace_bytes), "workspace", error));
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
  if (!step.workspace_zero) return true;
  const bool ok = download(&bytes, t->tensors.workspace, t->workspace_bytes, "workspace", error);
  for (size_t i = t->workspace_bytes; ok && i-- > 0;) {
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
  *t = (DeviceTensors){0};
}
