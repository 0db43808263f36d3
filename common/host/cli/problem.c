#include "host/cli/problem.h"

#include <math.h>
#include <stdio.h>

#include "host/base/memory.h"
#include "host/device/step_build.h"

#ifdef SIMT_BACKEND
enum { COPIES = 2 }; /* the device's memory is this machine's */
#else
enum { COPIES = 1 };
#endif

double options_host_bytes(const Options *o, const Problem *p) {
  const double q_rows = (double)p->batch * p->q_heads * p->q_len;
  const double kv_rows = (double)p->batch * p->kv_heads * p->kv_len;
  const double tensors = 2.0 * p->head_dim * (2 * q_rows + 2 * kv_rows) + sizeof(float) * q_rows;
  const double o_element = p->dtype == DTYPE_FP16 ? 2 : 4; /* bf16 is written as fp32 */
  return COPIES * tensors + (o->output_directory != NULL ? o_element * p->head_dim * q_rows : 0);
}

static bool check_size(const Options *o, const Problem *p, Error *error) {
  char sizes[256];
  snprintf(sizes, sizeof sizes,
           "--batch %d --heads %d --kv-heads %d --seqlen %d --seqlen-kv %d --head-dim %d", p->batch,
           p->q_heads, p->kv_heads, p->q_len, p->kv_len, p->head_dim);
  return memory_fits(sizes, options_host_bytes(o, p), error);
}

enum { BLOCK_OF_ANY_STEP = 128 };

static void set_blocks(Problem *p, int q_block_size, int kv_block_size) {
  p->q_block_size = q_block_size;
  p->kv_block_size = kv_block_size;
}

/** Asks the step. What it refuses is all known before the mask is opened, but the size of its
 * blocks, for which one stands that every step takes. */
static bool check_support(const Problem *problem, Error *error) {
  char why[sizeof error->text];
  Problem p = *problem;
  if (step.block_masks != NULL) set_blocks(&p, BLOCK_OF_ANY_STEP, BLOCK_OF_ANY_STEP);
  return step_build()->supports(&p, why, sizeof why) || fail(error, EXIT_USAGE, "%s", why);
}

/** Asks again, of the size of the blocks alone: it is that of the tiles in a directory, or that of
 * --mask-block where `directory` is NULL. */
static bool check_blocks(const Problem *p, const char *directory, Error *error) {
  char why[sizeof error->text];
  if (step_build()->supports(p, why, sizeof why)) return true;
  if (directory == NULL) return fail(error, EXIT_USAGE, "--mask-block: %s", why);
  return fail(error, EXIT_USAGE, "%s/partial_block_masks.npy: %s", directory, why);
}

/** Opens a directory, which brings its own size of blocks. */
static bool open_directory(const Options *o, Problem *p, Mask *mask, Error *error) {
  if (!mask_open(o->mask, p, o->mask_block_q, o->mask_block_kv, o->seed, mask, error)) return false;
  set_blocks(p, mask->blocks.mask.q_block_size, mask->blocks.mask.kv_block_size);
  if (check_blocks(p, mask->blocks.data[TENSOR_TILES] != NULL ? o->mask : NULL, error)) return true;
  mask_free(mask);
  return false;
}

/** Opens the mask, which may take long, once the step has agreed to the rest, and notes in the
 * problem what a step must know of it. */
static bool open_mask(const Options *o, Problem *p, Mask *mask, Error *error) {
  p->mask = mask_kind(o->mask);
  if (step.block_masks == NULL && p->mask == MASK_BLOCKS) {
    return fail(error, EXIT_USAGE, "--mask %s: %s takes full or causal", o->mask, step.name);
  }
  if (!check_support(p, error)) return false;
  if (step.block_masks != NULL) {
    if (mask_names_directory(o->mask)) return open_directory(o, p, mask, error);
    set_blocks(p, o->mask_block_q, o->mask_block_kv);
    if (!check_blocks(p, NULL, error)) return false;
  }
  return mask_open(o->mask, p, o->mask_block_q, o->mask_block_kv, o->seed, mask, error);
}

bool options_problem(const Options *o, Problem *problem, Mask *mask, Error *error) {
  *problem = (Problem){
      .batch = o->batch,
      .q_heads = o->q_heads,
      .kv_heads = o->kv_heads_given ? o->kv_heads : o->q_heads,
      .q_len = o->q_len,
      .kv_len = o->kv_len_given ? o->kv_len : o->q_len,
      .head_dim = o->head_dim,
      .dtype = o->dtype,
      .shared_kv = o->shared_kv,
      .scale = (float)(o->scale_given ? o->scale : 1 / sqrt(o->head_dim)),
  };
  if (problem->q_heads % problem->kv_heads != 0) {
    return fail(error, EXIT_USAGE, "--kv-heads %d: must divide --heads %d", problem->kv_heads,
                problem->q_heads);
  }
  if (!check_size(o, problem, error)) return false;
  problem_set_layout(problem, o->layout);
  return open_mask(o, problem, mask, error);
}

static Strides dense_strides(Layout layout, int64_t heads, int64_t length, int64_t head_dim) {
  if (layout == LAYOUT_BHND) {
    return (Strides){heads * length * head_dim, length * head_dim, head_dim};
  }
  return (Strides){length * heads * head_dim, head_dim, heads * head_dim};
}

void problem_set_layout(Problem *p, Layout layout) {
  p->q_strides = p->o_strides = dense_strides(layout, p->q_heads, p->q_len, p->head_dim);
  p->k_strides = p->v_strides = dense_strides(layout, p->kv_heads, p->kv_len, p->head_dim);
}
