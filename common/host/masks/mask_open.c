/** @file Parses the text of --mask. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/base/memory.h"
#include "host/base/values.h"
#include "host/io/random.h"
#include "host/masks/mask.h"

enum { STREAM_RUNS = 102 };

/* Lengths of the runs of interleaved:S. An image is 64 to 576 = 24 x 24 patches. */
enum { LEAST_TEXT = 16, MOST_TEXT = 256, LEAST_IMAGE = 64, MOST_IMAGE = 576 };

/** The presets other than full and causal. An argument follows the name and a colon. */
static const struct {
  const char *name;
  MaskPreset preset;
  bool argument;
} PRESETS[] = {{"empty", PRESET_EMPTY, false},
               {"window", PRESET_WINDOW, true},
               {"document", PRESET_DOCUMENT, true},
               {"prefix", PRESET_PREFIX, true},
               {"interleaved", PRESET_INTERLEAVED, true},
               {"dilated", PRESET_DILATED, true},
               {"blocks", PRESET_BLOCKS, true},
               {"random", PRESET_RANDOM, true}};

static bool out_of_memory(const char *text, Error *error) {
  return fail(error, EXIT_DEVICE, "--mask %s: out of host memory", text);
}

/** Parses a number of the --mask text; messages call it `what`. */
static bool parse_number(const Mask *mask, const char *what, const char *argument, int64_t least,
                         int64_t most, int64_t *value, Error *error) {
  Error unused;
  return parse_integer("", argument, least, most, value, &unused) ||
         fail(error, EXIT_USAGE, "--mask %s: %s must be an integer from %lld to %lld", mask->text,
              what, (long long)least, (long long)most);
}

/** COUNT documents; the first kv_len % COUNT of them are one key longer. */
static bool equal_documents(Mask *mask, const char *argument, Error *error) {
  int64_t count;
  if (!parse_number(mask, "COUNT", argument, 1, mask->kv_len, &count, error)) return false;
  mask->run_count = (int)count;
  mask->run_ends = malloc(sizeof *mask->run_ends * (size_t)count);
  if (mask->run_ends == NULL) return out_of_memory(mask->text, error);
  const int64_t length = mask->kv_len / count, longer = mask->kv_len % count;
  for (int64_t i = 0; i < count; i++) {
    mask->run_ends[i] = (int32_t)((i + 1) * length + (i + 1 < longer ? i + 1 : longer));
  }
  return true;
}

/** L1,L2,...: lengths that add up to kv_len. */
static bool listed_documents(Mask *mask, const char *argument, Error *error) {
  size_t room = 2;
  for (const char *c = argument; *c != '\0'; c++) room += *c == ',';
  char *list = strdup(argument);
  mask->run_ends = malloc(sizeof *mask->run_ends * room);
  bool ok = list != NULL && mask->run_ends != NULL;
  if (!ok) out_of_memory(mask->text, error);
  int64_t sum = 0;
  for (char *at = list; ok && at != NULL;) {
    char *length_text = at;
    int64_t length;
    at = strchr(at, ',');
    if (at != NULL) *at++ = '\0';
    ok = parse_number(mask, "each length", length_text, 1, mask->kv_len, &length, error);
    if (ok) mask->run_ends[mask->run_count++] = (int32_t)(sum += length);
    if (ok && sum > mask->kv_len) break;
  }
  free(list);
  if (ok && sum != mask->kv_len) {
    return fail(error, EXIT_USAGE,
                "--mask %s: the lengths add up to %s%lld, must be --seqlen-kv %d", mask->text,
                sum > mask->kv_len ? "at least " : "", (long long)sum, mask->kv_len);
  }
  return ok;
}

static bool draw_runs(Mask *mask, const char *argument, Error *error) {
  uint64_t seed;
  Error unused;
  if (!parse_seed(argument, &seed, &unused)) {
    return fail(error, EXIT_USAGE, "--mask %s: the seed must be an integer from 0 to 2^64 - 1",
                mask->text);
  }
  /* The largest number of runs: text and images alternate, and all have the least length. */
  const size_t room = (size_t)(2 * (mask->kv_len / (LEAST_TEXT + LEAST_IMAGE)) + 2);
  mask->run_ends = malloc(sizeof *mask->run_ends * room);
  if (mask->run_ends == NULL) return out_of_memory(mask->text, error);
  int64_t end = 0;
  while (end < mask->kv_len) {
    const bool image = mask->run_count % 2 == 1;
    const int least = image ? LEAST_IMAGE : LEAST_TEXT, most = image ? MOST_IMAGE : MOST_TEXT;
    const uint64_t bits = random_bits(seed, STREAM_RUNS, (uint64_t)mask->run_count);
    end += least + (int64_t)(bits % (uint64_t)(most - least + 1));
    if (end > mask->kv_len) end = mask->kv_len;
    mask->run_ends[mask->run_count++] = (int32_t)end;
  }
  return true;
}

