/**
 * @file
 * From a decode problem to a kernel; readers of the kernels can skip this file.
 */
#ifndef DEVICE_DECODE_LAUNCH_CUH
#define DEVICE_DECODE_LAUNCH_CUH

#include "decode.h"
#include "device/launch.cuh"

/** One instantiation of a kernel. `Extra` are its parameters after the problem and the tensors. */
template <typename... Extra>
struct DecodeConfig {
  void (*kernel)(Problem, DecodeTensors, Extra...); /**< the instantiation */
  Dtype dtype;                                      /**< of Q and O */
  int head_dim;                                     /**< the only one that it takes */
  int rows;          /**< of Q, all with the same K and V, that a thread block works on; at most */
  int threads, keys; /**< of a thread block, and the keys that it loads at a time */
};

/** The configuration of a kernel for up to ROWS rows. */
template <typename T, int HEAD_DIM, int ROWS, typename... Extra>
constexpr DecodeConfig<Extra...> make_decode_config(void (*kernel)(Problem, DecodeTensors,
                                                                   Extra...),
                                                    int threads, int keys) {
  return {kernel, DTYPE_OF<T>, HEAD_DIM, ROWS, threads, keys};
}

/** The rows of Q that have the same K and V: the new queries of all heads of a group. */
static inline int group_rows(const Problem *problem) {
  return group_size(problem) * problem->q_len;
}

/** The configuration for a problem: the one for the fewest rows that suffices, or for the most.
 * NULL if none has the type and the head dimension. CONFIGS has ascending rows. */
template <const auto &CONFIGS>
static auto find_decode(const Problem *problem) {
  decltype(&CONFIGS[0]) chosen = NULL;
  for (const auto &c : CONFIGS) {
    if (c.dtype != problem->dtype || c.head_dim != problem->head_dim) continue;
    chosen = &c;
    if (c.rows >= group_rows(problem)) break;
  }
  return chosen;
}

/** The blocks that all rows need if each has those of a configuration. */
template <typename Config>
static int row_blocks(const Config *config, const Problem *problem) {
  return problem->batch * problem->kv_heads *
         ((group_rows(problem) + config->rows - 1) / config->rows);
}

/** Describes a launch of `parts` blocks for the rows of each. */
template <const auto &CONFIGS>
static void describe_decode(const Problem *problem, int parts, Description *description) {
  const auto *c = find_decode<CONFIGS>(problem);
  *description = {};
  description->block_m = c->rows;
  description->block_n = c->keys;
  description->ceiling = CEILING_COPY;
  description->multiplies_masked_keys = true;
  description->launch_count = 1;
  description->launches[0] = {"decode", (const void *)c->kernel,
                              dim3(row_blocks(c, problem) * parts), dim3(c->threads)};
}

/** Whether all tensors start at multiples of 16 bytes. */
static inline bool start_at_chunks(const DecodeTensors *t) {
  return ((uintptr_t)t->q | (uintptr_t)t->k | (uintptr_t)t->v | (uintptr_t)t->o) % 16 == 0;
}

/** Step::supports of a step with these configurations: rows start at multiples of 16 bytes. */
template <const auto &CONFIGS>
static bool supports_decode(const Problem *problem, char *why, size_t why_size) {
  const int of_cache = cache_dtype(problem) == DTYPE_E4M3 ? 16 : 8;
  const auto odd = [](const Strides &s, int elements) {
    return s.batch % elements != 0 || s.head % elements != 0 || s.row % elements != 0;
  };
  const char *unaligned = odd(problem->q_strides, 8)          ? "Q"
                          : odd(problem->k_strides, of_cache) ? "K"
                          : odd(problem->v_strides, of_cache) ? "V"
                          : odd(problem->o_strides, 8)        ? "O"
                                                              : NULL;
  if (find_decode<CONFIGS>(problem) == NULL) {
    snprintf(why, why_size, "--head-dim %d: %s takes %s", problem->head_dim, step.name,
             step.head_dims);
  } else if (unaligned != NULL) {
    const bool is_cache = *unaligned == 'K' || *unaligned == 'V';
    snprintf(why, why_size, "the strides of %s must be multiples of %d elements in %s", unaligned,
             is_cache ? of_cache : 8, step.name);
  } else {
    return true;
  }
  return false;
}

#endif
