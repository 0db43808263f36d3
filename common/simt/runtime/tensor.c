/* The warp instructions of the tensor cores. Section numbers are those of the PTX ISA 8.7. */
#include <float16.h>

#include "runtime.h"

/* --- ldmatrix (9.7.14.5.15) ----------------------------------------------------------------- */

typedef struct LdmatrixOperands {
  const void *row;
  SimtWords *registers;
  int matrices;
  bool transposed;
} LdmatrixOperands;

/** Ends the block, on behalf of the lane, if its row is misaligned or yet to be copied. */
static inline void check_row(Worker *worker, const void *row, int lane) {
  if ((uintptr_t)row % COPY_BYTES == 0 && *simt_under_way_to(worker, row) == 0) return;
  const int running = worker->running;
  worker->running = running / WARP_SIZE * WARP_SIZE + lane;
  simt_require_aligned(row, COPY_BYTES, "row of ldmatrix", worker->access_call_site);
  simt_refuse_read(worker, row);
  worker->running = running;
}

/**
 * Row r of matrix i lies where lane 8 i + r says. A lane gets two neighbours of row lane / 4,
 * columns 2 (lane % 4) and the next; with .trans two of column lane / 4.
 */
static void execute_ldmatrix(void **operands, unsigned mask) {
  (void)mask; /* .aligned: all lanes, and they agree on everything but the addresses */
  const LdmatrixOperands *first = operands[0];
  if (simt_observer != NULL) {
    const void *rows[WARP_SIZE];
    for (int lane = 0; lane < 8 * first->matrices; lane++) {
      rows[lane] = ((LdmatrixOperands *)operands[lane])->row;
    }
    simt_observer->ldmatrix(simt_worker, rows, first->matrices);
  }
  for (int lane = 0; lane < 8 * first->matrices; lane++) {
    check_row(simt_worker, ((LdmatrixOperands *)operands[lane])->row, lane);
  }
  for (int i = 0; i < first->matrices; i++) {
    const uint16_t *rows[8];
    for (int r = 0; r < 8; r++) rows[r] = ((LdmatrixOperands *)operands[8 * i + r])->row;
    for (int lane = 0; lane < WARP_SIZE; lane++) {
      const int line = lane / 4, pair = 2 * (lane % 4);
      const uint32_t low = first->transposed ? rows[pair][line] : rows[line][pair];
      const uint32_t high = first->transposed ? rows[pair + 1][line] : rows[line][pair + 1];
      (*((LdmatrixOperands *)operands[lane])->registers)[i] = high << 16 | low;
    }
  }
}

static const SimtWarpOperation ldmatrix = {"ldmatrix", SIMT_LDMATRIX, execute_ldmatrix};

SimtWords simt_ldmatrix(const void *row, int matrices, bool transposed) {
  SimtWords registers = {0};
  LdmatrixOperands operands = {row, &registers, matrices, transposed};
  simt_warp_instruction_at(&ldmatrix, ~0u, &operands, __builtin_return_address(0));
  return registers;
}

/* --- mma.m16n8k16 (9.7.14.5.8) -------------------------------------------------------------- */

enum { M = 16, N = 8, K = 16 };

typedef struct MmaOperands {
  SimtFloats d;
  SimtWords a;
  uint32_t b[2];
  SimtElement element;
} MmaOperands;

static float element_of(SimtElement element, uint32_t pair, int which) {
  const uint16_t bits = (uint16_t)(pair >> 16 * which);
  return element == SIMT_FP16 ? half_bits_to_float(bits) : bf16_bits_to_float(bits);
}

/**
 * With g = lane / 4 and t = 2 (lane % 4), a lane holds of A the pairs (g, t), (g + 8, t), (g, t +
 * 8) and (g + 8, t + 8); of B, whose pairs run down a column, (t, g) and (t + 8, g); of C and D (g,
 * t) and (g + 8, t). Products are exact and summed in double, so that in effect the sum is rounded
 * once; hardware cuts bits off on the way, as tests/e2e/test_layouts.py measures.
 */
static void execute_mma(void **operands, unsigned mask) {
  (void)mask;
  double a[M][K], b[K][N], d[M][N];
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const MmaOperands *own = operands[lane];
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 2; i++) {
      a[g][t + i] = element_of(own->element, own->a[0], i);
      a[g + 8][t + i] = element_of(own->element, own->a[1], i);
      a[g][t + 8 + i] = element_of(own->element, own->a[2], i);
      a[g + 8][t + 8 + i] = element_of(own->element, own->a[3], i);
      b[t + i][g] = element_of(own->element, own->b[0], i);
      b[t + 8 + i][g] = element_of(own->element, own->b[1], i);
      d[g][t + i] = own->d[i];
      d[g + 8][t + i] = own->d[2 + i];
    }
  }
  for (int row = 0; row < M; row++) {
    for (int k = 0; k < K; k++) {
      for (int column = 0; column < N; column++) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    MmaOperands *own = operands[lane];
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 2; i++) {
      own->d[i] = (float)d[g][t + i];
      own->d[2 + i] = (float)d[g + 8][t + i];
    }
  }
  if (simt_warp_copies_in_flight(simt_worker)) simt_worker->counters.mma_under_copy++;
}

static const SimtWarpOperation mma = {"mma", SIMT_MMA, execute_mma};

SimtFloats simt_mma_m16n8k16(SimtFloats d, SimtWords a, uint32_t b0, uint32_t b1,
                             SimtElement element) {
  MmaOperands operands = {d, a, {b0, b1}, element};
  simt_warp_instruction_at(&mma, ~0u, &operands, __builtin_return_address(0));
  return operands.d;
}
