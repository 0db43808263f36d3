#include "host/report/record.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

static const char READS[] = "reads of K and V";

const char *ceiling_name(Ceiling ceiling) {
  if (step.decode != NULL && ceiling == CEILING_COPY) return READS;
  static const char *const NAMES[] = {"device memory copy", "fp32 FFMA", "mma.sync", "wgmma",
                                      "wgmma e4m3"};
  return NAMES[ceiling];
}

void record_description(RunRecord *run, int heads) {
  Description *d = &run->description;
  step_build()->describe(&run->request->problem, heads, d);
  if (d->block_m == 0) d->block_m = 1;
  if (d->block_n == 0) d->block_n = 1;
}

bool record_facts(RunRecord *run, Error *error) {
  for (int i = 0; i < run->description.launch_count; i++) {
    const KernelLaunch *launch = &run->description.launches[i];
    KernelFacts *facts = &run->facts[i];
    struct cudaFuncAttributes attributes;
    const int threads = (int)(launch->block.x * launch->block.y * launch->block.z);
    if (!device_ok(cudaFuncGetAttributes(&attributes, launch->kernel), launch->name, error) ||
        !device_ok(cudaFuncSetAttribute(launch->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)launch->dynamic_shared_bytes),
                   launch->name, error) ||
        !device_ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&facts->blocks_per_multiprocessor,
                                                                 launch->kernel, threads,
                                                                 launch->dynamic_shared_bytes),
                   launch->name, error)) {
      return false;
    }
    facts->registers = attributes.numRegs;
    facts->local_bytes = (int)attributes.localSizeBytes;
    facts->shared_bytes = attributes.sharedSizeBytes + launch->dynamic_shared_bytes;
  }
  return true;
}

void record_cache(RunRecord *run, const Cache *cache) {
  const Problem *p = &run->request->problem;
  const size_t row_bytes = element_bytes(cache_dtype(p)) * (size_t)p->head_dim;
  const double scales = cache_dtype(p) == DTYPE_E4M3 ? sizeof(float) * p->batch * p->kv_heads : 0;
  CacheFacts *c = &run->cache;
  *c = (CacheFacts){.shortest = INT_MAX, .pages = cache->pages};
  for (int b = 0; b < p->batch; b++) {
    const int length = cache->lengths[b];
    c->keys += length;
    if (length < c->shortest) c->shortest = length;
    if (length > c->longest) c->longest = length;
  }
  c->tensor_bytes = (size_t)cache_rows(p, cache) * (size_t)p->kv_heads * row_bytes;
  c->bytes = 2 * ((double)c->tensor_bytes + scales);
}

void record_work(RunRecord *run) {
  const Problem *p = &run->request->problem;
  const double q_rows = (double)p->batch * p->q_heads * p->q_len;
  Work *w = &run->work;
  w->entries = (double)mask_entries(&run->request->mask, p->batch, p->q_heads);
  const double flops = (step.backward != NULL ? 10.0 : 4.0) * p->head_dim; /* 5 or 2 products */
  w->flops = flops * w->entries;
  w->dense_flops = flops * q_rows * p->kv_len;
  w->least_bytes = device_tensors_bytes(p);
  if (step.decode != NULL) {
    w->dense_flops = flops * p->q_heads * p->q_len * (double)run->cache.keys;
    w->least_bytes = run->cache.bytes + q_rows * (4.0 * p->head_dim + sizeof(float));
  }
  w->must_move_bytes = w->least_bytes + run->description.intermediate_bytes_per_entry * w->entries;
}

double record_arithmetic_tflops(const RunRecord *run) {
  const Ceiling ceiling = run->description.ceiling;
  return ceiling == CEILING_WGMMA_FP8 ? run->ceilings.wgmma_e4m3_tflops
         : ceiling == CEILING_WGMMA   ? run->ceilings.wgmma_tflops
         : ceiling == CEILING_MMA     ? run->ceilings.mma_tflops
                                      : run->ceilings.ffma_tflops;
}

/** The speed of a decode step: its limit is a kernel that only reads. */
static void record_decode_speed(RunRecord *run) {
  const double ms = run->timing.median_ms, limit_ms = run->cache.timing.read.median_ms;
  run->speed = (Speed){.tflops = 1e-9 * run->work.flops / ms,
                       .dense_tflops = 1e-9 * run->work.dense_flops / ms,
                       .gb_per_s = 1e-6 * run->cache.bytes / ms,
                       .ceiling_percent = 100 * limit_ms / ms,
                       .bound_ms = limit_ms,
                       .bound_by = READS};
}

void record_speed(RunRecord *run) {
  if (step.decode != NULL) {
    record_decode_speed(run);
    return;
  }
  const Work *w = &run->work;
  const double tflops = record_arithmetic_tflops(run);
  const bool by_copy = run->description.ceiling == CEILING_COPY;
  const double seconds = 1e-3 * run->timing.median_ms;
  const double flops_s = w->flops / (1e12 * tflops);
  const double bytes_s = w->must_move_bytes / (1e9 * run->ceilings.copy_gb_per_s);
  const double exp_s = w->entries / (1e9 * run->ceilings.exp_g_per_s);
  Speed *s = &run->speed;
  s->tflops = 1e-12 * w->flops / seconds;
  s->dense_tflops = 1e-12 * w->dense_flops / seconds;
  s->gb_per_s = 1e-9 * w->must_move_bytes / seconds;
  if (run->ceilings.date[0] == '\0') { /* none are known */
    s->ceiling_percent = s->bound_ms = (double)NAN;
    return;
  }
  s->ceiling_percent =
      100 * (by_copy ? s->gb_per_s / run->ceilings.copy_gb_per_s : s->tflops / tflops);
  s->bound_ms = 1e3 * fmax(fmax(flops_s, bytes_s), exp_s);
  if (exp_s > fmax(flops_s, bytes_s)) {
    s->bound_by = "exp";
  } else if (flops_s < bytes_s) {
    s->bound_by = ceiling_name(CEILING_COPY);
  } else {
    s->bound_by = ceiling_name(by_copy ? CEILING_FFMA : run->description.ceiling);
  }
}
