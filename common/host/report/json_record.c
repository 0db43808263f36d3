#include "host/report/report.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host/base/version.h"

/* --- Fields that are copied as they are ------------------------------------------------------ */

typedef enum FieldType { INT, INT64, UINT64, FLOAT, DOUBLE, BOOL, STRING } FieldType;

/** Groups of fields; a record has all fields of some groups. */
enum { PROBLEM = 1, BLOCK_MASK = 2, IN_BLOCKS = 4, RESULT = 8, COUNTED = 16, TIMED = 32 };

typedef struct Field {
  unsigned group;
  const char *name;
  FieldType type;
  size_t offset; /* in RunRequest if it was asked, else in RunRecord */
  bool asked;
} Field;

#define TYPE_OF(record, member) \
  _Generic(((record *)0)->member,         \
      int: INT,                        \
      int64_t: INT64,                  \
      uint64_t: UINT64,                \
      float: FLOAT,                    \
      double: DOUBLE,                  \
      bool: BOOL,                      \
      const char *: STRING)
#define ASKED(group, name, member) \
  { group, name, TYPE_OF(RunRequest, member), offsetof(RunRequest, member), true }
#define FIELD(group, name, member) \
  { group, name, TYPE_OF(RunRecord, member), offsetof(RunRecord, member), false }
#define CHECK(name) FIELD(RESULT, #name, check.name)
#define COUNT(name, member) FIELD(COUNTED, "count_" name, counts.member)
#define WARPS(name, kind) COUNT(name, warp_instructions[kind])
#define SPEED(name) FIELD(TIMED, #name, speed.name)
#define MASK(name) FIELD(BLOCK_MASK, "mask_" #name, mask_facts.name)
#define BLOCKS(name, member) FIELD(IN_BLOCKS, "mask_" name, mask_facts.member)

/* clang-format off: one line for each field */
static const Field FIELDS[] = {
    ASKED(PROBLEM, "batch", problem.batch),
    ASKED(PROBLEM, "heads", problem.q_heads),
    ASKED(PROBLEM, "kv_heads", problem.kv_heads),
    ASKED(PROBLEM, "seqlen", problem.q_len),
    ASKED(PROBLEM, "seqlen_kv", problem.kv_len),
    ASKED(PROBLEM, "head_dim", problem.head_dim),
    ASKED(PROBLEM, "mask", mask.text),
    ASKED(PROBLEM, "layout", layout),
    ASKED(PROBLEM, "scale", problem.scale),
    ASKED(PROBLEM, "input", input),
    FIELD(PROBLEM, "flops", work.flops),
    FIELD(PROBLEM, "least_bytes", work.least_bytes),
    FIELD(PROBLEM, "must_move_bytes", work.must_move_bytes),
    MASK(form),
    BLOCKS("block_q", q_block_size),
    BLOCKS("block_kv", kv_block_size),
    BLOCKS("blocks", blocks.blocks),
    BLOCKS("blocks_active", blocks.active),
    BLOCKS("blocks_full", blocks.full),
    BLOCKS("blocks_causal", blocks.causal),
    BLOCKS("blocks_partial", blocks.partial),
    FIELD(BLOCK_MASK, "mask_bytes", mask_facts.mask_bytes),
    MASK(prepared_bytes),
    MASK(build_ms),
    MASK(upload_ms),
    MASK(prepare_ms),
    FIELD(RESULT, "nan_inputs", nan_inputs),

    FIELD(RESULT, "rows", total_rows),
    CHECK(rows_checked),
    CHECK(rows_not_compared),
    CHECK(rows_nan_expected),
    CHECK(rows_not_judged),
    CHECK(rows_wrong),
    CHECK(lse_wrong),
    CHECK(values_unwritten),
    CHECK(values_nan),
    CHECK(values_inf),
    CHECK(guard_bytes_touched),
    CHECK(workspace_left),
    CHECK(max_error),
    CHECK(mean_error),
    CHECK(allowed_error),
    CHECK(max_lse_error),
    CHECK(mean_error_share),
    CHECK(mean_gain_share),
    FIELD(RESULT, "max_error_share", check.max_share),
    FIELD(RESULT, "workspace_bytes", workspace_bytes),
    FIELD(RESULT, "extra_bytes", extra_bytes),
    FIELD(RESULT, "block_m", description.block_m),
    FIELD(RESULT, "block_n", description.block_n),
#ifdef SIMT_BACKEND
    COUNT("launches", launches),
    COUNT("blocks", blocks),
    COUNT("threads", threads),
    COUNT("barriers", barriers),
    WARPS("shuffles", SIMT_SHUFFLE),
    WARPS("votes", SIMT_VOTE),
    WARPS("warp_barriers", SIMT_SYNCWARP),
    WARPS("ldmatrix", SIMT_LDMATRIX),
    WARPS("mma", SIMT_MMA),
    COUNT("mma_under_copy", mma_under_copy),
    WARPS("wgmma", SIMT_WGMMA),
    COUNT("tensor_copies", tensor_copies),
    COUNT("atomics", atomics),
    FIELD(COUNTED, "simulation_ms", simulation_ms),
#endif
    FIELD(TIMED, "samples", timing.samples),
    FIELD(TIMED, "median_ms", timing.median_ms),
    FIELD(TIMED, "p10_ms", timing.p10_ms),
    FIELD(TIMED, "p90_ms", timing.p90_ms),
    SPEED(bound_ms),
    SPEED(bound_by),
    SPEED(tflops),
    SPEED(dense_tflops),
    SPEED(gb_per_s),
    SPEED(ceiling_percent),
};
/* clang-format on */

