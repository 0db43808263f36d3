#include "host/cli/options.h"

#include <argp.h>
#include <errno.h> /* program_invocation_short_name */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/values.h"
#include "host/cli/option_fault.h"
#include "host/device/device.h"
#include "host/masks/host_block_mask.h"

/* Kernels round lengths up to whole tiles in 32-bit arithmetic, so they stay well below 2^31. */
enum { LARGEST_LENGTH = 1 << 30 };

/* Kernels need the scale as a normal float. Above LARGEST_SCALE, fp32 scores are too coarse for the
 * check: see docs/correctness.md. */
static const double SMALLEST_SCALE = 1.2e-38, LARGEST_SCALE = 32;

enum {
  KEY_MASK_BLOCK = 256,
  KEY_SAVE_MASK,
  KEY_LAYOUT,
  KEY_SCALE,
  KEY_SCALES,
  KEY_OUT_DTYPE,
  KEY_MIN_TIME,
  KEY_REPORT,
  KEY_CASES,
  KEY_TIME_LIMIT,
  KEY_DRAW_MASK,
  KEY_INFO,
  KEY_CEILINGS,
  KEY_HELP,
  KEY_VERSION
};

/* The default problem: small enough for the CPU backend, or of a size that suits a GPU. */
#ifdef SIMT_BACKEND
#define DEFAULT_BATCH 1
#define DEFAULT_HEADS 2
#define DEFAULT_SEQLEN 256
#define DEFAULT_HEAD_DIM 64
#else
#define DEFAULT_BATCH 4
#define DEFAULT_HEADS 16
#define DEFAULT_SEQLEN 4096
#define DEFAULT_HEAD_DIM 128
#endif
#define DEFAULT_REPEAT 10
#define DEFAULT_REPEAT_IF_SLOW 3
#define DEFAULT_MIN_TIME 0.5
#define DEFAULT_SEED 1
#define QUOTE(x) #x
/* This extra macro level makes QUOTE() see the value of a macro and not its name. */
#define BY_DEFAULT(value) " (default: " QUOTE(value) ")"

