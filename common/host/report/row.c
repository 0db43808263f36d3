#define _POSIX_C_SOURCE 200809L
#include "host/report/row.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host/base/json.h"
#include "host/base/version.h"
#include "host/cli/problem.h"
#include "host/device/gpu_state.h"
#include "host/masks/mask.h"
#include "host/report/report.h"

/** Nothing for a step that takes no block mask. */
static void add_mask(JsonObject *row, const Run *run) {
  const MaskFacts *m = &run->mask_facts;
  if (m->q_block_size == 0) return;
  json_bool(row, "shared_kv", run->problem.shared_kv);
  json_integer(row, "mask_block_q", m->q_block_size);
  json_integer(row, "mask_block_kv", m->kv_block_size);
  json_integer(row, "mask_blocks", m->blocks.blocks);
  json_integer(row, "mask_blocks_active", m->blocks.active);
  json_integer(row, "mask_blocks_full", m->blocks.full);
  json_integer(row, "mask_blocks_causal", m->blocks.causal);
  json_integer(row, "mask_blocks_partial", m->blocks.partial);
  json_integer(row, "mask_bytes", (int64_t)m->mask_bytes);
  json_integer(row, "mask_prepared_bytes", (int64_t)m->prepared_bytes);
  json_number(row, "mask_build_ms", m->build_ms);
  json_number(row, "mask_upload_ms", m->upload_ms);
  json_number(row, "mask_prepare_ms", m->prepare_ms);
}

static void add_problem(JsonObject *row, const Run *run) {
  const Problem *p = &run->problem;
  const Options *o = run->options;
  json_integer(row, "batch", p->batch);
  json_integer(row, "heads", p->q_heads);
  json_integer(row, "kv_heads", p->kv_heads);
  json_integer(row, "seqlen", p->q_len);
  json_integer(row, "seqlen_kv", p->kv_len);
  json_integer(row, "head_dim", p->head_dim);
  json_string(row, "dtype", dtype_name(p->dtype));
  json_string(row, "mask", run->mask.text);
  add_mask(row, run);
  json_string(row, "layout", layout_name(o->layout));
  json_number(row, "scale", (double)p->scale);
  json_string(row, "input", input_name(o));
  /* A string: JSON readers hold numbers as doubles, which lose bits above 2^53. */
  char seed[24];
  snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
  json_string(row, "seed", seed);
  json_integer(row, "nan_inputs", run->nan_inputs);
}

static void add_check(JsonObject *row, const Run *run) {
  const CheckResult *c = &run->check;
  if (run->checked && (c->rows_checked > 0 || !c->right)) {
    json_bool(row, "right", c->right);
  } else {
    json_null(row, "right");
  }
  json_integer(row, "rows", (int64_t)run->total_rows);
  json_integer(row, "rows_checked", (int64_t)c->rows_checked);
  json_integer(row, "rows_not_compared", (int64_t)c->rows_not_compared);
  json_integer(row, "rows_nan_expected", (int64_t)c->rows_nan_expected);
  json_integer(row, "values_unwritten", c->values_unwritten);
  json_integer(row, "values_nan", c->values_nan);
  json_integer(row, "values_inf", c->values_inf);
  json_integer(row, "guard_bytes_touched", (int64_t)c->guard_bytes_touched);
  json_integer(row, "rows_wrong", (int64_t)c->rows_wrong);
  json_integer(row, "lse_wrong", (int64_t)c->lse_wrong);
  json_number(row, "max_error", c->max_error);
  json_number(row, "mean_error", c->mean_error);
  json_number(row, "allowed_error", c->allowed_error);
  json_number(row, "max_error_share", c->max_share);
  json_number(row, "max_lse_error", c->max_lse_error);
}

/** What only a GPU has a value for. */
static void gpu_integer(JsonObject *row, const Device *device, const char *key, int64_t value) {
  if (device->simulated) {
    json_null(row, key);
  } else {
    json_integer(row, key, value);
  }
}

