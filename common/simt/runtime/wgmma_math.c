/*
 * The operands of wgmma and its arithmetic (PTX ISA 8.7, 9.7.15); wgmma.c says when both happen.
 *
 * Descriptors (9.7.15.5.1.2.2) of the documented layouts are simulated, K-major and MN-major, with
 * and without swizzle; base offsets, and bits that the manual reserves, are refused. Two e4m3 lie
 * where one 16-bit element would, always K-major.
 */
#include <float16.h>
#include <float8.h>
#include <math.h>
#include <string.h>
#include <vector_width.h>

#include "hopper.h"

uint32_t simt_pack_e4m3(float x0, float x1, float x2, float x3) {
  const uint32_t low = (uint32_t)double_to_e4m3_bits(x1) << 8 | double_to_e4m3_bits(x0);
  const uint32_t high = (uint32_t)double_to_e4m3_bits(x3) << 8 | double_to_e4m3_bits(x2);
  return high << 16 | low;
}

uint32_t simt_e4m3_to_half2(uint32_t pair) {
  const uint32_t low = double_to_half_bits(e4m3_bits_to_float((uint8_t)pair));
  const uint32_t high = double_to_half_bits(e4m3_bits_to_float((uint8_t)(pair >> 8)));
  return high << 16 | low;
}

/* --- Descriptors ------------------------------------------------------------------------------ */

enum { ROW_GROUP = 8, CHUNK_ELEMENTS = 8, ELEMENT_BYTES = 2 };

/** A matrix in shared memory: element (row, k), where row is along M or N. */
typedef struct Matrix {
  uintptr_t start; /* relative to shared memory */
  unsigned leading, stride, swizzle_bytes;
  bool transposed; /* MN-major */
} Matrix;

static Matrix decode(uint64_t descriptor, bool transposed) {
  static const unsigned swizzles[] = {16, 128, 64, 32};
  return (Matrix){.start = (descriptor & 0x3fff) << 4,
                  .leading = (unsigned)(descriptor >> 16 & 0x3fff) << 4,
                  .stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4,
                  .swizzle_bytes = swizzles[descriptor >> 62],
                  .transposed = transposed};
}

/** Where element (row, k) is, relative to shared memory. `swizzle_bytes` 16: rows of 16 bytes. */
static uintptr_t element_at(const Matrix *m, unsigned row, unsigned k) {
  const unsigned bytes = m->swizzle_bytes;
  const unsigned width = bytes / ELEMENT_BYTES; /* elements in a row of the swizzled pattern */
  uintptr_t at = m->start;
  if (bytes == 16) { /* matrices of 8 x 16 bytes; k or row selects the next */
    const unsigned along = m->transposed ? row : k, across = m->transposed ? k : row;
    at += along % width * ELEMENT_BYTES + across % ROW_GROUP * bytes;
    /* In MN-major order without swizzle the two distances change places. */
    at += along / width * (m->transposed ? m->stride : m->leading) +
          across / ROW_GROUP * (m->transposed ? m->leading : m->stride);
    return at;
  }
  if (m->transposed) {
    at += row % width * ELEMENT_BYTES + row / width * m->leading;
    at += k % ROW_GROUP * bytes + k / ROW_GROUP * m->stride;
  } else {
    at += k * ELEMENT_BYTES + row % ROW_GROUP * bytes + row / ROW_GROUP * m->stride;
  }
  return simt_swizzled(at, bytes);
}

