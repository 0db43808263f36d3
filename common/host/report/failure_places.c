/** @file Describes a set of indices as a short phrase. */
#include <inttypes.h>
#include <string.h>

#include "host/report/failure.h"

enum { SHORT_LIST = 4, MAX_PERIOD = 256 };

/* The set to describe. Unknown indices are neither faulty nor right. */
typedef struct IndexSet {
  FILE *out;
  const char *noun;
  const uint8_t *seen;
  int64_t n;
  int64_t faulty, right; /* how many; one that is both counts as faulty */
  int64_t first, last;   /* the outermost faulty ones */
} IndexSet;

static bool is_faulty(const IndexSet *set, int64_t i) {
  return set->seen[i] & INDEX_FAULTY;
}

static bool is_right(const IndexSet *set, int64_t i) {
  return set->seen[i] == INDEX_RIGHT;
}

static bool any_right(const IndexSet *set, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) {
    if (is_right(set, i)) return true;
  }
  return false;
}

static void list_indices(const IndexSet *set, bool (*belongs)(const IndexSet *, int64_t)) {
  const char *separator = "";
  for (int64_t i = 0; i < set->n; ++i) {
    if (!belongs(set, i)) continue;
    fprintf(set->out, "%s%" PRId64, separator, i);
    separator = ", ";
  }
}

/* Describes one unbroken range; false if the set is none. */
static bool describe_range(const IndexSet *set, const char *tile_noun, int tile) {
  if (any_right(set, set->first, set->last)) return false;
  const bool to_end = !any_right(set, set->last, set->n);
  const bool from_start = !any_right(set, 0, set->first);
  const int64_t end = to_end ? set->n : set->last + 1;
  const bool whole_tile = tile > 1 && set->first % tile == 0 && (end % tile == 0 || end == set->n);
  if (whole_tile && end - set->first <= tile) {
    fprintf(set->out, "%s %" PRId64 " (%ss %" PRId64 "..%" PRId64 ") wholly", tile_noun,
            set->first / tile, set->noun, set->first, end - 1);
  } else if (to_end) {
    fprintf(set->out, "all %ss from %" PRId64 " on (the last %" PRId64 " %ss)", set->noun,
            set->first, end - set->first, set->noun);
  } else if (from_start) {
    fprintf(set->out, "the first %" PRId64 " %ss", end, set->noun);
  } else {
    fprintf(set->out, "%ss %" PRId64 "..%" PRId64, set->noun, set->first, set->last);
  }
  return true;
}

/* Describes the same range of residues in every period; a period of a query tile has warps. */
static bool describe_period(const IndexSet *set, int period, bool has_warps) {
  if (period < 2 || period > MAX_PERIOD || 2 * period > set->n) return false;
  uint8_t residues[MAX_PERIOD] = {0};
  for (int64_t i = 0; i < set->n; ++i) residues[i % period] |= set->seen[i];
  IndexSet one = {.seen = residues, .n = period, .first = period, .last = -1};
  for (int r = 0; r < period; ++r) {
    const bool right = residues[r] & INDEX_RIGHT;
    if (is_faulty(&one, r)) {
      if (right) return false; /* right in some periods only */
      one.first = r < one.first ? r : one.first;
      one.last = r;
    }
  }
  if (any_right(&one, one.first, one.last)) return false;
  if (one.first == one.last) {
    fprintf(set->out, "%s %" PRId64 " of every %d", set->noun, one.first, period);
  } else {
    fprintf(set->out, "%ss %" PRId64 "..%" PRId64 " of every %d", set->noun, one.first, one.last,
            period);
  }
  if (has_warps && period > 16 && one.first / 16 == one.last / 16) {
    fprintf(set->out, " (rows %" PRId64 "..%" PRId64 " of warp %" PRId64 ", if a warp has 16)",
            one.first % 16, one.last % 16, one.first / 16);
  }
  return true;
}

/* Describes a set of whole tiles; false if the set is none. */
static bool describe_tiles(const IndexSet *set, const char *tile_noun, int tile) {
  if (tile < 2) return false;
  for (int64_t start = 0; start < set->n; start += tile) {
    uint8_t both = 0;
    for (int64_t i = start; i < set->n && i < start + tile; ++i) both |= set->seen[i];
    if (both == (INDEX_FAULTY | INDEX_RIGHT)) return false;
  }
  fprintf(set->out, "%ss", tile_noun);
  int64_t listed = -1, count = 0;
  for (int64_t i = set->first; i <= set->last; ++i) {
    if (!is_faulty(set, i) || i / tile == listed) continue;
    listed = i / tile;
    if (++count <= 8) fprintf(set->out, "%s %" PRId64, count == 1 ? "" : ",", listed);
  }
  fprintf(set->out, "%s, each wholly", count > 8 ? ", ..." : "");
  return true;
}

void describe_indices(FILE *out, const char *noun, const uint8_t *seen, int64_t n,
                      const char *tile_noun, int tile) {
  IndexSet set = {.out = out, .noun = noun, .seen = seen, .n = n, .first = n, .last = -1};
  for (int64_t i = 0; i < n; ++i) {
    set.right += is_right(&set, i);
    if (!is_faulty(&set, i)) continue;
    ++set.faulty;
    if (set.first == n) set.first = i;
    set.last = i;
  }
  if (set.faulty == 0) {
    fprintf(out, "no %s", noun);
  } else if (set.faulty == n) {
    fprintf(out, "every %s", noun);
  } else if (set.faulty == 1) {
    fprintf(out, "%s %" PRId64, noun, set.first);
  } else if (set.right == 0) {
    fprintf(out, "every checked %s", noun);
  } else if (describe_range(&set, tile_noun, tile)) {
    return;
  } else if (set.right <= SHORT_LIST && set.faulty > set.right) {
    fprintf(out, "every %s but ", noun);
    list_indices(&set, is_right);
  } else if (set.faulty <= SHORT_LIST) {
    fprintf(out, "%ss ", noun);
    list_indices(&set, is_faulty);
  } else {
    for (int period = 2; period <= 32; period *= 2) {
      if (describe_period(&set, period, false)) return;
    }
    if (describe_period(&set, tile, strcmp(tile_noun, "query tile") == 0)) return;
    if (describe_tiles(&set, tile_noun, tile)) return;
    fprintf(out, "%" PRId64 " of %" PRId64 " checked %ss, between %" PRId64 " and %" PRId64,
            set.faulty, set.faulty + set.right, noun, set.first, set.last);
  }
}
