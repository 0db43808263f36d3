/**
 * @file
 * What this GPU can do at best, measured here and now.
 */
#ifndef HOST_CEILING_H
#define HOST_CEILING_H

#include <stdbool.h>

#include "host/error.h"

typedef struct Ceilings {
  double mma_tflops;  /**< mma.m16n8k16, fp16 in, fp32 out, operands in registers; 0 before sm_80 */
  double ffma_tflops; /**< fp32 multiply-adds on the CUDA cores, operands in registers */
  double copy_gb_per_s; /**< device memory copy: bytes read plus bytes written */
} Ceilings;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Measures for about 0.1 s with 512 MB of device memory; a second call returns what the first
 * found. Meaningless on the CPU backend.
 */
bool ceilings_measure(Ceilings *ceilings, Error *error);

#ifdef __cplusplus
}
#endif

#endif