static void add_field(JsonObject *object, const Field *field, const RunRecord *run) {
  const void *record = field->asked ? (const void *)run->request : run;
  const void *value = (const char *)record + field->offset;
  switch (field->type) {
    case INT:
      return json_integer(object, field->name, *(const int *)value);
    case INT64:
      return json_integer(object, field->name, *(const int64_t *)value);
    case UINT64:
      return json_integer(object, field->name, (int64_t) * (const uint64_t *)value);
    case FLOAT:
      return json_number(object, field->name, (double)*(const float *)value);
    case DOUBLE:
      return json_number(object, field->name, *(const double *)value);
    case BOOL:
      return json_bool(object, field->name, *(const bool *)value);
    case STRING:
      return json_string(object, field->name, *(const char *const *)value);
  }
}

static void add_fields(JsonObject *object, const RunRecord *run, unsigned groups) {
  for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
    if (FIELDS[i].group & groups) add_field(object, &FIELDS[i], run);
  }
}

void json_add_problem(JsonObject *object, const RunRecord *run) {
  add_fields(object, run, PROBLEM);
  json_string(object, "dtype", DTYPE_NAMES[run->request->problem.dtype]);
  json_string(object, "o_dtype", DTYPE_NAMES[run->request->problem.o_dtype]);
  /* A string: JSON readers hold numbers as doubles, which lose bits above 2^53. */
  char seed[24];
  snprintf(seed, sizeof seed, "%" PRIu64, run->request->seed);
  json_string(object, "seed", seed);
}

/* --- Fields that are derived ----------------------------------------------------------------- */

/** Adds kernel1_name, kernel1_blocks, ... for each launch. */
static void add_kernels(JsonObject *object, const RunRecord *run) {
  for (int i = 0; i < run->description.launch_count; i++) {
    const KernelLaunch *launch = &run->description.launches[i];
    const KernelFacts *facts = &run->facts[i];
    const struct {
      const char *name;
      int64_t value;
      bool gpu_only;
    } numbers[] = {
        {"blocks", (int64_t)launch->grid.x * launch->grid.y * launch->grid.z, false},
        {"threads", launch->block.x * launch->block.y * launch->block.z, false},
        {"shared_bytes", (int64_t)facts->shared_bytes, false},
        {"registers", facts->registers, true},
        {"local_bytes", facts->local_bytes, true},
        {"blocks_per_multiprocessor", facts->blocks_per_multiprocessor, true},
    };
    char key[64];
    snprintf(key, sizeof key, "kernel%d_name", i + 1);
    json_string(object, key, launch->name);
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
      snprintf(key, sizeof key, "kernel%d_%s", i + 1, numbers[n].name);
      json_known(object, key, !numbers[n].gpu_only || !run->device->simulated, numbers[n].value);
    }
  }
}

