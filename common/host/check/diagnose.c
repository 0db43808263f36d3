/**
 * @file
 * The diagnosis: computes one wrong row again with each common mistake of attention kernels. A
 * mistake is named only if it reproduces the wrong row within the tolerance.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/check.h"

/* The row to diagnose, and the best explanation so far. */
typedef struct Case {
  const Judgement *judgement;
  RowIndex row;
  double o[MAX_HEAD_DIM]; /* what the kernel wrote */
  Diagnosis *best;
} Case;

/* Unnormalised attention of a query over some keys of some key/value head. */
typedef struct Attention {
  RowIndex row;
  int kv_head;
  const int *pair; /* column of Q that column d of K is multiplied by, -1 for none; NULL: d */
  bool pair_of_k;  /* the same, K and Q exchanged */
  KeySpan *spans;  /* which keys */
  int span_count;
  int64_t end; /* of the last span */
  double max, sum;
  double total[MAX_HEAD_DIM]; /* sum of p v */
  double *p;                  /* [kv_len], 0 for masked keys */
} Attention;

/* Keeps the explanation if `numerator / denominator` is the closest to the row so far. LSE should
 * be max + log(denominator); an explanation that agrees with it is better than one that does not.
 */
__attribute__((format(printf, 5, 6))) static void explain(Case *c, double max,
                                                          const double *numerator,
                                                          double denominator, const char *format,
                                                          ...) {
  if (!(denominator > 0)) return;
  const Judgement *j = c->judgement;
  const int dim = j->problem->head_dim;
  const float lse = j->outputs->lse[lse_index(j->problem, c->row)];
  const bool agrees = lse_distance(lse, max + log(denominator), 0) <= 1;
  double candidate[MAX_HEAD_DIM];
  for (int d = 0; d < dim; ++d) candidate[d] = numerator[d] / denominator;
  const double distance = relative_distance(c->o, candidate, dim);
  if (!(distance <= j->result.allowed_error / 2)) return;
  Diagnosis *best = c->best;
  if (agrees == best->lse_agrees ? distance >= best->distance : best->lse_agrees) return;
  best->lse_agrees = agrees;
  best->distance = distance;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(best->text, sizeof best->text, format, arguments);
  va_end(arguments);
}

static const uint16_t *key_row(const Judgement *j, const Attention *a, int64_t key) {
  return j->inputs->k + row_offset(&j->problem->k_strides, a->row.batch, a->kv_head, key);
}

static double score(const Judgement *j, const Attention *a, int64_t key) {
  const Problem *p = j->problem;
  const RowIndex row = a->row;
  const uint16_t *q = j->inputs->q + row_offset(&p->q_strides, row.batch, row.head, row.q);
  const uint16_t *k = key_row(j, a, key);
  double sum = 0;
  for (int d = 0; d < p->head_dim; ++d) {
    const int other = a->pair == NULL ? d : a->pair[d];
    if (other < 0 || other >= p->head_dim) continue;
    sum += (double)element_value(p->dtype, q[a->pair_of_k ? d : other]) *
           element_value(cache_dtype(p), k[a->pair_of_k ? other : d]);
  }
  return sum * p->scale * scale_of(p, j->inputs->q_scales, row.batch, kv_head_of(p, row.head)) *
         scale_of(p, j->inputs->k_scales, row.batch, a->kv_head);
}

/* sum += prob * V[key] */
static void add_value(const Judgement *j, const Attention *a, double prob, int64_t key,
                      double *sum) {
  const Problem *p = j->problem;
  const uint16_t *v = j->inputs->v + row_offset(&p->v_strides, a->row.batch, a->kv_head, key);
  prob *= scale_of(p, j->inputs->v_scales, a->row.batch, a->kv_head);
  for (int d = 0; d < p->head_dim; ++d) sum[d] += prob * element_value(cache_dtype(p), v[d]);
}

/* Attention of a->row over a->spans of a->kv_head; fills the other fields. */
static void attend(const Judgement *j, Attention *a) {
  a->max = -INFINITY;
  a->sum = 0;
  a->end = a->span_count > 0 ? a->spans[a->span_count - 1].end : 0;
  memset(a->total, 0, sizeof a->total);
  memset(a->p, 0, sizeof *a->p * (size_t)j->problem->kv_len);
  for (int i = 0; i < a->span_count; ++i) {
    for (int64_t key = a->spans[i].first; key < a->spans[i].end; ++key) {
      a->p[key] = score(j, a, key);
      a->max = fmax(a->max, a->p[key]);
    }
  }
  for (int i = 0; i < a->span_count; ++i) {
    for (int64_t key = a->spans[i].first; key < a->spans[i].end; ++key) {
      a->p[key] = exp(a->p[key] - a->max);
      a->sum += a->p[key];
      add_value(j, a, a->p[key], key, a->total);
    }
  }
}

