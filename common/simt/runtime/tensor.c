/* The warp instructions of the tensor cores. Section numbers are those of the PTX ISA 8.7. */
#include <float16.h>
#include <string.h>
#include <vector_width.h>

#include "runtime.h"

/* --- ldmatrix (9.7.14.5.15), stmatrix (9.7.14.5.16) ------------------------------------------- */

typedef struct MatrixOperands {
  void *row;
  SimtWords registers;
  int matrices;
  bool transposed;
} MatrixOperands;

/** Gathers the rows: lane 8 i + r passes the address of row r of matrix i. Ends the block if one is
 * misaligned or a copy to it is in flight. */
static void take_rows(void **operands, bool stores, void *rows[WARP_SIZE]) {
  Worker *worker = simt_worker;
  const int running = worker->running;
  const int matrices = ((const MatrixOperands *)operands[0])->matrices;
  for (int lane = 0; lane < 8 * matrices; lane++) {
    rows[lane] = ((const MatrixOperands *)operands[lane])->row;
  }
  if (simt_observer != NULL) {
    simt_observer->matrices((const void *const *)rows, matrices, stores);
  }
  for (int lane = 0; lane < 8 * matrices; lane++) {
    const uintptr_t misaligned = (uintptr_t)rows[lane] % COPY_BYTES;
    if (misaligned == 0 && *simt_under_way_to(worker, rows[lane]) == 0) continue;
    worker->running = running / WARP_SIZE * WARP_SIZE + lane;
    simt_require_aligned(rows[lane], COPY_BYTES, stores ? "row of stmatrix" : "row of ldmatrix",
                         worker->access_call_site);
    simt_refuse_read(worker, rows[lane]);
  }
  worker->running = running;
}

/** Each lane receives two adjacent elements of row lane / 4, from column 2 (lane % 4) on; with
 * .trans, of column lane / 4. */
static void execute_ldmatrix(void **operands, unsigned mask) {
  (void)mask; /* .aligned: all lanes take part; only their addresses differ */
  const MatrixOperands *first = operands[0];
  void *all[WARP_SIZE];
  take_rows(operands, false, all);
  for (int i = 0; i < first->matrices; i++) {
    const uint16_t *const *rows = (const uint16_t *const *)&all[8 * i];
    for (int lane = 0; lane < WARP_SIZE; lane++) {
      const int line = lane / 4, pair = 2 * (lane % 4);
      const uint32_t low = first->transposed ? rows[pair][line] : rows[line][pair];
      const uint32_t high = first->transposed ? rows[pair + 1][line] : rows[line][pair + 1];
      ((MatrixOperands *)operands[lane])->registers[i] = high << 16 | low;
    }
  }
}

static const SimtWarpOperation ldmatrix = {"ldmatrix", SIMT_LDMATRIX, execute_ldmatrix};

SimtWords simt_ldmatrix(const void *row, int matrices, bool transposed) {
  MatrixOperands operands = {(void *)(uintptr_t)row, {0}, matrices, transposed};
  simt_warp_instruction_at(&ldmatrix, ~0u, &operands, __builtin_return_address(0));
  return operands.registers;
}

/** The reverse, without .trans. */
static void execute_stmatrix(void **operands, unsigned mask) {
  (void)mask;
  void *rows[WARP_SIZE];
  take_rows(operands, true, rows);
  for (int i = 0; i < ((const MatrixOperands *)operands[0])->matrices; i++) {
    for (int lane = 0; lane < WARP_SIZE; lane++) {
      char *row = rows[8 * i + lane / 4];
      const uint32_t word = ((const MatrixOperands *)operands[lane])->registers[i];
      memcpy(row + lane % 4 * sizeof word, &word, sizeof word);
    }
  }
}

static const SimtWarpOperation stmatrix = {"stmatrix", SIMT_STMATRIX, execute_stmatrix};

void simt_stmatrix(void *row, SimtWords registers, int matrices) {
  MatrixOperands operands = {row, registers, matrices, false};
  simt_warp_instruction_at(&stmatrix, ~0u, &operands, __builtin_return_address(0));
}

/* --- mma.m16n8k16 (9.7.14.5.8) -------------------------------------------------------------- */

enum { M = 16, N = 8, K = 16 };

typedef struct MmaOperands {
  SimtFloats d;
  SimtWords a;
  uint32_t b[2];
  SimtElement element;
} MmaOperands;

