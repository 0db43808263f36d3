#include "host/report/report.h"

#include <errno.h> /* program_invocation_short_name */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "host/base/values.h"

static void print_problem(const RunRecord *run, FILE *out) {
  const Problem *p = &run->request->problem;
  fprintf(out, "problem    B=%d Hq=%d Hkv=%d Nq=%d Nkv=%d D=%d %s, mask %s, scale %.4g", p->batch,
          p->q_heads, p->kv_heads, p->q_len, p->kv_len, p->head_dim, DTYPE_NAMES[p->dtype],
          run->request->mask.text, (double)p->scale);
  if (p->o_dtype != p->dtype) fprintf(out, ", O in %s", DTYPE_NAMES[p->o_dtype]);
  fputc('\n', out);
}

/** Prints the numbers of mask blocks by type, or that there are none, and the cost of preparing the
 * mask. */
static void print_mask(const RunRecord *run, FILE *out) {
  const MaskFacts *m = &run->mask_facts;
  const BlockMaskStatistics *b = &m->blocks;
  if (m->form == NULL) return;
  char mask[40], prepared[40];
  if (m->q_block_size == 0) {
    fprintf(out, "mask       one span of keys for each query\n");
  } else {
    fprintf(out,
            "mask       %" PRId64 " of %" PRId64 " blocks of %dx%d active: %" PRId64
            " full, %" PRId64 " causal, %" PRId64 " partial\n",
            b->active, b->blocks, m->q_block_size, m->kv_block_size, b->full, b->causal,
            b->partial);
  }
  fprintf(out, "           %.1f %% of the entries unmasked; %s, and %s prepared from it\n",
          100 * run->work.flops / run->work.dense_flops,
          human_number((double)m->mask_bytes, "B", mask),
          human_number((double)m->prepared_bytes, "B", prepared));
  if (run->device->simulated) return;
  fprintf(out,
          "           once per mask: built in %.2f ms, uploaded in %.2f ms, prepared in %.2f ms\n",
          m->build_ms, m->upload_ms, m->prepare_ms);
}

/** Prints the lengths and the pages of a decode step's cache. */
static void print_cache(const RunRecord *run, FILE *out) {
  const CacheFacts *c = &run->cache;
  const Problem *p = &run->request->problem;
  char bytes[40];
  if (step.decode == NULL) return;
  fprintf(out, "cache      %" PRId64 " keys in %d sequence%s of %d to %d, %s", c->keys, p->batch,
          p->batch == 1 ? "" : "s", c->shortest, c->longest, DTYPE_NAMES[cache_dtype(p)]);
  if (c->pages > 0) fprintf(out, ", in pages of %d: %d of K, as many of V", p->page_size, c->pages);
  fprintf(out, "\n           %s to read\n", human_number(c->bytes, "B", bytes));
}

static void print_device(const Device *d, FILE *out) {
  fprintf(out, "device     %s", d->name);
  if (!d->simulated) {
    fprintf(out, ", %d multiprocessors, sm_%d%d, %.0f GB, CUDA %d.%d", d->multiprocessors, d->major,
            d->minor, 1e-9 * (double)d->memory_bytes, d->runtime / 1000, d->runtime % 1000 / 10);
  }
  fputc('\n', out);
}

static double grid_blocks(const KernelLaunch *launch) {
  return (double)launch->grid.x * launch->grid.y * launch->grid.z;
}

static unsigned thread_count(const KernelLaunch *launch) {
  return launch->block.x * launch->block.y * launch->block.z;
}

static void print_kernel(const KernelLaunch *launch, const KernelFacts *facts, const Device *device,
                         FILE *out) {
  const double blocks = grid_blocks(launch);
  fprintf(out, "kernel     %s: %.0f block%s of %u threads", launch->name, blocks,
          blocks == 1 ? "" : "s", thread_count(launch));
  if (facts->shared_bytes > 0) {
    fprintf(out, ", %.1f kB %sshared", 1e-3 * (double)facts->shared_bytes,
            device->simulated ? "dynamic " : "");
  }
  if (!device->simulated) {
    const double at_once = (double)facts->blocks_per_multiprocessor * device->multiprocessors;
    fprintf(out, ", %d registers%s, %d block%s per SM, %.1f waves", facts->registers,
            facts->local_bytes > 0 ? " (spills)" : "", facts->blocks_per_multiprocessor,
            facts->blocks_per_multiprocessor == 1 ? "" : "s", blocks / at_once);
  }
  fputc('\n', out);
}

