/**
 * @file
 * The command line of every step.
 */
#ifndef HOST_OPTIONS_H
#define HOST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/check/check.h"
#include "host/io/inputs.h"
#include "host/masks/mask.h"
#include "host/report/lab_report.h"

/** Order of the dimensions in device memory. */
typedef enum Layout { LAYOUT_BHND, LAYOUT_BNHD } Layout;

/** One run, as asked for. Strings point into the argument vector. */
typedef struct Options {
  int batch, q_heads, q_len, head_dim;
  int kv_heads, kv_len; /**< 0: those of Q */
  Dtype dtype;
  const char *mask;
  int mask_block_q, mask_block_kv; /**< block sizes of --draw-mask and of the block mask */
  bool shared_kv;
  const char *mask_directory; /**< where to write the block mask, or NULL */
  Layout layout;
  double scale; /**< 0: 1 / sqrt(head_dim) */
  InputKind input;
  const char *input_directory;  /**< for INPUT_DIRECTORY */
  const char *output_directory; /**< or NULL */
  uint64_t seed;
  CheckMode check;
  int64_t check_rows;      /**< for CHECK_ROWS */
  int repeat;              /**< least number of timed samples */
  int repeat_if_slow;      /**< the same of slow passes */
  double min_time;         /**< least seconds of timed samples */
  const char *json_path;   /**< or NULL */
  const char *cases_path;  /**< or NULL */
  ReportRequest report;    /**< no parts: no report */
  double time_limit;       /**< seconds of the checked pass; 0: none */
  const char *size_option; /**< the last option that named a size, or NULL */
  bool draw_mask, info, ceilings, help, version;
} Options;

/** What a run does when no option is given: small enough for a CPU, or of a size that suits a GPU.
 */
Options options_default(void);

/**
 * Applies an argument vector on top of `options`, of which some exclude others. argv[0] is the
 * program's name. Returns false with EXIT_USAGE and one line that names the option, the value and
 * what would be right.
 */
bool options_parse(int argc, char **argv, Options *options, Error *error);

/** Prints what --help shows. */
void options_help(FILE *out);

/** Where the report of a run goes: standard output, unless --json or --report=json is there. */
FILE *options_report_stream(const Options *options);

/** The names that the command line uses. */
const char *input_name(const Options *options);
const char *layout_name(Layout layout);

/**
 * Checks what can be checked only when all options are known, and derives the problem, with dense
 * strides in the layout asked for, and its mask. EXIT_USAGE as above. On success the mask is to be
 * freed by mask_free().
 */
bool options_problem(const Options *options, Problem *problem, Mask *mask, Error *error);

/** Sets dense strides of all four tensors in the given layout. */
void problem_set_layout(Problem *problem, Layout layout);

#endif