static const struct argp_option OPTIONS[] = {
    {0, 0, 0, 0, "The problem:", 1},
    {"batch", 'b', "N", 0, "batch entries" BY_DEFAULT(DEFAULT_BATCH), 0},
    {"heads", 'H', "N", 0, "query heads" BY_DEFAULT(DEFAULT_HEADS), 0},
    {"kv-heads", 'G', "N", 0, "key/value heads, a divisor of --heads (default: as many)", 0},
    {"seqlen", 'n', "N", 0, "query length" BY_DEFAULT(DEFAULT_SEQLEN), 0},
    {"seqlen-kv", 'k', "N", 0, "key/value length (default: as --seqlen)", 0},
    {"head-dim", 'd', "N", 0, "head dimension" BY_DEFAULT(DEFAULT_HEAD_DIM), 0},
    {"dtype", 't', "TYPE", 0, "fp16 or bf16" BY_DEFAULT(fp16), 0},
    {"out-dtype", KEY_OUT_DTYPE, "TYPE", 0, "of O, fp16 or bf16" BY_DEFAULT(fp16), 0},
    {"scales", KEY_SCALES, "WHAT", 0,
     "head: a scale of Q, K and V for each key/value head; tensor: one for the whole "
     "tensor" BY_DEFAULT(head),
     0},
    {"mask", 'm', "MASK", 0, "full or causal, aligned to the last key" BY_DEFAULT(full), 0},
    {"mask-block", KEY_MASK_BLOCK, "QxK", 0,
     "size of the blocks of the mask's picture, up to 16384x16384" BY_DEFAULT(128x128), 0},
    {"scale", KEY_SCALE, "X", 0,
     "factor of Q K^T, greater than 0, at most 32 (default: 1/sqrt(head dimension))", 0},
    {"layout", KEY_LAYOUT, "ORDER", 0,
     "bhnd or bnhd: order of batch, head and row in memory" BY_DEFAULT(bhnd), 0},
    {"input", 'i', "KIND", 0,
     "normal, outlier, spiky, sink, constant, or a directory with q.npy, k.npy and "
     "v.npy" BY_DEFAULT(normal),
     0},
    {"seed", 's', "N", 0,
     "of the random inputs; the same seed gives the same bits everywhere" BY_DEFAULT(DEFAULT_SEED),
     0},
    {0, 0, 0, 0, "What to do with it:", 2},
    {"check", 'c', "ROWS", 0, "all, rows:N or none (default: all while quick, else a sample)", 0},
    {"repeat", 'r', "N", 0,
     "at least so many timed passes; unless this is given, 3 where a pass takes over 0.3 s; 0: do "
     "not time (GPU)" BY_DEFAULT(DEFAULT_REPEAT),
     0},
    {"min-time", KEY_MIN_TIME, "SECONDS", 0,
     "and at least so long (GPU)" BY_DEFAULT(DEFAULT_MIN_TIME), 0},
    {"time-limit", KEY_TIME_LIMIT, "SECONDS", 0,
     "CPU backend: stop a kernel that takes longer, with exit code 3 (default: no limit)", 0},
    {"output", 'o', "DIR", 0, "create DIR and write o.npy and lse.npy", 0},
    {"save-mask", KEY_SAVE_MASK, "DIR", 0, "create DIR and write the block mask as five .npy files",
     0},
    {"json", 'j', "FILE", 0,
     "append one JSON object per run; - is standard output, and the report goes to standard error",
     0},
    {"report", KEY_REPORT, "LIST", OPTION_ARG_OPTIONAL,
     "CPU backend: examine the kernels by file and line: races, bounds, init, alignment, blocks, "
     "traffic, banks, counts (default: these); annotate: the source with counts; "
     "roofline:h200, a100, rtx4090 or a FILE: least times; access:FILE:LINE: draw one access; "
     "json:FILE: all of it as JSON lines. Accesses are those of the source: nvcc may merge "
     "neighbours into wider ones, or drop some. See docs/lab.md",
     0},
    {"cases", KEY_CASES, "FILE", 0, "run once for each line of options in FILE", 0},
    {0, 0, 0, 0, "Instead of running:", 3},
    {"draw-mask", KEY_DRAW_MASK, 0, 0,
     "print the mask as a map of blocks; nothing else is written, but by --save-mask", 0},
    {"info", KEY_INFO, 0, 0,
     "print what this step supports and how it would run the problem, and with --json what it "
     "takes "
     "and needs as one JSON object; nothing else is written",
     0},
    {"ceilings", KEY_CEILINGS, 0, 0,
     "measure anew what this GPU can do at best, print it, and keep it for later runs", 0},
    {"help", KEY_HELP, 0, 0, "print this and exit", 0},
    {"version", KEY_VERSION, 0, 0, "print the version and exit", 0},
    {0, 0, 0, 0, 0, 0},
};

/** That of a step which takes no other one, or the usual one. */
static int default_head_dim(void) {
  int only = 0, length = 0;
  const char *taken = step.head_dims != NULL ? step.head_dims : "";
  const bool one = sscanf(taken, "D = %d%n", &only, &length) == 1 && taken[length] == '\0';
  return one ? only : DEFAULT_HEAD_DIM;
}

/** What --help says of an option; NULL if this step refuses it. */
static const char *help_on(const struct argp_option *option) {
  const bool masks = step.block_masks != NULL, spans = masks && step.block_masks->takes_spans;
  switch (option->key) {
    case 't':
      return step.fp8 ? "e4m3" : option->doc;
    case 'd':
      return default_head_dim() == DEFAULT_HEAD_DIM ? option->doc : step.head_dims;
    case KEY_OUT_DTYPE:
    case KEY_SCALES:
      return step.fp8 ? option->doc : NULL;
    case 'm':
      return !masks  ? option->doc
             : spans ? "full or causal, aligned to the last key, window:W, document:COUNT or "
                       "L1,L2,..., prefix:P, empty, or FILE.npy, if each query attends one span of "
                       "keys at most" BY_DEFAULT(full)
                     : "full or causal, aligned to the last key, window:W, document:COUNT or "
                       "L1,L2,..., prefix:P, interleaved:SEED, dilated:K, blocks:DENSITY, "
                       "random:DENSITY, empty, FILE.npy or a directory of the five "
                       "tensors" BY_DEFAULT(full);
    case KEY_MASK_BLOCK:
      return !masks || spans ? option->doc
                             : "size of the blocks of the mask, and of its picture, multiples of "
                               "64 up to 16384x16384" BY_DEFAULT(128x128);
    case KEY_SAVE_MASK:
      return masks ? option->doc : NULL;
    default:
      return option->doc;
  }
}

