/** @file The tensors of a backward pass, and the forward pass that gives O and LSE. */
#include <stdlib.h>

#include "host/device/device.h"

#ifdef SIMT_BACKEND
#include <simt.h>
#endif

#include "host/io/inputs.h"

cudaError_t device_launch(const Step *s, const Problem *p, const DeviceTensors *t) {
  return s->backward != NULL ? s->backward(p, &t->backward, t->heads, 0)
         : s->decode != NULL ? s->decode(p, &t->decode, 0)
                             : s->forward(p, &t->tensors, t->heads, 0);
}

/** Runs a forward pass into tensors of its own, and downloads O and LSE. */
static bool run_forward(const Problem *p, const DeviceTensors *t, Inputs *inputs, size_t o_bytes,
                        size_t lse_bytes, Error *error) {
  Tensors forward = {.q = t->tensors.q,
                     .k = t->tensors.k,
                     .v = t->tensors.v,
                     .block_mask = t->tensors.block_mask,
                     .prepared = t->tensors.prepared};
  const Step *const s = step_before_backward();
  const int heads = p->batch * p->q_heads;
  const size_t workspace = s->workspace_bytes == NULL ? 0 : s->workspace_bytes(p) * (size_t)heads;
  inputs->o = malloc(o_bytes);
  inputs->lse = malloc(lse_bytes);
  bool ok = (inputs->o != NULL && inputs->lse != NULL) ||
            fail(error, EXIT_DEVICE, "out of host memory: O and LSE");
  ok = ok && device_allocate(&forward.o, o_bytes, "O", error) &&
       device_allocate((void **)&forward.lse, lse_bytes, "LSE", error) &&
       (workspace == 0 ||
        (device_allocate(&forward.workspace, workspace, "workspace", error) &&
         device_ok(cudaMemset(forward.workspace, 0, workspace), "workspace", error))) &&
       device_ok(s->forward(p, &forward, heads, 0), "forward pass", error) &&
       device_ok(cudaDeviceSynchronize(), "forward pass", error) &&
       device_ok(cudaMemcpy(inputs->o, forward.o, o_bytes, cudaMemcpyDeviceToHost), "O", error) &&
       device_ok(cudaMemcpy(inputs->lse, forward.lse, lse_bytes, cudaMemcpyDeviceToHost), "LSE",
                 error);
  cudaFree(forward.o);
  cudaFree(forward.lse);
  cudaFree(forward.workspace);
  return ok;
}

bool device_gradients_create(const Problem *p, Inputs *inputs, DeviceTensors *t, Error *error) {
  const size_t o_bytes = 2 * gradient_elements(p, GRADIENT_Q);
  const size_t lse_bytes = sizeof(float) * (o_bytes / 2 / (size_t)p->head_dim);
  BackwardTensors *b = &t->backward;
  *b = (BackwardTensors){.q = t->tensors.q, .k = t->tensors.k, .v = t->tensors.v};
  if ((inputs->o == NULL && !run_forward(p, t, inputs, o_bytes, lse_bytes, error)) ||
      !device_upload(&b->o, inputs->o, o_bytes, "O", error) ||
      !device_upload((const void **)&b->lse, inputs->lse, lse_bytes, "LSE", error) ||
      !device_upload(&b->d_o, inputs->d_o, o_bytes, "dO", error)) {
    return false;
  }
  void **const outputs[GRADIENTS] = {&b->d_q, &b->d_k, &b->d_v};
  for (int g = 0; g < GRADIENTS; g++) {
    t->gradient_bytes[g] = 2 * gradient_elements(p, g);
    if (!device_allocate((void **)&t->gradient_blocks[g], t->gradient_bytes[g] + 2 * GUARD_BYTES,
                         gradient_name(g), error)) {
      return false;
    }
#ifdef SIMT_BACKEND
    simt_guard_allocation(t->gradient_blocks[g], GUARD_BYTES);
#endif
    *outputs[g] = t->gradient_blocks[g] + GUARD_BYTES;
  }
  return true;
}