static void add_kernels(JsonObject *row, const Run *run) {
  char key[64];
  for (int i = 0; i < run->description.launch_count; i++) {
    const KernelLaunch *launch = &run->description.launches[i];
    const KernelFacts *facts = &run->facts[i];
    snprintf(key, sizeof key, "kernel%d_name", i + 1);
    json_string(row, key, launch->name);
    snprintf(key, sizeof key, "kernel%d_blocks", i + 1);
    json_integer(row, key, (int64_t)launch->grid.x * launch->grid.y * launch->grid.z);
    snprintf(key, sizeof key, "kernel%d_threads", i + 1);
    json_integer(row, key, launch->block.x * launch->block.y * launch->block.z);
    snprintf(key, sizeof key, "kernel%d_shared_bytes", i + 1);
    json_integer(row, key, (int64_t)facts->shared_bytes);
    snprintf(key, sizeof key, "kernel%d_registers", i + 1);
    gpu_integer(row, run->device, key, facts->registers);
    snprintf(key, sizeof key, "kernel%d_local_bytes", i + 1);
    gpu_integer(row, run->device, key, facts->local_bytes);
    snprintf(key, sizeof key, "kernel%d_blocks_per_multiprocessor", i + 1);
    gpu_integer(row, run->device, key, facts->blocks_per_multiprocessor);
  }
}

static void add_counts(JsonObject *row, const WorkCounts *c) {
  json_integer(row, "count_launches", (int64_t)c->launches);
  json_integer(row, "count_blocks", (int64_t)c->blocks);
  json_integer(row, "count_threads", (int64_t)c->threads);
  json_integer(row, "count_barriers", (int64_t)c->barriers);
  json_integer(row, "count_shuffles", (int64_t)c->shuffles);
  json_integer(row, "count_votes", (int64_t)c->votes);
  json_integer(row, "count_warp_barriers", (int64_t)c->warp_barriers);
  json_integer(row, "count_ldmatrix", (int64_t)c->ldmatrix);
  json_integer(row, "count_mma", (int64_t)c->mma);
  json_integer(row, "count_mma_under_copy", (int64_t)c->mma_under_copy);
  json_integer(row, "count_atomics", (int64_t)c->atomics);
}

static void add_ceilings(JsonObject *row, const Ceilings *c) {
  json_number(row, "ceiling_ffma_tflops", c->ffma_tflops);
  json_number(row, "ceiling_mma_tflops", c->mma_tflops);
  json_number(row, "ceiling_exp_g_per_s", c->exp_g_per_s);
  json_number(row, "ceiling_copy_gb_per_s", c->copy_gb_per_s);
  json_string(row, "ceiling_date", c->date);
}

static void add_speed(JsonObject *row, const Run *run) {
  const Speed speed = run_speed(run);
  json_integer(row, "samples", run->timing.samples);
  json_number(row, "median_ms", run->timing.median_ms);
  json_number(row, "p10_ms", run->timing.p10_ms);
  json_number(row, "p90_ms", run->timing.p90_ms);
  json_number(row, "bound_ms", speed.bound_ms);
  json_string(row, "bound_by", speed.bound_by);
  json_number(row, "tflops", speed.tflops);
  json_number(row, "dense_tflops", speed.dense_tflops);
  json_number(row, "gb_per_s", speed.gb_per_s);
  json_number(row, "ceiling_percent", speed.ceiling_percent);
  add_ceilings(row, &run->ceilings);
}

/** Driver and clocks as nvidia-smi tells them right after the measurement; absent without it. */
static void add_gpu_state(JsonObject *row) {
  char line[128], driver[64];
  int sm_mhz, memory_mhz;
  if (gpu_query("driver_version,clocks.sm,clocks.mem", line, sizeof line) &&
      sscanf(line, "%63[^,], %d, %d", driver, &sm_mhz, &memory_mhz) == 3) {
    json_string(row, "driver", driver);
    json_integer(row, "sm_clock_mhz", sm_mhz);
    json_integer(row, "memory_clock_mhz", memory_mhz);
  }
}

