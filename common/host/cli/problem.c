#include "host/cli/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "decode.h"
#include "host/base/memory.h"
#include "host/base/values.h"
#include "host/device/device.h"

#ifdef SIMT_BACKEND
enum { COPIES = 2 }; /* the simulated device uses this machine's memory */
#else
enum { COPIES = 1 };
#endif

/** Counts the memory of the tensors, and of what --output writes: bf16 as fp32. */
static bool take_memory(const Options *o, const Problem *p, Error *error) {
  const double o_element = p->o_dtype == DTYPE_FP16 ? 2 : 4;
  const double q_rows = (double)p->batch * p->q_heads * p->q_len;
  const double kv_rows = (double)p->batch * p->kv_heads * p->kv_len;
  const double written =
      o_element * p->head_dim * (q_rows + (step.backward != NULL ? 2 * kv_rows : 0));
  Problem on_host = *p;
  if (p->dtype == DTYPE_E4M3) on_host.dtype = DTYPE_FP16; /* Inputs has 16 bits for an element */
  on_host.kv_dtype = on_host.dtype;
  const double tensors = device_tensors_bytes(&on_host) + (COPIES - 1) * device_tensors_bytes(p);
  /* K of a decode step with its gaps, on the way to the device; V has its place later. */
  const double on_the_way =
      step.decode == NULL ? 0 : (double)element_bytes(cache_dtype(p)) * p->head_dim * kv_rows;
  char sizes[256];
  snprintf(sizes, sizeof sizes,
           "--batch %d --heads %d --kv-heads %d --seqlen %d --seqlen-kv %d --head-dim %d", p->batch,
           p->q_heads, p->kv_heads, p->q_len, p->kv_len, p->head_dim);
  return memory_take(sizes, tensors + on_the_way + (o->output_directory != NULL ? written : 0),
                     error);
}

static bool check_support(const Problem *p, Error *error) {
  char why[1024];
  if ((int64_t)p->batch * p->q_heads > INT32_MAX) {
    return fail(error, EXIT_USAGE, "--batch %d x --heads %d: at most 2^31 - 1 heads in all",
                p->batch, p->q_heads);
  }
  if (p->head_dim > MAX_HEAD_DIM) {
    return fail(error, EXIT_USAGE, "--head-dim %d: must be from 1 to %d", p->head_dim,
                MAX_HEAD_DIM);
  }
  if (step.decode != NULL && group_size(p) > MAX_GROUP_SIZE) {
    return fail(error, EXIT_USAGE,
                "--heads %d --kv-heads %d: at most %d query heads may share a key/value head",
                p->q_heads, p->kv_heads, MAX_GROUP_SIZE);
  }
  if (p->page_size > 0 && !(step.caches & CACHE_PAGES)) { /* of files */
    return fail(error, EXIT_USAGE, "page_table.npy: %s takes no pages", step.name);
  }
  return step.supports == NULL || step_build()->supports(p, why, sizeof why) ||
         fail(error, EXIT_USAGE, "%s", why);
}

/** The mask of a decode step: full, causal, or causal with a window. */
static bool open_decode_mask(const Options *o, Problem *p, const Cache *cache, Mask *mask,
                             Error *error) {
  static const char WINDOW[] = "window:";
  const size_t length = strlen(WINDOW);
  int64_t window = 0;
  Error unused;
  const bool windowed = strncmp(o->mask, WINDOW, length) == 0;
  p->mask = windowed ? MASK_CAUSAL : mask_kind(o->mask);
  if (p->mask == MASK_BLOCKS ||
      (windowed && !parse_integer("", o->mask + length, 1, INT32_MAX, &window, &unused))) {
    return fail(error, EXIT_USAGE, "--mask %s: %s takes full, causal or window:W, W from 1 to %d",
                o->mask, step.name, INT32_MAX);
  }
  p->window = (int)window;
  if (!check_support(p, error)) return false;
  *mask = mask_of_lengths(p, cache->lengths);
  mask->text = o->mask;
  return true;
}

/** Opens the mask. Opening may take long, so check_support() comes first, except for a directory:
 * its tiles may set the size of the blocks. Only an open mask knows whether it is spans, which have
 * no blocks. */
static bool open_mask(const Options *o, Problem *p, Mask *mask, Error *error) {
  p->mask = mask_kind(o->mask);
  if (step.block_masks == NULL && p->mask == MASK_BLOCKS) {
    return fail(error, EXIT_USAGE, "--mask %s: %s takes full or causal", o->mask, step.name);
  }
  const bool takes_spans = step.block_masks != NULL && step.block_masks->takes_spans;
  if (step.block_masks != NULL && !takes_spans) {
    p->q_block_size = o->mask_block_q;
    p->kv_block_size = o->mask_block_kv;
  }
  const bool directory = mask_names_directory(o->mask);
  if (!directory && !check_support(p, error)) return false;
  if (!mask_open(o->mask, p, o->mask_block_q, o->mask_block_kv, o->seed, mask, error)) return false;
  if (!directory && (!takes_spans || mask->one_span)) return true;
  p->q_block_size = directory ? mask->blocks.mask.q_block_size : o->mask_block_q;
  p->kv_block_size = directory ? mask->blocks.mask.kv_block_size : o->mask_block_kv;
  if (check_support(p, error)) return true;
  mask_free(mask);
  return false;
}

