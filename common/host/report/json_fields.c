/** @file The fields of JSON records that are copied from the request and the record of a run. */
#include <inttypes.h>

#include "host/report/report.h"

typedef enum FieldType { INT, INT64, UINT64, FLOAT, DOUBLE, STRING } FieldType;

/** Groups of fields; a record has all fields of some groups. */
enum {
  PROBLEM = 1,
  BLOCK_MASK = 2,
  IN_BLOCKS = 4,
  RESULT = 8,
  COUNTED = 16,
  TIMED = 32,
  OF_GRADIENTS = 64,
  OF_CACHE = 128,
  OF_LIMITS = 256,
  OF_GRAPH = 512,
  OF_SCHEDULE = 1024
};

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
      const char *: STRING)
#define ASKED(group, name, member) \
  { group, name, TYPE_OF(RunRequest, member), offsetof(RunRequest, member), true }
#define FIELD(group, name, member) \
  { group, name, TYPE_OF(RunRecord, member), offsetof(RunRecord, member), false }
#define CHECK(name) FIELD(RESULT, #name, check.name)
#define COUNT(name, member) FIELD(COUNTED, "count_" name, counts.member)
#define WARPS(name, kind) COUNT(name, warp_instructions[kind])
#define SPEED(name) FIELD(TIMED, #name, speed.name)
#define LIMIT(group, name, member) FIELD(group, name, cache.timing.member.median_ms)
#define GRADIENT(prefix, g, name, member) \
  FIELD(OF_GRADIENTS, prefix "_" name, check.gradients[g].member)
/** Those of one gradient; their names begin with `prefix`. */
#define GRADIENT_FIELDS(prefix, g)                                                                \
  GRADIENT(prefix, g, "rows_checked", rows_checked),                                              \
      GRADIENT(prefix, g, "rows_wrong", rows_wrong),                                              \
      GRADIENT(prefix, g, "rows_not_judged", rows_not_judged),                                    \
      GRADIENT(prefix, g, "max_error", max_error), GRADIENT(prefix, g, "mean_error", mean_error), \
      GRADIENT(prefix, g, "allowed_error", allowed_error),                                        \
      GRADIENT(prefix, g, "max_error_share", max_share)
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
    ASKED(OF_CACHE, "page_size", problem.page_size),
    ASKED(OF_CACHE, "lengths", lengths),
    FIELD(OF_CACHE, "keys", cache.keys),
    FIELD(OF_CACHE, "shortest", cache.shortest),
    FIELD(OF_CACHE, "longest", cache.longest),
    FIELD(OF_CACHE, "pages", cache.pages),
    FIELD(OF_CACHE, "cache_bytes", cache.bytes),
    FIELD(OF_CACHE, "schedule_bytes", cache.schedule_bytes),
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
    GRADIENT_FIELDS("dq", GRADIENT_Q),
    GRADIENT_FIELDS("dk", GRADIENT_K),
    GRADIENT_FIELDS("dv", GRADIENT_V),
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
    LIMIT(OF_LIMITS, "empty_ms", empty),
    LIMIT(OF_LIMITS, "read_ms", read),
    LIMIT(OF_GRAPH, "graph_ms", graph),
    LIMIT(OF_SCHEDULE, "schedule_ms", schedule),
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
  if (step.decode != NULL) {
    add_fields(object, run, OF_CACHE);
    json_string(object, "kv_dtype", DTYPE_NAMES[cache_dtype(&run->request->problem)]);
  }
  /* A string: JSON readers hold numbers as doubles, which lose bits above 2^53. */
  char seed[24];
  snprintf(seed, sizeof seed, "%" PRIu64, run->request->seed);
  json_string(object, "seed", seed);
}

void json_add_result(JsonObject *object, const RunRecord *run) {
  if (run->checked && (run->check.judged || !run->check.right)) {
    json_bool(object, "right", run->check.right);
  } else {
    json_string(object, "right", NULL);
  }
  add_fields(object, run,
             RESULT | (run->mask_facts.form != NULL ? BLOCK_MASK : 0) |
                 (run->mask_facts.q_block_size > 0 ? IN_BLOCKS : 0) |
                 (step.backward != NULL ? OF_GRADIENTS : 0) |
                 (run->device->simulated ? COUNTED : 0) | (run->timing.samples > 0 ? TIMED : 0) |
                 (run->cache.timing.read.samples > 0 ? OF_LIMITS : 0) |
                 (run->cache.timing.graph.samples > 0 ? OF_GRAPH : 0) |
                 (run->cache.timing.schedule.samples > 0 ? OF_SCHEDULE : 0));
}
