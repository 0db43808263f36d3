/* Counts the sectors and wavefronts of the requests of warps. */
#include <string.h>

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

/** Distinct words of each bank in one pass. */
typedef struct Pass {
  uintptr_t words[BANKS][WARP_SIZE * 4];
  uint8_t counts[BANKS];
} Pass;

static void begin_pass(Pass *pass) {
  memset(pass->counts, 0, sizeof pass->counts);
}

static void add_words(Pass *pass, uintptr_t address, unsigned size) {
  const uintptr_t last = (address + size - 1) / BANK_BYTES;
  for (uintptr_t word = address / BANK_BYTES; word <= last; word++) {
    const unsigned bank = word % BANKS;
    int i = pass->counts[bank] - 1;
    while (i >= 0 && pass->words[bank][i] != word) i--;
    if (i < 0) pass->words[bank][pass->counts[bank]++] = word;
  }
}

static unsigned most_words(const Pass *pass) {
  unsigned most = 0;
  for (int bank = 0; bank < BANKS; bank++) {
    if (pass->counts[bank] > most) most = pass->counts[bank];
  }
  return most;
}

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
  Pass pass;
  begin_pass(&pass);
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    add_words(&pass, request->addresses[__builtin_ctz(rest)], request->size);
  }
  return most_words(&pass);
}

/** The lanes of a request that are among `count` from `first` on. */
static unsigned lanes_from(unsigned lanes, int first, int count) {
  return lanes & (uint32_t)((UINT64_C(1) << count) - 1) << first;
}

static void count_banks(const Request *request, LabTraffic *traffic) {
  int pass_lanes = lanes_of_pass(request->size);
  if (request->kind == LAB_SHARED_LOAD && pass_lanes < WARP_SIZE &&
      (read_in_pairs(request, 1) || read_in_pairs(request, 2))) {
    pass_lanes *= 2;
  }
  for (int first = 0; first < WARP_SIZE; first += pass_lanes) {
    const unsigned lanes = lanes_from(request->lanes, first, pass_lanes);
    if (lanes != 0) lab_add_wavefronts(traffic, ways_of(request, lanes));
  }
}

/**
 * cp.async: the data that it reads is written to the banks without wavefronts of the load/store
 * unit. The zeros of lanes that read nothing are stored eight lanes at a time.
 */
static void count_copy_banks(const Request *request, LabTraffic *traffic) {
  unsigned zeros = 0;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (request->lanes >> lane & 1 && request->copies[lane] == 0) zeros |= 1u << lane;
  }
  for (int first = 0; first < WARP_SIZE; first += COPY_LANES) {
    const unsigned stored = lanes_from(zeros, first, COPY_LANES);
    if (stored != 0) lab_add_wavefronts(traffic, ways_of(request, stored));
  }
}

static void add_matrices(const void *const *rows, int matrices, LabTraffic *traffic) {
  Pass pass;
  for (int i = 0; i < matrices; i++) {
    begin_pass(&pass);
    for (int row = 0; row < 8; row++) {
      add_words(&pass, (uintptr_t)rows[8 * i + row], COPY_BYTES);
    }
    lab_add_wavefronts(traffic, most_words(&pass));
  }
  traffic->requests++;
  traffic->bytes += (uint64_t)matrices * 8 * COPY_BYTES;
}

void lab_count_matrices(LabWorker *lab, LabAccessKind kind, const void *const *rows, int matrices,
                        uint32_t pc) {
  LabCounts *counts = lab_counts(&lab->sites, pc);
  add_matrices(rows, matrices, lab_traffic_of(counts, kind));
  if (!(lab->checks & LAB_ACCESSES)) return;
  LabTraffic own = {0};
  uintptr_t addresses[WARP_SIZE];
  for (int i = 0; i < 8 * matrices; i++) addresses[i] = (uintptr_t)rows[i];
  add_matrices(rows, matrices, &own);
  lab_note_first(lab, kind, pc, lab_thread(lab) / WARP_SIZE, COPY_BYTES,
                 (uint32_t)((UINT64_C(1) << 8 * matrices) - 1), addresses, &own);
}

/* --- Requests ------------------------------------------------------------------------------- */

static void add_request(const Request *request, LabTraffic *traffic) {
  traffic->requests++;
  traffic->bytes += (uint64_t)__builtin_popcount(request->lanes) * request->size;
  if (!lab_access_is_shared(request->kind)) {
    count_sectors(request, traffic);
  } else if (request->kind == LAB_COPY_SHARED) {
    count_copy_banks(request, traffic);
  } else {
    count_banks(request, traffic);
  }
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
