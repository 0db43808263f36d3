/** @file Schedules of equal shares on 132 multiprocessors: every tile is in one share, and
 * every row that blocks send each other has a message of its own. The tests of the steps have few
 * blocks, to be fast. */
#include <random>

#include "../tests/unit/simt/simt_testing.h"
#include "decode.h"
#include "device/decode_own_rows.cuh"
#include "device/decode_shares.cuh"

/** A problem with the lengths of its sequences, and the shares that a step makes of it. */
struct Schedule {
  Problem problem;
  SharesConfig config;
  std::vector<int> lengths;
  std::vector<Share> shares;
};

/** Tiles of one row group that a share has, the first of them counted from that of the sequence. */
struct Piece {
  int block, number;        /**< of the share, and of the row group */
  RowGroup group;           /**< likewise */
  int first, count, of_all; /**< the first tile, and how many tiles of how many */
};

static SharesConfig configs[1]; /**< of the step that makes the schedule */

/** For a step with clusters; nobody launches it. */
static void no_kernel(Problem, DecodeTensors) {}

/** Draws a schedule, as a step with 64 rows of wgmma has them, or one with fewer rows. */
static Schedule drawn(std::mt19937_64 &rng) {
  const auto draw = [&](int least, int most) {
    return least + (int)(rng() % (uint64_t)(most - least + 1));
  };
  Schedule s = {};
  Problem &p = s.problem;
  p.batch = draw(0, 1) ? draw(1, 5) : draw(1, 100);
  p.kv_heads = draw(1, 8);
  p.q_heads = p.kv_heads * draw(1, MAX_GROUP_SIZE);
  p.q_len = draw(0, 1) ? 1 : draw(1, MAX_NEW_QUERIES);
  p.mask = draw(0, 3) ? MASK_CAUSAL : MASK_FULL;
  p.window = p.mask == MASK_CAUSAL && draw(0, 3) == 0 ? draw(1, 300) : 0;
  const int longest = draw(1, draw(0, 2) ? 400 : 5000);
  const bool equal = draw(0, 1);
  for (int b = 0; b < p.batch; b++) {
    s.lengths.push_back(equal ? longest : draw(0, draw(0, 5) ? longest : 3));
    p.kv_len = max(p.kv_len, max(s.lengths[b], 1));
  }
  SharesConfig &c = s.config;
  c.rows = std::vector<int>{1, 4, 8, 16, 64, 64}[draw(0, 5)];
  c.keys = 16 << draw(0, 2);
  p.head_dim = 64 << draw(0, c.rows == 64 ? 1 : 2);
  c.per_sm = c.rows < 8 ? blocks_per_sm(c.rows) : 1;
  c.part_bytes = 5 * c.rows * p.head_dim;                       // messages: 80 bytes for 16 columns
  if (c.rows == 64) c.part_bytes = 32 * (2 * p.head_dim + 16);  // two: a message for each row
  c.head_dim = p.head_dim;
  c.clusters = c.rows < 64 && draw(0, 1) ? no_kernel : NULL;
  configs[0] = c;
  DecodeTensors t = {};
  t.lengths = s.lengths.data();
  s.shares.resize(share_count(&c, &p));
  t.schedule = s.shares.data();
  assert_int_equal((schedule_shares<configs, Share, schedule_kernel>(&p, &t, 0)), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  return s;
}

/** Which row group of the line it is: the same rows of sequences that are `stride` apart follow
 * each other. */
static int number_of(const Schedule &s, const RowGroup &group) {
  const int stride = s.shares[0].stride;
  const int rows_of_head = row_groups(s.problem, s.config.rows);
  const int same = (group.batch % stride * s.problem.kv_heads + group.kv_head) * rows_of_head +
                   group.first / s.config.rows;
  return same * (s.problem.batch / stride) + group.batch / stride;
}

/** The row group with this number. */
static RowGroup row_group_of(const Schedule &s, int number) {
  const int stride = s.shares[0].stride, sequences = s.problem.batch / stride;
  const int each = s.problem.kv_heads * row_groups(s.problem, s.config.rows);
  const RowGroup group =
      row_group(s.problem, s.config.rows, number % sequences * stride * each + number / sequences);
  assert_int_equal(number_of(s, group), number);
  return group;
}

/** What all blocks have, one after the other, as they go through their shares. Each tile must be
 * the one after the tile before. */
static std::vector<Piece> pieces_of(const Schedule &s) {
  const int groups = s.problem.batch * s.problem.kv_heads * row_groups(s.problem, s.config.rows);
  std::vector<Piece> pieces;
  int number = 0, first = 0;  // of the next tile
  for (int block = 0; block < (int)s.shares.size(); block++) {
    const Share &share = s.shares[block];
    if (share.tiles == 0) {
      assert_int_equal(share.parts, 0);  // nor has it a row group to merge
      continue;
    }
    assert_int_equal(share.length, s.lengths[share.rows.batch]);
    assert_int_equal(share.stride, s.shares[0].stride);
    assert_int_equal(number_of(s, share.rows), number);
    assert_int_equal(share.first, first);
    for (int left = share.tiles; left > 0;) {
      assert_in_range(number, 0, groups - 1);
      const RowGroup group = row_group_of(s, number);
      const int all = tiles_of_sequence(s.problem, s.lengths[group.batch], s.config.keys).count;
      const int count = min(all - first, left);
      pieces.push_back({block, number, group, first, count, all});
      left -= count, first += count;
      if (first == all) number++, first = 0;
    }
  }
  assert_int_equal(number, groups);
  assert_int_equal(first, 0);
  return pieces;
}

/** What a share says of its last row group must be so: which blocks have tiles of it. */
static void assert_ends_are_known(const Schedule &s, const std::vector<Piece> &pieces) {
  for (size_t i = 0; i < pieces.size(); i++) {
    if (i + 1 < pieces.size() && pieces[i + 1].block == pieces[i].block) continue;
    const Share &share = s.shares[pieces[i].block];
    size_t begin = i, end = i + 1;  // the pieces of the row group
    while (begin > 0 && pieces[begin - 1].number == pieces[i].number) begin--;
    while (end < pieces.size() && pieces[end].number == pieces[i].number) end++;
    assert_int_equal(number_of(s, share.last), pieces[i].number);
    assert_int_equal(share.begin, pieces[begin].block);
    assert_int_equal(share.parts, end - begin);
    assert_int_equal(pieces[end - 1].block, share.begin + share.parts - 1);
    if (share.parts == 1) continue;  // nobody merges
    const bool goes_on = end < pieces.size() && pieces[end].block == pieces[end - 1].block;
    assert_int_equal(share.goes_on != 0, goes_on);
  }
}

/** Of what it does not have whole, a block of 64 rows sends all rows but those that it merges: each
 * in a message that no other row has. */
static void assert_messages_differ(const Schedule &s, const std::vector<Piece> &pieces) {
  if (s.config.rows != 64) return;
  std::vector<bool> taken(64 * s.shares.size());
  for (size_t i = 0; i < pieces.size(); i++) {
    const Piece &piece = pieces[i];
    if (piece.count == piece.of_all) continue;
    const Share &share = s.shares[piece.block];
    const int rows = piece.group.end - piece.group.first;
    const bool is_last = i + 1 == pieces.size() || pieces[i + 1].block != piece.block;
    const OwnRows own = is_last ? own_rows(share, piece.block - share.begin) : OwnRows{rows, rows};
    for (int row = 0; row < rows; row++) {
      if (row >= own.begin && row < own.end) continue;
      const int message = message_of_row(64 * piece.block, own, row);
      assert_in_range(message, 0, (int)taken.size() - 1);
      assert_false(taken[message]);
      taken[message] = true;
    }
  }
}

/** If a block merges its last row group in its cluster, all others of the cluster do. */
static void assert_clusters_agree(const Schedule &s) {
  const int n = cluster_blocks(&s.config, &s.problem);
  assert_int_equal(s.shares.size() % n, 0);
  for (int block = 0; block < (int)s.shares.size() && n > 1; block++) {
    const Share &own = s.shares[block];
    if (own.parts != n || own.begin % n != 0 || own.goes_on) continue;
    for (int rank = 0; rank < n; rank++) {
      const Share &other = s.shares[block / n * n + rank];
      assert_int_equal(other.begin, block / n * n);
      assert_int_equal(other.parts, n);
      assert_false(other.goes_on);
      assert_memory_equal(&other.last, &own.last, sizeof own.last);
    }
  }
}

/** decode.h says how much a step may have beside the tensors. */
static void assert_little_memory(const Schedule &s) {
  const Problem &p = s.problem;
  const int64_t cache = (int64_t)4 * p.batch * p.kv_heads * p.kv_len * p.head_dim;
  const int64_t used =
      (int64_t)2 * s.shares.size() * s.config.part_bytes + s.shares.size() * sizeof(Share);
  assert_true(used <= max(cache / 100, (int64_t)4000000));
}

TEST(shares_have_every_tile_and_rows_their_messages) {
  set_variable("SIMT_SMS", "132");
  std::mt19937_64 rng(20);
  for (int i = 0; i < 5000; i++) {
    const Schedule s = drawn(rng);
    const std::vector<Piece> pieces = pieces_of(s);
    assert_ends_are_known(s, pieces);
    assert_messages_differ(s, pieces);
    assert_clusters_agree(s);
    assert_little_memory(s);
  }
}

TEST(clusters_are_as_large_as_there_is_room_for) {
  set_variable("SIMT_SMS", "132");
  static constexpr struct {
    int groups, keys, blocks, size, window, page_size;
  } CASES[] = {{1, 4096, 132, 1},        {7, 4096, 126, 1},       {8, 4096, 64, 8},
               {8, 32768, 64, 8},        {8, 65536, 128, 1},      {9, 4096, 126, 1},
               {14, 4096, 126, 1},       {15, 4096, 60, 4},       {16, 16384, 64, 4},
               {16, 32768, 128, 1},      {17, 4096, 119, 1},      {32, 4096, 128, 1},
               {60, 262144, 120, 2},     {66, 100, 132, 2},       {67, 4096, 132, 1},
               {256, 4096, 128, 1},      {8, 65536, 64, 8, 1024}, {8, 4096, 128, 1, 0, 16},
               {64, 4096, 128, 2, 0, 16}};
  SharesConfig c = {};
  c.rows = 8, c.per_sm = 1, c.part_bytes = 5120, c.head_dim = 128, c.clusters = no_kernel;
  for (const auto &x : CASES) {
    Problem p = {};
    p.batch = x.groups, p.q_heads = p.kv_heads = p.q_len = 1, p.kv_len = x.keys, p.head_dim = 128;
    p.window = x.window, p.page_size = x.page_size;
    assert_int_equal(share_count(&c, &p), x.blocks);
    assert_int_equal(cluster_blocks(&c, &p), x.size);
    c.clusters = NULL;
    assert_int_equal(cluster_blocks(&c, &p), 1);
    c.clusters = no_kernel;
  }
}

RUN_TESTS_WITH(reset_device, NULL)
