/**
 * @file
 * BANKS: the accesses of the steps to their tiles. The lab records the first access of each
 * instruction of a step's kernel. In other layouts than its own, the same rows and columns are
 * accessed by the same instruction once more, and the lab counts again.
 */
#include <stdio.h>
#include <string.h>

#include "block_mask.h"
#include "explorer_data.h"

/* --- The steps -------------------------------------------------------------------------------- */

#define EXPLORE(step, ...) extern "C" const Step step##_checked;
#include "explored.h"
#undef EXPLORE

struct Explored {
  const char *name;
  const Step *step;
  Layout own;
  int buffers;   // of BLOCK_N rows, for K and V together, at least
  int accesses;  // that are found in its kernel
};

#define EXPLORE(step, ...) {&#step[sizeof "step" - 1], &step##_checked, __VA_ARGS__},
static const Explored EXPLORED[] = {
#include "explored.h"
};

/** The layout of a step's own tiles. Tensor copies make the widest panels that fit. */
static Layout own_layout(const Explored &explored, int head_dim) {
  return exists(head_dim, explored.own) ? explored.own : PANELS_32;
}

constexpr int HEAD_DIMS[] = {32, 64, 96, 128, 256};

/** Half of the keys fit the queries much better than the others, so that a step with
 * a rarely raised maximum has to compute scores again. */
static void fill(uint16_t *q, uint16_t *k, int head_dim) {
  const int half = TOKENS * head_dim;
  for (int i = 0; i < 2 * half; i++) k[i] = i < half ? 0 : 0x3c00;  // 1
  for (int i = 0; i < half; i++) q[i] = 0x3c00;
}

/** The problem that a step solves: one head, no mask. */
static Problem problem_of(const Step *explored, int head_dim) {
  const bool blocks = explored->block_masks != NULL;
  const int keys = explored->workspace_zero ? 2 * TOKENS : TOKENS;
  const Strides strides = {TOKENS * head_dim, TOKENS * head_dim, head_dim};
  const Strides kv_strides = {keys * head_dim, keys * head_dim, head_dim};
  return {.batch = 1,
          .q_heads = 1,
          .kv_heads = 1,
          .q_len = TOKENS,
          .kv_len = keys,
          .head_dim = head_dim,
          .scale = 1.0f,
          .q_block_size = blocks ? TOKENS : 0,
          .kv_block_size = blocks ? TOKENS : 0,
          .q_strides = strides,
          .k_strides = kv_strides,
          .v_strides = kv_strides,
          .o_strides = strides};
}

/** Does a step take this head dimension? */
static bool takes(const Step *explored, int head_dim) {
  char why[256];
  const Problem p = problem_of(explored, head_dim);
  return explored->supports == NULL || explored->supports(&p, why, sizeof why);
}

/** Runs a step once under the lab. */
static void run_step(const Step *explored, int head_dim, Description *description,
                     LabResults *results) {
  static uint16_t q[TOKENS * MAX_HEAD_DIM], k[2 * TOKENS * MAX_HEAD_DIM];
  static const uint16_t zeros[2 * TOKENS * MAX_HEAD_DIM] = {};
  const bool blocks = explored->block_masks != NULL;
  const Problem p = problem_of(explored, head_dim);
  if (explored->workspace_zero) fill(q, k, head_dim);
  Tensors t = {.q = device_memory(sizeof q, q),
               .k = device_memory(sizeof k, k),
               .v = device_memory(sizeof zeros, zeros),
               .o = device_memory(sizeof zeros, NULL),
               .lse = (float *)device_memory(TOKENS * sizeof(float), NULL)};
  check(simt_name_allocation(t.k, "K"));
  const int32_t one_block[] = {1, 0, BLOCK_FULL, 0};
  const int32_t *list = (const int32_t *)device_memory(sizeof one_block, one_block);
  const BlockMask mask = {.q_block_size = TOKENS,
                          .kv_block_size = TOKENS,
                          .q_blocks = 1,
                          .max_slots = 1,
                          .batches = 1,
                          .heads = 1,
                          .kv_num_blocks = list,
                          .kv_indices = list + 1,
                          .block_mask_types = list + 2,
                          .partial_block_mask_indices = list + 3};
  if (blocks) {
    t.block_mask = &mask;
    t.prepared = device_memory(explored->block_masks->prepared_bytes(&p, &mask), NULL);
    check(explored->block_masks->prepare(&p, &mask, t.prepared, 0));
  }
  if (explored->workspace_bytes != NULL) {  // Step::workspace_zero: some steps need zeros
    t.workspace = device_memory(explored->workspace_bytes(&p), zeros);
  }
  explored->describe(&p, 1, description);
  lab_start(LAB_TRAFFIC | LAB_BANKS | LAB_ACCESSES);
  check(explored->forward(&p, &t, 1, 0));
  check(cudaDeviceSynchronize());
  lab_take_results(results);
}

