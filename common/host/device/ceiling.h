/** @file Ceilings: the rates that this GPU reaches in loops of a single kind of instruction. */
#ifndef HOST_CEILING_H
#define HOST_CEILING_H

#include <limits.h>
#include <stdbool.h>

#include "host/base/error.h"

typedef struct Ceilings {
  double mma_tflops; /**< mma.m16n8k16, fp16 in, fp32 out, operands in registers; 0 before sm_80 */
  double wgmma_tflops; /**< wgmma.m64n256k16, the same, operands in shared memory; 0: sm_90 alone */
  double wgmma_e4m3_tflops; /**< wgmma.m64n256k32, e4m3 in, likewise */
  double ffma_tflops;       /**< fp32 multiply-adds on the CUDA cores, operands in registers */
  double exp_g_per_s;       /**< ex2.approx, 10^9 a second, operands in registers */
  double copy_gb_per_s;     /**< device memory copy: bytes read plus bytes written */
  char date[24];            /**< when they were measured, in UTC; set by ceilings_write() */
} Ceilings;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Measures for about a second with 512 MiB of device memory and keeps the best of each rate.
 * EXIT_DEVICE if an allocation or a launch fails. Meaningless on the CPU backend.
 */
bool ceilings_measure(Ceilings *ceilings, Error *error);

/**
 * Reads the ceilings that ceilings_write() saved for a device of this name; false if there are
 * none. The file is attention-steps/ceilings.txt in XDG_CACHE_HOME or ~/.cache.
 */
bool ceilings_read(const char *device_name, Ceilings *ceilings);

/** Sets the date, saves the ceilings in that file and sets `path` to it; false if that fails. */
bool ceilings_write(const char *device_name, Ceilings *ceilings, char path[PATH_MAX]);

#ifdef __cplusplus
}
#endif

#endif
