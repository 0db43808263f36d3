#include "host/io/cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/values.h"
#include "host/io/npy.h"
#include "host/io/random.h"

/* Streams of random numbers that the inputs and masks do not use. */
enum { STREAM_LENGTHS = 40, STREAM_PAGES = 41 };

static const NpyTypes INT32_TYPES = {1 << NPY_I4, "<i4 (int32)"};

bool is_page_size(int64_t keys) {
  return keys >= MIN_PAGE_SIZE && keys <= MAX_PAGE_SIZE && (keys & (keys - 1)) == 0;
}

void cache_free(Cache *cache) {
  free(cache->lengths);
  free(cache->page_table);
  free(cache->page_rows);
  *cache = (Cache){0};
}

/* --- Lengths ---------------------------------------------------------------------------------- */

/** A + (B - A) u with the logarithms of the numbers: A (B / A)^u, of products and roots alone, so
 * that every machine draws the same. */
static int log_uniform(int least, int most, double u) {
  double x = least, root = (double)most / least;
  for (int bit = 0; bit < 32; bit++) {
    root = sqrt(root);
    u *= 2;
    if (u >= 1) x *= root;
    u -= u >= 1;
  }
  return (int)x < most ? (int)x : most;
}

/** Parses "A-B" and draws from it. */
static bool draw_lengths(const char *text, const char *range, bool log, int batch, int most,
                         uint64_t seed, Cache *cache, Error *error) {
  char first[16] = "";
  const char *dash = strchr(range, '-');
  int64_t a, b;
  Error unused;
  if (dash != NULL && dash - range < (int)sizeof first)
    memcpy(first, range, (size_t)(dash - range));
  if (!parse_integer("", first, log, most, &a, &unused) ||
      !parse_integer("", dash + 1, a, most, &b, &unused)) {
    return fail(error, EXIT_USAGE, "--lengths %s: must be %sA-B with %d <= A <= B <= %d", text,
                log ? "log:" : "", log, most);
  }
  for (int i = 0; i < batch; i++) {
    const uint64_t index = (uint64_t)i;
    cache->lengths[i] =
        log ? log_uniform((int)a, (int)b, random_uniform(seed, STREAM_LENGTHS, index))
            : (int)(a +
                    (int64_t)(random_bits(seed, STREAM_LENGTHS, index) % (uint64_t)(b - a + 1)));
  }
  return true;
}

/** Parses "5,9". */
static bool list_lengths(const char *text, int batch, int most, Cache *cache, Error *error) {
  int count = 0;
  for (const char *at = text; at != NULL; count++) {
    char number[16] = "";
    int64_t length;
    Error unused;
    const size_t digits = strcspn(at, ",");
    if (digits < sizeof number) memcpy(number, at, digits);
    if (!parse_integer("", number, 0, most, &length, &unused)) {
      return fail(error, EXIT_USAGE,
                  "--lengths %s: length %d is \"%.*s\", must be an integer from 0 to %d", text,
                  count, (int)digits, at, most);
    }
    if (count < batch) cache->lengths[count] = (int)length;
    at = at[digits] == ',' ? at + digits + 1 : NULL;
  }
  return count == batch ||
         fail(error, EXIT_USAGE, "--lengths %s: %d lengths, must be one for each of --batch %d",
              text, count, batch);
}

static bool allocate_lengths(int batch, Cache *cache, Error *error) {
  cache->lengths = malloc(sizeof *cache->lengths * (size_t)batch);
  return cache->lengths != NULL || fail(error, EXIT_DEVICE, "out of host memory: lengths");
}

bool cache_set_lengths(const char *text, int batch, int most, uint64_t seed, Cache *cache,
                       Error *error) {
  const size_t size = text == NULL ? 0 : strlen(text);
  if (size > 4 && strcmp(text + size - 4, ".npy") == 0) {
    return cache_read_lengths(text, batch, most, cache, error);
  }
  if (!allocate_lengths(batch, cache, error)) return false;
  if (text == NULL) {
    for (int b = 0; b < batch; b++) cache->lengths[b] = most;
    return true;
  }
  const bool log = strncmp(text, "log:", 4) == 0;
  return log || (strchr(text, ',') == NULL && strchr(text, '-') > text)
             ? draw_lengths(text, text + 4 * log, log, batch, most, seed, cache, error)
             : list_lengths(text, batch, most, cache, error);
}

bool cache_read_lengths(const char *path, int batch, int most, Cache *cache, Error *error) {
  NpyArray file;
  if (!npy_read(path, INT32_TYPES, &file, error)) return false;
  bool ok =
      (file.rank == 1 && file.shape[0] == batch) ||
      fail(error, EXIT_USAGE, "%s: must be [B], one length for each sequence: [%d]", path, batch);
  const int32_t *lengths = file.data;
  for (int b = 0; ok && b < batch; b++) {
    ok = (lengths[b] >= 0 && lengths[b] <= most) ||
         fail(error, EXIT_USAGE, "%s: element [%d] is %d, must be from 0 to %d", path, b,
              lengths[b], most);
  }
  ok = ok && allocate_lengths(batch, cache, error);
  if (ok) memcpy(cache->lengths, lengths, file.bytes);
  npy_free(&file);
  return ok;
}