/** Prints the number of passes, more than one if the workspace does not hold all heads. */
static void print_passes(const RunRecord *run, FILE *out) {
  const int all = run->request->problem.batch * run->request->problem.q_heads,
            heads = run->heads_at_a_time;
  if (run->description.intermediate_bytes_per_entry == 0 || heads == 0) return;
  fprintf(out, "           %s hold %d of %d heads at a time: %d pass%s\n",
          step.backward == NULL ? "S and P" : "P and dS", heads, all, (all + heads - 1) / heads,
          heads < all ? "es" : "");
}

static void print_errors(const CheckResult *c, FILE *out) {
  fprintf(out, "error      max %.2e, mean %.2e, allowed %.2e%s (relative, by row)\n", c->max_error,
          c->mean_error, c->allowed_error,
          c->max_error > c->allowed_error && c->max_share <= 1 ? ", in single rows more" : "");
  fprintf(out, "           the worst row at %.0f %% of what it is allowed, LSE at %.0f %%\n",
          100 * c->max_share, 100 * c->max_lse_error);
}

static void print_gradients(const CheckResult *c, FILE *out) {
  for (int g = 0; g < GRADIENTS; g++) {
    const GradientResult *one = &c->gradients[g];
    fprintf(out,
            "%-10s %s max %.2e, mean %.2e, allowed %.2e, the worst row at %.0f %% of its own\n",
            g == 0 ? "error" : "", gradient_name(g), one->max_error, one->mean_error,
            one->allowed_error, 100 * one->max_share);
  }
}

static void print_check(const RunRecord *run, FILE *out) {
  const CheckResult *c = &run->check;
  if (!run->checked) {
    fprintf(out, "check      NOT CHECKED (--check none)\n");
    return;
  }
  if (!c->right && step.backward != NULL) {
    fprintf(out, "check      WRONG: %zu of %zu rows of dQ, dK and dV wrong\n", c->rows_wrong,
            c->rows_checked);
  } else if (!c->right) {
    fprintf(out, "check      WRONG: %zu of %zu rows wrong, LSE of %zu; %zu rows compared\n",
            c->rows_wrong, c->rows_checked, c->lse_wrong, c->rows_checked);
  } else {
    fprintf(out, "check      %s: %zu of %zu rows compared with the fp64 reference\n",
            c->judged ? "RIGHT" : "NOT JUDGED", c->rows_checked, run->total_rows);
  }
  if (step.backward != NULL) {
    print_gradients(c, out);
  } else {
    print_errors(c, out);
  }
  if (c->mean_error_share > 0) { /* of e4m3, and of enough rows */
    fprintf(out, "           mean error at %.0f %%, mean length of rows at %.0f %% of the limits\n",
            100 * c->mean_error_share, 100 * c->mean_gain_share);
  }
  if (c->rows_nan_expected > 0) {
    fprintf(out, "           %zu of them hold NaN, as in the reference\n", c->rows_nan_expected);
  }
  if (c->rows_not_judged > 0) {
    fprintf(
        out,
        "           %zu rows cannot be judged: rounding alone may err by as much as they hold\n",
        c->rows_not_judged);
  }
  if (c->rows_not_compared > 0) {
    fprintf(out, "           %zu rows not compared: NaN or Inf of V may have reached them\n",
            c->rows_not_compared);
  }
}

/** Prints which cases this problem does not cover, and how to run them. */
static void print_not_covered(const RunRecord *run, FILE *out) {
  const Problem *p = &run->request->problem;
  const Description *d = &run->description;
  const struct {
    bool missing;
    const char *what;
  } cases[] = {
      {p->q_len % d->block_m == 0 && p->kv_len % d->block_n == 0, "tail tiles"},
      {p->mask == MASK_FULL, "causal mask"},
      {step.decode != NULL
           ? p->q_len <= run->cache.shortest
           : p->mask == MASK_FULL || (p->mask == MASK_CAUSAL && p->q_len <= p->kv_len),
       "fully masked rows"},
      {p->q_heads == p->kv_heads, "grouped heads"},
  };
  const char *separator = "           not covered: ";
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!cases[i].missing) continue;
    fprintf(out, "%s%s", separator, cases[i].what);
    separator = ", ";
  }
  if (separator[0] != ',') return;
  const char *name = program_invocation_short_name; /* of a copy of a step or an exercise, too */
  const bool is_step = strncmp(name, "step", strlen("step")) == 0;
  fprintf(out, ": make %s%s\n", is_step ? "check STEP=" : "",
          name + (is_step ? strlen("step") : 0));
}

#ifndef SIMT_BACKEND
static void print_us(const char *what, const Timing *t, FILE *out) {
  if (t->samples == 0) return;
  fprintf(out, "%s %.2f us (p10 %.2f, p90 %.2f)\n", what, 1e3 * t->median_ms, 1e3 * t->p10_ms,
          1e3 * t->p90_ms);
}