static void check_descriptor(uint64_t descriptor, char operand, unsigned rows, bool transposed,
                             const void *call_site) {
  const uint64_t reserved =
      UINT64_C(3) << 14 | UINT64_C(3) << 30 | UINT64_C(7) << 46 | UINT64_C(0x3ff) << 52;
  const Matrix m = decode(descriptor, transposed);
  const char *wrong = NULL;
  if (descriptor & reserved) wrong = "sets reserved bits";
  if (descriptor >> 49 & 7) wrong = "has a base offset, which is not simulated";
  if (m.swizzle_bytes > 16) {
    const uintptr_t in_pattern = m.start % (ROW_GROUP * m.swizzle_bytes);
    if (transposed ? in_pattern != 0 : in_pattern + WGMMA_K * ELEMENT_BYTES > m.swizzle_bytes) {
      wrong = "does not start in the first row of a swizzled pattern";
    }
    if (m.stride % (ROW_GROUP * m.swizzle_bytes) != 0 && m.stride != 0) {
      wrong = "has a stride that is not a multiple of the swizzled pattern";
    }
  }
  const unsigned last_group = (transposed ? WGMMA_K : rows) - 1;
  const uintptr_t last = element_at(&m, rows - 1, WGMMA_K - 1);
  if (wrong == NULL && last_group >= ROW_GROUP && m.stride == 0) wrong = "has a stride offset of 0";
  if (wrong == NULL && last + ELEMENT_BYTES > simt_worker->launch->dynamic_shared_bytes) {
    wrong = "leads outside of the dynamic shared memory";
  }
  if (wrong != NULL) {
    simt_complain(call_site, "wgmma: the descriptor of %c, 0x%016llx, %s", operand,
                  (unsigned long long)descriptor, wrong);
  }
}

void simt_check_wgmma(const SimtWgmma *w, const void *call_site) {
  if (w->n < 8 || w->n > MAX_COLUMNS || w->n % 8 != 0) {
    simt_complain(call_site, "wgmma of %d columns: must be a multiple of 8 up to 256", w->n);
  }
  if (w->a == NULL) {
    check_descriptor(w->a_descriptor, 'A', GROUP_ROWS, w->transpose_a, call_site);
  }
  if (w->element == SIMT_E4M3 && (w->transpose_a || w->transpose_b)) {
    simt_complain(call_site, "wgmma transposes 16-bit elements only");
  }
  check_descriptor(w->b_descriptor, 'B', (unsigned)w->n, w->transpose_b, call_site);
}

static int add_chunks(const Matrix *m, unsigned rows, uintptr_t *chunks) {
  int count = 0;
  for (unsigned row = 0; row < rows; row += CHUNK_ELEMENTS) {
    for (unsigned k = 0; k < WGMMA_K; k += CHUNK_ELEMENTS) {
      for (unsigned i = 0; i < CHUNK_ELEMENTS; i++) {
        const size_t at = m->transposed ? element_at(m, row, k + i) : element_at(m, row + i, k);
        chunks[count++] = (uintptr_t)smem + at;
      }
    }
  }
  return count;
}

int simt_wgmma_chunks(const Wgmma *w, uintptr_t chunks[MOST_CHUNKS]) {
  const SimtWgmma *c = &w->common;
  const Matrix a = decode(c->a_descriptor, c->transpose_a);
  const Matrix b = decode(c->b_descriptor, c->transpose_b);
  const int count = c->a == NULL ? add_chunks(&a, GROUP_ROWS, chunks) : 0;
  return count + add_chunks(&b, (unsigned)c->n, chunks + count);
}

/* --- Computation ------------------------------------------------------------------------------ */

static double to_double(uint16_t bits, SimtElement element) {
  return element == SIMT_FP16 ? half_bits_to_float(bits) : bf16_bits_to_float(bits);
}

/** Reads rows x 32 elements of e4m3, which are K-major. */
static void fetch_e4m3(const Matrix *m, unsigned rows, double *target, size_t row_step,
                       size_t k_step) {
  enum { CHUNK_BYTES = CHUNK_ELEMENTS * ELEMENT_BYTES };
  for (unsigned row = 0; row < rows; row++) {
    for (unsigned k = 0; k < WGMMA_K; k += CHUNK_ELEMENTS) {
      const unsigned char *chunk = smem + element_at(m, row, k);
      double *first = &target[row * row_step + ELEMENT_BYTES * k * k_step];
      for (int i = 0; i < CHUNK_BYTES; i++)
        first[(size_t)i * k_step] = e4m3_bits_to_float(chunk[i]);
    }
  }
}

