/**
 * @file
 * Calls a step directly, with tensors that the command line cannot ask for, and compares the bits
 * of the answer with those of the same problem in compact tensors. The argument chooses the trial:
 *
 * padded     gaps after every row, head and batch entry, different ones in each tensor
 * wide       the same at D = 256, with the second pair of lengths
 * ragged     head dimensions that are no multiple of 4 with strides that are, and the reverse
 * poisoned   gaps only after the last row and the last head
 * guarded    every head of K and of V in an allocation of its own, of exactly its size
 * strides    each of the twelve strides in turn is odd
 * pointers   each of the four tensors in turn begins at an odd element
 * refusals   the same, for a step that refuses such pointers; also dO and each gradient
 * old-gpu    the device reports compute capability 7.5, then 7.0
 * less-shared  the device reports 99 KiB of shared memory per block, then 64 KiB
 * most-tiles  as many tiles of queries as a step may have, then more
 * l2         the device reports an L2 cache for K and V of two of three heads
 * again      a backward pass once more, or SAME_BITS_RUNS times, on the same longer tensors; at
 *            D = 256 for a step that takes nothing else
 *
 * Gaps hold NaN; the gaps of O must hold the same bits afterwards. A backward step gets an O that
 * is placed like the O of others, and a dO; its gradients are placed like Q, K and V. One line is
 * printed for each problem. The exit code is 0, 1 when an answer is wrong, or 3 when the device
 * failed.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backward.h"
#include "block_mask.h"
#include "solve_problem.h"

static const char *const TENSOR_NAMES = "QKVO";

/* --- The device ----------------------------------------------------------------------------- */

/* The linker replaces the runtime's functions with these (--wrap). */
static int pretended = 0;        /* compute capability times 10; 0: that of the device */
static int pretended_shared = 0; /* bytes per thread block; 0: those of the device */
static int pretended_l2 = 0;     /* bytes; 0: those of the device */
cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  const cudaError_t status = __real_cudaDeviceGetAttribute(value, attribute, device);
  if (pretended != 0 && attribute == cudaDevAttrComputeCapabilityMajor) *value = pretended / 10;
  if (pretended != 0 && attribute == cudaDevAttrComputeCapabilityMinor) *value = pretended % 10;
  const bool shared = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin;
  if (pretended_shared != 0 && shared) *value = pretended_shared;
  if (pretended_l2 != 0 && attribute == cudaDevAttrL2CacheSize) *value = pretended_l2;
  return status;
}

/* --- Comparisons ---------------------------------------------------------------------------- */

/**
 * The same problem without gaps, which other tests compare with a reference. Two heads of zeros
 * follow each batch entry: a step that reads past the end gets numbers here and NaN in other
 * trials.
 */
static Answer solve_compact(Problem p) {
  Place places[TENSORS];
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 2, NO_STRIDE);
    places[tensor] = place_in_one(&p, tensor, 0);
    if (tensor == O) break;
    require(cudaMemset(places[tensor].allocation, 0, places[tensor].bytes), "memset");
  }
  return solve(&p, places, false);
}

/** Solves the problem with the tensors in `places` and compares; `what` begins the printed line. */
static void compare_with(const Answer *expected, Problem *p, Place places[TENSORS],
                         const char *what) {
  Answer found = solve(p, places, true);
  const size_t lse_bytes = sizeof(float) * (size_t)row_count(p, O);
  printf("%s, %s, D=%d Nq=%d Nkv=%d: ", what, p->o_dtype == DTYPE_FP16 ? "fp16" : "bf16",
         p->head_dim, p->q_len, p->kv_len);
  const bool same = memcmp(found.o, expected->o, sizeof(uint16_t) * value_count(p)) == 0 &&
                    memcmp(found.lse, expected->lse, lse_bytes) == 0;
  if (same) {
    printf("same bits\n");
  } else {
    wrong("other bits than in compact tensors");
  }
  free_answer(&found);
}

static void compare(Problem *p, Place places[TENSORS], const char *what) {
  Answer expected = solve_compact(*p);
  compare_with(&expected, p, places, what);
  free_answer(&expected);
}

/* --- What is tried -------------------------------------------------------------------------- */

static void compare_with_gaps(Problem p) {
  Place places[TENSORS];
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) =
        strides_with_gaps(&p, tensor, 8 * (tensor + 1), 5 - tensor, 1 + tensor % 2, NO_STRIDE);
    places[tensor] = place_in_one(&p, tensor, 0);
  }
  compare(&p, places, "gaps everywhere");
}

