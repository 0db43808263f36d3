/**
 * @file
 * The record of a run: what was found. run.c fills it; the text, the JSON record and the report of
 * the lab are made from it and from the request.
 */
#ifndef HOST_RECORD_H
#define HOST_RECORD_H

#include "attention.h"
#include "host/check/check.h"
#include "host/cli/options.h"
#include "host/device/ceiling.h"
#include "host/device/decode_timing.h"
#include "host/device/device.h"
#include "host/device/timing.h"
#include "host/report/lab_report.h"

#ifdef SIMT_BACKEND
#include <simt.h>

#include "simt/lab/lab.h"
#endif

/** What one kernel takes on this device; zeros on the CPU backend. */
typedef struct KernelFacts {
  int registers, local_bytes;
  size_t shared_bytes; /**< static and dynamic */
  int blocks_per_multiprocessor;
} KernelFacts;

/** The block mask of a step that takes one. */
typedef struct MaskFacts {
  const char *form;                /**< "blocks" or "row spans"; NULL: the step takes none */
  int q_block_size, kv_block_size; /**< 0, like all numbers of blocks, for row spans */
  BlockMaskStatistics blocks;
  size_t mask_bytes, prepared_bytes;      /**< on the device */
  double build_ms, upload_ms, prepare_ms; /**< by the clock of the host, once per mask */
} MaskFacts;

/** The cache of a decode step, and how long other things took than the pass. */
typedef struct CacheFacts {
  int64_t keys;          /**< of all sequences */
  int shortest, longest; /**< of them */
  int pages;             /**< of K, and of V, those without an owner too; 0: no pages */
  size_t tensor_bytes;   /**< of K, and of V, that a pass must read */
  double bytes;          /**< of both, and of their scales */
  size_t schedule_bytes;
  DecodeTiming timing;
} CacheFacts;

/** Work and traffic of the whole problem: every batch entry, every query head. */
typedef struct Work {
  double entries;         /**< unmasked score entries */
  double flops;           /**< of these: for each 4 * head_dim, or backward 10 * head_dim */
  double dense_flops;     /**< with no entry masked */
  double least_bytes;     /**< inputs read once, outputs written once */
  double must_move_bytes; /**< the same, plus S and P, or P and dS, if in device memory */
} Work;

/** How fast a timed run was. All 0 when it was not timed. */
typedef struct Speed {
  double tflops;          /**< of the unmasked entries */
  double dense_tflops;    /**< with no entry masked */
  double gb_per_s;        /**< of Work::must_move_bytes */
  double ceiling_percent; /**< of the ceiling that the step is judged against; NaN if unknown */
  double bound_ms;        /**< lower bound by the measured ceilings; NaN if unknown */
  const char *bound_by;   /**< the ceiling that sets bound_ms, or "exp"; NULL if unknown */
} Speed;

/** Results of a report of the lab, for the JSON record. */
typedef struct LabSummary {
  bool reported; /**< the other fields are set */
  size_t findings, notes;
#ifdef SIMT_BACKEND
  LabCounts counts; /**< of the forward pass */
#endif
} LabSummary;

typedef struct RunRecord {
  const char *step; /**< its name */
  /** Adds the fields of the problem to a record; NULL: there are none. */
  void (*add_problem)(JsonObject *object, const struct RunRecord *run);
  const RunRequest *request;
  const Device *device;
  MaskFacts mask_facts;
  CacheFacts cache;
  Description description;
  KernelFacts facts[MAX_LAUNCHES];
  Work work;
  int heads_at_a_time; /**< query heads of a pass, as Step::forward() takes them */
  size_t workspace_bytes;
  bool fits;          /**< --info: the problem fits the device's memory */
  size_t extra_bytes; /**< peak device memory beside Q, K, V, O and LSE */
  int64_t nan_inputs; /**< NaN in Q, K and V */
  bool complete;      /**< the checked pass ended without an error */
  bool checked;
  size_t total_rows; /**< of O */
  CheckResult check;
#ifdef SIMT_BACKEND
  SimtCounters counts; /**< of the checked pass */
#endif
  double simulation_ms; /**< of the checked pass on the CPU backend, by the clock of the host */
  Timing timing;        /**< no samples: not timed */
  Ceilings ceilings;
  Speed speed;
  LabSummary lab;
} RunRecord;

/** Asks the step for its tiles and its launches; `heads` is that of Step::describe(). */
void record_description(RunRecord *run, int heads);

/** Fills run->facts: asks the runtime what each kernel needs, and how many of its blocks share a
 * multiprocessor. */
bool record_facts(RunRecord *run, Error *error);

/** Fills run->cache from a decode step's problem and its cache. */
void record_cache(RunRecord *run, const Cache *cache);

/** Fills run->work from the problem, the mask, the cache and the description. */
void record_work(RunRecord *run);

/** Fills run->speed from the times and the ceilings. */
void record_speed(RunRecord *run);

/** The ceiling in TFLOP/s of the unit that the step computes with. */
double record_arithmetic_tflops(const RunRecord *run);

/** The name that reports use. */
const char *ceiling_name(Ceiling ceiling);

#endif