static bool parse_density(Mask *mask, const char *argument, Error *error) {
  Error unused;
  if (!parse_real("", argument, &mask->density, &unused) || mask->density < 0 ||
      mask->density > 1) {
    return fail(error, EXIT_USAGE, "--mask %s: the density must be a number from 0 to 1",
                mask->text);
  }
  return true;
}

/** Refuses random:X early if its PARTIAL tiles, a byte per entry, cannot fit: drawing is slow. */
static bool check_tiles(const Mask *mask, Error *error) {
  const double tile = (double)mask->q_block_size * mask->kv_block_size;
  const double blocks = ceil((double)mask->q_len / mask->q_block_size) *
                        ceil((double)mask->kv_len / mask->kv_block_size);
  const double mixed = mask->density < 1 ? -expm1(tile * log1p(-mask->density)) : 0;
  char what[512];
  snprintf(what, sizeof what, "--mask %.200s, --seqlen %d, --seqlen-kv %d", mask->text, mask->q_len,
           mask->kv_len);
  const double bytes = blocks * mixed * tile; /* only tried: given back at once */
  return memory_take(what, bytes, error) && memory_take(what, -bytes, error);
}

static bool parse_argument(Mask *mask, const char *argument, Error *error) {
  switch (mask->preset) {
    case PRESET_WINDOW:
      return parse_number(mask, "W", argument, 1, INT32_MAX, &mask->parameter, error);
    case PRESET_PREFIX:
      return parse_number(mask, "P", argument, 0, mask->kv_len, &mask->parameter, error);
    case PRESET_DILATED:
      return parse_number(mask, "K", argument, 1, INT32_MAX, &mask->parameter, error);
    case PRESET_DOCUMENT:
      return strchr(argument, ',') != NULL ? listed_documents(mask, argument, error)
                                           : equal_documents(mask, argument, error);
    case PRESET_INTERLEAVED:
      return draw_runs(mask, argument, error);
    case PRESET_RANDOM:
      return parse_density(mask, argument, error) && check_tiles(mask, error);
    default:
      return parse_density(mask, argument, error);
  }
}

/** A dense mask: [Nq, Nkv], [H, Nq, Nkv] or [B, H, Nq, Nkv]. */
static bool read_dense(Mask *mask, const Problem *p, Error *error) {
  mask->preset = PRESET_DENSE_FILE;
  if (!mask_read_bools(mask->text, &mask->dense, error)) return false;
  const NpyArray *a = &mask->dense;
  if (a->rank < 2 || a->rank > 4) {
    return fail(error, EXIT_USAGE,
                "%s: has %d dimension%s, must be [Nq, Nkv], [H, Nq, Nkv] or "
                "[B, H, Nq, Nkv]",
                mask->text, a->rank, a->rank == 1 ? "" : "s");
  }
  const int64_t *lengths = a->shape + a->rank - 2;
  if (lengths[0] != p->q_len || lengths[1] != p->kv_len) {
    return fail(error, EXIT_USAGE,
                "%s: is a mask of [Nq, Nkv] = [%lld, %lld], but the problem has [%d, %d]",
                mask->text, (long long)lengths[0], (long long)lengths[1], p->q_len, p->kv_len);
  }
  const int64_t heads = a->rank > 2 ? a->shape[a->rank - 3] : 1;
  const int64_t batches = a->rank > 3 ? a->shape[0] : 1;
  if ((heads != 1 && heads != p->q_heads) || (batches != 1 && batches != p->batch)) {
    return fail(
        error, EXIT_USAGE,
        "%s: is a mask of [B, H] = [%lld, %lld], but the problem has [%d, %d] (1 stands for "
        "all)",
        mask->text, (long long)batches, (long long)heads, p->batch, p->q_heads);
  }
  mask->heads = (int)heads;
  mask->batches = (int)batches;
  return true;
}

