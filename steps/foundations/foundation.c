#include "foundation.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/error.h"
#include "host/base/json.h"
#include "host/base/values.h"
#include "host/base/version.h"
#include "host/cli/option_fault.h"
#include "host/device/ceiling.h"
#include "host/device/flush.h"
#include "host/io/random.h"
#include "host/report/record.h"

enum { MOST_STAGES = 16, MOST_ROUNDS = 1000, WARM_UPS = 2 };

typedef struct Stage {
  const char *name, *pass; /* pass: of which it is a part, or NULL */
  void (*launch)(void);
  double bytes, flops;
  bool is_library, right;
  char note[200];
  float ms[MOST_ROUNDS]; /* sorted in the end */
} Stage;

static struct {
  const Program *program;
  Run run;
  const char *json_path, *only, *pass; /* or NULL */
  int64_t rounds;
  ReportRequest report;
  bool help, version;
  Stage stages[MOST_STAGES];
  int stage_count;
  double bytes, flops;
  Device device;
  Error error;
} state = {.run.seed = 1, .rounds = 20};

static FILE *table_stream(void) {
  return state.json_path != NULL && strcmp(state.json_path, "-") == 0 ? stderr : stdout;
}

/** Ends the program with a message; what the lab found may say why. */
static _Noreturn void stop(ExitCode code, const char *text) {
  static bool stopping;
  RunRecord record = {.step = state.program->name,
                      .request = &(RunRequest){.report = &state.report}};
  Error unused;
  if (code == EXIT_DEVICE && !stopping) {
    stopping = true;
    lab_report_finish(&record, table_stream(), &unused);
  }
  fflush(stdout);
  fprintf(stderr, "%s: %s\n", state.program->name, text);
  exit(code);
}

void foundation_check(cudaError_t status, const char *call) {
  char text[400];
  if (status == cudaSuccess) return;
  snprintf(text, sizeof text, "%s: %s", call, cudaGetErrorString(status));
  stop(EXIT_DEVICE, text);
}

void *foundation_allocate(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (memory == NULL) stop(EXIT_DEVICE, "host memory: out of memory");
  return memory;
}

uint32_t foundation_bits(uint64_t seed, uint64_t index) {
  return (uint32_t)(random_bits(seed, 0, index) >> 32);
}

float foundation_float(uint64_t seed, uint64_t index) {
  return (float)((int32_t)foundation_bits(seed, index) >> 8) * 0x1p-23f;
}

/* --- Options ---------------------------------------------------------------------------------- */

enum { KEY_STAGE = 256, KEY_REPORT, KEY_HELP, KEY_VERSION };

static const struct argp_option OPTIONS[] = {
    {"size", 'n', "N", 0, "elements, or rows and columns of square matrices", 0},
    {"seed", 's', "N", 0, "of the random inputs (default: 1)", 0},
    {"stage", KEY_STAGE, "NAME", 0, "run this stage alone", 0},
    {"repeat", 'r', "N", 0, "timed runs of each stage, 0 to 1000 (GPU) (default: 20)", 0},
    {"json", 'j', "FILE", 0,
     "append one JSON object for each stage; - is standard output, and the table goes to standard "
     "error",
     0},
    {"report", KEY_REPORT, "LIST", OPTION_ARG_OPTIONAL,
     "CPU backend: examine the kernels by file and line, as in the steps; see docs/lab.md", 0},
    {"help", KEY_HELP, NULL, 0, "print this and exit", 0},
    {"version", KEY_VERSION, NULL, 0, "print the version and exit", 0},
    {0}};

static bool parse_report(const char *list, Error *error) {
  if (state.run.on_gpu) return fail(error, EXIT_USAGE, "--report: needs BACKEND=cpu");
  return report_request_parse(list, &state.report, error) &&
         ((state.report.parts & REPORT_ROOFLINE) == 0 ||
          fail(error, EXIT_USAGE, "--report: roofline: is known of the steps alone"));
}