/* Tries the attention that `other` describes. */
#define TRY(c, other, ...)                                            \
  do {                                                                \
    attend((c)->judgement, &(other));                                 \
    explain(c, (other).max, (other).total, (other).sum, __VA_ARGS__); \
  } while (0)

/* total - part + other, element by element */
static void exchange(const Attention *a, const double *part, const double *other, double *result) {
  for (int d = 0; d < MAX_HEAD_DIM; ++d) result[d] = a->total[d] - part[d] + other[d];
}

/* Names a key: with its page, if it is in one. */
static const char *key_name(const Case *c, const Attention *a, int64_t key, char name[80]) {
  const Cache *cache = c->judgement->inputs->cache;
  const int page_size = c->judgement->problem->page_size;
  int used = snprintf(name, 80, "key %lld", (long long)key);
  if (cache == NULL) return name;
  const int64_t index = (int64_t)a->row.batch * cache->table_stride + key / page_size;
  snprintf(name + used, 80 - (size_t)used, ", in page %lld, number %d of the cache,",
           (long long)(key / page_size), cache->page_table[index]);
  return name;
}

static void try_lost_keys(Case *c, const Attention *a) {
  char name[80];
  for (int64_t key = 0; key < a->end; ++key) {
    double rest[MAX_HEAD_DIM];
    if (a->p[key] == 0) continue;
    memcpy(rest, a->total, sizeof rest);
    add_value(c->judgement, a, -a->p[key], key, rest);
    explain(c, a->max, rest, a->sum - a->p[key], "%s is missing", key_name(c, a, key, name));
  }
}

/* Keys that a kernel works on together: a key/value tile, or a page of a cache. */
typedef struct Unit {
  const char *name, *noun;
  int keys;
} Unit;

/* Tries K or V of the tile `shift` keys away in place of the tile of keys [first, last). */
static void try_stale_tile(Case *c, const Attention *a, Unit unit, const double *part,
                           double part_sum, int64_t first, int64_t last, int64_t shift) {
  const Judgement *j = c->judgement;
  double stale_v[MAX_HEAD_DIM] = {0}, stale_k[MAX_HEAD_DIM] = {0}, both[MAX_HEAD_DIM] = {0};
  double result[MAX_HEAD_DIM];
  double stale_k_sum = 0;
  if (first + shift < 0 || last + shift > mask_keys(j->inputs->mask, a->row.batch)) return;
  for (int64_t key = first; key < last; ++key) {
    if (a->p[key] == 0) continue; /* masked */
    const double p = exp(score(j, a, key + shift) - a->max);
    stale_k_sum += p;
    add_value(j, a, p, key, stale_k);
    add_value(j, a, p, key + shift, both);
    add_value(j, a, a->p[key], key + shift, stale_v);
  }
  const long long is = (first + shift) / unit.keys, should = first / unit.keys;
  exchange(a, part, stale_v, result);
  explain(c, a->max, result, a->sum, "V of %s %lld is stale: it is that of %s %lld", unit.name,
          should, unit.noun, is);
  exchange(a, part, stale_k, result);
  explain(c, a->max, result, a->sum - part_sum + stale_k_sum,
          "K of %s %lld is stale: it is that of %s %lld", unit.name, should, unit.noun, is);
  exchange(a, part, both, result);
  explain(c, a->max, result, a->sum - part_sum + stale_k_sum,
          "K and V of %s %lld are those of %s %lld", unit.name, should, unit.noun, is);
}

/* Tries a softmax denominator of too few or too many lanes. */
static void try_factors(Case *c, const Attention *a) {
  for (int power = -5; power <= 5; ++power) {
    const double factor = exp2(power);
    if (power == 0) continue;
    explain(c, a->max, a->total, a->sum / factor,
            "O is %g times what is expected: so is l, inversely", factor);
  }
}

static void try_tiles(Case *c, const Attention *a, Unit unit) {
  static const double nothing[MAX_HEAD_DIM];
  const int64_t tile = unit.keys;
  for (int64_t first = 0; first < a->end; first += tile) {
    const int64_t last = first + tile < a->end ? first + tile : a->end;
    double part[MAX_HEAD_DIM] = {0}, rest[MAX_HEAD_DIM], sum = 0;
    for (int64_t key = first; key < last; ++key) {
      sum += a->p[key];
      add_value(c->judgement, a, a->p[key], key, part);
    }
    const long long t = first / tile;
    exchange(a, part, nothing, rest);
    explain(c, a->max, rest, a->sum - sum, "%s %lld is missing", unit.name, t);
    explain(c, a->max, rest, a->sum, "V of %s %lld is missing", unit.name, t);
    for (int away = -2; away <= 2; ++away) { /* two stages of a pipeline */
      if (away != 0) try_stale_tile(c, a, unit, part, sum, first, last, away * tile);
    }
  }
}

