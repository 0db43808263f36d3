/**
 * @file
 * Accesses of a warp to a tile in any of the layouts, executed under the lab.
 */
#include <stdio.h>
#include <string.h>

#include "explorer_data.h"
#include "swizzle.cuh"  // a step with swizzled rows, its launches rewritten, for chunk_offset()

template <int COLUMNS>
static uint32_t place(Layout layout, int row, int at) {
  if (layout == SWIZZLED) return chunk_offset<COLUMNS>(row, at / 16) + at % 16;
  return row * 2 * (layout == PADDED ? SMEM_STRIDE<COLUMNS> : COLUMNS) + at;
}

bool exists(int columns, Layout layout) {
  return layout != PANELS_64 || columns % 64 == 0;
}

uint32_t place_in(const Shape &shape, int row, int at) {
  const Layout layout = shape.layout;
  if (layout == PANELS_64) return place_in_panels(64, shape.rows, row, at);
  if (layout == PANELS_32) return place_in_panels(32, shape.rows, row, at);
  switch (shape.columns) {
    case 32:
      return place<32>(layout, row, at);
    case 64:
      return place<64>(layout, row, at);
    case 96:
      return place<96>(layout, row, at);
    case 128:
      return place<128>(layout, row, at);
    case 256:
      return place<256>(layout, row, at);
    default:
      fail("no tile has %d columns", shape.columns);
  }
}

int row_bytes(int columns, Layout layout) {
  // In row 8, chunk 0 is at its own place.
  return (int)place_in({columns, 0, layout}, 8, 0) / 8;
}

__global__ void access_kernel(const Access *access, const unsigned char *matrix,
                              uint4 *sink /* [LANES] */) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int lane = threadIdx.x;
  unsigned char *own = smem + access->offsets[lane];
  uint32_t r[4] = {};
  if (access->kind == LAB_LDMATRIX) {
    access->transposed ? ldmatrix_x4_trans(r, own) : ldmatrix_x4(r, own);
  } else if (access->kind == LAB_COPY_SHARED) {
    cp_async_16(own, matrix + access->sources[lane], !access->zeros);
    cp_async_commit();
    cp_async_wait<0>();
  } else if (access->kind == LAB_SHARED_STORE) {
    if (access->size == 16) *(uint4 *)own = make_uint4(0, 0, 0, 0);
    if (access->size == 4) *(uint32_t *)own = 0;
  } else {
    if (access->size == 16) sink[lane] = *(const uint4 *)own;
    if (access->size == 4) r[0] = *(const uint32_t *)own;
    if (access->size == 2) r[0] = *(const uint16_t *)own;
  }
  sink[lane].x = r[0];
}

/** Executes an access under the lab. */
static Counted execute(const Access &access) {
  constexpr int SHARED_BYTES = 48 << 10;
  static void *matrix, *sink;
  if (matrix == NULL) {
    matrix = device_memory(2 * TOKENS * MAX_HEAD_DIM, NULL);
    sink = device_memory(LANES * sizeof(uint4), NULL);
  }
  for (int lane = 0; lane < LANES; lane++) {
    if (access.offsets[lane] + access.size > SHARED_BYTES) fail("a lane is past shared memory");
  }
  const Access *access_global = (const Access *)device_memory(sizeof access, &access);
  lab_start(LAB_TRAFFIC | LAB_BANKS | LAB_ACCESSES);
  access_kernel<<<1, LANES, SHARED_BYTES>>>(access_global, (const unsigned char *)matrix,
                                            (uint4 *)sink);
  check(cudaGetLastError());
  LabResults results;
  lab_take_results(&results);
  Counted counted = {};
  for (size_t i = 0; i < results.access_count; i++) {
    const LabAccess *own = &results.accesses[i];
    if (own->kind == access.kind && own->size == access.size) counted.traffic = own->traffic;
    if (own->kind == LAB_COPY_GLOBAL) counted.sectors = own->traffic.sectors;
  }
  lab_free_results(&results);
  if (counted.traffic.requests != 1) fail("the lab saw no %s", lab_access_text(access.kind));
  return counted;
}

Counted count_access(const Access &access) {
  static struct {
    Access access;
    Counted counted;
  } known[1024];  // several steps have the same access, and each launch takes a while
  static int count;
  for (int i = 0; i < count; i++) {
    if (memcmp(&known[i].access, &access, sizeof access) == 0) return known[i].counted;
  }
  if (count == sizeof known / sizeof *known) fail("more than %d accesses", count);
  const Counted counted = execute(access);
  known[count].access = access;
  known[count].counted = counted;
  count++;
  return counted;
}

int assign_waves(const Access &access, int (&waves)[LANES]) {
  const int pass_lanes = access.size <= 4 ? 32 : 8;
  int total = 0;
  for (int first = 0; first < LANES; first += pass_lanes) {
    uint32_t words[32][LANES];  // of each bank
    int counts[32] = {}, most = 0;
    for (int lane = first; lane < first + pass_lanes; lane++) {
      for (unsigned at = 0; at < access.size; at += 4) {
        const uint32_t word = (access.offsets[lane] + at) / 4, bank = word % 32;
        int i = 0;
        while (i < counts[bank] && words[bank][i] != word) i++;
        if (i == counts[bank]) words[bank][counts[bank]++] = word;
        if (at > 0 && waves[lane] != total + i) fail("lane %d: more than one wavefront", lane);
        waves[lane] = total + i;
        if (i >= most) most = i + 1;
      }
    }
    total += most;
  }
  return total;
}
