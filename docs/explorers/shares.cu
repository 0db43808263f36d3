/**
 * @file
 * The constants of the explorer of shares, and for its test the schedules themselves.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "device/decode_part_places.cuh"
#include "device/decode_shares.cuh"
#include "device/decode_split.cuh"
#include "explorer_data.h"

template <int D, int ROWS>
constexpr SharesConfig CONFIG = {{NULL, DTYPE_FP16, D, ROWS, THREADS, TILE_KEYS<D>},
                                 NULL,
                                 blocks_per_sm(ROWS),
                                 sizeof(PartPlace<D, ROWS>)};

// Those of steps 19 and 20 in fp16.
#define CONFIGS_OF(D) CONFIG<D, 1>, CONFIG<D, 2>, CONFIG<D, 4>
static constexpr SharesConfig CONFIGS[] = {CONFIGS_OF(64), CONFIGS_OF(128), CONFIGS_OF(256)};

void print_shares() {
  printf("const SHARES = {\"start_keys\": %d, \"end_tiles\": %d, \"most_parts\": %d, ", START_KEYS,
         END_TILES, MOST_PARTS);
  printf("\"least_keys\": %d, \"most_bytes\": %d, \"share_bytes\": %d, \"configs\": [", LEAST_KEYS,
         MOST_BYTES, SHARE_BYTES);
  for (const SharesConfig &c : CONFIGS) {
    printf("%s{\"dim\": %d, \"rows\": %d, \"tile\": %d, \"per_sm\": %d, \"part_bytes\": %d}",
           &c == CONFIGS ? "" : ", ", c.head_dim, c.rows, c.keys, c.per_sm, c.part_bytes);
  }
  printf("]};\n");
}

/** The keys of a part of a sequence in step 19. */
static KeyRange keys_of(const SharesConfig *c, int length, int parts, int part) {
  const KeyRange keys = {0, length};
  return c->keys == TILE_KEYS<64>    ? keys_of_part<TILE_KEYS<64>>(keys, parts, part)
         : c->keys == TILE_KEYS<128> ? keys_of_part<TILE_KEYS<128>>(keys, parts, part)
                                     : keys_of_part<TILE_KEYS<256>>(keys, parts, part);
}

void print_schedule(int count, char **words) {
  if (count < 4) fail("schedule takes KV_HEADS GROUP HEAD_DIM LENGTH...");
  const int heads = atoi(words[0]), group = atoi(words[1]), batch = count - 3;
  int *const lengths = (int *)malloc(batch * sizeof(int));
  Problem problem = {};
  problem.dtype = DTYPE_FP16, problem.mask = MASK_CAUSAL, problem.head_dim = atoi(words[2]);
  problem.batch = batch, problem.q_len = 1;
  problem.q_heads = heads * group, problem.kv_heads = heads;
  for (int b = 0; b < batch; b++) {
    lengths[b] = atoi(words[3 + b]);
    problem.kv_len = max(problem.kv_len, lengths[b]);
  }
  const SharesConfig *c = find_decode<CONFIGS>(&problem);
  if (c == NULL) fail("no step takes this head dimension");

  const int parts = part_count(c, &problem, MOST_PARTS, 0);
  printf("{\"parts\": %d, \"row_groups\": %d, \"split\": [", parts, row_blocks(c, &problem));
  for (int i = 0; i < batch * parts; i++) {
    const KeyRange keys = keys_of(c, lengths[i / parts], parts, i % parts);
    printf("%s[%d,%d]", i == 0 ? "" : ",", keys.begin, max(keys.begin, keys.end));
  }

  const int blocks = share_count(c, &problem);
  const int *const lengths_global = (const int *)device_memory(batch * sizeof(int), lengths);
  Share *const shares_global = (Share *)device_memory(blocks * sizeof(Share), NULL);
  schedule_kernel<<<(blocks + THREADS - 1) / THREADS, THREADS>>>(
      problem, lengths_global, shares_global, c->rows, c->keys,
      (LEAST_KEYS + c->keys - 1) / c->keys, blocks);
  check(cudaDeviceSynchronize());
  Share *const shares = (Share *)malloc(blocks * sizeof(Share));
  check(cudaMemcpy(shares, shares_global, blocks * sizeof(Share), cudaMemcpyDeviceToHost));
  const auto number = [&](const RowGroup &rows) {
    return (rows.batch * heads + rows.kv_head) * row_groups(problem, c->rows) +
           rows.first / c->rows;
  };
  printf("], \"shares\": [");
  for (int i = 0; i < blocks; i++) {
    const Share &s = shares[i];
    const int all[] = {number(s.rows), s.first, s.tiles, number(s.last), s.begin, s.parts};
    for (int k = 0; k < 6; k++) {
      printf("%s%d", k > 0 ? "," : i > 0 ? ",[" : "[", s.tiles == 0 ? 0 : all[k]);
    }
    printf("]");
  }
  printf("]}\n");
  free(lengths), free(shares);
}