/** A, B transposed and D, assembled from the fragments. */
typedef struct MmaMatrices {
  uint16_t a[M][K], b[N][K];
  float d[M][N];
} MmaMatrices;

static inline void to_doubles(const uint16_t *bits, int count, SimtElement element,
                              double *values) {
  if (element == SIMT_FP16) {
    for (int i = 0; i < count; i++) values[i] = half_bits_to_float(bits[i]);
  } else {
    for (int i = 0; i < count; i++) values[i] = bf16_bits_to_float(bits[i]);
  }
}

/**
 * D += A B. Products are exact and summed in double, so the sum is in effect rounded once. Hardware
 * truncates intermediate sums: tests/e2e/lab/test_layouts.py measures the difference.
 */
ANY_VECTOR_WIDTH static void multiply(MmaMatrices *m, SimtElement element) {
  typedef double Row __attribute__((vector_size(N * sizeof(double))));
  enum { ROWS = 4 }; /* at a time: independent sums */
  double a[M][K], b[N][K];
  Row b_rows[K];
  to_doubles(m->a[0], M * K, element, a[0]);
  to_doubles(m->b[0], N * K, element, b[0]);
  for (int k = 0; k < K; k++) {
    for (int column = 0; column < N; column++) b_rows[k][column] = b[column][k];
  }
  for (int first = 0; first < M; first += ROWS) {
    Row sums[ROWS];
    for (int row = 0; row < ROWS; row++) {
      for (int column = 0; column < N; column++) sums[row][column] = m->d[first + row][column];
    }
    for (int k = 0; k < K; k++) {
      for (int row = 0; row < ROWS; row++) sums[row] += a[first + row][k] * b_rows[k];
    }
    for (int row = 0; row < ROWS; row++) {
      for (int column = 0; column < N; column++)
        m->d[first + row][column] = (float)sums[row][column];
    }
  }
}

/**
 * A lane holds pairs of adjacent elements, with g = lane / 4 and t = 2 (lane % 4). A: (g, t),
 * (g + 8, t), (g, t + 8) and (g + 8, t + 8). B, with pairs along a column: (t, g) and (t + 8, g).
 * C and D: (g, t) and (g + 8, t).
 */
static void execute_mma(void **operands, unsigned mask) {
  (void)mask;
  MmaMatrices m;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const MmaOperands *own = operands[lane];
    const uint32_t *a = (const uint32_t *)&own->a;
    const float *d = (const float *)&own->d;
    const int g = lane / 4, t = 2 * (lane % 4);
    memcpy(&m.a[g][t], &a[0], sizeof a[0]);
    memcpy(&m.a[g + 8][t], &a[1], sizeof a[1]);
    memcpy(&m.a[g][t + 8], &a[2], sizeof a[2]);
    memcpy(&m.a[g + 8][t + 8], &a[3], sizeof a[3]);
    memcpy(&m.b[g][t], &own->b[0], sizeof own->b[0]);
    memcpy(&m.b[g][t + 8], &own->b[1], sizeof own->b[1]);
    memcpy(&m.d[g][t], &d[0], 2 * sizeof d[0]);
    memcpy(&m.d[g + 8][t], &d[2], 2 * sizeof d[2]);
  }
  multiply(&m, ((const MmaOperands *)operands[0])->element);
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    float *d = (float *)&((MmaOperands *)operands[lane])->d;
    const int g = lane / 4, t = 2 * (lane % 4);
    memcpy(&d[0], &m.d[g][t], 2 * sizeof d[0]);
    memcpy(&d[2], &m.d[g + 8][t], 2 * sizeof d[2]);
  }
  if (simt_warp_copies_in_flight(simt_worker)) simt_worker->counters.mma_under_copy++;
}

static const SimtWarpOperation mma = {"mma", SIMT_MMA, execute_mma};

SimtFloats simt_mma(SimtFloats d, SimtWords a, uint32_t b0, uint32_t b1, SimtElement element) {
  MmaOperands operands = {d, a, {b0, b1}, element};
  if (simt_observer != NULL) {
    const SimtWords unset = (SimtWords)d == UINT32_MAX;
    if (unset[0] | unset[1] | unset[2] | unset[3]) {
      simt_observer->unset_used(__builtin_return_address(0));
    }
  }
  simt_warp_instruction_at(&mma, ~0u, &operands, __builtin_return_address(0));
  return operands.d;
}