int cache_longest(const Cache *cache, int batch) {
  int longest = 1;
  for (int b = 0; b < batch; b++) {
    if (cache->lengths[b] > longest) longest = cache->lengths[b];
  }
  return longest;
}

/* --- Pages ------------------------------------------------------------------------------------ */

/** Allocates a table in which no sequence has a page. */
static bool allocate_pages(const Problem *p, int stride, int pages, Cache *cache, Error *error) {
  const size_t entries = (size_t)p->batch * (size_t)stride;
  cache->table_stride = stride;
  cache->pages = pages;
  cache->page_table = malloc(sizeof *cache->page_table * entries);
  cache->page_rows = calloc((size_t)pages, sizeof *cache->page_rows);
  if (cache->page_table == NULL || cache->page_rows == NULL) {
    return fail(error, EXIT_DEVICE, "out of host memory: page table");
  }
  for (size_t i = 0; i < entries; i++) cache->page_table[i] = NO_PAGE;
  return true;
}

/** Gives page `index` of a sequence a number. */
static void set_page(const Problem *p, Cache *cache, int batch, int index, int page) {
  const int left = cache->lengths[batch] - index * p->page_size;
  const int rows = left < p->page_size ? left : p->page_size;
  cache->page_table[(int64_t)batch * cache->table_stride + index] = page;
  if (rows > cache->page_rows[page]) cache->page_rows[page] = rows;
}

bool cache_draw_pages(const Problem *p, uint64_t seed, Cache *cache, Error *error) {
  int64_t needed = 0;
  for (int b = 0; b < p->batch; b++) needed += page_count(p, cache->lengths[b]);
  const int64_t pages = needed + needed / 16 + 2;
  if (pages > INT32_MAX) return fail(error, EXIT_USAGE, "--page-size %d: too many", p->page_size);
  if (!allocate_pages(p, page_count(p, p->kv_len), (int)pages, cache, error)) return false;
  int *order = malloc(sizeof *order * (size_t)pages);
  if (order == NULL) return fail(error, EXIT_DEVICE, "out of host memory: page table");
  for (int i = 0; i < pages; i++) { /* puts each page before, or at the end of, those in order */
    const int at = (int)(random_bits(seed, STREAM_PAGES, (uint64_t)i) % (uint64_t)(i + 1));
    order[i] = order[at];
    order[at] = i;
  }
  int64_t next = 0;
  for (int b = 0; b < p->batch; b++) {
    for (int i = 0; i < page_count(p, cache->lengths[b]); i++) {
      set_page(p, cache, b, i, order[next++]);
    }
  }
  free(order);
  return true;
}

/** Copies what the lengths need of a table. */
static bool take_pages(const char *path, const Problem *p, const NpyArray *file, Cache *cache,
                       Error *error) {
  const int32_t *table = file->data;
  for (int b = 0; b < p->batch; b++) {
    for (int i = 0; i < page_count(p, cache->lengths[b]); i++) {
      const int page = table[b * file->shape[1] + i];
      if (page < 0 || page >= cache->pages) {
        return fail(error, EXIT_USAGE, "%s: element [%d, %d] is %d, must be a page, from 0 to %d",
                    path, b, i, page, cache->pages - 1);
      }
      set_page(p, cache, b, i, page);
    }
  }
  return true;
}

bool cache_read_pages(const char *path, const Problem *p, int pages, Cache *cache, Error *error) {
  NpyArray file;
  if (!npy_read(path, INT32_TYPES, &file, error)) return false;
  const int least = page_count(p, p->kv_len);
  int longest = 0; /* which sequence is */
  while (longest + 1 < p->batch && cache->lengths[longest] < p->kv_len) longest++;
  bool ok =
      (file.rank == 2 && file.shape[0] == p->batch && file.shape[1] >= least &&
       file.shape[1] <= INT32_MAX) ||
      fail(error, EXIT_USAGE,
           "%s: must be [B, pages of the longest sequence]: [%d, %d] or more, as element [%d] of "
           "lengths.npy is %d",
           path, p->batch, least, longest, cache->lengths[longest]);
  ok = ok && allocate_pages(p, (int)file.shape[1], pages, cache, error) &&
       take_pages(path, p, &file, cache, error);
  npy_free(&file);
  return ok;
}

int64_t cache_rows(const Problem *p, const Cache *cache) {
  int64_t rows = 0;
  for (int i = 0; p->window == 0 && i < cache->pages; i++) rows += cache->page_rows[i];
  if (rows > 0) return rows;
  for (int b = 0; b < p->batch; b++) {
    const int64_t seen = p->window > 0 ? (int64_t)p->window + p->q_len - 1 : INT64_MAX;
    rows += min_int64(cache->lengths[b], seen);
  }
  return rows;
}

Problem without_pages(const Problem *problem) {
  Problem p = *problem;
  if (p.page_size == 0) return p;
  p.k_strides = p.v_strides = (Strides){(int64_t)p.kv_heads * p.kv_len * p.head_dim,
                                        (int64_t)p.kv_len * p.head_dim, p.head_dim};
  return p;
}
