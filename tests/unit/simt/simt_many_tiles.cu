/**
 * @file
 * A mask with so many partial tiles that the index of a word overflows an int: a step on the last
 * of them. The memory is only reserved; of 8 GiB of bits only that tile is used.
 */
#include <cuda_fp16.h>
#include <sys/mman.h>

#include "../tests/unit/simt/simt_testing.h"
#include "attention.h"
#include "device/tile_list.cuh"

enum { ROWS = 64, KEYS = 128, DIM = 64, WORDS_OF_TILE = ROWS * KEYS / 32 };
enum { LAST_TILE = 1 << 23 };  // 2^31 words lie before it

static Problem one_block() {
  Problem p = {};
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_len = p.q_block_size = ROWS;
  p.kv_len = p.kv_block_size = KEYS;
  p.head_dim = DIM;
  p.mask = MASK_BLOCKS;
  p.scale = 1.0f;
  p.q_strides.row = p.k_strides.row = p.v_strides.row = p.o_strides.row = DIM;
  return p;
}

/** One slot, which is PARTIAL and has the last tile: `slot` is {1, 0, PARTIAL, tile}. */
static BlockMask one_slot(const int32_t *slot) {
  BlockMask m = {};
  m.q_block_size = ROWS;
  m.kv_block_size = KEYS;
  m.q_blocks = m.max_slots = m.batches = m.heads = 1;
  m.tile_count = LAST_TILE + 1;
  m.kv_num_blocks = slot;
  m.kv_indices = slot + 1;
  m.block_mask_types = slot + 2;
  m.partial_block_mask_indices = slot + 3;
  return m;
}

/** Query q attends key 2 q, and V of key k is k, so O of query q is 2 q. */
TEST(the_last_of_many_tiles_is_found) {
  const Problem p = one_block();
  const int32_t slot[4] = {1, 0, BLOCK_PARTIAL, LAST_TILE};
  const BlockMask mask = one_slot(slot);
  Description description;
  step.describe(&p, 0, &description);
  assert_int_equal(description.block_m, ROWS);

  const size_t bytes = step.block_masks->prepared_bytes(&p, &mask);
  assert_true(bytes > ((size_t)LAST_TILE + 1) * WORDS_OF_TILE * sizeof(uint32_t));
  void *prepared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(prepared, MAP_FAILED);
  const struct { int block_m, block_n; } tiles = {ROWS, description.block_n};
  const TileLists lists = lay_out_tile_lists(&p, &mask, &tiles, prepared);
  const int tiles_in_block = KEYS / description.block_n;
  uint8_t *tile = device_zeros<uint8_t>(ROWS * KEYS);
  for (int q = 0; q < ROWS; q++) tile[q * KEYS + 2 * q] = 1;
  BlockMask last = mask;
  last.partial_block_masks = tile;
  TileLists end = lists;
  end.bits = bits_of_tile(lists, (int64_t)LAST_TILE * tiles_in_block);
  pack_bits_kernel<<<(unsigned)tiles_in_block, 128>>>(last, end);
  list_tiles_kernel<<<1, WARP_SIZE>>>(p, mask, lists);
  order_rows_kernel<<<1, 1>>>(lists);

  Tensors t = {};
  __half *v = device_zeros<__half>(KEYS * DIM), *o = device_zeros<__half>(ROWS * DIM);
  for (int i = 0; i < KEYS * DIM; i++) v[i] = __float2half((float)(i / DIM));
  t.q = device_zeros<__half>(ROWS * DIM);
  t.k = device_zeros<__half>(KEYS * DIM);
  t.v = v;
  t.o = o;
  t.lse = device_zeros<float>(ROWS);
  t.block_mask = &mask;
  t.prepared = prepared;
  assert_int_equal(step.forward(&p, &t, 0, nullptr), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < ROWS * DIM; i++) assert_int_equal(__half2float(o[i]), 2 * (i / DIM));
  munmap(prepared, bytes);
}

/** A row may have any number of slots, but its list has at most a tile for each block. */
TEST(a_list_has_room_for_as_many_tiles_as_blocks) {
  const Problem p = one_block();
  const int32_t slot[4] = {1, 0, BLOCK_PARTIAL, 0};
  BlockMask mask = one_slot(slot);
  mask.tile_count = 1;
  const size_t bytes = step.block_masks->prepared_bytes(&p, &mask);
  mask.max_slots = INT32_MAX;
  assert_int_equal(step.block_masks->prepared_bytes(&p, &mask), bytes);
}

RUN_TESTS_WITH(reset_device, nullptr)
