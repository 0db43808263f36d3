/**
 * @file
 * Runs one step on small problems and prints, as one JSON object, what a warp does in the order of
 * its program: tiles that are loaded, copies and their groups, waits, barriers, products, softmax.
 * There is no time in it. timeline_record.c records, timeline_events.c makes events of the records.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backward.h"
#include "host/base/error.h"
#include "host/device/device.h"
#include "host/masks/mask.h"
#include "timeline.h"

/** Which tile of queries to watch: that of this query. Of steps with roles, and of backward passes,
 * the first thread block is watched. */
typedef struct Trial {
  const char *mask;
  int q_len, kv_len, head_dim, query;
} Trial;

enum { MASK_BLOCK = 128, SEED = 1 }; /* the defaults of the programs */

/* In the causal trial keys are left out after the tiles of these queries, in the window trial
   before them, in the last one between them. The first two are for all steps. */
static const Trial TRIALS[] = {
    {"full", 256, 320, 64, 0},
    {"causal", 256, 320, 64, 0},
    {"window:64", 256, 320, 64, 128},
    {"blocks:0.5", 256, 640, 64, 0},
};

/* At D = 128 the consumers of steps 08 and 09 take turns. */
static const Trial ROLE_TRIALS[] = {{"full", 640, 600, 128, 0}};
/* With a tile scheduler there is one tile of queries more than blocks: block 0 gets two. */
static const Trial SCHEDULE_TRIALS[] = {{"full", 0, 320, 128, 0}, {"causal", 0, 900, 128, 0}};
/* The last one is not a span of keys. */
static const Trial ROLE_MASK_TRIALS[] = {
    {"full", 0, 320, 128, 0}, {"window:200", 0, 900, 128, 0}, {"blocks:0.5", 0, 900, 128, 0}};
/* A thread block has some of the keys and goes through all queries, or those that see its keys. */
static const Trial BACKWARD_TRIALS[] = {{"full", 160, 256, 64, 0}};
static const Trial BACKWARD_ROLE_TRIALS[] = {{"full", 320, 256, 128, 0},
                                             {"window:100", 320, 256, 128, 0}};

void require(bool done, const char *what) {
  if (done) return;
  fprintf(stderr, "%s: timeline: %s\n", step.name, what);
  exit(EXIT_FAILURE);
}

static void require_cuda(cudaError_t status) {
  require(status == cudaSuccess, cudaGetErrorString(status));
}

/** Device memory. Q, K and V have as many rows again behind the last one, so that the address of a
 * copy of zeros is one of its tensor. */
static Range allocate(size_t bytes) {
  void *memory = NULL;
  require_cuda(cudaMalloc(&memory, bytes));
  require_cuda(cudaMemset(memory, 0, bytes));
  return (Range){(uintptr_t)memory, (uintptr_t)memory + bytes};
}

/** Any values will do that are not all alike: in step 06 scores decide what is computed. */
static void fill(Range range, unsigned seed) {
  const size_t count = (range.end - range.begin) / 2;
  uint16_t *values = malloc(2 * count);
  require(values != NULL, "out of memory");
  for (size_t i = 0; i < count; i++) {
    seed = seed * 1664525 + 1013904223;
    const unsigned sign = seed >> 31, random = seed >> 16; /* the value: 0.25 to 1 */
    values[i] = step.fp8 ? (uint16_t)(sign << 15 | (0x2828 + (random % 0x10) * 0x101))
                         : (uint16_t)(sign << 15 | (0x3400 + random % 0x800));
  }
  require_cuda(cudaMemcpy((void *)range.begin, values, 2 * count, cudaMemcpyHostToDevice));
  free(values);
}

