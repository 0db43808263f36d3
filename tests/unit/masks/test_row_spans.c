/** @file Tests of host/masks/row_spans.c: masks in which each query attends to one span of keys. */
#include <omp.h>
#include <sys/resource.h>

#include "host/base/memory.h"
#include "mask_testing.h"

static HostBlockMask build_spans(const Mask *mask) {
  HostBlockMask built;
  Error error = {0};
  if (!row_spans_build(mask, &built, &error)) fail_msg("%s", error.text);
  return built;
}

static KeySpan span_of(const BlockMask *m, int b, int h, int q) {
  return m->row_spans[b * m->span_strides[0] + h * m->span_strides[1] + q];
}

/** The spans must attend the entries of the mask, for every batch entry and head. */
static void check_spans(const Problem *p, const Mask *mask) {
  HostBlockMask built = build_spans(mask);
  const BlockMask *m = &built.mask;
  uint8_t *dense = dense_of_mask(mask, p->batch, p->q_heads), *entry = dense;
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < p->q_heads; h++) {
      for (int q = 0; q < p->q_len; q++) {
        const KeySpan span = span_of(m, b, h, q);
        for (int k = 0; k < p->kv_len; k++) {
          assert_int_equal(span.first <= k && k < span.end, *entry++);
        }
      }
    }
  }
  const size_t rows = (size_t)mask->batches * (size_t)mask->heads * (size_t)p->q_len;
  assert_int_equal(built.bytes[TENSOR_ROW_SPANS], rows * sizeof(KeySpan));
  for (int i = 0; i < MASK_FILES; i++) assert_null(built.data[i]);
  assert_int_equal(m->q_block_size, 0);
  assert_int_equal(m->kv_block_size, 0);
  assert_int_equal(block_mask_statistics(m, p->kv_len).blocks, 0);
  free(dense);
  block_mask_free(&built);
}

enum { BATCH = 2, HEADS = 3, QUERIES = 7, KEYS = 20 };

/** A file whose rows attend spans that differ between heads and batch entries, some of none; unless
 * `row` is -1, that row attends another key, apart from them. */
static Mask open_dense(const Problem *p, int batches, int heads, int row) {
  const int64_t shape[4] = {batches, heads, QUERIES, KEYS};
  uint8_t data[BATCH * HEADS * QUERIES][KEYS] = {{0}};
  const TestPath path = test_path("dense.npy");
  for (int i = 0; i < batches * heads * QUERIES; i++) {
    memset(data[i] + i % 5, 1, (size_t)(i * 7 % 11));
    if (i == row) data[i][KEYS - 1] = 1;
  }
  write_array(path.text, NPY_B1, 4, shape, data);
  Mask mask = open_mask(path.text, p, 8, 8);
  unlink(path.text);
  mask.text = "dense"; /* the path goes out of scope */
  return mask;
}

TEST(files_with_one_span_are_recognised) {
  const Problem p = mask_problem(BATCH, HEADS, QUERIES, KEYS);
  for (int i = 0; i < 4; i++) {
    const int batches = i & 1 ? BATCH : 1, heads = i & 2 ? HEADS : 1;
    Mask mask = open_dense(&p, batches, heads, -1);
    assert_true(mask.one_span);
    check_spans(&p, &mask);
    mask_free(&mask);
    mask = open_dense(&p, batches, heads, batches * heads * QUERIES - 1);
    assert_false(mask.one_span);
    mask_free(&mask);
  }
}

/** Neither time nor memory may grow with the number of pairs. */
TEST(a_million_queries_take_little_time_and_memory) {
  enum { N = 1000000 };
  static const char *const TEXTS[] = {"causal", "window:4096", "document:8", "prefix:250000"};
  const Problem p = mask_problem(4, 16, N, N);
  for (size_t t = 0; t < sizeof TEXTS / sizeof TEXTS[0]; t++) {
    memory_start();
    struct rusage before, after;
    const double left = memory_left_bytes(), start = omp_get_wtime();
    getrusage(RUSAGE_SELF, &before);
    Mask mask = open_mask(TEXTS[t], &p, 128, 128);
    HostBlockMask built = build_spans(&mask);
    getrusage(RUSAGE_SELF, &after);
    assert_true(omp_get_wtime() - start < 2);
    assert_true(after.ru_maxrss - before.ru_maxrss < 100 * 1000);
    assert_true(left - memory_left_bytes() == N * sizeof(KeySpan));
    int64_t entries = 0;
    for (int q = 0; q < N; q++) {
      const KeySpan span = span_of(&built.mask, 3, 15, q);
      entries += span.end - span.first;
    }
    assert_int_equal(entries, mask.entries);
    block_mask_free(&built);
    mask_free(&mask);
  }
}

TEST(spans_beyond_memory_are_refused) {
  const Problem p = mask_problem(1, 1, 256, 256);
  Mask mask = open_mask("window:4", &p, 64, 64);
  HostBlockMask built;
  Error error = {0};
  memory_start();
  assert_true(memory_take("the rest of the run", memory_left_bytes(), &error));
  assert_false(row_spans_build(&mask, &built, &error));
  memory_start();
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text, "--mask window:4, --seqlen 256: needs "));
  assert_null(built.data[TENSOR_ROW_SPANS]);
  mask_free(&mask);
}

RUN_TESTS(create_test_directory, remove_test_directory)
