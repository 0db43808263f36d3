/** @file Tests of wgmma on the CPU backend: layouts, products, waits, and which mistakes are
 * reported. */
#include <cmath>

#include "../tests/unit/simt/hopper_testing.h"

enum { ROWS = 64, DEPTH = 64, STEPS = DEPTH / 16, MOST_COLUMNS = 256, MOST_SHARED = 48 << 10 };

/* --- Layouts -------------------------------------------------------------------------------- */

/** A matrix of so many rows, along M or N, and DEPTH columns, along K, in shared memory. */
struct Layout {
  int rows, start; /* in bytes */
  int span;        /* bytes that are swizzled; 16: no swizzle */
  bool transposed; /* MN-major: the elements of a column are adjacent */

  __host__ int panel() const { /* span / 2 elements side by side, and all of the other direction */
    return (transposed ? DEPTH : rows) * span;
  }
  __host__ int bytes() const {
    return span == 16 ? rows / 8 * (DEPTH * 16 + 16)
                      : ((transposed ? rows : DEPTH) * 2 + span - 1) / span * panel();
  }
  __host__ int place(int row, int k) const {
    const int along = transposed ? row : k, across = transposed ? k : row;
    if (span == 16) { /* matrices of 8 x 8 elements, those of 8 rows together, padded by 16 bytes */
      return start + row / 8 * (DEPTH * 16 + 16) + k / 8 * 128 + across % 8 * 16 + along % 8 * 2;
    }
    const int chunk = along % (span / 2) / 8, line = across * span / 128;
    return start + along / (span / 2) * panel() + across * span +
           (chunk ^ line % (span / 16)) * 16 + along % 8 * 2;
  }
  /** Of columns 16 k_step to 16 k_step + 15. */
  __host__ uint64_t descriptor(int k_step) const {
    int first = start + k_step * 256, leading = 128, stride = DEPTH * 16 + 16;
    if (span > 16) {
      first = start +
              (transposed ? 16 * k_step * span : 32 * k_step / span * panel() + 32 * k_step % span);
      leading = transposed ? panel() : 16; /* the latter is not used */
      stride = 8 * span;
    }
    const uint64_t swizzle = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
    return (uint64_t)first >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           swizzle << 62;
  }
};

/* --- Products ------------------------------------------------------------------------------- */

struct Product {
  int n, bytes; /* columns; of the image of shared memory */
  bool from_registers, transpose_a, transpose_b, accumulate;
  SimtElement element;
  uint64_t a[STEPS], b[STEPS]; /* descriptors */
};

/** The 2 elements from (row, k) on. */
__device__ uint32_t pair_of(const uint16_t *matrix, int row, int k) {
  return matrix[row * DEPTH + k] | (uint32_t)matrix[row * DEPTH + k + 1] << 16;
}

/** D, from D(row, column) = row - column on, by a chain of instructions, each a group. `numbers`
 * counts accumulators that were no NaN before the last wait. */
__global__ void multiply(Product p, const uint4 *image, const uint16_t *a_matrix, float *out,
                         int *numbers) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  for (int i = threadIdx.x; i < p.bytes / 16; i += blockDim.x) ((uint4 *)smem)[i] = image[i];
  uint32_t a[STEPS][4];
  for (int k_step = 0; k_step < STEPS; k_step++) {
    for (int i = 0; i < 4; i++) {
      a[k_step][i] = pair_of(a_matrix, row + i % 2 * 8, 16 * k_step + i / 2 * 8 + lane % 4 * 2);
    }
  }
  float d[MOST_COLUMNS / 2];
  for (int i = 0; i < p.n / 2; i++) {
    d[i] = (float)(row + i / 2 % 2 * 8 - (i / 4 * 8 + lane % 4 * 2 + i % 2));
  }
  fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  for (int k_step = 0; k_step < STEPS; k_step++) {
    const SimtWgmma operands = {d,
                                p.from_registers ? a[k_step] : nullptr,
                                p.a[k_step],
                                p.b[k_step],
                                p.n,
                                k_step > 0 || p.accumulate,
                                p.transpose_a,
                                p.transpose_b,
                                p.element};
    simt_wgmma(&operands);
    wgmma_commit();
  }
  wgmma_wait<1>(); /* the last instruction has the same accumulators */
  for (int i = 0; i < p.n / 2; i++) {
    if (!std::isnan(d[i])) atomicAdd(numbers, 1);
  }
  wgmma_wait<0>();
  for (int i = 0; i < p.n / 2; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[(row + i / 2 % 2 * 8) * MOST_COLUMNS + column] = d[i];
  }
}

static int value(int row, int k, int factor) {
  return (row * factor + k * 5 + row / 8 * k) % 7 - 3;
}