static void compare_wide(Problem p) {
  if (p.head_dim == 64 || p.q_len < 128) return; /* the head dimension replaces 128 */
  p.head_dim = 256;
  compare_with_gaps(p);
}

/** For steps that take any head dimension. Vectors of four reach past the end of a row, or rows are
 * not aligned to vectors although the head dimension is a multiple of 4. */
static void compare_ragged_rows(Problem p) {
  static const int ROWS[][2] = {{33, 36}, {35, 36}, {40, 41}}; /* head dimension, stride */
  if (p.head_dim != 64 || p.q_len > 128) return;
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
    Place places[TENSORS];
    p.head_dim = ROWS[i][0];
    for (int tensor = Q; tensor <= O; tensor++) {
      *strides_of(&p, tensor) =
          strides_with_gaps(&p, tensor, ROWS[i][1] - p.head_dim, 1, 1, NO_STRIDE);
      places[tensor] = place_in_one(&p, tensor, 0);
    }
    compare(&p, places, "ragged rows");
  }
}

static void compare_with_poisoned_tails(Problem p) {
  Place places[TENSORS];
  p.batch = 1;
  p.q_heads = p.kv_heads;
  for (int tensor = Q; tensor <= O; tensor++) {
    const int rows = rows_of(&p, tensor);
    const int tail = (int)round_up(rows, 256) - rows;
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, tail, 1, NO_STRIDE);
    places[tensor] = place_in_one(&p, tensor, 0);
  }
  compare(&p, places, "NaN behind the end");
}

static void compare_guarded(Problem p, int kv_len) {
  Place places[TENSORS];
  p.batch = 1;
  p.q_heads = p.kv_heads;
  p.kv_len = kv_len;
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
  }
  places[Q] = place_in_one(&p, Q, 0);
  places[O] = place_in_one(&p, O, 0);
  place_heads_apart(&p, places); /* last: nothing is allocated where a third head would be */
  compare(&p, places, "a head an allocation");
}

/**
 * On the CPU backend the page after an allocation cannot be read if the size is a multiple of 256,
 * and the page before it cannot be read if the size is a multiple of 4096. One length for each;
 * neither is a multiple of a key tile. There are fewer keys than queries, and more.
 */
static void compare_both_guards(Problem p) {
  if (p.q_len > 128) return; /* only K and V are guarded, and their lengths are replaced */
  const bool fp8 = p.dtype == DTYPE_E4M3;
  compare_guarded(p, p.head_dim == 64 ? (fp8 ? 68 : 66) : (fp8 ? 66 : 65));
  compare_guarded(p, p.head_dim == 64 ? (fp8 ? 128 : 96) : (fp8 ? 96 : 80));
}

static void compare_odd_strides(Problem p) {
  /* The place of a row does not depend on the mask, nor on which 16-bit type it is. Of the two
     problems that are left, the smaller one is enough: each stride is used in every row. */
  if (p.mask != MASK_FULL || p.o_dtype != DTYPE_FP16 || p.head_dim != 64) return;
  Answer expected = solve_compact(p);
  for (int odd_tensor = Q; odd_tensor <= O; odd_tensor++) {
    for (int odd = BATCH_STRIDE; odd <= ROW_STRIDE; odd++) {
      char what[64], why[256];
      snprintf(what, sizeof what, "%c's %s stride is odd", TENSOR_NAMES[odd_tensor],
               odd == BATCH_STRIDE  ? "batch"
               : odd == HEAD_STRIDE ? "head"
                                    : "row");
      for (int tensor = Q; tensor <= O; tensor++) {
        *strides_of(&p, tensor) =
            strides_with_gaps(&p, tensor, 8, 1, 1, tensor == odd_tensor ? odd : NO_STRIDE);
      }
      if (step.supports != NULL && !step.supports(&p, why, sizeof why)) {
        printf("%s: refused: %s\n", what, why);
        continue;
      }
      Place places[TENSORS];
      for (int tensor = Q; tensor <= O; tensor++) places[tensor] = place_in_one(&p, tensor, 0);
      compare_with(&expected, &p, places, what);
    }
  }
  free_answer(&expected);
}

