#include "host/cli/options.h"

#include <argp.h>
#include <errno.h> /* program_invocation_short_name */
#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "decode.h"
#include "host/base/values.h"
#include "host/cli/option_fault.h"
#include "host/device/device.h"
#include "host/masks/host_block_mask.h"

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
#define IN_TEXT(value) QUOTE(value)
#define BY_DEFAULT(value) " (default: " QUOTE(value) ")"

/** The parser's state. */
typedef struct Parse {
  Options *options;
  Error *error;
} Parse;

typedef enum Needs {
  NEEDS_NOTHING,
  NEEDS_FP8,
  NEEDS_BLOCK_MASKS,
  NEEDS_DECODE,
  NEEDS_PAGES,
  NEEDS_E4M3_CACHE
} Needs;

/** All that there is to know about an option; a row with `help` alone begins a group of --help. */
typedef struct Option {
  const char *name;  /**< without the dashes */
  int letter;        /**< or 0 */
  const char *value; /**< what --help calls its value; NULL: it takes none */
  const char *help;
  bool (*parse)(const struct Option *option, const char *text, Options *options, Error *error);
  size_t field;             /**< offset in Options of what `parse` sets */
  double least, most;       /**< the range of a number */
  const char *must;         /**< what its value must be, for a message */
  const char *const *words; /**< the values, if it takes the first `most` of these */
  Needs needs;              /**< a step without this refuses the option, and --help leaves it out */
  /** In place of `help` for steps of the kind. */
  const char *fp8_help, *masks_help, *spans_help, *backward_help, *decode_help;
  int flags; /**< for argp */
} Option;

static void *field_of(const Option *option, Options *options) {
  return (char *)options + option->field;
}

static bool parse_flag(const Option *option, const char *text, Options *o, Error *error) {
  (void)text, (void)error;
  return *(bool *)field_of(option, o) = true;
}

static bool parse_text(const Option *option, const char *text, Options *o, Error *error) {
  *(const char **)field_of(option, o) = text;
  return option->must == NULL || *text != '\0' ||
         fail(error, EXIT_USAGE, "--%s: must name a %s", option->name, option->must);
}

/** A size of the problem; --input DIR excludes sizes. */
static bool parse_size(const Option *option, const char *text, Options *o, Error *error) {
  int64_t size;
  o->size_option = option->name;
  if (!parse_integer(option->name, text, 1, (int64_t)option->most, &size, error)) return false;
  *(int *)field_of(option, o) = (int)size;
  return true;
}

static bool parse_number(const Option *option, const char *text, Options *o, Error *error) {
  double *number = field_of(option, o);
  if (!parse_real(option->name, text, number, error)) return false;
  return (*number >= option->least && *number <= option->most) ||
         fail(error, EXIT_USAGE, "--%s %s: must be %s", option->name, text, option->must);
}

static bool parse_word(const Option *option, const char *text, Options *o, Error *error) {
  return parse_name(option->name, text, option->words, (int)option->most, field_of(option, o),
                    error);
}

static const char *const SCALES_NAMES[] = {"head", "tensor"};
static const char *const LAYOUT_NAMES[] = {"bhnd", "bnhd"};
static const char *const INPUT_NAMES[] = {"normal", "outlier", "spiky", "sink", "constant"};

static bool parse_dtype(const Option *option, const char *text, Options *o, Error *error) {
  if (!step.fp8) return parse_word(option, text, o, error);
  int only;
  return parse_name(option->name, text, &DTYPE_NAMES[DTYPE_E4M3], 1, &only, error);
}

static bool parse_kv_dtype(const Option *option, const char *text, Options *o, Error *error) {
  int only;
  o->kv_dtype = DTYPE_E4M3;
  return parse_name(option->name, text, &DTYPE_NAMES[DTYPE_E4M3], 1, &only, error);
}

static bool parse_page_size(const Option *option, const char *text, Options *o, Error *error) {
  int64_t size;
  Error unused;
  o->size_option = option->name;
  if (!parse_integer("", text, 1, INT32_MAX, &size, &unused) || !is_page_size(size)) {
    return fail(error, EXIT_USAGE, "--%s %s: must be %s", option->name, text, option->must);
  }
  o->page_size = (int)size;
  return true;
}

static bool parse_lengths(const Option *option, const char *text, Options *o, Error *error) {
  o->size_option = option->name;
  return parse_text(option, text, o, error);
}