static error_t parse_option(int key, char *text, struct argp_state *parser) {
  Error *error = &state.error;
  bool ok = true;
  switch (key) {
    case 'n':
      ok = parse_integer("size", text, 1, state.program->most, &state.run.n, error);
      break;
    case 's':
      ok = parse_seed(text, &state.run.seed, error);
      break;
    case 'r':
      ok = parse_integer("repeat", text, 0, MOST_ROUNDS, &state.rounds, error);
      break;
    case 'j':
      state.json_path = text;
      break;
    case KEY_STAGE:
      state.only = text;
      break;
    case KEY_REPORT:
      ok = parse_report(text, error);
      break;
    case KEY_HELP:
      state.help = true;
      break;
    case KEY_VERSION:
      state.version = true;
      break;
    case ARGP_KEY_ARG:
      ok = fail(error, EXIT_USAGE, "%s: unexpected argument; --help lists the options", text);
      break;
    case ARGP_KEY_ERROR:
      if (error->text[0] == '\0') option_fault(parser->root_argp->options, parser, error);
      break;
    default:
      break;
  }
  return ok ? 0 : EINVAL;
}

Run foundation_begin(int argc, char **argv, const Program *program) {
  Error *error = &state.error;
  char name[32], doc[600];
  state.program = program;
#ifndef SIMT_BACKEND
  state.run.on_gpu = true;
#endif
  state.run.n = state.run.on_gpu ? program->gpu_size : program->cpu_size;
  snprintf(doc, sizeof doc,
           "%s Checks every stage and, on a GPU, times them in turns.\v--size is from 1 to %lld "
           "(default: %lld). Exit codes: 0 right, 1 wrong or a finding of --report, 2 bad usage, 3 "
           "device or output failed, 77 a CUDA build without a GPU.",
           program->does, (long long)program->most, (long long)state.run.n);
  const struct argp argp = {.options = OPTIONS, .parser = parse_option, .doc = doc};
  const unsigned flags = ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT | ARGP_IN_ORDER;
  if (argp_parse(&argp, argc, argv, flags, NULL, NULL) != 0) stop(error->code, error->text);
  if (state.help) {
    snprintf(name, sizeof name, "./%s", program->name);
    argp_help(&argp, stdout, ARGP_HELP_STD_HELP, name);
    exit(EXIT_RIGHT);
  }
  if (state.version) {
    printf("%s %s, commit %s\n", program->name, VERSION, version_commit());
    exit(EXIT_RIGHT);
  }
  if (!device_open(&state.device, error)) stop(error->code, error->text);
  if (state.json_path != NULL && !json_check_path("--json ", state.json_path, error)) {
    stop(error->code, error->text);
  }
  if (state.report.parts != 0 && !lab_report_start(&state.report, error)) {
    stop(error->code, error->text);
  }
  state.run.is_examined = state.report.parts != 0;
  return state.run;
}

/* --- Stages ----------------------------------------------------------------------------------- */

void foundation_work(double bytes, double flops) {
  state.bytes = bytes;
  state.flops = flops;
}

void foundation_pass(const char *name) {
  state.pass = name;
}

static void run_stage(const char *name, void (*launch)(void), bool (*is_right)(char note[200]),
                      bool is_library) {
  if (state.only != NULL && strcmp(state.only, name) != 0) return;
  if (state.stage_count == MOST_STAGES) stop(EXIT_DEVICE, "too many stages");
  Stage *stage = &state.stages[state.stage_count++];
  *stage = (Stage){.name = name,
                   .pass = state.pass,
                   .launch = launch,
                   .bytes = state.bytes,
                   .flops = state.flops,
                   .is_library = is_library};
  launch();
  foundation_check(cudaGetLastError(), name);
  foundation_check(cudaDeviceSynchronize(), name);
  stage->right = is_right(stage->note);
}

void foundation_stage(const char *name, void (*launch)(void), bool (*is_right)(char note[200])) {
  run_stage(name, launch, is_right, false);
}

void foundation_stage_if_asked(const char *name, void (*launch)(void),
                               bool (*is_right)(char note[200])) {
  if (state.only != NULL) run_stage(name, launch, is_right, false);
}

void foundation_library(const char *name, void (*launch)(void), bool (*is_right)(char note[200])) {
  run_stage(name, launch, is_right, true);
}