/** At D = 256 if the step takes no other. */
static Problem problem_of(const Trial *trial) {
  const bool any = step.head_dims == NULL || strcmp(step.head_dims, "D = 256") != 0;
  const int row = any ? trial->head_dim : MAX_HEAD_DIM;
  const Strides q = {trial->q_len * row, trial->q_len * row, row};
  const Strides kv = {trial->kv_len * row, trial->kv_len * row, row};
  Problem p = {.batch = 1,
               .q_heads = 1,
               .kv_heads = 1,
               .q_len = trial->q_len,
               .kv_len = trial->kv_len,
               .head_dim = row,
               .dtype = step.fp8 ? DTYPE_E4M3 : DTYPE_FP16,
               .o_dtype = DTYPE_FP16,
               .mask = mask_kind(trial->mask),
               .scale = 0.125F,
               .q_strides = q,
               .k_strides = kv,
               .v_strides = kv,
               .o_strides = q};
  if (step.block_masks != NULL) {
    p.mask = MASK_BLOCKS;
    if (!step.block_masks->takes_spans) p.q_block_size = p.kv_block_size = MASK_BLOCK;
  }
  return p;
}

static DeviceMask make_mask(const Problem *p, const char *text) {
  DeviceMask on_device = {0};
  HostBlockMask blocks;
  Mask mask;
  Error error;
  require(mask_open(text, p, MASK_BLOCK, MASK_BLOCK, SEED, &mask, &error), error.text);
  require(step.block_masks->takes_spans
              ? row_spans_build(&mask, &blocks, &error)
              : block_mask_build(&mask, MASK_BLOCK, MASK_BLOCK, &blocks, &error),
          error.text);
  require(device_mask_create(p, step_build(), &blocks, &on_device, &error), error.text);
  block_mask_free(&blocks);
  mask_free(&mask);
  return on_device;
}

/** The memory of a run, with tensors that are filled. */
static void allocate_all(const Problem *p, Range memory[SHARED]) {
  const size_t row = (step.fp8 ? 1 : 2) * (size_t)p->head_dim;
  const size_t o_bytes = 2 * (size_t)p->head_dim * (size_t)p->q_len;
  memory[Q] = allocate(2 * row * (size_t)p->q_len);
  memory[K] = allocate(2 * row * (size_t)p->kv_len);
  memory[V] = allocate(2 * row * (size_t)p->kv_len);
  memory[O] = allocate(o_bytes);
  memory[LSE] = allocate(sizeof(float) * (size_t)p->q_len);
  for (int i = Q; i <= V; i++) fill(memory[i], (unsigned)i);
  if (step.backward == NULL) return;
  memory[D_O] = allocate(2 * o_bytes);
  memory[D_Q] = allocate(o_bytes);
  memory[D_K] = allocate(row * (size_t)p->kv_len);
  memory[D_V] = allocate(row * (size_t)p->kv_len);
  memory[NUMBERS] = allocate(step.workspace_bytes(p));
  fill(memory[D_O], D_O);
  fill(memory[O], O);
}

static void run_forward(const Problem *p, const Range memory[SHARED], const DeviceMask *mask) {
  const Range workspace = allocate(step.workspace_bytes == NULL ? 1 : step.workspace_bytes(p));
  const Range scale = allocate(sizeof(float));
  const float one = 1;
  require_cuda(cudaMemcpy((void *)scale.begin, &one, sizeof one, cudaMemcpyHostToDevice));
  const float *scales = (const float *)scale.begin;
  const Tensors tensors = {.q = (void *)memory[Q].begin,
                           .k = (void *)memory[K].begin,
                           .v = (void *)memory[V].begin,
                           .o = (void *)memory[O].begin,
                           .lse = (float *)memory[LSE].begin,
                           .workspace = (void *)workspace.begin,
                           .block_mask = &mask->mask,
                           .prepared = mask->prepared,
                           .q_scales = scales,
                           .k_scales = scales,
                           .v_scales = scales};
  require_cuda(step_build()->forward(p, &tensors, 1, 0));
  require_cuda(cudaDeviceSynchronize());
  require_cuda(cudaFree((void *)workspace.begin));
  require_cuda(cudaFree((void *)scale.begin));
}

static void run_backward(const Problem *p, const Range memory[SHARED], const DeviceMask *mask) {
  const BackwardTensors tensors = {.q = (void *)memory[Q].begin,
                                   .k = (void *)memory[K].begin,
                                   .v = (void *)memory[V].begin,
                                   .o = (void *)memory[O].begin,
                                   .lse = (float *)memory[LSE].begin,
                                   .d_o = (void *)memory[D_O].begin,
                                   .d_q = (void *)memory[D_Q].begin,
                                   .d_k = (void *)memory[D_K].begin,
                                   .d_v = (void *)memory[D_V].begin,
                                   .workspace = (void *)memory[NUMBERS].begin,
                                   .block_mask = &mask->mask,
                                   .prepared = mask->prepared};
  require_cuda(step_build()->backward(p, &tensors, 1, 0));
  require_cuda(cudaDeviceSynchronize());
}