/** A flag that means something on a GPU alone. */
static bool parse_gpu_flag(const Option *option, const char *text, Options *o, Error *error) {
#ifdef SIMT_BACKEND
  (void)text, (void)o;
  return fail(error, EXIT_USAGE, "--%s: needs a GPU", option->name);
#else
  return parse_flag(option, text, o, error);
#endif
}

static bool parse_mask_block(const Option *option, const char *text, Options *o, Error *error) {
  return parse_sizes(option->name, text, LARGEST_MASK_BLOCK, &o->mask_block_q, &o->mask_block_kv,
                     error);
}

/** A name of a kind of input, or the path of a directory. */
static bool parse_input(const Option *option, const char *text, Options *o, Error *error) {
  int kind;
  Error unused = {0};
  if (parse_name(option->name, text, INPUT_NAMES, INPUT_DIRECTORY, &kind, &unused)) {
    o->input = (InputKind)kind;
    return true;
  }
  o->input = INPUT_DIRECTORY;
  o->input_directory = text;
  return access(text, F_OK) == 0 ||
         fail(error, EXIT_USAGE, "--input %s: must be %s", text, option->must);
}

static bool parse_random_seed(const Option *option, const char *text, Options *o, Error *error) {
  (void)option;
  return parse_seed(text, &o->seed, error);
}

static bool parse_check(const Option *option, const char *text, Options *o, Error *error) {
  Error unused;
  if (strncmp(text, "rows:", 5) == 0) {
    o->check = CHECK_ROWS;
    return parse_integer("", text + 5, 1, INT64_MAX, &o->check_rows, &unused) ||
           fail(error, EXIT_USAGE, "--check %s: N of rows:N must be an integer from 1 to 2^63 - 1",
                text);
  }
  o->check = strcmp(text, "all") == 0 ? CHECK_ALL : CHECK_NONE;
  return o->check == CHECK_ALL || strcmp(text, "none") == 0 ||
         fail(error, EXIT_USAGE, "--check %s: must be %s", text, option->must);
}

static bool parse_repeat(const Option *option, const char *text, Options *o, Error *error) {
  int64_t count;
  if (!parse_integer(option->name, text, 0, 1000000, &count, error)) return false;
  o->repeat = o->repeat_if_slow = (int)count;
  return true;
}

static bool parse_time_limit(const Option *option, const char *text, Options *o, Error *error) {
#ifdef SIMT_BACKEND
  return parse_number(option, text, o, error);
#else
  (void)text, (void)o;
  return fail(error, EXIT_USAGE, "--%s: needs the CPU backend", option->name);
#endif
}

static bool parse_report(const Option *option, const char *text, Options *o, Error *error) {
  (void)option;
  return report_request_parse(text, &o->report, error);
}

#define FIELD(name) offsetof(Options, name)