static bool read_directory(Mask *mask, const Problem *p, int q_block, int kv_block, Error *error) {
  mask->preset = PRESET_DIRECTORY;
  if (!block_mask_read(mask->text, p, q_block, kv_block, &mask->blocks, error)) return false;
  mask->batches = mask->blocks.mask.batches;
  mask->heads = mask->blocks.mask.heads;
  return true;
}

/** Counts the attended pairs, and finds out if each query attends at most one span. */
static bool count_entries(Mask *mask, Error *error) {
  int64_t entries = 0;
  int failures = 0, most_spans = 0;
#pragma omp parallel reduction(+ : entries, failures) reduction(max : most_spans)
  {
    KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(mask));
    failures += spans == NULL;
#pragma omp for collapse(3)
    for (int b = 0; b < mask->batches; b++) {
      for (int h = 0; h < mask->heads; h++) {
        for (int q = 0; q < mask->q_len; q++) {
          const int64_t alike = mask_rows_alike(mask, q);
          const int count = spans == NULL || alike == 0 ? 0 : mask_row(mask, b, h, q, spans);
          if (count > most_spans) most_spans = count;
          for (int i = 0; i < count; i++) entries += alike * (spans[i].end - spans[i].first);
        }
      }
    }
    free(spans);
  }
  mask->entries = entries;
  mask->one_span =
      most_spans <= 1 && mask->preset != PRESET_BLOCKS && mask->preset != PRESET_DIRECTORY;
  return failures == 0 || out_of_memory(mask->text, error);
}

/** Finds the preset that the text names; false if none does. */
static bool find_preset(const char *text, Mask *mask, const char **argument) {
  for (size_t i = 0; i < sizeof PRESETS / sizeof PRESETS[0]; i++) {
    const size_t length = strlen(PRESETS[i].name);
    const char end = PRESETS[i].argument ? ':' : '\0';
    if (strncmp(text, PRESETS[i].name, length) != 0 || text[length] != end) continue;
    mask->preset = PRESETS[i].preset;
    *argument = PRESETS[i].argument ? text + length + 1 : NULL;
    return true;
  }
  return false;
}

MaskKind mask_kind(const char *text) {
  return strcmp(text, "full") == 0     ? MASK_FULL
         : strcmp(text, "causal") == 0 ? MASK_CAUSAL
                                       : MASK_BLOCKS;
}

bool mask_names_directory(const char *text) {
  Mask mask;
  const char *argument;
  struct stat status;
  return mask_kind(text) == MASK_BLOCKS && !find_preset(text, &mask, &argument) &&
         stat(text, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool open_any(const char *text, const Problem *p, int mask_block_q, int mask_block_kv,
                     Mask *mask, Error *error) {
  const char *argument = NULL;
  if (find_preset(text, mask, &argument)) {
    return argument == NULL || parse_argument(mask, argument, error);
  }
  struct stat status;
  if (stat(text, &status) != 0) {
    return fail(error, EXIT_USAGE,
                "--mask %s: must be full, causal, window:W, document:COUNT or L1,L2,..., prefix:P, "
                "interleaved:SEED, dilated:K, blocks:DENSITY, random:DENSITY, empty, a .npy file "
                "or a directory of them; as a file: %s",
                text, strerror(errno));
  }
  return S_ISDIR(status.st_mode) ? read_directory(mask, p, mask_block_q, mask_block_kv, error)
                                 : read_dense(mask, p, error);
}

bool mask_open(const char *text, const Problem *p, int mask_block_q, int mask_block_kv,
               uint64_t seed, Mask *mask, Error *error) {
  Problem simple = *p;
  simple.mask = mask_kind(text);
  *mask = mask_simple(&simple); /* sets the lengths, and the entries of full and causal */
  if (simple.mask != MASK_BLOCKS) return true;
  mask->text = text;
  mask->one_span = false; /* not known yet */
  mask->seed = seed;
  mask->q_block_size = mask_block_q;
  mask->kv_block_size = mask_block_kv;
  const bool ok =
      open_any(text, p, mask_block_q, mask_block_kv, mask, error) && count_entries(mask, error);
  if (!ok) mask_free(mask);
  return ok;
}