/* --- The tiles of a step ---------------------------------------------------------------------- */

enum TileName { TILE_Q, TILE_K, TILE_V, TILE_O };

/** Where a tile is in shared memory. */
struct Tile {
  int start, rows;
};

/** The first tiles of a step that has them by consumer or warp: Q, O, then K. Threads access the
 * tile of K in which the scores grow, and none of V. */
static void find_panels(int head_dim, const Description &d, Tile (&tiles)[4]) {
  const int row = 2 * head_dim;
  tiles[TILE_Q] = {0, 64};
  tiles[TILE_O] = {d.block_m * row, 16};
  const int before = TOKENS / d.block_n * d.block_n;  // keys: see fill()
  tiles[TILE_K] = {(2 * d.block_m + before) * row, d.block_n};
  tiles[TILE_V] = {};
}

/** The first tile of Q, of K and of V; O is collected in the rows of Q. Step 06 has more than tiles
 * in shared memory. */
static void find_tiles(const Explored &explored, int head_dim, const Description &d,
                       Tile (&tiles)[4]) {
  const int row = row_bytes(head_dim, explored.own);
  const int expected = (d.block_m + explored.buffers * d.block_n) * row;
  const int bytes = (int)d.launches[0].dynamic_shared_bytes;
  if (explored.own == SWIZZLED ? bytes < expected : bytes != expected) {
    fail("step %s, D = %d: %d bytes of shared memory, the tiles have %d", explored.name, head_dim,
         bytes, expected);
  }
  tiles[TILE_Q] = tiles[TILE_O] = {0, d.block_m};
  tiles[TILE_K] = {d.block_m * row, d.block_n};
  tiles[TILE_V] = {tiles[TILE_K].start + explored.buffers / 2 * d.block_n * row, d.block_n};
}

/* --- Lines of source, which accesses refer to ------------------------------------------------- */

struct SourceLine {
  char file[64];
  int line;
  char text[128];
};

static SourceLine lines[256];
static int line_count;

static int line_of(const LabAccess *access) {
  for (int i = 0; i < line_count; i++) {
    if (lines[i].line == access->line && strcmp(lines[i].file, access->file) == 0) return i;
  }
  if (line_count == sizeof lines / sizeof *lines) fail("more than %d lines", line_count);
  SourceLine *own = &lines[line_count];
  snprintf(own->file, sizeof own->file, "%s", access->file);
  own->line = access->line;
  FILE *file = fopen(access->file, "r");
  if (file == NULL) fail("%s: cannot be read", access->file);
  for (int i = 0; i < access->line; i++) {
    if (fgets(own->text, sizeof own->text, file) == NULL) fail("%s: is too short", access->file);
  }
  fclose(file);
  own->text[strcspn(own->text, "\n")] = '\0';
  return line_count++;
}