static const Option OPTIONS[] = {
    {.help = "The problem:"},
    {"batch", 'b', "N", "batch entries" BY_DEFAULT(DEFAULT_BATCH), parse_size, FIELD(batch),
     .most = INT32_MAX},
    {"heads", 'H', "N", "query heads" BY_DEFAULT(DEFAULT_HEADS), parse_size, FIELD(q_heads),
     .most = INT32_MAX},
    {"kv-heads", 'G', "N", "key/value heads, a divisor of --heads (default: as many)", parse_size,
     FIELD(kv_heads), .most = INT32_MAX},
    {"seqlen", 'n', "N", "query length" BY_DEFAULT(DEFAULT_SEQLEN), parse_size, FIELD(q_len),
     .most = LARGEST_LENGTH, .decode_help = "new queries of a sequence, 1 to 16 (default: 1)"},
    {"seqlen-kv", 'k', "N", "key/value length (default: as --seqlen)", parse_size, FIELD(kv_len),
     .most = LARGEST_LENGTH,
     .decode_help = "longest length of a sequence (default: that of --lengths, or " IN_TEXT(
         DEFAULT_SEQLEN) ")"},
    {"lengths", 0, "LIST",
     "keys of each sequence, the new ones among them: 5,9; or A-B, or log:A-B, drawn by --seed; or "
     "FILE.npy (default: all as --seqlen-kv)",
     parse_lengths, FIELD(lengths), .must = "list of lengths", .needs = NEEDS_DECODE},
    {"page-size", 0, "N",
     "K and V in pages of 16, 32, 64, 128 or 256 keys, in random order (default: no pages)",
     parse_page_size, .must = "16, 32, 64, 128 or 256", .needs = NEEDS_PAGES},
    {"head-dim", 'd', "N", "head dimension" BY_DEFAULT(DEFAULT_HEAD_DIM), parse_size,
     FIELD(head_dim), .most = MAX_HEAD_DIM},
    {"dtype", 't', "TYPE", "fp16 or bf16" BY_DEFAULT(fp16), parse_dtype, FIELD(dtype),
     .words = DTYPE_NAMES, .most = 2, .fp8_help = "e4m3"},
    {"kv-dtype", 0, "TYPE", "of K and V: e4m3 (default: as --dtype, where the step takes that)",
     parse_kv_dtype, .needs = NEEDS_E4M3_CACHE},
    {"out-dtype", 0, "TYPE", "of O, fp16 or bf16" BY_DEFAULT(fp16), parse_word, FIELD(o_dtype),
     .words = DTYPE_NAMES, .most = 2, .needs = NEEDS_FP8},
    {"scales", 0, "WHAT",
     "head: a scale of Q, K and V for each key/value head; tensor: one for the whole "
     "tensor" BY_DEFAULT(head),
     parse_word, FIELD(one_scale), .words = SCALES_NAMES, .most = 2, .needs = NEEDS_FP8},
    {"mask", 'm', "MASK", "full or causal, aligned to the last key" BY_DEFAULT(full), parse_text,
     FIELD(mask),
     .masks_help = "full or causal, aligned to the last key, window:W, document:COUNT or "
                   "L1,L2,..., prefix:P, interleaved:SEED, dilated:K, blocks:DENSITY, "
                   "random:DENSITY, empty, FILE.npy or a directory of the five "
                   "tensors" BY_DEFAULT(full),
     .spans_help = "full or causal, aligned to the last key, window:W, document:COUNT or "
                   "L1,L2,..., prefix:P, empty, or FILE.npy, if each query attends to one span of "
                   "keys at most" BY_DEFAULT(full),
     .decode_help =
         "causal or full, aligned to the last key of a sequence, or window:W, the last W "
         "keys up to the query's own" BY_DEFAULT(causal)},
    {"mask-block", 0, "QxK",
     "size of the blocks of the mask's picture, up to 16384x16384" BY_DEFAULT(128x128),
     parse_mask_block,
     .masks_help = "size of the blocks of the mask, and of its picture, multiples of 64 up to "
                   "16384x16384" BY_DEFAULT(128x128)},
    /* Kernels need the scale as a normal float. Above 32, fp32 scores are too coarse for the check:
     * see docs/correctness.md. */
    {"scale", 0, "X",
     "factor of Q K^T, greater than 0, at most 32 (default: 1/sqrt(head dimension))", parse_number,
     FIELD(scale), 1.2e-38, 32, "positive, from 1.2e-38 to 32"},
    {"layout", 0, "ORDER", "bhnd or bnhd: order of batch, head and row in memory" BY_DEFAULT(bhnd),
     parse_word, FIELD(layout), .words = LAYOUT_NAMES, .most = 2},
    {"input", 'i', "KIND",
     "normal, outlier, spiky, sink, constant, or a directory with q.npy, k.npy and "
     "v.npy" BY_DEFAULT(normal),
     parse_input, .must = "normal, outlier, spiky, sink, constant or an existing directory",
     .backward_help = "normal, outlier, spiky, sink, constant, or a directory with q.npy, k.npy, "
                      "v.npy and do.npy, and perhaps o.npy and lse.npy" BY_DEFAULT(normal),
     .decode_help = "normal, outlier, spiky, sink, constant, or a directory with q.npy, k.npy, "
                    "v.npy and lengths.npy, page_table.npy for pages, and k_scales.npy and "
                    "v_scales.npy for e4m3" BY_DEFAULT(normal)},
    {"seed", 's', "N",
     "of the random inputs; the same seed gives the same bits everywhere" BY_DEFAULT(DEFAULT_SEED),
     parse_random_seed},
    {.help = "What to do with it:"},
    {"check", 'c', "ROWS", "all, rows:N or none (default: all while quick, else a sample)",
     parse_check, .must = "all, rows:N or none"},
    {"repeat", 'r', "N",
     "at least so many timed passes; unless this is given, 3 where a pass takes over 0.3 s; 0: do "
     "not time (GPU)" BY_DEFAULT(DEFAULT_REPEAT),
     parse_repeat},
    {"min-time", 0, "SECONDS", "time passes at least so long (GPU)" BY_DEFAULT(DEFAULT_MIN_TIME),
     parse_number, FIELD(min_time), 0, DBL_MAX, "0 or more"},
    {"graph", 0, NULL, "also time replays of a CUDA graph of the pass (GPU)", parse_gpu_flag,
     FIELD(graph), .needs = NEEDS_DECODE},
    {"time-limit", 0, "SECONDS",
     "CPU backend: stop a kernel that takes longer, with exit code 3 (default: no limit)",
     parse_time_limit, FIELD(time_limit), DBL_MIN, 1e9, "greater than 0, at most 1e9"},
    {"output", 'o', "DIR", "create DIR and write o.npy and lse.npy", parse_text,
     FIELD(output_directory), .must = "directory",
     .backward_help = "create DIR and write dq.npy, dk.npy and dv.npy"},
    {"save-mask", 0, "DIR", "create DIR and write the block mask as five .npy files", parse_text,
     FIELD(mask_directory), .must = "directory", .needs = NEEDS_BLOCK_MASKS},
    {"json", 'j', "FILE",
     "append one JSON object per run; - is standard output, and the report goes to standard error",
     parse_text, FIELD(json_path), .must = "file"},
    {"report", 0, "LIST",
     "CPU backend: examine the kernels by file and line: races, bounds, init, alignment, blocks, "
     "traffic, banks, counts (default: these); annotate: the source with counts; "
     "roofline:h200, a100, rtx4090 or a FILE: least times; access:FILE:LINE: draw one access; "
     "json:FILE: all of it as JSON lines. Accesses are those of the source: nvcc may merge "
     "neighbours into wider ones, or drop some. See docs/lab.md",
     parse_report, .flags = OPTION_ARG_OPTIONAL},
    {"cases", 0, "FILE", "run once for each line of options in FILE", parse_text,
     FIELD(cases_path)},
    {.help = "Instead of running:"},
    {"draw-mask", 0, NULL,
     "print the mask as a map of blocks; nothing else is written, but by --save-mask", parse_flag,
     FIELD(draw_mask)},
    {"info", 0, NULL,
     "print what this step supports and how it would run the problem, and with --json what it "
     "takes and needs as one JSON object; nothing else is written",
     parse_flag, FIELD(info)},
    {"ceilings", 0, NULL,
     "measure anew what this GPU can do at best, print it, and keep it for later runs", parse_flag,
     FIELD(ceilings)},
    {"help", 0, NULL, "print this and exit", parse_flag, FIELD(help)},
    {"version", 0, NULL, "print the version and exit", parse_flag, FIELD(version)},
};
enum { OPTION_COUNT = sizeof OPTIONS / sizeof *OPTIONS, FIRST_KEY = 256 };

