/** @file The command line of every step. */
#ifndef HOST_OPTIONS_H
#define HOST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/check/check.h"
#include "host/cli/report_request.h"
#include "host/io/inputs.h"
#include "host/masks/mask.h"

/** Kernels round lengths up to whole tiles in 32-bit arithmetic, so they stay well below 2^31. */
enum { LARGEST_LENGTH = 1 << 30 };

/** Order of the dimensions in device memory. */
typedef enum Layout { LAYOUT_BHND, LAYOUT_BNHD } Layout;

/** The options of one run. Strings point into the argument vector. */
typedef struct Options {
  int batch, q_heads, q_len, head_dim;
  int kv_heads, kv_len; /**< 0: as q_heads, q_len; of a decode step, as its lengths */
  Dtype dtype;
  Dtype o_dtype;       /**< with DTYPE_E4M3 */
  int one_scale;       /**< likewise: 1: one scale for each of Q, K and V; 0: one for each head */
  const char *lengths; /**< of a decode step's sequences, as given; NULL: all are kv_len */
  int page_size;       /**< of a decode step; 0: no pages */
  Dtype kv_dtype;      /**< of a decode step: DTYPE_E4M3, or any other: as dtype */
  bool graph;          /**< of a decode step: also time replays of a CUDA graph */
  const char *mask;
  int mask_block_q, mask_block_kv; /**< block sizes of --draw-mask and of the block mask */
  const char *mask_directory;      /**< where to write the block mask, or NULL */
  Layout layout;
  double scale; /**< 0: 1 / sqrt(head_dim) */
  InputKind input;
  const char *input_directory;  /**< for INPUT_DIRECTORY */
  const char *output_directory; /**< or NULL */
  uint64_t seed;
  CheckMode check;
  int64_t check_rows;      /**< for CHECK_ROWS */
  int repeat;              /**< least number of timed samples */
  int repeat_if_slow;      /**< the same if a pass is slow */
  double min_time;         /**< least seconds of timed samples */
  const char *json_path;   /**< or NULL */
  const char *cases_path;  /**< or NULL */
  ReportRequest report;    /**< no parts: no report */
  double time_limit;       /**< seconds of the checked pass; 0: none */
  const char *size_option; /**< the last option that named a size, or NULL */
  bool draw_mask, info, ceilings, help, version;
} Options;

/** The options of a run that gives none: a problem for a GPU, or a smaller one for a CPU. */
Options options_default(void);

/**
 * Parses an argument vector, in which argv[0] is the program's name, on top of `options`. If an
 * option is wrong or excludes another, returns false with EXIT_USAGE and one line that names the
 * option, the value and what is allowed.
 */
bool options_parse(int argc, char **argv, Options *options, Error *error);

/** The length of sequences where none is named. */
int options_default_length(void);

/** Prints what --help shows. */
void options_help(FILE *out);

/** Stream of the report: standard output, or standard error if JSON goes to standard output. */
FILE *options_report_stream(const Options *options);

/** The names that the command line uses. */
const char *input_name(const Options *options);
const char *layout_name(Layout layout);

/** What is asked of one run, as far as reports repeat it. */
typedef struct RunRequest {
  Problem problem;
  Mask mask;
  const char *input, *layout; /**< as the command line names them */
  const char *lengths;        /**< likewise; NULL: all are the longest, or come from files */
  uint64_t seed;
  const ReportRequest *report;
} RunRequest;

/**
 * Derives the request: the problem, with dense strides in the requested layout, and its mask;
 * checks what depends on several options. EXIT_USAGE as above. It refers to the options, which get
 * the sizes of the files that --input names; `inputs` holds what was read of these, and a decode
 * step's lengths and pages, to which its mask refers. On success, the caller frees the mask with
 * mask_free().
 */
bool options_request(Options *options, RunRequest *request, Inputs *inputs, Error *error);

#endif