/** Reads rows x 16 elements; element (row, k) goes to target[row * row_step + k * k_step]. */
static void fetch_matrix(const Matrix *m, unsigned rows, SimtElement element, double *target,
                         size_t row_step, size_t k_step) {
  const unsigned next_row = m->transposed ? CHUNK_ELEMENTS : 1;
  const unsigned next_k = m->transposed ? 1 : CHUNK_ELEMENTS;
  const size_t step = m->transposed ? row_step : k_step;
  for (unsigned row = 0; row < rows; row += next_row) {
    for (unsigned k = 0; k < WGMMA_K; k += next_k) {
      uint16_t chunk[CHUNK_ELEMENTS]; /* the elements that are adjacent in every layout */
      memcpy(chunk, smem + element_at(m, row, k), sizeof chunk);
      double *first = &target[row * row_step + k * k_step];
      for (int i = 0; i < CHUNK_ELEMENTS; i++) first[i * step] = to_double(chunk[i], element);
    }
  }
}

void simt_fetch_wgmma(Wgmma *w) {
  const SimtWgmma *c = &w->common;
  const Matrix a = decode(c->a_descriptor, c->transpose_a);
  const Matrix b = decode(c->b_descriptor, c->transpose_b);
  if (c->element == SIMT_E4M3) {
    if (c->a == NULL) fetch_e4m3(&a, GROUP_ROWS, w->a_tile[0], MOST_DEPTH, 1);
    fetch_e4m3(&b, (unsigned)c->n, w->b_tile[0], 1, MAX_COLUMNS);
    return;
  }
  if (c->a == NULL) fetch_matrix(&a, GROUP_ROWS, c->element, w->a_tile[0], MOST_DEPTH, 1);
  fetch_matrix(&b, (unsigned)c->n, c->element, w->b_tile[0], 1, MAX_COLUMNS);
}

/** A from registers: lane 4 g + t holds, in pairs along a row, (g, 2t), (g + 8, 2t), (g, 2t + 8)
 * and (g + 8, 2t + 8). Of e4m3 it is four elements, twice as far to the right. */
static void fetch_registers(Wgmma *w, int warp) {
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const uint32_t *a = w->a[warp * WARP_SIZE + lane];
    for (int i = 0; i < 4; i++) {
      if (w->common.element == SIMT_E4M3) {
        double *four =
            &w->a_tile[warp * WARP_ROWS + lane / 4 + i % 2 * 8][lane % 4 * 4 + i / 2 * 16];
        for (int j = 0; j < 4; j++) four[j] = e4m3_bits_to_float((uint8_t)(a[i] >> 8 * j));
        continue;
      }
      double *pair = &w->a_tile[warp * WARP_ROWS + lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
      pair[0] = to_double((uint16_t)a[i], w->common.element);
      pair[1] = to_double((uint16_t)(a[i] >> 16), w->common.element);
    }
  }
}

enum { COLUMNS = 8 }; /* of D at a time */

/** Adds `rows` rows of A times COLUMNS columns of B. Products are exact, and summed in double. */
ANY_VECTOR_WIDTH static void multiply(double (*sums)[COLUMNS], double (*a)[MOST_DEPTH],
                                      double (*b)[MAX_COLUMNS]) {
  typedef double Row __attribute__((vector_size(COLUMNS * sizeof(double)), aligned(8)));
  enum { ROWS = 4 };
  for (int first = 0; first < WARP_ROWS; first += ROWS) {
    Row s[ROWS];
    for (int row = 0; row < ROWS; row++) s[row] = *(Row *)sums[first + row];
    for (int k = 0; k < WGMMA_K; k++) {
      const Row columns = *(Row *)b[k];
      for (int row = 0; row < ROWS; row++) s[row] += a[first + row][k] * columns;
    }
    for (int row = 0; row < ROWS; row++) *(Row *)sums[first + row] = s[row];
  }
}

/** The power of two by which tensor cores of Hopper align a product: that of the exponent field. */
static float power_of_e4m3(float x) {
  int exponent;
  if (x == 0) return 0;
  frexpf(x, &exponent);
  return ldexpf(1, exponent - 1 < -6 ? -6 : exponent - 1);
}