static void add_ceilings(JsonObject *object, const Ceilings *c) {
  json_number(object, "ceiling_ffma_tflops", c->ffma_tflops);
  json_number(object, "ceiling_mma_tflops", c->mma_tflops);
  json_number(object, "ceiling_wgmma_tflops", c->wgmma_tflops);
  json_number(object, "ceiling_wgmma_e4m3_tflops", c->wgmma_e4m3_tflops);
  json_number(object, "ceiling_exp_g_per_s", c->exp_g_per_s);
  json_number(object, "ceiling_copy_gb_per_s", c->copy_gb_per_s);
  json_string(object, "ceiling_date", c->date);
}

/** Adds driver and clocks as nvidia-smi shows them after the measurement; nothing without it. */
static void add_gpu_state(JsonObject *object) {
#ifndef SIMT_BACKEND
  int device = 0, sm_mhz, memory_mhz;
  char bus[32] = "", command[256], driver[64];
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(bus, sizeof bus, device);
  snprintf(command, sizeof command,
           "nvidia-smi -i %s --query-gpu=driver_version,clocks.sm,clocks.mem "
           "--format=csv,noheader,nounits 2>/dev/null",
           bus);
  FILE *answer = popen(command, "r");
  if (answer == NULL) return;
  if (fscanf(answer, "%63[^,], %d, %d", driver, &sm_mhz, &memory_mhz) == 3) {
    json_string(object, "driver", driver);
    json_integer(object, "sm_clock_mhz", sm_mhz);
    json_integer(object, "memory_clock_mhz", memory_mhz);
  }
  pclose(answer);
#else
  (void)object;
#endif
}

/** Adds the commit, the date, the backend and the device. */
static void add_origin(JsonObject *object, const Device *device) {
  char date[32], cuda[16];
  const time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  snprintf(cuda, sizeof cuda, "%d.%d", device->runtime / 1000, device->runtime % 1000 / 10);
  json_string(object, "commit", version_commit());
  json_string(object, "date", date);
  json_string(object, "backend", device->simulated ? "cpu" : "cuda");
  json_string(object, "device", device->name);
  json_known(object, "multiprocessors", !device->simulated, device->multiprocessors);
  json_known(object, "compute_capability", !device->simulated, 10 * device->major + device->minor);
  json_string(object, "cuda_runtime", device->simulated ? NULL : cuda);
}

/* --- Records --------------------------------------------------------------------------------- */

bool json_append_run(const RunRecord *run, const char *path, Error *error) {
  const bool timed = run->timing.samples > 0;
  JsonObject object;
  json_begin(&object);
  json_string(&object, "step", step.name);
  add_origin(&object, run->device);
  if (timed) add_gpu_state(&object);
  json_add_problem(&object, run);
  if (run->checked && (run->check.judged || !run->check.right)) {
    json_bool(&object, "right", run->check.right);
  } else {
    json_string(&object, "right", NULL);
  }
  add_fields(&object, run,
             RESULT | (run->mask_facts.form != NULL ? BLOCK_MASK : 0) |
                 (run->mask_facts.q_block_size > 0 ? IN_BLOCKS : 0) |
                 (run->device->simulated ? COUNTED : 0) | (timed ? TIMED : 0));
  json_string(&object, "ceiling", ceiling_name(run->description.ceiling));
  add_kernels(&object, run);
  lab_report_add_to_record(&object, run);
  if (run->speed.bound_by != NULL) add_ceilings(&object, &run->ceilings);
  const bool ok = json_append_line(path, json_end(&object), error);
  json_free(&object);
  return ok;
}