/** The parser's state. */
typedef struct Parse {
  Options *options;
  Error *error;
} Parse;

static bool parse_check(const char *text, Options *options, Error *error) {
  if (strncmp(text, "rows:", 5) == 0) {
    options->check = CHECK_ROWS;
    Error unused;
    return parse_integer("", text + 5, 1, INT64_MAX, &options->check_rows, &unused) ||
           fail(error, EXIT_USAGE, "--check %s: N of rows:N must be an integer from 1 to 2^63 - 1",
                text);
  }
  if (strcmp(text, "all") == 0) {
    options->check = CHECK_ALL;
  } else if (strcmp(text, "none") == 0) {
    options->check = CHECK_NONE;
  } else {
    return fail(error, EXIT_USAGE, "--check %s: must be all, rows:N or none", text);
  }
  return true;
}

static const char *const LAYOUT_NAMES[] = {"bhnd", "bnhd"};
static const char *const INPUT_NAMES[] = {"normal", "outlier", "spiky", "sink", "constant"};

/** Parses a name of a kind of input, or the path of a directory. */
static bool parse_input(const char *text, Options *options, Error *error) {
  int kind;
  Error unused = {0};
  if (parse_name("--input", text, INPUT_NAMES, INPUT_DIRECTORY, &kind, &unused)) {
    options->input = (InputKind)kind;
    return true;
  }
  if (access(text, F_OK) != 0) {
    return fail(
        error, EXIT_USAGE,
        "--input %s: must be normal, outlier, spiky, sink, constant or an existing directory",
        text);
  }
  options->input = INPUT_DIRECTORY;
  options->input_directory = text;
  return true;
}

/** Parses a size of the problem; --input DIR excludes sizes. */
static bool parse_size(const char *option, const char *text, int64_t most, int *size, Options *o,
                       Error *error) {
  o->size_option = option;
  return parse_count(option, text, most, size, error);
}

static bool needs_fp8(const char *option, Error *error) {
  return step.fp8 || fail(error, EXIT_USAGE, "%s: %s has no inputs in e4m3", option, step.name);
}

/** Parses an option of the problem; for any other option, returns false and sets no error. */
static bool parse_problem_option(int key, char *text, Options *o, Error *error) {
  const char *const DTYPES[] = {dtype_name(DTYPE_FP16), dtype_name(DTYPE_BF16),
                                dtype_name(DTYPE_E4M3)};
  static const char *const SCALES[] = {"head", "tensor"};
  int index = 0;
  switch (key) {
    case 'b':
      return parse_size("--batch", text, INT32_MAX, &o->batch, o, error);
    case 'H':
      return parse_size("--heads", text, INT32_MAX, &o->q_heads, o, error);
    case 'G':
      return parse_size("--kv-heads", text, INT32_MAX, &o->kv_heads, o, error);
    case 'n':
      return parse_size("--seqlen", text, LARGEST_LENGTH, &o->q_len, o, error);
    case 'k':
      return parse_size("--seqlen-kv", text, LARGEST_LENGTH, &o->kv_len, o, error);
    case 'd':
      return parse_size("--head-dim", text, MAX_HEAD_DIM, &o->head_dim, o, error);
    case 't':
      if (step.fp8) return parse_name("--dtype", text, &DTYPES[DTYPE_E4M3], 1, &index, error);
      if (!parse_name("--dtype", text, DTYPES, 2, &index, error)) return false;
      o->dtype = (Dtype)index;
      return true;
    case KEY_OUT_DTYPE:
      if (!needs_fp8("--out-dtype", error) ||
          !parse_name("--out-dtype", text, DTYPES, 2, &index, error)) {
        return false;
      }
      o->o_dtype = (Dtype)index;
      return true;
    case KEY_SCALES:
      if (!needs_fp8("--scales", error) ||
          !parse_name("--scales", text, SCALES, 2, &index, error)) {
        return false;
      }
      o->one_scale = index == 1;
      return true;
    case 'm':
      o->mask = text;
      return true;
    case KEY_MASK_BLOCK:
      return parse_sizes("--mask-block", text, LARGEST_MASK_BLOCK, &o->mask_block_q,
                         &o->mask_block_kv, error);
    case KEY_SCALE:
      if (!parse_real("--scale", text, &o->scale, error)) return false;
      return (o->scale >= SMALLEST_SCALE && o->scale <= LARGEST_SCALE) ||
             fail(error, EXIT_USAGE, "--scale %s: must be positive, from %g to %g", text,
                  SMALLEST_SCALE, LARGEST_SCALE);
    case KEY_LAYOUT:
      if (!parse_name("--layout", text, LAYOUT_NAMES, 2, &index, error)) return false;
      o->layout = (Layout)index;
      return true;
    case 'i':
      return parse_input(text, o, error);
    case 's':
      return parse_seed(text, &o->seed, error);
    default:
      return false;
  }
}