/** What argp calls an option; a group has none. */
static int key_of(int index) {
  const Option *option = &OPTIONS[index];
  return option->name == NULL ? 0 : option->letter != 0 ? option->letter : FIRST_KEY + index;
}

/** What this step lacks for an option, or NULL. */
static const char *lack_of(const Option *option) {
  if (option->needs == NEEDS_FP8 && !step.fp8) return "has no inputs in e4m3";
  if (option->needs == NEEDS_BLOCK_MASKS && step.block_masks == NULL) return "takes no block mask";
  if (option->needs >= NEEDS_DECODE && step.decode == NULL) return "is no decode step";
  if (option->needs == NEEDS_PAGES && !(step.caches & CACHE_PAGES)) return "takes no pages";
  if (option->needs == NEEDS_E4M3_CACHE && !(step.caches & CACHE_E4M3)) {
    return "takes no cache in e4m3";
  }
  return NULL;
}

/** That of a step which takes no other one, or the usual one. */
static int default_head_dim(void) {
  int only = 0, length = 0;
  const char *taken = step.head_dims != NULL ? step.head_dims : "";
  const bool one = sscanf(taken, "D = %d%n", &only, &length) == 1 && taken[length] == '\0';
  return one ? only : DEFAULT_HEAD_DIM;
}

static bool takes_e4m3_cache_only(void) {
  return step.decode != NULL && !(step.caches & CACHE_16_BIT);
}