/* Tries an online softmax that does not bring O, l or both to a new maximum. The keys come in
 * tiles, in order; a->p is relative to the last maximum. */
static void try_rescales(Case *c, const Attention *a) {
  const int64_t tile = c->judgement->tiles->block_n;
  double o[MAX_HEAD_DIM] = {0}, l = 0, max = 0; /* each tile relative to its own maximum */
  for (int64_t first = 0; first < a->end; first += tile) {
    const int64_t last = first + tile < a->end ? first + tile : a->end;
    for (int64_t key = first; key < last; ++key) max = fmax(max, a->p[key]);
    for (int64_t key = first; key < last; ++key) {
      if (a->p[key] == 0) continue;
      l += a->p[key] / max;
      add_value(c->judgement, a, a->p[key] / max, key, o);
    }
  }
  explain(c, a->max, o, a->sum, "O is not rescaled when a later tile of keys raises the maximum");
  explain(c, a->max, a->total, l,
          "the sum l is not rescaled when a later tile of keys raises the maximum");
  explain(c, a->max, o, l,
          "neither O nor l is rescaled when a later tile of keys raises the maximum, or by 1");
}

/* Tries keys of score 0 and value 0: rows of zeros that are not masked. */
static void try_zero_keys(Case *c, const Attention *a) {
  const int64_t tile = c->judgement->tiles->block_n;
  const int64_t keys = mask_keys(c->judgement->inputs->mask, a->row.batch);
  const int64_t padding = (tile - keys % tile) % tile;
  const double zero = exp(-a->max);
  double total[MAX_HEAD_DIM], sum = a->sum;
  memcpy(total, a->total, sizeof total);
  for (int64_t key = a->end; key < keys; ++key) {
    if (key % tile == 0) break;
    add_value(c->judgement, a, zero, key, total);
    sum += zero;
  }
  explain(c, a->max, total, sum, "masked keys take part with the score 0 instead of -inf");
  explain(c, a->max, a->total, a->sum + zero, "one more key takes part, of score 0 and value 0");
  if (padding > 0) {
    explain(c, a->max, a->total, a->sum + (double)padding * zero,
            "the %lld rows of zeros past the last key take part: they must be masked",
            (long long)padding);
  }
}

/* Tries other last keys for a row that attends keys 0 to end - 1, as full and causal masks do. */
static void try_alignments(Case *c, const Attention *a) {
  const int64_t tile = c->judgement->tiles->block_n;
  const int length = mask_keys(c->judgement->inputs->mask, a->row.batch);
  const struct {
    int64_t keys;
    const char *text;
  } wrong[] = {
      {length, c->row.q + 1 < length
                   ? "the mask is ignored: all keys are unmasked"
                   : "all keys are unmasked: no mask, or one aligned to the top left"},
      {(int64_t)c->row.q + 1, "the causal mask is aligned to the top left: k <= q"},
      {a->end - 1, "the last key that the mask allows is missing"},
      {a->end + 1, "one key more than the mask allows is unmasked"},
      {(a->end + tile - 1) / tile * tile, "the tile of keys on the diagonal is not masked"},
  };
  if (a->span_count != 1 || a->spans[0].first != 0) return;
  KeySpan span = a->spans[0];
  Attention other = *a;
  other.spans = &span;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    if (wrong[i].keys < 1 || wrong[i].keys > length || wrong[i].keys == a->end) continue;
    span.end = (int32_t)wrong[i].keys;
    TRY(c, other, "%s", wrong[i].text);
  }
}

/* Tries the lengths of other sequences of a batch, as far as this one has keys. */
static void try_lengths(Case *c, const Attention *a) {
  const Mask *mask = c->judgement->inputs->mask;
  const int length = mask_keys(mask, a->row.batch);
  Attention other = *a;
  KeySpan span = a->spans[0];
  other.spans = &span;
  for (int b = 0; mask->lengths != NULL && b < mask->batches; ++b) {
    if (mask->lengths[b] >= length) continue;
    span.end = a->spans[0].end - (length - mask->lengths[b]);
    if (span.end <= span.first) continue;
    TRY(c, other, "the length is %d, that of sequence %d, instead of %d", mask->lengths[b], b,
        length);
  }
}

/* Tries scores that are sums over wrong columns: columns left out or paired wrongly, in every 2, 4,
 * 8, ... columns, and fragments of 8 columns from a wrong place. */