static void print_line(const SourceLine *line) {
  printf("{\"file\": \"%s\", \"line\": %d, \"text\": \"", line->file, line->line);
  for (const char *c = line->text + strspn(line->text, " "); *c != '\0'; c++) {
    printf(*c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
  }
  printf("\"}");
}

/* --- Finding accesses ------------------------------------------------------------------------- */

struct Wanted {
  const char *name;
  LabAccessKind kind;
  unsigned size;
  TileName tile;
  bool transposed;
};

static const Wanted WANTED[] = {
    {"k_ldmatrix", LAB_LDMATRIX, 16, TILE_K, false},
    {"q_ldmatrix", LAB_LDMATRIX, 16, TILE_Q, false},
    {"v_ldmatrix", LAB_LDMATRIX, 16, TILE_V, true},
    {"k_loads", LAB_SHARED_LOAD, 4, TILE_K, false},
    {"q_loads", LAB_SHARED_LOAD, 4, TILE_Q, false},
    {"v_loads", LAB_SHARED_LOAD, 2, TILE_V, false},
    {"k_stores", LAB_SHARED_STORE, 16, TILE_K, false},
    {"k_copies", LAB_COPY_SHARED, 16, TILE_K, false},
    {"o_stores", LAB_SHARED_STORE, 4, TILE_O, false},
    {"o_loads", LAB_SHARED_LOAD, 16, TILE_O, false},
};

/** The access of that kind whose lane 0 is first in these bytes, or NULL. */
static const LabAccess *find_access(const LabResults &results, const Wanted &wanted, int start,
                                    int bytes) {
  const LabAccess *found = NULL;
  for (size_t i = 0; i < results.access_count; i++) {
    const LabAccess *access = &results.accesses[i];
    if (access->kind != wanted.kind || access->size != wanted.size) continue;
    if (access->lanes != ~0u || access->offsets[0] - start >= (uint64_t)bytes) continue;
    const bool transposed = strstr(lines[line_of(access)].text, "_trans(") != NULL;
    if (transposed != wanted.transposed) continue;
    if (found == NULL || access->offsets[0] < found->offsets[0]) found = access;
  }
  return found;
}

/** What the copies of K read; NULL for other accesses. */
static const LabAccess *find_sources(const LabResults &results, const LabAccess *found) {
  if (found->kind != LAB_COPY_SHARED) return NULL;
  for (size_t i = 0; i < results.access_count; i++) {
    const LabAccess *access = &results.accesses[i];
    if (access->kind == LAB_COPY_GLOBAL && strcmp(access->memory[0], "K") == 0) return access;
  }
  fail("no cp.async reads K");
}

/* --- Printing --------------------------------------------------------------------------------- */

/** Each pattern of addresses is printed once; accesses refer to it. */
static Access patterns[2048];
static int pattern_count;

static int pattern_of(const Access &access) {
  for (int i = 0; i < pattern_count; i++) {
    if (patterns[i].size == access.size &&
        memcmp(patterns[i].offsets, access.offsets, sizeof access.offsets) == 0) {
      return i;
    }
  }
  if (pattern_count == sizeof patterns / sizeof *patterns) fail("too many patterns");
  patterns[pattern_count] = access;
  return pattern_count++;
}

/** The beginning of tiles: of each 16 bytes, 64 * row + chunk, or -1. Each is printed once. */
constexpr int MAP_PLACES = 512;
static int maps[128][MAP_PLACES];
static int map_count;

static int map_of(const Shape &shape) {
  if (map_count == sizeof maps / sizeof *maps) fail("too many maps");
  int(&map)[MAP_PLACES] = maps[map_count];
  for (int &place : map) place = -1;
  for (int row = 0; row < shape.rows; row++) {
    for (int chunk = 0; chunk < shape.columns / 8; chunk++) {
      const uint32_t place = place_in(shape, row, 16 * chunk) / 16;
      if (place < MAP_PLACES) map[place] = 64 * row + chunk;
    }
  }
  int i = 0;
  while (memcmp(maps[i], map, sizeof map) != 0) i++;
  map_count += i == map_count;
  return i;
}

/** Prints what the lab counts in one layout. In the step's own layout the lab must have counted the
 * same in the step. The wavefronts of cp.async are those of its zeros. */
static void print_layout(Access access, const Shape &shape, bool is_own, const LabAccess *found,
                         const LabAccess *sources) {
  const Counted counted = count_access(access);
  const bool as_in_step = counted.traffic.wavefronts == found->traffic.wavefronts &&
                          (sources == NULL || counted.sectors == sources->traffic.sectors);
  if (is_own && !as_in_step) fail("%s:%d: not the counts of the step", found->file, found->line);
  access.zeros = sources != NULL;
  const LabTraffic drawn = count_access(access).traffic;
  int waves[LANES];
  if (assign_waves(access, waves) != (int)drawn.wavefronts) {
    fail("%s:%d: the lab counts %d wavefronts", found->file, found->line, (int)drawn.wavefronts);
  }
  printf(
      "%s\n      {\"pattern\": %d, \"row_bytes\": %d, \"wavefronts\": %d, \"ideal\": %d, "
      "\"sectors\": %d, \"map\": %d}",
      shape.layout == 0 ? "" : ",", pattern_of(access), row_bytes(shape.columns, shape.layout),
      (int)drawn.wavefronts, (int)drawn.ideal_wavefronts, (int)counted.sectors, map_of(shape));
}

/** The row of a tile, and the byte in it, at this offset. */
static void find_place(const Shape &shape, int offset, int &row, int &at) {
  for (row = 0; row < shape.rows; row++) {
    for (at = 0; at < 2 * shape.columns; at += 2) {
      if ((int)place_in(shape, row, at) == offset) return;
    }
  }
  fail("offset %d is in no row of %d columns", offset, shape.columns);
}

/** Prints one access in all layouts, given where it is in the step's own one. */
static void print_layouts(const LabAccess *found, const LabAccess *sources, bool transposed,
                          const Shape &own, int start) {
  int rows[LANES], at[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    const int offset = (int)found->offsets[lane] - start;
    find_place(own, offset, rows[lane], at[lane]);
    if (offset / 4 % 32 != found->banks[lane]) fail("the tile does not start at bank 0");
  }
  for (int layout = 0; layout < LAYOUTS; layout++) {
    const Shape shape = {own.columns, own.rows, (Layout)layout};
    if (!exists(own.columns, shape.layout)) {
      printf(", null");
      continue;
    }
    Access access;
    memset(&access, 0, sizeof access);  // its padding, too: accesses are compared as bytes
    access.kind = found->kind;
    access.transposed = transposed;
    access.size = found->size;
    for (int lane = 0; lane < LANES; lane++) {
      access.offsets[lane] = place_in(shape, rows[lane], at[lane]);
      if (sources != NULL) access.sources[lane] = (uint32_t)sources->offsets[lane];
    }
    print_layout(access, shape, layout == own.layout, found, sources);
  }
}

static void print_accesses(const Explored &explored, int head_dim, bool *first) {
  Description description;
  LabResults results;
  Tile tiles[4];
  const Layout own = own_layout(explored, head_dim);
  int found_count = 0;
  run_step(explored.step, head_dim, &description, &results);
  if (explored.own == PANELS_64) {
    find_panels(head_dim, description, tiles);
  } else {
    find_tiles(explored, head_dim, description, tiles);
  }
  for (const Wanted &wanted : WANTED) {
    const Tile tile = tiles[wanted.tile];
    const int bytes = tile.rows * (own >= PANELS_64 ? 2 * head_dim : row_bytes(head_dim, own));
    const LabAccess *found = find_access(results, wanted, tile.start, bytes);
    if (found == NULL) continue;
    found_count++;
    // At D = 256, a warp of step 06 has one half of the columns of O.
    const bool half = explored.own == SWIZZLED && head_dim == 256 && wanted.name[0] == 'o';
    const int columns = half ? head_dim / 2 : head_dim;
    printf(
        "%s\n    {\"step\": \"%s\", \"dim\": %d, \"access\": \"%s\", \"own\": %d, "
        "\"columns\": %d, \"size\": %u, \"start\": %d, \"line\": %d, \"layouts\": [",
        *first ? "" : ",", explored.name, head_dim, wanted.name, own, columns, wanted.size,
        tile.start, line_of(found));
    print_layouts(found, find_sources(results, found), wanted.transposed, {columns, tile.rows, own},
                  tile.start);
    printf("]}");
    *first = false;
  }
  if (found_count != explored.accesses) {
    fail("step %s, D = %d: %d accesses, expected %d", explored.name, head_dim, found_count,
         explored.accesses);
  }
  lab_free_results(&results);
}

static void print_pattern(const Access &access) {
  int offsets[LANES], waves[LANES];
  for (int lane = 0; lane < LANES; lane++) offsets[lane] = (int)access.offsets[lane];
  assign_waves(access, waves);
  printf("{");
  print_integers("offsets", offsets, LANES);
  printf(", ");
  print_integers("waves", waves, LANES);
  printf("}");
}

void print_banks() {
  bool first = true;
  printf("const BANKS = {\n  \"accesses\": [");
  for (const Explored &explored : EXPLORED) {
    for (int head_dim : HEAD_DIMS) {
      if (takes(explored.step, head_dim)) print_accesses(explored, head_dim, &first);
    }
  }
  printf("],\n  \"patterns\": [");
  for (int i = 0; i < pattern_count; i++) {
    printf(i == 0 ? "\n    " : ",\n    ");
    print_pattern(patterns[i]);
  }
  printf("],\n  \"maps\": [");
  for (int i = 0; i < map_count; i++) {
    printf(i == 0 ? "\n    {" : ",\n    {");
    print_integers("chunks", maps[i], MAP_PLACES);
    printf("}");
  }
  printf("],\n  \"lines\": [");
  for (int i = 0; i < line_count; i++) {
    printf(i == 0 ? "\n    " : ",\n    ");
    print_line(&lines[i]);
  }
  printf("]\n};\n");
}