static uint16_t bits_of(int number, SimtElement element) {
  uint16_t bits;
  const __half half = __float2half((float)number);
  const __nv_bfloat16 bf16 = __float2bfloat16((float)number);
  memcpy(&bits, element == SIMT_FP16 ? (const void *)&half : &bf16, 2);
  return bits;
}

static void expect_product(int n, int span_a, int span_b, int options) {
  static unsigned char image[MOST_SHARED];
  static uint16_t a_matrix[ROWS * DEPTH];
  Product p = {
      n, 0, (options & 1) != 0, (options & 2) != 0, (options & 4) != 0, (options & 8) != 0};
  p.element = options & 16 ? SIMT_FP16 : SIMT_BF16;
  const Layout a = {ROWS, 0, span_a, p.transpose_a};
  const Layout b = {n, (a.bytes() + 1023) / 1024 * 1024, span_b, p.transpose_b};
  p.bytes = b.start + b.bytes();
  assert_true(p.bytes <= MOST_SHARED);
  for (int k = 0; k < DEPTH; k++) {
    for (int row = 0; row < ROWS; row++) {
      const uint16_t bits = a_matrix[row * DEPTH + k] = bits_of(value(row, k, 3), p.element);
      memcpy(&image[a.place(row, k)], &bits, 2);
    }
    for (int row = 0; row < n; row++) {
      const uint16_t bits = bits_of(value(row, k, 5), p.element);
      memcpy(&image[b.place(row, k)], &bits, 2);
    }
  }
  for (int k_step = 0; k_step < STEPS; k_step++) {
    p.a[k_step] = p.from_registers ? 0 : a.descriptor(k_step);
    p.b[k_step] = b.descriptor(k_step);
  }
  int *device_numbers = device_zeros<int>(1), numbers[1];
  const auto out = results<float>(ROWS * MOST_COLUMNS, [&](float *to) {
    multiply<<<1, 128, p.bytes>>>(p, (const uint4 *)device_copy(image), device_copy(a_matrix), to,
                                  device_numbers);
  });
  fetch(numbers, device_numbers);
  assert_int_equal(numbers[0], 0);
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < n; column++) {
      int sum = p.accumulate ? row - column : 0;
      for (int k = 0; k < DEPTH; k++) sum += value(row, k, 3) * value(column, k, 5);
      if (out[row * MOST_COLUMNS + column] == sum) continue;
      fail_msg("n %d spans %d %d options %d: %d %d: %g %d", n, span_a, span_b, options, row, column,
               out[row * MOST_COLUMNS + column], sum);
    }
  }
  reset_device(nullptr);
}

TEST(products_of_all_widths) {
  for (int n = 8; n <= 256; n += 8) expect_product(n, 128 >> n / 8 % 4, 128 >> n / 32 % 4, n / 8);
}

TEST(products_of_all_layouts) {
  for (int options = 0; options < 32; options++) {
    for (int span = 16; span <= 128; span *= 2) expect_product(72, span, 2048 / span, options);
  }
}

/* --- Waits ---------------------------------------------------------------------------------- */

enum { B_START = 2048, SMALL_SHARED = B_START + 512 };

__device__ void fill(int begin, int end, float number) {
  __syncthreads();
  for (int i = begin / 2 + threadIdx.x; i < end / 2; i += blockDim.x) ((__half *)smem)[i] = number;
  fence_proxy_async();
  __syncthreads();
}

/** Products of ones, while B changes. */
__global__ void wait_for_groups(float *out) {
  const uint64_t a = small_descriptor(0), b = small_descriptor(B_START);
  float first[1][4], second[1][4];
  fill(0, SMALL_SHARED, 1);
  wgmma_fence();
  wgmma<__half, false>(first, a, b, false);
  wgmma_commit();
  wgmma<__half, false>(second, a, b, false);
  wgmma_commit();
  wgmma_wait<1>();
  out[threadIdx.x] = first[0][3];
  out[128 + threadIdx.x] = second[0][0];
  fill(B_START, SMALL_SHARED, 2); /* which the instruction may read: it is in flight */
  wgmma_wait<0>();
  out[256 + threadIdx.x] = second[0][0];
  wgmma_fence();
  wgmma<__half, false>(second, a, b, true);
  wgmma_wait<0>(); /* legal, and does not cover it */
  out[384 + threadIdx.x] = second[0][0];
  wgmma_commit();
  wgmma_wait<0>();
  out[512 + threadIdx.x] = second[0][0];
}

TEST(a_wait_covers_the_groups_committed_before_it) {
  const auto out =
      results<float>(640, [](auto *to) { wait_for_groups<<<1, 128, SMALL_SHARED>>>(to); });
  for (int i = 0; i < 128; i++) {
    assert_float_equal(out[i], 16, 0);
    assert_true(std::isnan(out[128 + i]));
    assert_float_equal(out[256 + i], 32, 0);
    assert_true(std::isnan(out[384 + i]));
    assert_float_equal(out[512 + i], 64, 0);
  }
}