static void compare_odd_pointers(Problem p) {
  /* The place of a row depends neither on the mask nor on the lengths. */
  if (p.mask != MASK_FULL || p.q_len > 128) return;
  Answer expected = solve_compact(p);
  for (int odd_tensor = Q; odd_tensor <= O; odd_tensor++) {
    Place places[TENSORS];
    for (int tensor = Q; tensor <= O; tensor++) {
      *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
      places[tensor] = place_in_one(&p, tensor, tensor == odd_tensor);
    }
    char what[64];
    snprintf(what, sizeof what, "%c begins at an odd element", TENSOR_NAMES[odd_tensor]);
    compare_with(&expected, &p, places, what);
  }
  free_answer(&expected);
}

/** For steps that must refuse such pointers: nothing is launched, so the tensors need no values. */
static void ask_with_odd_pointers(Problem p) {
  static const char *const NAMES[] = {"Q", "K", "V", "O", "dO", "dQ", "dK", "dV"};
  const int count = step.backward != NULL ? sizeof NAMES / sizeof *NAMES : TENSORS;
  char *m[sizeof NAMES / sizeof *NAMES], why[300];
  if (step.supports != NULL && !step.supports(&p, why, sizeof why)) p.head_dim = 256;
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
  }
  for (int i = 0; i < count; i++) m[i] = device_memory(4096);
  for (int odd = 0; odd < count; odd++) {
    const int bytes = odd < TENSORS ? element_bytes(&p, odd) : 2;
    m[odd] += bytes;
    cudaError_t error;
    if (step.backward != NULL) {
      const BackwardTensors t = {.q = m[0],
                                 .k = m[1],
                                 .v = m[2],
                                 .o = m[3],
                                 .d_o = m[4],
                                 .d_q = m[5],
                                 .d_k = m[6],
                                 .d_v = m[7]};
      error = step.backward(&p, &t, 1, 0);
    } else {
      const Tensors t = {.q = m[0], .k = m[1], .v = m[2], .o = m[3]};
      error = step.forward(&p, &t, 0, 0);
    }
    printf("%s begins at an odd element: %s\n", NAMES[odd], cudaGetErrorName(error));
    m[odd] -= bytes;
  }
  for (int i = 0; i < count; i++) require(cudaFree(m[i]), "free");
}

static void ask_on_old_gpu(Problem p) {
  char why[256];
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
  }
  for (pretended = 75; pretended >= 70; pretended -= 5) {
    const bool supported = step.supports == NULL || step.supports(&p, why, sizeof why);
    printf("%s%s\n", supported ? "taken" : "refused: ", supported ? "" : why);
  }
  pretended = 0;
}

static void ask_for_many_tiles(Problem p) {
  char why[256];
  p.q_len = 1;
  for (p.batch = 1 << 15; p.batch <= (1 << 15) + 1; p.batch++) {
    p.q_heads = p.kv_heads = (1 << 16) - 2; /* 2^31 - 2^16 tiles, then more */
    for (int tensor = Q; tensor <= O; tensor++) {
      *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
    }
    const bool supported = step.supports(&p, why, sizeof why);
    printf("%s%s\n", supported ? "taken" : "refused: ", supported ? "" : why);
  }
}

/** Smaller tiles add in another order, so the answers differ by rounding. */
static void compare_with_less_shared(Problem p) {
  p.batch = 1;
  p.q_heads = p.kv_heads = 2;
  Answer expected = solve_compact(p);
  for (int kib = 99; kib >= 64; kib -= 35) {
    pretended_shared = kib << 10;
    Answer found = solve_compact(p);
    float most = 0;
    for (int64_t i = 0; i < row_count(&p, O) * p.head_dim; i++) {
      const bool bf16 = p.o_dtype == DTYPE_BF16;
      const float a = bf16 ? bf16_bits_to_float(found.o[i]) : half_bits_to_float(found.o[i]);
      const float b = bf16 ? bf16_bits_to_float(expected.o[i]) : half_bits_to_float(expected.o[i]);
      most = fmaxf(most, isnan(a) ? INFINITY : fabsf(a - b) / fmaxf(1, fabsf(b)));
    }
    printf("%d KiB: ", kib);
    if (most <= (p.o_dtype == DTYPE_BF16 ? 0x1p-6F : 0x1p-9F)) {
      printf("differs by rounding\n");
    } else {
      wrong("differs by more than rounding");
    }
    free_answer(&found);
  }
  pretended_shared = 0;
  free_answer(&expected);
}