/**
 * The same of e4m3, bit by bit as an H200 adds: see tests/gpu/layouts_hopper.cu. The largest
 * exponent is taken of the sum so far and of all products, without a carry of their mantissas. Each
 * of them is cut off 13 bits behind it. Their sum is cut off behind the 13th bit after its leading
 * one.
 */
ANY_VECTOR_WIDTH static void multiply_e4m3(double (*sums)[COLUMNS], double (*a)[MOST_DEPTH],
                                           double (*b)[MAX_COLUMNS]) {
  typedef float Row __attribute__((vector_size(COLUMNS * sizeof(float))));
  typedef int32_t Integers __attribute__((vector_size(COLUMNS * sizeof(int32_t))));
  typedef uint32_t Bits __attribute__((vector_size(COLUMNS * sizeof(uint32_t))));
  const int32_t exponent_bits = 0x7f800000;
  Row columns[MOST_DEPTH], powers[MOST_DEPTH];
  for (int k = 0; k < MOST_DEPTH; k++) {
    for (int i = 0; i < COLUMNS; i++) {
      columns[k][i] = (float)b[k][i];
      powers[k][i] = power_of_e4m3(columns[k][i]);
    }
  }
  for (int row = 0; row < WARP_ROWS; row++) {
    Row sum = {0}, plain = {0};
    for (int i = 0; i < COLUMNS; i++) sum[i] = (float)sums[row][i];
    Integers exponent = (Integers)sum & exponent_bits;
    for (int k = 0; k < MOST_DEPTH; k++) {
      const Integers size = (Integers)(power_of_e4m3((float)a[row][k]) * powers[k]);
      const Integers larger = size > exponent; /* positive floats are in the order of their bits */
      exponent = (size & larger) | (exponent & ~larger);
      plain += (float)a[row][k] * columns[k]; /* products are exact */
    }
    /* 2^13 / 2^exponent, and its inverse. */
    const Row to_units = (Row)(((254u + 13) << 23) - (Bits)exponent);
    const Row unit = (Row)((Bits)exponent - (13u << 23));
    Integers units = __builtin_convertvector(sum * to_units, Integers);
    for (int k = 0; k < MOST_DEPTH; k++) {
      units += __builtin_convertvector((float)a[row][k] * columns[k] * to_units, Integers);
    }
    const Row added = __builtin_convertvector(units, Row) * unit;
    const Row result = (Row)((Integers)added & ~0x3ff); /* 13 of 23 bits of the mantissa */
    for (int i = 0; i < COLUMNS; i++) {
      const float exact = plain[i] + sum[i];
      /* Sums so small do not occur but as 0. */
      sums[row][i] = exact - exact != 0 ? exact : exponent[i] <= 26 << 23 ? 0.0 : (double)result[i];
    }
  }
}

/** The part of one warp. Lane 4 g + t holds (g, 8 i + 2t), the next column, and the same of row
 * g + 8 in accumulators 4 i to 4 i + 3. */
void simt_compute_wgmma(Wgmma *w, int warp) {
  const int n = w->common.n;
  const bool from_zero = !w->common.accumulate;
  const bool in_place = (w->continues >> warp & 1) != 0;
  if (w->common.a != NULL) fetch_registers(w, warp);
  for (int first = 0; first < n; first += COLUMNS) {
    double sums[WARP_ROWS][COLUMNS] = {{0}};
    for (int lane = 0; lane < WARP_SIZE && !from_zero; lane++) {
      const int thread = warp * WARP_SIZE + lane;
      const float *d = in_place ? w->d[thread] : &w->saved[(size_t)thread * (size_t)n / 2];
      for (int i = 0; i < 4; i++) {
        sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = d[first / 2 + i];
      }
    }
    double(*columns)[MAX_COLUMNS] = (double(*)[MAX_COLUMNS]) & w->b_tile[0][first];
    (w->common.element == SIMT_E4M3 ? multiply_e4m3 : multiply)(sums, &w->a_tile[warp * WARP_ROWS],
                                                                columns);
    for (int lane = 0; lane < WARP_SIZE; lane++) {
      float *d = w->d[warp * WARP_SIZE + lane];
      for (int i = 0; i < 4; i++) {
        d[first / 2 + i] = (float)sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
      }
    }
  }
}