/** Each of two warpgroups has its own instructions in flight. */
__global__ void multiply_in_two_groups(float *out) {
  const int group = threadIdx.x / 128;
  fill(0, SMALL_SHARED, 1);
  float d[] = {1, 1, 1, 1};
  wgmma_fence();
  for (int i = 0; i <= 2 * group; i++) {
    const SimtWgmma operands = {
        d,     nullptr,  small_descriptor(0), small_descriptor(B_START), 8, true, false,
        false, SIMT_FP16};
    simt_wgmma(&operands);
  }
  wgmma_commit();
  wgmma_wait<0>();
  out[threadIdx.x] = d[0];
}

TEST(warpgroups_do_not_wait_for_each_other) {
  const auto out =
      results<float>(256, [](auto *to) { multiply_in_two_groups<<<1, 256, SMALL_SHARED>>>(to); });
  for (int i = 0; i < 256; i++) assert_float_equal(out[i], i < 128 ? 17 : 49, 0);
}

/** Products of ones. Warp 0 doubles B after its own wait, while the others still have to wait or,
 * if `late`, even to issue theirs. */
__global__ void overwrite_after_one_wait(bool late, float *out) {
  const uint64_t a = small_descriptor(0), b = small_descriptor(B_START);
  const bool is_first = threadIdx.x < 32;
  float d[1][4];
  const auto issue = [&] {
    wgmma_fence();
    wgmma<__half, false>(d, a, b, false);
    wgmma_commit();
  };
  fill(0, SMALL_SHARED, 1);
  if (is_first || !late) issue();
  if (is_first) wgmma_wait<0>();
  fill(B_START, SMALL_SHARED, 2);
  if (!is_first && late) issue();
  if (!is_first) wgmma_wait<0>();
  out[threadIdx.x] = d[0][0];
}

TEST(the_first_wait_completes_the_warpgroup_unless_warps_complete_alone) {
  static const struct {
    const char *mode;
    bool late;
    float others;
  } cases[] = {{"warpgroup", false, 16}, {"warp", false, 32}, {"warp", true, 32}};
  for (const auto &c : cases) {
    set_variable("SIMT_WGMMA", c.mode);
    const auto out = results<float>(
        128, [&](float *to) { overwrite_after_one_wait<<<1, 128, SMALL_SHARED>>>(c.late, to); });
    for (int i = 0; i < 128; i++) assert_float_equal(out[i], i < 32 ? 16 : c.others, 0);
  }
}

/* --- Mistakes ------------------------------------------------------------------------------- */

typedef enum Mistake {
  NONE,
  OTHER_WARP,
  OTHER_LANE,
  ABSENT_WARP,
  ABSENT_LANE,
  OTHER_NAME,
  NO_WAIT,
  NO_COMMIT
} Mistake;

__global__ void issue(SimtWgmma operands, Mistake mistake) {
  float d[1][4], other[1][4];
  operands.d = d[0];
  if (mistake == OTHER_WARP && threadIdx.x / 32 == 2) operands.accumulate = true;
  if (mistake == OTHER_LANE && threadIdx.x == 37) operands.b_descriptor += 16;
  if (mistake == ABSENT_WARP && threadIdx.x >= 96) return;
  if (mistake == ABSENT_LANE && threadIdx.x == 37) return;
  wgmma_fence();
  simt_wgmma(&operands);
  if (mistake != NO_COMMIT) wgmma_commit();
  if (mistake == NO_WAIT) return;
  if (mistake == OTHER_NAME) wgmma_wait<0>(other);
  wgmma_wait<0>(d);
}
enum { ISSUE_LINE = __LINE__ - 6, WAIT_LINE = __LINE__ - 2, FENCE_LINE = ISSUE_LINE - 1 };

static std::string expect_mistake(const SimtWgmma &operands, Mistake mistake, const char *what,
                                  int threads = 128, int line = ISSUE_LINE) {
  return expect_report([&] { issue<<<1, threads, SMALL_SHARED>>>(operands, mistake); }, what, line);
}