/** The size may change the order of the tiles of queries, but no answer. */
static void compare_with_l2(Problem p) {
  if (p.mask != MASK_CAUSAL || p.dtype != DTYPE_FP16 || p.head_dim != 64) return;
  p.batch = 1;
  p.q_heads = 6;
  p.kv_heads = 3;
  p.q_len = 800;
  p.kv_len = 200;
  Answer expected = solve_compact(p);
  Place places[TENSORS];
  for (int tensor = Q; tensor <= O; tensor++) {
    *strides_of(&p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
    places[tensor] = place_in_one(&p, tensor, 0);
  }
  pretended_l2 = 4 * (2 * 2 * 2 * p.kv_len * p.head_dim) / 5 * 2; /* 1.6 times that of two heads */
  compare_with(&expected, &p, places, "with an L2 cache");
  pretended_l2 = 0;
  free_answer(&expected);
}

/** SAME_BITS_RUNS times, or once: several blocks add to the same rows of dQ. */
static void compare_again(Problem p) {
  if (p.o_dtype != DTYPE_FP16) return;
  char why[300];
  if (step.supports != NULL && !step.supports(&p, why, sizeof why)) {
    if (p.head_dim == 64) return; /* the head dimension replaces 128 */
    p.head_dim = 256;
  }
  const char *runs = getenv("SAME_BITS_RUNS");
  if (runs == NULL) p.batch = 1;
  p.q_len = runs == NULL ? 300 : 2000;
  p.kv_len = runs == NULL ? 400 : 2100;
  repetitions = runs == NULL ? 1 : atoi(runs);
  Answer answer = solve_compact(p);
  free_answer(&answer);
}

/** No length is a multiple of a tile; under a causal mask the first rows of the second pair of
 * lengths attend nothing. The mask follows from the rest, so that every three of lengths, head
 * dimension, type and mask occur in all combinations. `half` is 0 or 1 for half of the problems,
 * with two of the four pairs of head dimension and type, or -1 for all. */
static void for_each_problem(void (*try)(Problem), int half) {
  static const int LENGTHS[][2] = {{70, 101}, {133, 70}};
  static const int HEAD_DIMS[] = {64, 128};
  for (int i = 0; i < 8; i++) {
    if (half == !((i >> 1 ^ i >> 2) & 1)) continue;
    Problem p = {.batch = 2, .q_heads = 4, .kv_heads = 2};
    p.q_len = LENGTHS[i & 1][0];
    p.kv_len = LENGTHS[i & 1][1];
    p.head_dim = HEAD_DIMS[i >> 1 & 1];
    if (step.supports == NULL && p.head_dim == 128) p.head_dim = 24; /* it takes any, but is slow */
    p.o_dtype = i & 4 ? DTYPE_BF16 : DTYPE_FP16;
    p.dtype = step.fp8 ? DTYPE_E4M3 : p.o_dtype;
    p.mask = (i ^ i >> 1 ^ i >> 2) & 1 ? MASK_CAUSAL : MASK_FULL;
    p.scale = (float)(1 / sqrt(p.head_dim));
    const bool blocks = step.block_masks != NULL && !step.block_masks->takes_spans;
    p.q_block_size = p.kv_block_size = blocks ? 128 : 0;
    try(p);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*try)(Problem);
  } TRIALS[] = {
      {"padded", compare_with_gaps},      {"wide", compare_wide},
      {"ragged", compare_ragged_rows},    {"poisoned", compare_with_poisoned_tails},
      {"guarded", compare_both_guards},   {"strides", compare_odd_strides},
      {"pointers", compare_odd_pointers}, {"refusals", ask_with_odd_pointers},
      {"old-gpu", ask_on_old_gpu},        {"less-shared", compare_with_less_shared},
      {"most-tiles", ask_for_many_tiles}, {"l2", compare_with_l2},
      {"again", compare_again},
  };
  const int half = argc == 3 ? argv[2][0] - '0' : -1;
  for (size_t i = 0; argc >= 2 && i < sizeof TRIALS / sizeof *TRIALS; i++) {
    if (strcmp(argv[1], TRIALS[i].name) != 0) continue;
    for_each_problem(TRIALS[i].try, half);
    return all_right ? EXIT_RIGHT : EXIT_WRONG;
  }
  fprintf(stderr,
          "usage: %s padded|wide|ragged|poisoned|guarded|strides|pointers|refusals|old-gpu|"
          "less-shared|most-tiles|l2|again [0|1]\n",
          argv[0]);
  return EXIT_USAGE;
}