static const char *help_on(const Option *option) {
  if (option->letter == 'd' && default_head_dim() != DEFAULT_HEAD_DIM) return step.head_dims;
  if (option->fp8_help != NULL && step.fp8) return option->fp8_help;
  if (option->decode_help != NULL && step.decode != NULL) return option->decode_help;
  if (option->backward_help != NULL && step.backward != NULL) return option->backward_help;
  if (option->masks_help == NULL || step.block_masks == NULL) return option->help;
  if (!step.block_masks->takes_spans) return option->masks_help;
  return option->spans_help != NULL ? option->spans_help : option->help;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  const Parse *parse = state->input;
  Error *error = parse->error;
  if (key == ARGP_KEY_ARG) {
    fail(error, EXIT_USAGE, "%s: unexpected argument; --help lists the options", text);
    return EINVAL;
  }
  if (key == ARGP_KEY_ERROR && error->text[0] == '\0') {
    option_fault(state->root_argp->options, state, error);
  }
  for (int i = 0; i < OPTION_COUNT; i++) {
    const Option *option = &OPTIONS[i];
    if (option->name == NULL || key_of(i) != key) continue;
    const char *lack = lack_of(option);
    if (lack != NULL) fail(error, EXIT_USAGE, "--%s: %s %s", option->name, step.name, lack);
    return lack == NULL && option->parse(option, text, parse->options, error) ? 0 : EINVAL;
  }
  return 0; /* one of argp's own keys */
}

#define FORWARD                                                                            \
  "Computes O = softmax(scale * Q K^T + mask) V, checks it against a reference in double " \
  "precision and, on a GPU, times it.\v"
#define BACKWARD                                                                                  \
  "Computes dQ, dK and dV, the gradients of O = softmax(scale * Q K^T + mask) V for a given dO, " \
  "checks them against a reference in double precision and, on a GPU, times them.\v"
#define DECODE                                                                                   \
  "Computes O = softmax(scale * Q K^T + mask) V for a few new queries at the end of a cache of " \
  "keys and values, checks it against a reference in double precision and, on a GPU, times it.\v"
#define EXIT_CODES                                                                           \
  "Exit codes: 0 right, 1 wrong answer, none that can be judged, or a finding of --report, " \
  "2 bad usage, 3 device or output failed, 77 a CUDA build without a GPU."

/** The options as argp takes them, with an empty one behind them. */
static struct argp fill_argp(struct argp_option options[OPTION_COUNT + 1]) {
  for (int i = 0; i < OPTION_COUNT; i++) {
    const Option *option = &OPTIONS[i];
    const int hidden = lack_of(option) != NULL ? OPTION_HIDDEN : 0;
    options[i] = (struct argp_option){option->name,           key_of(i),       option->value,
                                      option->flags | hidden, help_on(option), 0};
  }
  options[OPTION_COUNT] = (struct argp_option){0};
  return (struct argp){
      .options = options,
      .parser = parse_option,
      .doc = step.backward != NULL ? BACKWARD EXIT_CODES
             : step.decode != NULL ? DECODE EXIT_CODES
                                   : FORWARD EXIT_CODES,
  };
}

Options options_default(void) {
  return (Options){
      .batch = DEFAULT_BATCH,
      .q_heads = DEFAULT_HEADS,
      .q_len = step.decode != NULL ? 1 : DEFAULT_SEQLEN,
      .head_dim = default_head_dim(),
      .dtype = step.fp8 ? DTYPE_E4M3 : DTYPE_FP16,
      .kv_dtype = takes_e4m3_cache_only() ? DTYPE_E4M3 : DTYPE_FP16,
      .mask = step.decode != NULL ? "causal" : "full",
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
    return fail(error, EXIT_USAGE, "--%s: must not be given with --input %s, whose files set sizes",
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
  struct argp_option shown[OPTION_COUNT + 1];
  const struct argp argp = fill_argp(shown);
  /* ARGP_IN_ORDER: if parsing fails, the last option that argp read is the one at fault. */
  const unsigned flags = ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT | ARGP_IN_ORDER;
  error->text[0] = '\0';
  return argp_parse(&argp, argc, argv, flags, NULL, &parse) == 0 &&
         check_exclusions(options, error);
}

int options_default_length(void) {
  return DEFAULT_SEQLEN;
}

void options_help(FILE *out) {
  struct argp_option shown[OPTION_COUNT + 1];
  const struct argp argp = fill_argp(shown);
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
