/** @file The device: its properties, and the tensors of a problem in its memory. */
#ifndef HOST_DEVICE_H
#define HOST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "backward.h"
#include "decode.h"
#include "host/base/error.h"

/** 16 bits that fill outputs and guards: a NaN in fp16, bf16 and fp32 that no kernel computes. All
 * bits one is another: what was never set on the CPU backend. */
enum { OUTPUT_POISON = 0xfff5, OUTPUT_UNSET = 0xffff, GUARD_BYTES = 4096 };

struct Cache;  /* host/io/cache.h */
struct Inputs; /* host/io/inputs.h */

typedef struct Device {
  char name[256];
  bool simulated; /**< the CPU backend: its times say nothing about a GPU */
  int multiprocessors, major, minor;
  size_t memory_bytes, l2_bytes;
  int runtime; /**< CUDA version as 1000 * major + 10 * minor */
} Device;

/**
 * The step to call. A program of the CPU backend has two builds of it: the plain one, which is
 * fast, and the checking one, whose kernels report each load and store to the lab.
 */
const Step *step_build(void);

/** Linked into the programs of backward steps only: the step that computes O and LSE, and the one
 * that does so for steps that take block masks. */
extern const Step forward_step __attribute__((weak)), masked_forward_step __attribute__((weak));

/** The one that this program's backward step needs. */
static inline const Step *step_before_backward(void) {
  return step.block_masks != NULL ? &masked_forward_step : &forward_step;
}

/** Chooses the checking build, or the plain one; false if this program has no checking build. */
bool step_build_choose(bool checking);

/** Reads the properties of the current device. EXIT_NO_GPU if there is none. */
bool device_open(Device *device, Error *error);

/** True on success; else fails with EXIT_DEVICE, naming `what` and CUDA's error. */
bool device_ok(cudaError_t status, const char *what, Error *error);

/** Allocates device memory. On failure EXIT_DEVICE names `what`, and `*pointer` is NULL. */
bool device_allocate(void **pointer, size_t bytes, const char *what, Error *error);

/** The same, and copies as many bytes from the host. */
bool device_upload(const void **pointer, const void *source, size_t bytes, const char *what,
                   Error *error);

/** dQ, dK and dV, in this order. */
typedef enum Gradient { GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENTS } Gradient;

static inline const char *gradient_name(int gradient) {
  return gradient == GRADIENT_Q ? "dQ" : gradient == GRADIENT_K ? "dK" : "dV";
}

/** Elements of a gradient. */
static inline size_t gradient_elements(const Problem *p, Gradient g) {
  return (size_t)p->batch * (size_t)(g == GRADIENT_Q ? p->q_heads : p->kv_heads) *
         (size_t)(g == GRADIENT_Q ? p->q_len : p->kv_len) * (size_t)p->head_dim;
}

/** Device memory of one problem, except the mask. */
typedef struct DeviceTensors {
  Tensors tensors;    /**< passed to the step; o and lse point past the front guards */
  uint8_t *o_block;   /**< front guard, O, back guard */
  uint8_t *lse_block; /**< front guard, LSE, back guard */
  size_t o_bytes, lse_bytes;
  BackwardTensors backward; /**< of a backward step, whose outputs are guarded likewise */
  uint8_t *gradient_blocks[GRADIENTS];
  size_t gradient_bytes[GRADIENTS];
  DecodeTensors decode;  /**< of a decode step: what others have in `tensors`, and more */
  size_t schedule_bytes; /**< likewise */
  int heads;             /**< query heads that the workspace holds */
  size_t workspace_bytes;
  size_t zero_bytes; /**< so many of these, the first, must be 0 before and after a pass */
} DeviceTensors;

/** Bytes of Q, K, V, O and LSE, without scales; of a backward step with dO, dQ, dK and dV. */
double device_tensors_bytes(const Problem *problem);

/** Allocates all but the workspace and copies the inputs to the device. EXIT_DEVICE if memory runs
 * out. */
bool device_tensors_create(const Problem *problem, const struct Inputs *inputs,
                           DeviceTensors *tensors, Error *error);

/**
 * Copies dO to the device and allocates dQ, dK and dV. O and LSE are those of `inputs`; if it has
 * none, a forward pass computes them into it, with the block mask of `tensors->tensors`, if any.
 * EXIT_DEVICE if memory runs out.
 */
bool device_gradients_create(const Problem *problem, struct Inputs *inputs, DeviceTensors *tensors,
                             Error *error);

/**
 * Copies K or V of a decode step from the host's form to the device's, in pages if the problem has
 * them: NaN where no sequence has a key. EXIT_DEVICE if memory runs out.
 */
bool device_cache_upload(const Problem *problem, const struct Cache *cache, const Strides *strides,
                         const uint16_t *source, const void **pointer, const char *what,
                         Error *error);

/** Sets `tensors->decode`, after the rest of `tensors` and the workspace, and runs the schedule. */
bool device_decode_create(const Problem *problem, const struct Inputs *inputs,
                          DeviceTensors *tensors, Error *error);

/** Frees what device_decode_create() allocated; harmless without it. */
void device_decode_free(DeviceTensors *tensors);

/** Enqueues the pass of a step: forward, backward or decode. */
cudaError_t device_launch(const Step *step, const Problem *problem, const DeviceTensors *tensors);

/** The names that reports and the command line use. */
extern const char *const DTYPE_NAMES[3];

/** Bytes of an element. */
static inline size_t element_bytes(Dtype dtype) {
  return dtype == DTYPE_E4M3 ? 1 : 2;
}

/** Allocates the step's workspace for as many heads as fit `free_bytes`. EXIT_DEVICE if none do. */
bool device_workspace_create(const Problem *problem, size_t free_bytes, DeviceTensors *tensors,
                             Error *error);

/** Bytes of device memory that are free once `taken` more bytes are in use; on the CPU backend at
 * most memory_left_bytes(). */
size_t device_free_bytes(size_t taken);

/** Fills the outputs and their guards with OUTPUT_POISON. */
bool device_outputs_poison(DeviceTensors *tensors, Error *error);

/** Copies in host memory of the outputs and their guards. */
typedef struct HostOutputs {
  const uint16_t *o; /**< first element of O; strides as in the problem */
  const float *lse;  /**< [batch, q_heads, q_len] */
  /** The bands before and after each tensor, GUARD_BYTES each. */
  const uint8_t *o_guard[2], *lse_guard[2];
  size_t workspace_left;  /**< bytes of the workspace that the step must leave 0 and did not */
  size_t workspace_first; /**< which byte is the first of them */
  size_t o_elements;      /**< batch * q_heads * q_len * head_dim */
  uint8_t *o_block, *lse_block; /**< what device_outputs_free() frees */
  /** Of a backward step, in place of O and LSE: strides as those of Q, K and V. */
  const uint16_t *gradients[GRADIENTS];
  const uint8_t *gradient_guards[GRADIENTS][2];
  uint8_t *gradient_blocks[GRADIENTS];
} HostOutputs;

/** True if two downloads have other bits. */
bool device_outputs_differ(const DeviceTensors *tensors, const HostOutputs *a,
                           const HostOutputs *b);

/** Copies the outputs and their guards from the device, and looks at a workspace that must be 0.
 * EXIT_DEVICE if memory runs out. */
bool device_outputs_download(const DeviceTensors *tensors, HostOutputs *outputs, Error *error);

/** Frees the copies; harmless on a zeroed struct. */
void device_outputs_free(HostOutputs *outputs);

/** Frees everything; harmless on a zeroed struct. */
void device_tensors_free(DeviceTensors *tensors);

#endif
