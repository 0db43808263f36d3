/* Counts the sectors and wavefronts of the requests of warps. */
#include "internal.h"

/* --- Sectors -------------------------------------------------------------------------------- */

/**
 * The distinct sectors of a request, and the requested bytes of each. For cp.async, a sector counts
 * once for each 32 bytes of shared memory that parts of it are copied to.
 */
typedef struct Sectors {
  uintptr_t sector[2 * WARP_SIZE];
  uint32_t bytes[2 * WARP_SIZE];
  uint16_t target[2 * WARP_SIZE]; /* 32-byte unit of shared memory; 0 if not cp.async */
  int count;
} Sectors;

static void add_to_sector(Sectors *s, uintptr_t sector, uint16_t target, uint32_t bytes) {
  int i = s->count - 1; /* adjacent lanes often use the same sector */
  while (i >= 0 && (s->sector[i] != sector || s->target[i] != target)) i--;
  if (i < 0) {
    i = s->count++;
    s->sector[i] = sector;
    s->target[i] = target;
    s->bytes[i] = 0;
  }
  s->bytes[i] |= bytes;
}

static void count_sectors(const Request *request, LabTraffic *traffic) {
  Sectors s = {.count = 0};
  for (unsigned rest = request->lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const uintptr_t address = request->addresses[lane];
    const uint16_t target = request->copies[lane] / (SECTOR_BYTES / COPY_BYTES);
    const unsigned at = address % SECTOR_BYTES;
    const uint64_t bytes = ((UINT64_C(1) << request->size) - 1) << at;
    add_to_sector(&s, address / SECTOR_BYTES, target, (uint32_t)bytes);
    if (bytes >> SECTOR_BYTES) {
      add_to_sector(&s, address / SECTOR_BYTES + 1, target, (uint32_t)(bytes >> SECTOR_BYTES));
    }
  }
  traffic->sectors += (uint64_t)s.count;
  for (int i = 0; i < s.count; i++) traffic->used_bytes += (uint64_t)__builtin_popcount(s.bytes[i]);
  if ((uint32_t)s.count > traffic->most_sectors) traffic->most_sectors = (uint32_t)s.count;
}

/** What L1 counts as sectors of cp.async: for each line of 128 bytes that a request reads, the
 * aligned 32-byte pieces of shared memory that its bytes are copied to. */
static uint64_t copy_lookups(const Request *request) {
  Sectors s = {.count = 0};
  for (unsigned rest = request->lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    add_to_sector(&s, request->addresses[lane] / LINE_BYTES,
                  request->copies[lane] / (SECTOR_BYTES / COPY_BYTES), 1);
  }
  return (uint64_t)s.count;
}

/* --- Banks ---------------------------------------------------------------------------------- */

void lab_add_wavefronts(LabTraffic *traffic, unsigned ways) {
  traffic->wavefronts += ways;
  traffic->ideal_wavefronts++;
  if (ways > traffic->most_ways) traffic->most_ways = ways;
}

/** Lanes that share a pass: 32 with up to 4 bytes each, 16 with 8, 8 with 16. */
static int lanes_of_pass(unsigned size) {
  return size <= 4 ? 32 : size <= 8 ? 16 : 8;
}

/** Do all active lanes whose numbers differ only in the bit `bit` read the same address? */
static bool read_in_pairs(const Request *request, int bit) {
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const int other = lane ^ bit;
    if ((request->lanes >> lane & request->lanes >> other & 1) != 0 &&
        request->addresses[lane] != request->addresses[other]) {
      return false;
    }
  }
  return true;
}

/** The maximum number of distinct words per bank if `lanes` share one pass. */
static unsigned ways_of(const Request *request, unsigned lanes) {
  uintptr_t words[BANKS][WARP_SIZE * 4]; /* the distinct ones of each bank */
  uint8_t counts[BANKS] = {0};
  unsigned most = 0;
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const uintptr_t address = request->addresses[__builtin_ctz(rest)];
    const uintptr_t last = (address + request->size - 1) / BANK_BYTES;
    for (uintptr_t word = address / BANK_BYTES; word <= last; word++) {
      const unsigned bank = word % BANKS;
      int i = counts[bank] - 1;
      while (i >= 0 && words[bank][i] != word) i--;
      if (i < 0) words[bank][counts[bank]++] = word;
      if (counts[bank] > most) most = counts[bank];
    }
  }
  return most;
}

/** The data that a cp.async reads is written to the banks without wavefronts of the load/store
 * unit, but not the zeros of lanes that read nothing. */
static void count_banks(const Request *request, LabTraffic *traffic) {
  unsigned lanes = request->lanes;
  for (int lane = 0; lane < WARP_SIZE && request->kind == LAB_COPY_SHARED; lane++) {
    if (request->copies[lane] != 0) lanes &= ~(1u << lane);
  }
  int pass_lanes = lanes_of_pass(request->size);
  if (request->kind == LAB_SHARED_LOAD && pass_lanes < WARP_SIZE &&
      (read_in_pairs(request, 1) || read_in_pairs(request, 2))) {
    pass_lanes *= 2;
  }
  const uint32_t pass = (uint32_t)((UINT64_C(1) << pass_lanes) - 1);
  for (int first = 0; first < WARP_SIZE; first += pass_lanes) {
    const unsigned among = lanes & pass << first;
    if (among != 0) lab_add_wavefronts(traffic, ways_of(request, among));
  }
}

/* --- Requests ------------------------------------------------------------------------------- */

static void add_request(const Request *request, LabTraffic *traffic) {
  traffic->requests++;
  traffic->bytes += (uint64_t)__builtin_popcount(request->lanes) * request->size;
  (lab_access_is_shared(request->kind) ? count_banks : count_sectors)(request, traffic);
}

/** The lanes of a LAB_COPY_GLOBAL request that are not zero fills. */
static unsigned reading_lanes(const Request *request) {
  unsigned lanes = 0;
  for (unsigned rest = request->lanes; rest != 0; rest &= rest - 1) {
    if (request->copies[__builtin_ctz(rest)] != NO_SOURCE) lanes |= rest & -rest;
  }
  return lanes;
}

void lab_count_request(LabWorker *lab, Request *request, int warp, unsigned live) {
  const bool reads_copy = request->kind == LAB_COPY_GLOBAL;
  if (reads_copy) request->lanes = reading_lanes(request);
  if (request->lanes == 0) return;
  LabCounts *counts = lab_counts(&lab->sites, request->pc);
  add_request(request, lab_traffic_of(counts, request->kind));
  if (reads_copy) counts->copy_lookups += copy_lookups(request);
  if (!reads_copy) counts->partial += (live & ~request->lanes) != 0;
  if (!(lab->checks & LAB_ACCESSES)) return;
  LabTraffic own = {0};
  add_request(request, &own);
  lab_note_first(lab, request->kind, request->pc, warp, request->size, request->lanes,
                 request->addresses, &own);
}

void lab_count_matrices(LabWorker *lab, LabAccessKind kind, const void *const *rows, int matrices,
                        uint32_t pc) {
  const unsigned lanes = (unsigned)((UINT64_C(1) << 8 * matrices) - 1);
  Request request = {.kind = kind, .pc = pc, .size = COPY_BYTES, .lanes = lanes};
  for (int i = 0; i < 8 * matrices; i++) request.addresses[i] = (uintptr_t)rows[i];
  lab_count_request(lab, &request, lab_thread(lab) / WARP_SIZE, lanes);
}