static Strides dense_strides(Layout layout, int64_t heads, int64_t length, int64_t head_dim) {
  if (layout == LAYOUT_BHND) {
    return (Strides){heads * length * head_dim, length * head_dim, head_dim};
  }
  return (Strides){length * heads * head_dim, head_dim, heads * head_dim};
}

static void set_layout(Problem *p, Layout layout) {
  p->q_strides = p->o_strides = dense_strides(layout, p->q_heads, p->q_len, p->head_dim);
  p->k_strides = p->v_strides =
      p->page_size > 0 ? dense_strides(LAYOUT_BNHD, p->kv_heads, p->page_size, p->head_dim)
                       : dense_strides(layout, p->kv_heads, p->kv_len, p->head_dim);
}

/** Sets the lengths of a decode step, unless files have set them, and the longest. */
static bool set_lengths(const Options *o, Problem *p, Cache *cache, Error *error) {
  if (p->q_len > MAX_NEW_QUERIES) {
    return fail(error, EXIT_USAGE, "--seqlen %d: must be from 1 to %d new queries", p->q_len,
                MAX_NEW_QUERIES);
  }
  if (cache->lengths != NULL) return true;
  const int most = o->kv_len != 0       ? o->kv_len
                   : o->lengths != NULL ? LARGEST_LENGTH
                                        : options_default_length();
  if (!cache_set_lengths(o->lengths, p->batch, most, o->seed, cache, error)) return false;
  p->kv_len = o->kv_len != 0 ? o->kv_len : cache_longest(cache, p->batch);
  return true;
}

static bool derive(const Options *o, RunRequest *request, Inputs *inputs, Error *error) {
  Problem *problem = &request->problem;
  *request = (RunRequest){.input = input_name(o),
                          .layout = layout_name(o->layout),
                          .lengths = o->lengths,
                          .seed = o->seed,
                          .report = &o->report};
  *problem = (Problem){
      .batch = o->batch,
      .q_heads = o->q_heads,
      .kv_heads = o->kv_heads != 0 ? o->kv_heads : o->q_heads,
      .q_len = o->q_len,
      .kv_len = o->kv_len != 0 ? o->kv_len : o->q_len,
      .head_dim = o->head_dim,
      .dtype = o->dtype,
      .o_dtype = o->dtype == DTYPE_E4M3 ? o->o_dtype : o->dtype,
      .kv_dtype = o->kv_dtype,
      .page_size = o->page_size,
      .scale = (float)(o->scale != 0 ? o->scale : 1 / sqrt(o->head_dim)),
  };
  if (problem->q_heads % problem->kv_heads != 0) {
    return fail(error, EXIT_USAGE, "--kv-heads %d: must divide --heads %d", problem->kv_heads,
                problem->q_heads);
  }
  if (step.decode != NULL && !set_lengths(o, problem, &inputs->cache, error)) return false;
  if (!o->draw_mask && !take_memory(o, problem, error)) return false;
  set_layout(problem, o->layout);
  if (step.decode == NULL) return open_mask(o, problem, &request->mask, error);
  return (problem->page_size == 0 || inputs->cache.page_table != NULL ||
          cache_draw_pages(problem, o->seed, &inputs->cache, error)) &&
         open_decode_mask(o, problem, &inputs->cache, &request->mask, error);
}

/** True if an error names one of the sizes that the files of --input set. */
static bool names_a_size(const char *text) {
  static const char *const SIZES[] = {"--batch ", "--heads ", "--kv-heads ", "--seqlen ",
                                      "--head-dim "};
  for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
    if (strncmp(text, SIZES[i], strlen(SIZES[i])) == 0) return true;
  }
  return false;
}

bool options_request(Options *o, RunRequest *request, Inputs *inputs, Error *error) {
  if (o->input != INPUT_DIRECTORY) return derive(o, request, inputs, error);
  Problem sizes = {.dtype = o->dtype, .kv_dtype = o->kv_dtype};
  if (!inputs_open(o->input_directory, &sizes, inputs, error)) return false;
  o->batch = sizes.batch;
  o->q_heads = sizes.q_heads;
  o->q_len = sizes.q_len;
  o->head_dim = sizes.head_dim;
  o->kv_heads = sizes.kv_heads;
  o->kv_len = sizes.kv_len;
  o->page_size = sizes.page_size;
  if (derive(o, request, inputs, error)) return true;
  const Error refusal = *error;
  return names_a_size(refusal.text) &&
         fail(error, refusal.code, "--input %.300s: %.700s", o->input_directory, refusal.text);
}
