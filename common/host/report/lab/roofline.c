/*
 * The roofline of a GPU: the least time of each unit for its share of the counted work. The longest
 * of these times is a lower bound of the time of a pass, not an estimate.
 */
#include "host/base/values.h"
#include "host/report/lab/parts.h"

void find_bounds(const RunRecord *run, const LabCounts *forward, Bound bounds[BOUNDS]) {
  const Gpu *gpu = &run->request->report->gpu;
  const double mma_flop = tensor_core_flop(forward);
  const double mma_peak = forward->wgmma > 0 ? gpu->wgmma_tflops : gpu->mma_tflops;
  /* Multiply-adds on CUDA cores are not counted; without mma, they do both matrix products. */
  const double fp32_flop = mma_flop == 0 ? run->work.flops : 0;
  const Bound all[BOUNDS] = {
      {"tensor cores", "FLOP", "FLOP/s", mma_flop, 1e12 * mma_peak, 0},
      {"fp32 units", "FLOP", "FLOP/s", fp32_flop, 1e12 * gpu->fp32_tflops, 0},
      {"device memory", "B", "B/s", run->work.must_move_bytes, 1e9 * gpu->memory_gb_per_s, 0},
      {"shared memory", " wavefronts", " wavefronts/s", (double)total_wavefronts(forward),
       1e6 * gpu->clock_mhz * gpu->multiprocessors, 0},
  };
  for (int i = 0; i < BOUNDS; i++) {
    bounds[i] = all[i];
    bounds[i].seconds = all[i].work / all[i].peak;
  }
}

/** Blocks of the largest launch. */
static double most_blocks(const RunRecord *run) {
  double most = 0;
  for (int i = 0; i < run->description.launch_count; i++) {
    const dim3 grid = run->description.launches[i].grid;
    const double blocks = (double)grid.x * grid.y * grid.z;
    if (blocks > most) most = blocks;
  }
  return most;
}

void print_roofline(const RunRecord *run, const LabCounts *forward, FILE *out) {
  const Gpu *gpu = &run->request->report->gpu;
  const double blocks = most_blocks(run);
  Bound bounds[BOUNDS];
  const Bound *binding = &bounds[0];
  find_bounds(run, forward, bounds);
  fprintf(out, "roofline   %s: least times by count and peak rate; nothing was timed\n", gpu->name);
  for (int i = 0; i < BOUNDS; i++) {
    const Bound *b = &bounds[i];
    char work[40], peak[40];
    if (b->seconds > binding->seconds) binding = b;
    if (b->work == 0) continue;
    fprintf(out, "           %-14s %-20s at %-21s takes at least %10.3f us\n", b->unit,
            human_number(b->work, b->work_unit, work), human_number(b->peak, b->peak_unit, peak),
            1e6 * b->seconds);
  }
  fprintf(out, "           bound by %s: no pass on this GPU takes less than %.3f us\n",
          binding->unit, 1e6 * binding->seconds);
  if (blocks < gpu->multiprocessors) {
    fprintf(out,
            "           %.0f block%s for %.0f multiprocessors: most of it would idle, the bound is "
            "far off\n",
            blocks, blocks == 1 ? "" : "s", gpu->multiprocessors);
  }
  fprintf(out, "           peaks from %s\n", gpu->source);
}