static void print_decode_speed(const RunRecord *run, FILE *out) {
  const DecodeTiming *t = &run->cache.timing;
  print_us("time      ", &run->timing, out);
  print_us("           replayed as a CUDA graph", &t->graph, out);
  print_us("           its schedule, once for each batch of lengths,", &t->schedule, out);
  print_us("limits     an empty kernel", &t->empty, out);
  print_us("           a kernel that only reads K and V", &t->read, out);
  fprintf(out, "speed      %.0f GB/s of K and V, %.0f %% of that of the kernel that only reads\n",
          run->speed.gb_per_s, run->speed.ceiling_percent);
}

static void print_speed(const RunRecord *run, FILE *out) {
  const Timing *t = &run->timing;
  const Speed *s = &run->speed;
  if (t->samples == 0) {
    fprintf(out, "time       not measured\n");
    return;
  }
  if (step.decode != NULL) {
    print_decode_speed(run, out);
    return;
  }
  if (s->bound_by != NULL) {
    fprintf(out, "expected   no faster than %.3f ms: the rate of %s on this GPU sets the limit\n",
            s->bound_ms, s->bound_by);
  }
  fprintf(out, "time       %.3f ms (p10 %.3f, p90 %.3f, %d samples)\n", t->median_ms, t->p10_ms,
          t->p90_ms, t->samples);
  fprintf(out, "speed      %.2f TFLOP/s", s->tflops);
  if (s->dense_tflops > 1.001 * s->tflops) {
    fprintf(out, " of the unmasked entries (%.2f dense-equivalent)", s->dense_tflops);
  }
  fprintf(out, ", %.0f GB/s\n", s->gb_per_s);
  if (s->bound_by == NULL) {
    fprintf(out, "ceiling    unknown for this GPU: ./%s --ceilings measures it\n",
            program_invocation_short_name);
    return;
  }
  fprintf(out, "ceiling    %.0f %% of the %s measured here (", s->ceiling_percent,
          ceiling_name(run->description.ceiling));
  if (run->description.ceiling == CEILING_COPY) {
    fprintf(out, "%.0f GB/s, %.10s)\n", run->ceilings.copy_gb_per_s, run->ceilings.date);
  } else {
    fprintf(out, "%.1f TFLOP/s, %.10s)\n", record_arithmetic_tflops(run), run->ceilings.date);
  }
}
#else
/** Prints one line of counts; with --report=counts, one more for each kind of work. */
static void print_counts(const RunRecord *run, FILE *out) {
  static const char *const KINDS[SIMT_KINDS] = {
      "shuffles", "votes", "reductions", "warp barriers", "ldmatrix",
      "stmatrix", "mma",   "wgmma",      "wgmma syncs",   "setmaxnreg"};
  const SimtCounters *c = &run->counts;
  const uint64_t mma = c->warp_instructions[SIMT_MMA];
  fprintf(out,
          "counts     %" PRIu64 " barriers in %" PRIu64 " blocks, %" PRIu64 " shuffles in %" PRIu64
          " warps\n",
          c->barriers, c->blocks, c->warp_instructions[SIMT_SHUFFLE], c->threads / 32);
  if (run->request->report->parts & REPORT_COUNTS) {
    fprintf(out, "           %" PRIu64 " launches, %" PRIu64 " threads, %" PRIu64 " atomics\n",
            c->launches, c->threads, c->atomics);
    for (int i = 0; i < SIMT_KINDS; i++) {
      fprintf(out, "           %-14s %12" PRIu64 "  by warps\n", KINDS[i], c->warp_instructions[i]);
    }
  }
  if (c->tensor_copies > 0) {
    fprintf(out, "           %" PRIu64 " wgmma in warps, %" PRIu64 " tensor copies\n",
            c->warp_instructions[SIMT_WGMMA], c->tensor_copies);
  }
  if (mma > 0) {
    fprintf(out, "           %" PRIu64 " mma in warps, %.0f %% of them with a copy in flight\n",
            mma, 100.0 * (double)c->mma_under_copy / (double)mma);
  }
  fprintf(out,
          "time       none: the CPU backend shows what a kernel does, not how long a GPU takes\n");
}
#endif