/** The card, as nvidia-smi names it: a machine may have several of one model. */
static void add_uuid(JsonObject *row) {
  char uuid[33], name[48];
  gpu_uuid(uuid);
  if (uuid[0] == '\0') {
    json_null(row, "gpu_uuid");
    return;
  }
  snprintf(name, sizeof name, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", uuid, uuid + 8, uuid + 12, uuid + 16,
           uuid + 20);
  json_string(row, "gpu_uuid", name);
}

static void add_origin(JsonObject *row, const Device *device) {
  char date[32], cuda[16];
  const time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  snprintf(cuda, sizeof cuda, "%d.%d", device->runtime / 1000, device->runtime % 1000 / 10);
  json_string(row, "commit", version_commit());
  json_string(row, "date", date);
  json_string(row, "backend", device->simulated ? "cpu" : "cuda");
  json_string(row, "device", device->name);
  add_uuid(row);
  gpu_integer(row, device, "multiprocessors", device->multiprocessors);
  gpu_integer(row, device, "compute_capability", 10 * device->major + device->minor);
  if (device->simulated) {
    json_null(row, "cuda_runtime");
  } else {
    json_string(row, "cuda_runtime", cuda);
  }
}

/** The errno of a file that cannot be written or created, or 0. */
static int obstacle(const char *path) {
  struct stat status;
  if (stat(path, &status) == 0) {
    if (S_ISDIR(status.st_mode)) return EISDIR;
    return access(path, W_OK) == 0 ? 0 : errno;
  }
  if (errno != ENOENT) return errno;
  char parent[PATH_MAX];
  const char *slash = strrchr(path, '/');
  const int length = slash == NULL ? 0 : (int)(slash - path) + 1;
  if (snprintf(parent, sizeof parent, "%.*s.", length, path) >= PATH_MAX) return ENAMETOOLONG;
  return access(parent, W_OK | X_OK) == 0 ? 0 : errno;
}

bool row_check_path(const char *option, const char *path, Error *error) {
  const int cause = strcmp(path, "-") == 0 ? 0 : obstacle(path);
  if (cause == 0) return true;
  return fail(error, EXIT_USAGE,
              "%s%s: cannot write: %s; must be a file that can be written or created, or -", option,
              path, strerror(cause));
}

bool row_append(const Run *run, const char *path, Error *error) {
  JsonObject row;
  json_begin(&row);
  json_string(&row, "step", step.name);
  add_origin(&row, run->device);
  if (run->timing.samples > 0) add_gpu_state(&row);
  add_problem(&row, run);
  add_check(&row, run);
  json_number(&row, "flops", run_flops(run));
  json_number(&row, "least_bytes", problem_least_bytes(&run->problem));
  json_integer(&row, "workspace_bytes", (int64_t)run->workspace_bytes);
  json_integer(&row, "extra_bytes", (int64_t)run->extra_bytes);
  json_string(&row, "ceiling", ceiling_name(run->description.ceiling));
  json_integer(&row, "block_m", run->description.block_m);
  json_integer(&row, "block_n", run->description.block_n);
  add_kernels(&row, run);
  if (run->device->simulated) {
    add_counts(&row, &run->counts);
    json_number(&row, "simulation_ms", run->simulation_ms);
  }
  lab_report_add_to_row(&row, &run->lab);
  if (run->timing.samples > 0) add_speed(&row, run);
  const bool ok = json_append_line(path, json_end(&row), error);
  json_free(&row);
  return ok;
}

bool row_append_ceilings(const Device *device, const Ceilings *ceilings, const char *path,
                         Error *error) {
  JsonObject row;
  json_begin(&row);
  add_origin(&row, device);
  add_gpu_state(&row);
  add_ceilings(&row, ceilings);
  const bool ok = json_append_line(path, json_end(&row), error);
  json_free(&row);
  return ok;
}