TEST(mistakes_are_reported_where_they_are_made) {
  SimtWgmma right = {};
  right.a_descriptor = small_descriptor(0);
  right.b_descriptor = small_descriptor(B_START);
  right.n = 8;
  issue<<<1, 128, SMALL_SHARED>>>(right, NONE);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  expect_mistake(right, NONE, "wgmma in a warpgroup without four warps", 96);
  expect_mistake(right, OTHER_WARP, "warps of a warpgroup issue different wgmma");
  expect_mistake(right, OTHER_LANE, "lanes of a warp issue different wgmma");
  expect_mistake(right, ABSENT_LANE, "wgmma.fence without all lanes of its warp", 128, FENCE_LINE);
  expect_mistake(right, OTHER_NAME, "wgmma_wait() completes a wgmma whose accumulators it does not",
                 128, WAIT_LINE - 1);
  expect_mistake(right, NO_WAIT, "a warp exits while its wgmma is in flight in ");
  expect_mistake(right, NO_COMMIT,
                 "a warp exits while its wgmma is in flight: no wgmma.commit_group follows it");
  const std::string report = expect_mistake(
      right, ABSENT_WARP,
      "threads 0-95 wait for a wgmma that not all warps of its warpgroup have issued\n", 128,
      WAIT_LINE);
  assert_contains(report, "simt: DEADLOCK in issue, launch ");
  right.n = 12;
  expect_mistake(right, NONE, "wgmma of 12 columns: must be a multiple of 8 up to 256");
  right.n = 264;
  expect_mistake(right, NONE, "wgmma of 264 columns: must be a multiple of 8 up to 256");
}

/** Adds to the descriptor of A or B; both have 64 rows. */
static void expect_refused(char operand, uint64_t added, bool transposed, const char *why) {
  SimtWgmma operands = {};
  uint64_t *changed = operand == 'A' ? &operands.a_descriptor : &operands.b_descriptor;
  operands.a_descriptor = operands.b_descriptor = small_descriptor(0);
  operands.n = 64;
  operands.transpose_a = operands.transpose_b = transposed;
  *changed += added;
  char what[128];
  snprintf(what, sizeof what, "wgmma: the descriptor of %c, 0x%016llx, %s in issue", operand,
           (unsigned long long)*changed, why);
  expect_mistake(operands, NONE, what);
}

TEST(wrong_descriptors_are_refused) {
  const auto bit = [](int i) { return UINT64_C(1) << i; };
  for (int i : {14, 15, 30, 31, 46, 47, 48, 52, 61}) {
    expect_refused(i % 2 ? 'A' : 'B', bit(i), false, "sets reserved bits");
  }
  for (int i : {49, 51}) {
    expect_refused('A', bit(i), false, "has a base offset, which is not simulated");
  }
  const char *inside = "does not start in the first row of a swizzled pattern";
  const uint64_t pattern_128 = (uint64_t)(1024 - 256) << (32 - 4); /* to the right stride */
  const uint64_t swizzle_128 = bit(62) + pattern_128, swizzle_32 = bit(62) | bit(63);
  expect_refused('A', swizzle_128 + 8, false, inside);
  expect_refused('B', swizzle_128 + 7, false, inside); /* columns of two rows */
  expect_refused('B', swizzle_32 + 1, false, inside);
  expect_refused('A', swizzle_128 + 2, true, inside);
  const char *stride = "has a stride that is not a multiple of the swizzled pattern";
  expect_refused('B', bit(62), false, stride);
  expect_refused('A', -((uint64_t)(256 >> 4) << 32), false, "has a stride offset of 0");
  const char *outside = "leads outside of the dynamic shared memory";
  expect_refused('A', (SMALL_SHARED - 2048 + 16) >> 4, false, outside);
  expect_refused('B', bit(32 + 13), true, outside);
}

/* --- e4m3 ------------------------------------------------------------------------------------- */

enum { E4M3_1 = 0x38, E4M3_256 = 0x78 };

/** In each row of A 256 and 31 times `small`, times ones, which stmatrix has stored. */
__global__ void add_to_256(uint8_t small, float *out) {
  const uint32_t ones = E4M3_1 * 0x01010101u, smalls = small * 0x01010101u;
  const uint32_t first = threadIdx.x % 4 == 0 ? (smalls & ~0xffu) | E4M3_256 : smalls;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  /* Matrices of 8 rows: the left halves of 16 rows of A and their right halves in turns. */
  stmatrix_x4(smem + 512 * warp + 16 * lane, {first, smalls, first, smalls});
  if (warp == 0) stmatrix_x4(smem + B_START + 16 * lane, {ones, ones, ones, ones});
  fence_proxy_async();
  __syncthreads();
  float d[1][4];
  wgmma_fence();
  wgmma_e4m3(d, small_descriptor(0), small_descriptor(B_START), false);
  wgmma_commit();
  wgmma_wait<0>();
  out[threadIdx.x] = d[0][0];
}

TEST(sums_of_e4m3_are_cut_off_behind_13_bits) {
  for (const uint8_t small : {0x10 /* 2^-5 */, 0x0f /* 1.875 x 2^-6 */}) {
    const double kept = small == 0x10 ? 31.0 / 32 : 0;
    const auto out =
        results<float>(128, [&](float *to) { add_to_256<<<1, 128, SMALL_SHARED>>>(small, to); });
    for (int i = 0; i < 128; i++) assert_float_equal(out[i], 256 + kept, 0);
  }
}

RUN_IN_ALL_SETTINGS("wgmma", reset_device, nullptr)