bool foundation_equal(void *device, const void *right, int64_t count, char note[200]) {
  const size_t bytes = sizeof(uint32_t) * (size_t)count;
  uint32_t *found = foundation_allocate(bytes);
  const uint32_t *expected = right;
  int64_t i = 0;
  CHECK(cudaMemcpy(found, device, bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(device, 0xa5, bytes));
  while (i < count && found[i] == expected[i]) i++;
  if (i < count) {
    float as_floats[2];
    memcpy(&as_floats[0], &found[i], sizeof(float));
    memcpy(&as_floats[1], &expected[i], sizeof(float));
    snprintf(note, 200, "element %lld is %u, should be %u; as floats %g and %g", (long long)i,
             found[i], expected[i], (double)as_floats[0], (double)as_floats[1]);
  }
  free(found);
  return i == count;
}

void foundation_sort(const uint32_t *from, uint32_t *to, int64_t count) {
  uint32_t *half = foundation_allocate(sizeof *half * (size_t)count);
  for (int shift = 0; shift <= 16; shift += 16, from = half) {
    int64_t places[65537] = {0};
    for (int64_t i = 0; i < count; i++) places[(from[i] >> shift & 65535) + 1]++;
    for (int digit = 0; digit < 65536; digit++) places[digit + 1] += places[digit];
    uint32_t *const target = shift == 0 ? half : to;
    for (int64_t i = 0; i < count; i++) target[places[from[i] >> shift & 65535]++] = from[i];
  }
  free(half);
}

/** y = M x */
static void multiply(const float *m, const double *x, double *y, int n) {
#pragma omp parallel for
  for (int row = 0; row < n; row++) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)m[(size_t)row * (size_t)n + (size_t)i] * x[i];
    y[row] = sum;
  }
}

/** The first wrong element of a row. */
static void name_wrong_element(const float *c, const float *a, const float *b, int row, int n,
                               char note[200]) {
  for (int column = 0; column < n; column++) {
    double right = 0;
    for (int i = 0; i < n; i++) {
      right += (double)a[(size_t)row * (size_t)n + (size_t)i] *
               (double)b[(size_t)i * (size_t)n + (size_t)column];
    }
    const double is = (double)c[(size_t)row * (size_t)n + (size_t)column];
    if (is == right) continue;
    snprintf(note, 200, "row %d, column %d is %g, should be %g", row, column, is, right);
    return;
  }
}

