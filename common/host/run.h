/**
 * @file
 * One run of a step, from options to verdict.
 */
#ifndef HOST_RUN_H
#define HOST_RUN_H

#include "attention.h"
#include "host/base/error.h"
#include "host/check/check.h"
#include "host/cli/options.h"
#include "host/device/ceiling.h"
#include "host/device/device.h"
#include "host/device/timing.h"
#include "host/masks/mask.h"

/** What one kernel will be like on this device; zeros on the CPU backend. */
typedef struct KernelFacts {
  int registers, local_bytes;
  size_t shared_bytes; /**< static and dynamic */
  int blocks_per_multiprocessor;
} KernelFacts;

/** Work counted by the CPU backend during the checked pass; zeros on a GPU. */
typedef struct WorkCounts {
  uint64_t launches, blocks, threads;
  uint64_t barriers;                       /**< by blocks */
  uint64_t shuffles, votes, warp_barriers; /**< by warps */
  uint64_t ldmatrix, mma;                  /**< by warps */
  uint64_t mma_under_copy; /**< of the mma, those with a cp.async of their warp in flight */
  uint64_t atomics;        /**< by threads */
} WorkCounts;

/** The block mask of a step that takes one. */
typedef struct MaskFacts {
  int q_block_size, kv_block_size; /**< 0: the step takes none */
  BlockMaskStatistics blocks;
  size_t mask_bytes, prepared_bytes;      /**< on the device */
  double build_ms, upload_ms, prepare_ms; /**< by the clock of the host, once per mask */
} MaskFacts;

/** All that is known about a finished run: what the report prints and the JSON row stores. */
typedef struct Run {
  const Options *options;
  const Device *device;
  Problem problem;
  Mask mask;
  MaskFacts mask_facts;
  Description description;
  KernelFacts facts[MAX_LAUNCHES];
  size_t workspace_bytes;
  bool fits;          /**< --info: the device's memory will do */
  size_t extra_bytes; /**< peak device memory beside Q, K, V, O and LSE, as the device counts it */
  int64_t nan_inputs;
  bool checked;
  size_t total_rows;
  CheckResult check;
  WorkCounts counts;
  Timing timing;
  Ceilings ceilings;
  double simulation_ms; /**< of the checked pass on the CPU backend, by the clock of the host */
  LabSummary lab;       /**< of --report */
} Run;

/** Unmasked score entries of the whole problem: every batch entry, every query head. */
double run_entries(const Run *run);

/** Floating-point operations of the unmasked entries: 4 * head_dim for each. */
double run_flops(const Run *run);

/**
 * Runs the step as the options say, prints the report unless `quiet`, and writes what was asked
 * for. EXIT_WRONG is no error: what is wrong has been printed. Every other failure is described in
 * `error`.
 */
ExitCode run_options(const Options *options, const Device *device, bool quiet, Error *error);

#endif