static void print_traffic(const RunRecord *run, FILE *out) {
  char least[40], intermediate[40], extra[40];
  const double s_and_p = run->work.must_move_bytes - run->work.least_bytes;
  fprintf(out, "must move  %s: %s", human_number(run->work.least_bytes, "B", least),
          step.backward == NULL ? "Q, K and V in, O and LSE out"
                                : "Q, K, V, O, dO and LSE in, dQ, dK and dV out");
  if (s_and_p > 0) {
    fprintf(out, "; %s: %s more", step.backward == NULL ? "S and P" : "P and dS",
            human_number(s_and_p, "B", intermediate));
  }
  fprintf(out, "\nmemory     %s beside the tensors%s at peak\n",
          run->extra_bytes == 0 ? "nothing" : human_number((double)run->extra_bytes, "B", extra),
          run->mask_facts.form == NULL ? "" : " and the mask");
}

void report_request(const RunRecord *run, FILE *out) {
  fprintf(out, "%-10s %s\n", step.name, step.title);
  print_problem(run, out);
  print_mask(run, out);
  print_cache(run, out);
  fprintf(out, "input      %s, seed %" PRIu64 ", layout %s\n", run->request->input,
          run->request->seed, run->request->layout);
  if (run->nan_inputs > 0)
    fprintf(out, "           NaN among them: %" PRId64 "\n", run->nan_inputs);
  print_device(run->device, out);
  for (int i = 0; i < run->description.launch_count; i++) {
    print_kernel(&run->description.launches[i], &run->facts[i], run->device, out);
  }
  print_passes(run, out);
  fflush(out); /* the pass may take long */
}

void report_result(const RunRecord *run, FILE *out) {
  print_traffic(run, out);
#ifdef SIMT_BACKEND
  print_counts(run, out);
#else
  print_speed(run, out);
#endif
  print_check(run, out);
  if (run->checked && run->check.right) print_not_covered(run, out);
}

void report_info(const RunRecord *run, FILE *out) {
  const Description *d = &run->description;
  fprintf(out, "%-10s %s\n           %s\n", step.name, step.title, step.idea);
  fprintf(out,
          "supports   %s, Hq %% Hkv == 0, %s, %s, %s,\n"
          "           layouts bhnd and bnhd%s\n",
          step.decode != NULL ? "up to 16 new queries" : "any Nq, Nkv",
          step.head_dims != NULL ? step.head_dims : "any D up to 256",
          step.fp8 ? "e4m3" : "fp16 and bf16",
          step.decode != NULL             ? "masks full, causal and window:W"
          : step.block_masks == NULL      ? "masks full and causal"
          : step.block_masks->takes_spans ? "masks of one span of keys for each query"
                                          : "any mask",
          step.decode == NULL         ? ""
          : step.caches & CACHE_PAGES ? ", or pages of 16 to 256 keys"
                                      : "");
  if (step.decode != NULL) {
    fprintf(out, "           K and V %s%s%s\n", step.caches & CACHE_16_BIT ? "as Q" : "",
            (step.caches & CACHE_16_BIT) && (step.caches & CACHE_E4M3) ? " or " : "",
            step.caches & CACHE_E4M3 ? "in e4m3" : "");
  }
  print_problem(run, out);
  print_device(run->device, out);
  fprintf(out, "tiles      %d rows of Q, %d rows of K and V\n", d->block_m, d->block_n);
  for (int i = 0; i < d->launch_count; i++) {
    const KernelLaunch *l = &d->launches[i];
    fprintf(out, "kernel     %s: %.0f blocks of %u threads, %zu bytes of dynamic shared memory\n",
            l->name, grid_blocks(l), thread_count(l), l->dynamic_shared_bytes);
  }
  print_passes(run, out);
  if (!run->fits)
    fprintf(out, "memory     this problem does not fit the free memory of the device\n");
  fprintf(out, "page       docs/%s.md\n", step.name);
}

/* --- Progress -------------------------------------------------------------------------------- */

static double start_ms;
static int shown_seconds; /* 0: there is no line */

static void show(const char *doing, uint64_t done, uint64_t total, const char *what) {
  const int seconds = (int)(1e-3 * (clock_ms() - start_ms));
  if (seconds == shown_seconds || !isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r%s: %llu of %llu %s, %d s\033[K", doing, (unsigned long long)done,
          (unsigned long long)total, what, seconds);
  shown_seconds = seconds;
}

void progress_start(void) {
  start_ms = clock_ms();
  shown_seconds = 0;
}

void progress_blocks(uint64_t done, uint64_t total) {
  show("running", done, total, "blocks");
}

void progress_rows(size_t done, size_t total) {
  if (done < total) {
    show("checking", done, total, "rows");
  } else {
    progress_end();
  }
}

void progress_end(void) {
  if (shown_seconds > 0) fprintf(stderr, "\r\033[K");
  shown_seconds = 0;
}