bool foundation_is_product(float *device_c, const float *a, const float *b, int n, char note[200]) {
  const size_t bytes = sizeof(float) * (size_t)n * (size_t)n;
  float *c = foundation_allocate(bytes);
  double *vectors = foundation_allocate(4 * sizeof(double) * (size_t)n);
  double *random = vectors, *b_r = random + n, *a_b_r = b_r + n, *c_r = a_b_r + n;
  int row = 0;
  CHECK(cudaMemcpy(c, device_c, bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(device_c, 0xff, bytes)); /* NaN */
  for (int i = 0; i < n; i++) random[i] = 1 + foundation_bits(42, (uint64_t)i) % 1000;
  multiply(b, random, b_r, n);
  multiply(a, b_r, a_b_r, n);
  multiply(c, random, c_r, n);
  while (row < n && c_r[row] == a_b_r[row]) row++;
  if (row < n) name_wrong_element(c, a, b, row, n, note);
  free(c);
  free(vectors);
  return row == n;
}

static int compare_floats(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/** One sample of each stage in each round, so that all see the same clocks; L2 is flushed before.
 */
static void time_stages(size_t l2_bytes) {
  cudaEvent_t start, end;
  void *flush;
  foundation_check(cudaEventCreate(&start), "cudaEventCreate");
  foundation_check(cudaEventCreate(&end), "cudaEventCreate");
  foundation_check(cudaMalloc(&flush, flush_bytes(l2_bytes)), "L2 flush");
  for (int64_t round = -WARM_UPS; round < state.rounds; round++) {
    for (int i = 0; i < state.stage_count; i++) {
      Stage *stage = &state.stages[i];
      foundation_check(flush_l2(flush, flush_bytes(l2_bytes), 0), "L2 flush");
      foundation_check(cudaEventRecord(start, 0), "cudaEventRecord");
      stage->launch();
      foundation_check(cudaEventRecord(end, 0), "cudaEventRecord");
      foundation_check(cudaEventSynchronize(end), stage->name);
      foundation_check(cudaEventElapsedTime(&stage->ms[round < 0 ? 0 : round], start, end),
                       "timing");
    }
  }
  for (int i = 0; i < state.stage_count; i++) {
    qsort(state.stages[i].ms, (size_t)state.rounds, sizeof(float), compare_floats);
  }
  foundation_check(cudaFree(flush), "cudaFree");
}

static double median_ms(const Stage *stage) {
  return state.rounds == 0 ? 0 : stage->ms[state.rounds / 2];
}

static const Stage *library(void) {
  for (int i = 0; i < state.stage_count; i++) {
    if (state.stages[i].is_library) return &state.stages[i];
  }
  return NULL;
}

static double pass_ms(const char *pass) {
  double sum = 0;
  for (int i = 0; i < state.stage_count; i++) {
    if (state.stages[i].pass == pass) sum += median_ms(&state.stages[i]);
  }
  return sum;
}

static void print_table(const char *device, const Ceilings *ceilings, FILE *out) {
  const bool timed = state.run.on_gpu && state.rounds > 0;
  fprintf(out, "%s: n = %lld, %s\n", state.program->name, (long long)state.run.n, device);
  for (int i = 0; i < state.stage_count; i++) {
    const Stage *s = &state.stages[i];
    fprintf(out, "%-20s %s", s->name, s->right ? "right" : "WRONG");
    if (timed) {
      const double ms = median_ms(s);
      fprintf(out, "  %9.4f ms", ms);
      if (s->bytes > 0) {
        const double rate = 1e-6 * s->bytes / ms;
        fprintf(out, "  %6.0f GB/s, %.2f of a copy", rate, rate / ceilings->copy_gb_per_s);
      }
      if (s->flops > 0) fprintf(out, "  %6.1f TFLOP/s", 1e-9 * s->flops / ms);
      if (s->pass != NULL) fprintf(out, "  %2.0f %% of %s", 100 * ms / pass_ms(s->pass), s->pass);
      if (library() != NULL && s != library()) {
        fprintf(out, "  %.2f x the speed of %s", median_ms(library()) / ms, library()->name);
      }
    }
    fprintf(out, "%s%s\n", *s->note != '\0' ? "  " : "", s->note);
  }
}

static bool append_json(const char *device, const Ceilings *ceilings, Error *error) {
  bool ok = true;
  for (int i = 0; ok && i < state.stage_count; i++) {
    const Stage *s = &state.stages[i];
    JsonObject object;
    json_begin(&object);
    json_string(&object, "program", state.program->name);
    json_string(&object, "stage", s->name);
    if (s->pass != NULL) json_string(&object, "pass", s->pass);
    json_string(&object, "commit", version_commit());
    json_string(&object, "device", device);
    json_integer(&object, "n", state.run.n);
    json_integer(&object, "seed", (int64_t)state.run.seed);
    json_bool(&object, "right", s->right);
    if (state.run.on_gpu && state.rounds > 0) {
      json_integer(&object, "samples", state.rounds);
      json_number(&object, "ms", median_ms(s));
      json_number(&object, "bytes", s->bytes);
      json_number(&object, "flops", s->flops);
      json_number(&object, "copy_gb_per_s", ceilings->copy_gb_per_s);
      json_number(&object, "mma_tflops", ceilings->mma_tflops);
      json_string(&object, "library", library() == NULL ? NULL : library()->name);
      json_number(&object, "library_ms", library() == NULL ? 0 : median_ms(library()));
    }
    ok = json_append_line(state.json_path, json_end(&object), error);
    json_free(&object);
  }
  return ok;
}

int foundation_end(void) {
  Error *error = &state.error;
  Ceilings ceilings = {0};
  const char *device = state.device.name;
  bool right = true;
  if (state.stage_count == 0) stop(EXIT_USAGE, "--stage: there is no stage of this name");
  if (state.run.on_gpu && state.rounds > 0) {
    if (!ceilings_read(device, &ceilings) && !ceilings_measure(&ceilings, error)) {
      stop(error->code, error->text);
    }
    time_stages(state.device.l2_bytes);
  }
  print_table(device, &ceilings, table_stream());
  RunRecord record = {.step = state.program->name,
                      .request = &(RunRequest){.report = &state.report}};
  if (!lab_report_finish(&record, table_stream(), error) ||
      (state.json_path != NULL && !append_json(device, &ceilings, error))) {
    stop(error->code, error->text);
  }
  for (int i = 0; i < state.stage_count; i++) right = right && state.stages[i].right;
  if (fflush(stdout) != 0) stop(EXIT_DEVICE, "cannot write to standard output");
  return right && record.lab.findings == 0 ? EXIT_RIGHT : EXIT_WRONG;
}
