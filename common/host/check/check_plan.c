/**
 * @file
 * Chooses the rows to compare with the reference.
 *
 * Rows are numbered (batch * q_heads + head) * q_len + q. Tile edges are chosen first, because
 * kernels often fail there; the rest is drawn from the other rows. Both draws are stratified: one
 * number is drawn from each of equal parts of the range, so they are spread, sorted and distinct.
 */
#include <stdlib.h>

#include "host/base/values.h"
#include "host/check/check.h"
#include "host/io/random.h"
#include "host/masks/mask.h"

enum { LEAST_ROWS = 16, EDGE_FACTOR = 4 };

/* Streams of random numbers that the input tensors do not use. */
enum { STREAM_EDGE = 100, STREAM_EDGE_HEAD, STREAM_ROW };

/* A random number from the i-th of `parts` equal parts of 0 .. total-1. */
static int64_t draw(uint64_t seed, uint32_t stream, int64_t i, int64_t parts, int64_t total) {
  const int64_t width = total / parts, wider = total % parts; /* the first `wider` have one more */
  const int64_t first = i * width + min_int64(i, wider);
  const uint64_t size = (uint64_t)(width + (i < wider));
  return first + (int64_t)(random_bits(seed, stream, (uint64_t)i) % size);
}

static int64_t count_rows(const Problem *p) {
  return (int64_t)p->batch * p->q_heads * p->q_len;
}

/* Number of first and last rows of all tiles; a tile of one row has one edge. */
static int64_t count_edges(const Problem *p, int block_m) {
  if (block_m == 1) return p->q_len;
  const int64_t whole = p->q_len / block_m, rest = p->q_len % block_m;
  return 2 * whole + min_int64(rest, 2);
}

/* The query row of an edge; edges are numbered from the top. */
static int64_t edge_row(const Problem *p, int block_m, int64_t edge) {
  if (block_m == 1) return edge;
  const int64_t first = edge / 2 * block_m;
  return edge % 2 == 0 ? first : min_int64(first + block_m, p->q_len) - 1;
}

static int compare_int64(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Draws `count` edges in random heads as sorted numbers; the last is the output's last row. */
static void choose_edges(const Problem *p, int block_m, uint64_t seed, int64_t count,
                         int64_t *numbers) {
  const int64_t edges = count_edges(p, block_m);
  const uint64_t heads = (uint64_t)p->batch * (uint64_t)p->q_heads;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t head = (int64_t)(random_bits(seed, STREAM_EDGE_HEAD, (uint64_t)i) % heads);
    const int64_t edge = draw(seed, STREAM_EDGE, i, count, edges);
    numbers[i] = head * p->q_len + edge_row(p, block_m, edge);
  }
  numbers[count - 1] = count_rows(p) - 1;
  qsort(numbers, (size_t)count, sizeof numbers[0], compare_int64);
}

static RowIndex row_of_number(const Problem *p, int64_t number) {
  const int64_t head = number / p->q_len;
  return (RowIndex){(int)(head / p->q_heads), (int)(head % p->q_heads), (int)(number % p->q_len)};
}

/* Merges the sorted edges with rows drawn from all others. */
static void fill_sample(const Problem *p, uint64_t seed, const int64_t *edges, int64_t edge_count,
                        CheckPlan *plan) {
  const int64_t others = (int64_t)plan->count - edge_count;
  int64_t edge = 0, row = 0;
  for (int64_t i = 0; i < others; ++i) {
    /* The k-th row that is no edge has the number k plus the count of edges before it. */
    const int64_t k = draw(seed, STREAM_ROW, i, others, count_rows(p) - edge_count);
    while (edge < edge_count && edges[edge] <= k + edge) {
      plan->rows[row++] = row_of_number(p, edges[edge++]);
    }
    plan->rows[row++] = row_of_number(p, k + edge);
  }
  while (edge < edge_count) plan->rows[row++] = row_of_number(p, edges[edge++]);
}

/* Number of rows to check by default; `flops` are those of the reference for a score and column. */
static int64_t default_count(const Problem *p, const Mask *mask, int block_m, double flops) {
  const double rows = (double)count_rows(p);
  const double entries = (double)mask_entries(mask, p->batch, p->q_heads);
  const double seconds = flops * p->head_dim * entries / REFERENCE_SPEED;
  if (seconds < 1) return count_rows(p);
  const int64_t affordable = (int64_t)(rows * (1.5 / seconds));
  const int64_t count = affordable > LEAST_ROWS ? affordable : LEAST_ROWS;
  const int64_t edges = count_edges(p, block_m);
  return edges > count ? min_int64(edges, EDGE_FACTOR * count) : count;
}

static int64_t wanted_count(const Problem *p, const Mask *mask, CheckMode mode, int64_t wanted,
                            int block_m, double flops) {
  switch (mode) {
    case CHECK_NONE:
      return 0;
    case CHECK_ALL:
      return count_rows(p);
    case CHECK_ROWS:
      return min_int64(wanted, count_rows(p));
    case CHECK_DEFAULT:
      break;
  }
  return min_int64(default_count(p, mask, block_m, flops), count_rows(p));
}

static bool plan_rows(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                      int block_m, double flops, uint64_t seed, CheckPlan *plan, Error *error) {
  const int64_t count = wanted_count(problem, mask, mode, wanted, block_m, flops);
  *plan = (CheckPlan){.count = (size_t)count, .all = count == count_rows(problem)};
  if (count == 0) return true;

  const int64_t edge_count = plan->all ? 0 : min_int64(count, count_edges(problem, block_m));
  int64_t *edges = malloc(sizeof *edges * (size_t)(edge_count + 1)); /* malloc(0) may be NULL */
  plan->rows = malloc(sizeof *plan->rows * plan->count);
  if (!edges || !plan->rows) {
    free(edges);
    check_plan_free(plan);
    return fail(error, EXIT_DEVICE, "not enough memory to check %lld rows; use --check rows:R",
                (long long)count);
  }
  if (edge_count > 0) choose_edges(problem, block_m, seed, edge_count, edges);
  fill_sample(problem, seed, edges, edge_count, plan);
  free(edges);
  return true;
}

bool check_plan(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                int block_m, uint64_t seed, CheckPlan *plan, Error *error) {
  return plan_rows(problem, mask, mode, wanted, block_m, 4, seed, plan, error);
}

bool check_plan_gradients(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                          const Description *tiles, uint64_t seed, CheckPlan *queries,
                          CheckPlan *keys, Error *error) {
  Problem of_keys = *problem;
  of_keys.q_heads = problem->kv_heads;
  of_keys.q_len = problem->kv_len;
  return plan_rows(problem, mask, mode, wanted, tiles->block_m, 10, seed, queries, error) &&
         plan_rows(&of_keys, mask, mode, wanted, tiles->block_n, 10, seed, keys, error);
}

void check_plan_free(CheckPlan *plan) {
  free(plan->rows);
  *plan = (CheckPlan){0};
}