/** The same for an option that says what to do with the problem. */
static bool parse_action_option(int key, char *text, Options *o, Error *error) {
  int64_t count;
  switch (key) {
    case 'c':
      return parse_check(text, o, error);
    case 'r':
      if (!parse_integer("--repeat", text, 0, 1000000, &count, error)) return false;
      o->repeat = o->repeat_if_slow = (int)count;
      return true;
    case KEY_MIN_TIME:
      if (!parse_real("--min-time", text, &o->min_time, error)) return false;
      if (o->min_time < 0) {
        return fail(error, EXIT_USAGE, "--min-time %s: must be 0 or more", text);
      }
      return true;
    case KEY_TIME_LIMIT:
#ifndef SIMT_BACKEND
      return fail(error, EXIT_USAGE, "--time-limit: needs the CPU backend");
#endif
      if (!parse_real("--time-limit", text, &o->time_limit, error)) return false;
      return (o->time_limit > 0 && o->time_limit <= 1e9) ||
             fail(error, EXIT_USAGE, "--time-limit %s: must be greater than 0, at most 1e9", text);
    case 'o':
      o->output_directory = text;
      return *text != '\0' || fail(error, EXIT_USAGE, "--output: must name a directory");
    case 'j':
      o->json_path = text;
      return *text != '\0' || fail(error, EXIT_USAGE, "--json: must name a file");
    case KEY_REPORT:
      return report_request_parse(text, &o->report, error);
    case KEY_CASES:
      o->cases_path = text;
      return true;
    case KEY_DRAW_MASK:
      o->draw_mask = true;
      return true;
    case KEY_SAVE_MASK:
      if (step.block_masks == NULL) {
        return fail(error, EXIT_USAGE, "--save-mask: %s takes no block mask", step.name);
      }
      o->mask_directory = text;
      return *text != '\0' || fail(error, EXIT_USAGE, "--save-mask: must name a directory");
    case KEY_INFO:
      o->info = true;
      return true;
    case KEY_CEILINGS:
      o->ceilings = true;
      return true;
    case KEY_HELP:
      o->help = true;
      return true;
    case KEY_VERSION:
      o->version = true;
      return true;
    default:
      return false;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state);

static const struct argp ARGP = {
    .options = OPTIONS,
    .parser = parse_option,
    .doc =
        "Computes O = softmax(scale * Q K^T + mask) V, checks it against a reference in double "
        "precision and, on a GPU, times it.\v"
        "Exit codes: 0 right, 1 wrong answer, none that can be judged, or a finding of --report, "
        "2 bad usage, 3 device or "
        "output failed, "
        "77 a CUDA build without a GPU.",
};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  const Parse *parse = state->input;
  Options *options = parse->options;
  Error *error = parse->error;
  switch (key) {
    case ARGP_KEY_ARG:
      fail(error, EXIT_USAGE, "%s: unexpected argument; --help lists the options", text);
      return EINVAL;
    case ARGP_KEY_INIT:
    case ARGP_KEY_NO_ARGS:
    case ARGP_KEY_END:
    case ARGP_KEY_SUCCESS:
    case ARGP_KEY_FINI:
      return 0;
    case ARGP_KEY_ERROR:
      if (error->text[0] == '\0') option_fault(OPTIONS, state, error);
      return 0;
    default:
      break;
  }
  error->text[0] = '\0';
  if (parse_problem_option(key, text, options, error)) return 0;
  if (error->text[0] == '\0' && parse_action_option(key, text, options, error)) return 0;
  return error->text[0] == '\0' ? ARGP_ERR_UNKNOWN : EINVAL;
}