static void try_columns(Case *c, const Attention *a) {
  static const char *const NAMES[] = {"Q", "K"};
  const int dim = c->judgement->problem->head_dim;
  int pair[MAX_HEAD_DIM];
  Attention other = *a;
  other.pair = pair;
  for (int period = 2; period < 2 * dim; period *= 2) {
    for (int part = period < 4 ? 4 : 0; part < 6; ++part) { /* four quarters, two halves */
      const int width = period / (part < 4 ? 4 : 2), first = part % 4 * width;
      for (int d = 0; d < dim; ++d) pair[d] = d % period / width * width == first ? -1 : d;
      TRY(c, other, "columns %d..%d of every %d are missing in Q K^T", first, first + width - 1,
          period);
    }
    for (int d = 0; d < dim; ++d) pair[d] = d ^ (period / 2);
    TRY(c, other, "the halves of every %d columns are exchanged in Q or in K", period);
    for (int side = 0; side < 2; ++side) {
      other.pair_of_k = side == 1;
      for (int d = 0; d < dim; ++d) pair[d] = d % period;
      TRY(c, other, "all columns of %s are multiplied by columns 0..%d of %s", NAMES[1 - side],
          period - 1, NAMES[side]);
    }
  }
  for (int i = 0; i < 20; ++i) { /* two sides, two halves of 16 columns, five places */
    const int half = i / 5 % 2 * 8, from = i % 5 * 2;
    other.pair_of_k = i / 10 == 1;
    for (int d = 0; d < dim; ++d) pair[d] = d % 16 / 8 * 8 == half ? d - half + from : d;
    TRY(c, other, "columns %d..%d of every 16 of %s are multiplied by columns %d..%d of %s", half,
        half + 7, NAMES[1 - i / 10], from, from + 7, NAMES[i / 10]);
  }
}

static void try_kv_heads(Case *c, const Attention *a) {
  Attention other = *a;
  for (int head = 0; head < c->judgement->problem->kv_heads; ++head) {
    if (head == a->kv_head) continue;
    other.kv_head = head;
    TRY(c, other, "K and V are those of key/value head %d instead of %d", head, a->kv_head);
  }
}

/* Tries the results of the other rows of the 16 in one tensor-core tile. */
static void try_rows(Case *c, const Attention *a) {
  const Problem *p = c->judgement->problem;
  const int first = c->row.q / 16 * 16;
  Attention other = *a;
  for (int q = first; q < first + 16 && q < p->q_len; ++q) {
    if (q == c->row.q) continue;
    other.row.q = q;
    other.span_count =
        mask_row(c->judgement->inputs->mask, other.row.batch, other.row.head, q, other.spans);
    if (other.span_count == 0) continue;
    TRY(c, other, "the row holds the result of row q=%d", q);
  }
}

static void explain_row(Case *c, Attention *a) {
  attend(c->judgement, a);
  const ReferenceRule *rule = &c->judgement->inputs->rule;
  if (rule->score != NULL || rule->sink != NULL) {
    explain(c, a->max, a->total, a->sum, "this is plain attention: the variant has no effect");
    return;
  }
  static const double zeros[MAX_HEAD_DIM];
  explain(c, -INFINITY, zeros, 1, "it is the row of a query that attends to no key");
  explain(c, a->max + log(a->sum), a->total, 1,
          "the final division by the softmax denominator is missing");
  try_factors(c, a);
  try_rescales(c, a);
  try_zero_keys(c, a);
  try_tiles(c, a, (Unit){"key/value tile", "tile", c->judgement->tiles->block_n});
  if (c->judgement->inputs->cache != NULL) {
    try_tiles(c, a, (Unit){"page", "page", c->judgement->problem->page_size});
  }
  try_lost_keys(c, a);
  try_alignments(c, a); /* overwrites a->p */
  try_lengths(c, a);
  try_kv_heads(c, a);
  if (!c->best->lse_agrees) try_columns(c, a); /* many, and slow with many keys */
  try_rows(c, a);                              /* overwrites a->spans */
}

bool diagnose_row(const Judgement *judgement, RowIndex row, Diagnosis *diagnosis, Error *error) {
  const Problem *p = judgement->problem;
  Case c = {.judgement = judgement, .row = row, .best = diagnosis};
  *diagnosis = (Diagnosis){.distance = INFINITY};
  const uint16_t *bits = output_row(judgement, row);
  for (int d = 0; d < p->head_dim; ++d) c.o[d] = element_value(p->o_dtype, bits[d]);

  const Mask *mask = judgement->inputs->mask;
  Attention a = {.row = row, .kv_head = kv_head_of(p, row.head)};
  a.p = malloc(sizeof *a.p * (size_t)p->kv_len);
  a.spans = malloc(sizeof *a.spans * (size_t)mask_most_spans(mask));
  if (!a.p || !a.spans) {
    free(a.p);
    free(a.spans);
    return fail(error, EXIT_DEVICE, "not enough memory for the report of the failure");
  }
  a.span_count = mask_row(mask, row.batch, row.head, row.q, a.spans);
  if (a.span_count > 0) explain_row(&c, &a);
  free(a.p);
  free(a.spans);
  return true;
}