/** The launch that is watched: the first with dynamic shared memory. */
static const KernelLaunch *watched(const Description *d) {
  int i = 0;
  while (i < d->launch_count - 1 && d->launches[i].dynamic_shared_bytes == 0) i++;
  return &d->launches[i];
}

static void print_trial(const Trial *trial) {
  const Problem p = problem_of(trial);
  Range memory[SHARED] = {{0}};
  allocate_all(&p, memory);
  DeviceMask mask = {0};
  if (step.block_masks != NULL) mask = make_mask(&p, trial->mask);
  memory[MASK_BITS] =
      (Range){(uintptr_t)mask.prepared, (uintptr_t)mask.prepared + mask.prepared_bytes};
  Description d;
  step_build()->describe(&p, 1, &d);
  const unsigned row = (step.fp8 ? 1 : 2) * (unsigned)p.head_dim;
  record_block(memory, row * (uint32_t)trial->query);
  if (step.backward == NULL) {
    run_forward(&p, memory, &mask);
  } else {
    run_backward(&p, memory, &mask);
  }
  const Log *log = recorded_block();
  require(log != NULL, "no thread block has read the query");
  const unsigned shared_bytes = (unsigned)watched(&d)->dynamic_shared_bytes;
  printf("{\"mask\": \"%s\", \"q_len\": %d, \"kv_len\": %d, \"head_dim\": %d,\n", trial->mask,
         p.q_len, p.kv_len, p.head_dim);
  printf("\"block_m\": %d, \"block_n\": %d, \"first_query\": %d, \"warps\": %d, \"blocks\": %u,\n",
         d.block_m, d.block_n, trial->query / d.block_m * d.block_m, log->threads / 32,
         watched(&d)->grid.x);
  printf("\"shared_bytes\": %u,\n", shared_bytes);
  if (step.backward != NULL) printf("\"backward\": true,\n");
  if (has_roles(&d)) {
    print_roles(log, &p, &d);
  } else {
    print_timeline(log, &p, &d, shared_bytes);
  }
  printf("}");
  for (int i = Q; i < MASK_BITS; i++) {
    if (memory[i].begin != 0) require_cuda(cudaFree((void *)memory[i].begin));
  }
  device_mask_free(&mask);
}

/** The trials of the step. The first thread block has the last queries, which attend to all keys.
 * Only a tile scheduler gives it others, too. */
static const Trial *trials_of(const Description *d, size_t *count) {
  const bool scheduled = step.workspace_bytes != NULL, masks = step.block_masks != NULL;
  if (step.backward != NULL) {
    *count = masks ? 2 : 1;
    return has_roles(d) ? BACKWARD_ROLE_TRIALS : BACKWARD_TRIALS;
  }
  *count = masks ? sizeof TRIALS / sizeof *TRIALS : 2;
  if (!has_roles(d)) return TRIALS;
  *count = masks ? 3 - step.block_masks->takes_spans : scheduled ? 2 : 1;
  return masks ? ROLE_MASK_TRIALS : scheduled ? SCHEDULE_TRIALS : ROLE_TRIALS;
}

int main(void) {
  setenv("SIMT_THREADS", "1", 1);
  setenv("SIMT_ORDER", "forward", 1);
  const Problem p = problem_of(&ROLE_TRIALS[0]);
  Description d;
  step.describe(&p, 1, &d);
  size_t count;
  const Trial *trials = trials_of(&d, &count);
  require(step_build_choose(true), "linked without the checking build");
  printf("{\"step\": \"%s\", \"title\": \"%s\", \"problems\": [\n", step.name, step.title);
  for (size_t i = 0; i < count; i++) {
    if (i > 0) printf(",\n");
    Trial trial = trials[i];
    if (trial.q_len == 0) trial.q_len = ((int)d.launches[0].grid.x + 1) * d.block_m;
    print_trial(&trial);
  }
  printf("]}\n");
  return ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