Options options_default(void) {
  return (Options){
      .batch = DEFAULT_BATCH,
      .q_heads = DEFAULT_HEADS,
      .q_len = DEFAULT_SEQLEN,
      .head_dim = default_head_dim(),
      .dtype = step.fp8 ? DTYPE_E4M3 : DTYPE_FP16,
      .mask = "full",
      .mask_block_q = 128,
      .mask_block_kv = 128,
      .seed = DEFAULT_SEED,
      .repeat = DEFAULT_REPEAT,
      .repeat_if_slow = DEFAULT_REPEAT_IF_SLOW,
      .min_time = DEFAULT_MIN_TIME,
  };
}

/** Refuses options that exclude each other. */
static bool check_exclusions(const Options *o, Error *error) {
  if (o->input == INPUT_DIRECTORY && o->size_option != NULL) {
    return fail(error, EXIT_USAGE, "%s: must not be given with --input %s, whose files set sizes",
                o->size_option, o->input_directory);
  }
  if (o->help || o->version || (!o->draw_mask && !o->info)) return true;
  const char *other = o->draw_mask && o->info                ? "--info"
                      : o->output_directory != NULL          ? "--output"
                      : o->draw_mask && o->json_path != NULL ? "--json"
                      : o->report.parts != 0                 ? "--report"
                      : o->info && o->mask_directory != NULL ? "--save-mask"
                                                             : NULL;
  return other == NULL ||
         fail(error, EXIT_USAGE, "%s instead of running, so %s must not be given with it",
              o->draw_mask ? "--draw-mask: draws" : "--info: describes", other);
}

bool options_parse(int argc, char **argv, Options *options, Error *error) {
  Parse parse = {options, error};
  /* ARGP_IN_ORDER: if parsing fails, the last option that argp read is the one at fault. */
  const unsigned flags = ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT | ARGP_IN_ORDER;
  error->text[0] = '\0';
  return argp_parse(&ARGP, argc, argv, flags, NULL, &parse) == 0 &&
         check_exclusions(options, error);
}

void options_help(FILE *out) {
  struct argp_option shown[sizeof OPTIONS / sizeof *OPTIONS];
  struct argp argp = ARGP;
  argp.options = shown;
  memcpy(shown, OPTIONS, sizeof OPTIONS);
  for (struct argp_option *o = shown; o->name != NULL || o->doc != NULL; o++) {
    const char *help = help_on(o);
    if (help == NULL) o->flags |= OPTION_HIDDEN;
    o->doc = help;
  }
  char name[NAME_MAX + 3];
  snprintf(name, sizeof name, "./%s", program_invocation_short_name);
  argp_help(&argp, out, ARGP_HELP_STD_HELP, name);
}

FILE *options_report_stream(const Options *o) {
  const bool taken = (o->json_path != NULL && strcmp(o->json_path, "-") == 0) ||
                     strcmp(o->report.json_path, "-") == 0;
  return taken ? stderr : stdout;
}

const char *input_name(const Options *options) {
  return options->input == INPUT_DIRECTORY ? options->input_directory : INPUT_NAMES[options->input];
}

const char *layout_name(Layout layout) {
  return LAYOUT_NAMES[layout];
}
