#include "host/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/base/version.h"

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

bool json_append_run(const RunRecord *run, const char *path, Error *error) {
  const bool timed = run->timing.samples > 0;
  JsonObject object;
  json_begin(&object);
  json_string(&object, "step", step.name);
  add_origin(&object, run->device);
  if (timed) add_gpu_state(&object);
  json_add_problem(&object, run);
  json_add_result(&object, run);
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

/** "forward", "backward" or "decode". */
static const char *kind_of_step(void) {
  return step.backward != NULL ? "backward" : step.decode != NULL ? "decode" : "forward";
}

/** What the cache of a decode step may be. */
static void add_cache(JsonObject *object) {
  int sizes[8], count = 0;
  const char *dtypes[3];
  int dtype_count = 0;
  if (step.decode == NULL) return;
  for (int size = MIN_PAGE_SIZE; step.caches & CACHE_PAGES && size <= MAX_PAGE_SIZE; size *= 2) {
    sizes[count++] = size;
  }
  for (int i = DTYPE_FP16; i <= DTYPE_E4M3; i++) {
    if (step.caches & (i == DTYPE_E4M3 ? CACHE_E4M3 : CACHE_16_BIT)) {
      dtypes[dtype_count++] = DTYPE_NAMES[i];
    }
  }
  json_integers(object, "page_sizes", sizes, count);
  json_strings(object, "kv_dtypes", dtypes, dtype_count);
  json_bool(object, "schedule", step.schedule != NULL);
}

bool json_append_info(const RunRecord *run, const char *path, Error *error) {
  const BlockMaskSupport *masks = step.block_masks;
  const char *const form = step.decode != NULL                   ? "window"
                           : masks != NULL && masks->takes_spans ? "spans"
                                                                 : "blocks";
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
  json_string(&object, "kind", kind_of_step());
  add_head_dims(&object);
  json_strings(&object, "dtypes", &DTYPE_NAMES[step.fp8 ? DTYPE_E4M3 : DTYPE_FP16],
               step.fp8 ? 1 : 2);
  json_bool(&object, "fp8", step.fp8);
  json_strings(&object, "masks", taken, masks == NULL && step.decode == NULL ? 2 : 3);
  add_cache(&object);
  json_known(&object, "needs_compute_capability", d->compute_capability > 0, d->compute_capability);
  json_known(&object, step.decode != NULL ? "workspace_bytes" : "workspace_bytes_per_head",
             workspace, workspace ? (int64_t)step.workspace_bytes(&run->request->problem) : 0);
  json_bool(&object, "workspace_zero", step.workspace_zero);
  json_integer(&object, "block_m", d->block_m);
  json_integer(&object, "block_n", d->block_n);
  json_integer(&object, "intermediate_bytes_per_entry", d->intermediate_bytes_per_entry);
  json_string(&object, "ceiling", ceiling_name(d->ceiling));
  json_bool(&object, "deterministic", !step.nondeterministic);
  json_bool(&object, "rounded_p", step.rounded_p);
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