/** "D = 64 or 128" as [64, 128]; "any" for a step that takes every head dimension. */
static void add_head_dims(JsonObject *object) {
  int dims[MAX_HEAD_DIM], count = 0;
  if (step.head_dims == NULL || strncmp(step.head_dims, "any", 3) == 0) {
    json_string(object, "head_dims", "any");
    return;
  }
  for (const char *s = step.head_dims; (s = strpbrk(s, "0123456789")) != NULL;) {
    dims[count++] = (int)strtol(s, (char **)&s, 10);
  }
  json_integers(object, "head_dims", dims, count);
}

bool json_append_info(const RunRecord *run, const char *path, Error *error) {
  const BlockMaskSupport *masks = step.block_masks;
  const char *const form = masks != NULL && masks->takes_spans ? "spans" : "blocks";
  const char *const taken[] = {"full", "causal", form};
  const Description *d = &run->description;
  const char *launches[MAX_LAUNCHES];
  for (int i = 0; i < d->launch_count; i++) launches[i] = d->launches[i].name;
  const bool workspace = step.workspace_bytes != NULL;
  JsonObject object;
  json_begin(&object);
  json_string(&object, "step", step.name);
  json_string(&object, "after", step.after);
  json_string(&object, "title", step.title);
  json_string(&object, "idea", step.idea);
  json_string(&object, "kind", "forward");
  add_head_dims(&object);
  json_strings(&object, "dtypes", &DTYPE_NAMES[step.fp8 ? DTYPE_E4M3 : DTYPE_FP16],
               step.fp8 ? 1 : 2);
  json_bool(&object, "fp8", step.fp8);
  json_strings(&object, "masks", taken, masks == NULL ? 2 : 3);
  json_known(&object, "needs_compute_capability", d->ceiling >= CEILING_MMA,
             d->ceiling >= CEILING_WGMMA ? 90 : 75);
  json_known(&object, "workspace_bytes_per_head", workspace,
             workspace ? (int64_t)step.workspace_bytes(&run->request->problem) : 0);
  json_bool(&object, "workspace_zero", step.workspace_zero);
  json_integer(&object, "block_m", d->block_m);
  json_integer(&object, "block_n", d->block_n);
  json_integer(&object, "intermediate_bytes_per_entry", d->intermediate_bytes_per_entry);
  json_string(&object, "ceiling", ceiling_name(d->ceiling));
  json_bool(&object, "deterministic", !step.nondeterministic);
  json_strings(&object, "launches", launches, d->launch_count);
  const bool ok = json_append_line(path, json_end(&object), error);
  json_free(&object);
  return ok;
}

bool json_append_ceilings(const Device *device, const Ceilings *ceilings, const char *path,
                          Error *error) {
  JsonObject object;
  json_begin(&object);
  add_origin(&object, device);
  add_gpu_state(&object);
  add_ceilings(&object, ceilings);
  const bool ok = json_append_line(path, json_end(&object), error);
  json_free(&object);
  return ok;
}

bool json_check_path(const char *option, const char *path, Error *error) {
  /* Nothing is opened: a pipe's reader would see its end, and an interrupted run leave a file. */
  struct stat status;
  if (strcmp(path, "-") == 0) return true;
  bool ok = stat(path, &status) == 0;
  if (ok && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    ok = false;
  } else if (ok) {
    ok = access(path, W_OK) == 0;
  } else if (errno == ENOENT) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    ok = access(dirname(copy), W_OK | X_OK) == 0;
  }
  if (ok) return true;
  return fail(error, EXIT_USAGE,
              "%s%s: cannot write: %s; must be a file that can be written or created, or -", option,
              path, strerror(errno));
}
