/**
 * @file
 * The diagnosis of gradients: computes one wrong row again with each common mistake of backward
 * kernels. A mistake is named only if it reproduces the wrong row within the tolerance.
 */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/gradient_check.h"
#include "host/check/reference_rows.h"

/* One wrong way to compute a row; all 0 is the right one. */
typedef struct Variant {
  bool no_d, plus_d, no_p, no_dp, no_lse; /* in P and dS */
  bool ds_for_p, dp_for_p, o_for_d_o;     /* of dV */
  bool all_keys, top_left;                /* the mask */
  int64_t away;                           /* it is the row so many rows away */
  int64_t from, to;                       /* rows of the other side, in one tile: */
  bool lost;                              /* they are left out */
  int64_t stale_s, stale_dp, stale_term;  /* read so many rows away, in one product */
  int only_head, without_head;            /* of the group, from 1 on */
  double factor;                          /* of the result; 0: 1 */
} Variant;

/* The row to explain, and the best explanation so far. */
typedef struct Case {
  const GradientJudgement *judgement;
  Gradient gradient;
  RowIndex row;
  double x[MAX_HEAD_DIM]; /* what the kernel wrote */
  char *text;
  double best;
} Case;

static void read_row(const GradientJudgement *j, const uint16_t *tensor, const Strides *strides,
                     RowIndex row, double *to) {
  convert_row(j->problem->dtype, tensor + row_offset(strides, row.batch, row.head, row.q), 1,
              j->problem->head_dim, to, 1);
}

/* The two vectors of a row of Q and dO, or of K and V. */
static void read_side(const GradientJudgement *j, bool keys, RowIndex row, double *a, double *b) {
  const Problem *p = j->problem;
  const HostBackwardInputs *in = j->inputs;
  if (a) read_row(j, keys ? in->k : in->q, keys ? &p->k_strides : &p->q_strides, row, a);
  if (b) read_row(j, keys ? in->v : in->d_o, keys ? &p->v_strides : &p->o_strides, row, b);
}

static double dot(const double *a, const double *b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

static bool unmasked(const GradientJudgement *j, const Variant *v, RowIndex query, int64_t key) {
  if (v->all_keys) return true;
  if (v->top_left && j->problem->mask == MASK_CAUSAL) return key <= query.q;
  return attends(j->problem, j->inputs, query.batch, query.head, query.q, key);
}

/* The factor of one term: dS or P. */
static double weight(const Case *c, const Variant *v, double s, double dp, int64_t query) {
  const GradientJudgement *j = c->judgement;
  const double lse = j->inputs->lse[query], d = j->dots.d[query];
  const double prob = v->no_p ? 1 : exp(s - (v->no_lse ? 0 : lse));
  const double ds = prob * ((v->no_dp ? 0 : dp) + (v->no_d ? 0 : v->plus_d ? d : -d));
  if (c->gradient != GRADIENT_V) return ds;
  return v->ds_for_p ? ds : v->dp_for_p ? dp : prob;
}

/* Adds the terms of the rows of one head of the other side. */
static void add_head(const Case *c, const Variant *v, RowIndex own, int head, double *sum) {
  const GradientJudgement *j = c->judgement;
  const Problem *p = j->problem;
  const bool of_keys = c->gradient != GRADIENT_Q;
  const int64_t others = of_keys ? p->q_len : p->kv_len;
  double a[MAX_HEAD_DIM], b[MAX_HEAD_DIM], s_row[MAX_HEAD_DIM], dp_row[MAX_HEAD_DIM];
  double terms[2][MAX_HEAD_DIM];
  read_side(j, of_keys, own, a, b);
  for (int64_t other = 0; other < others; ++other) {
    const RowIndex query = {own.batch, of_keys ? head : own.head, of_keys ? (int)other : own.q};
    const bool in_tile = other >= v->from && other < v->to;
    if (!unmasked(j, v, query, of_keys ? own.q : other) || (in_tile && v->lost)) continue;
    RowIndex row = {own.batch, head, (int)(other + (in_tile ? v->stale_s : 0))};
    read_side(j, !of_keys, row, s_row, NULL);
    row.q = (int)(other + (in_tile ? v->stale_dp : 0));
    read_side(j, !of_keys, row, NULL, dp_row);
    row.q = (int)(other + (in_tile ? v->stale_term : 0));
    read_side(j, !of_keys, row, terms[0], terms[1]);
    if (v->o_for_d_o) read_row(j, j->inputs->o, &p->o_strides, row, terms[1]);
    const double s = p->scale * dot(a, s_row, p->head_dim), dp = dot(b, dp_row, p->head_dim);
    const double x = weight(c, v, s, dp, lse_index(p, query));
    for (int d = 0; d < p->head_dim; ++d) sum[d] += x * terms[c->gradient == GRADIENT_V][d];
  }
}

/* Keeps the variant if it is closest to the row so far. */
__attribute__((format(printf, 3, 4))) static void try_variant(Case *c, Variant v,
                                                              const char *format, ...) {
  const Problem *p = c->judgement->problem;
  const bool of_keys = c->gradient != GRADIENT_Q;
  const int group = p->q_heads / p->kv_heads;
  double sum[MAX_HEAD_DIM] = {0};
  RowIndex own = c->row;
  own.q += (int)v.away;
  if (own.q < 0 || own.q >= (of_keys ? p->kv_len : p->q_len)) return;
  if (!of_keys) add_head(c, &v, own, kv_head_of(p, own.head), sum);
  for (int h = 0; of_keys && h < group; ++h) {
    if ((v.only_head && h + 1 != v.only_head) || h + 1 == v.without_head) continue;
    add_head(c, &v, own, own.head * group + h, sum);
  }
  const double factor =
      (v.factor != 0 ? v.factor : 1) * (c->gradient == GRADIENT_V ? 1 : (double)p->scale);
  for (int d = 0; d < p->head_dim; ++d) sum[d] *= factor;
  const double distance = relative_distance(c->x, sum, p->head_dim);
  const double most = c->judgement->result.gradients[c->gradient].allowed_error / 2;
  if (!(distance <= most) || !(distance < 0.9 * c->best)) return;
  c->best = distance;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(c->text, 160, format, arguments);
  va_end(arguments);
}

static void try_formulas(Case *c) {
  const double scale = (double)c->judgement->problem->scale;
  if (c->gradient == GRADIENT_V) {
    try_variant(c, (Variant){.ds_for_p = true}, "dV is the product with dS instead of P");
    try_variant(c, (Variant){.dp_for_p = true}, "dV is the product with dP instead of P");
    try_variant(c, (Variant){.o_for_d_o = true}, "dV is the product with O instead of dO");
    try_variant(c, (Variant){.factor = scale},
                "dV has the factor scale, which belongs to dQ and dK");
  } else {
    const char *name = gradient_name(c->gradient);
    try_variant(c, (Variant){.no_d = true}, "D is missing: dS is P o dP");
    try_variant(c, (Variant){.plus_d = true}, "D is added to dP instead of subtracted");
    try_variant(c, (Variant){.no_p = true}, "P is missing: dS is dP - D");
    try_variant(c, (Variant){.no_dp = true}, "dP is missing: dS is -P o D");
    try_variant(c, (Variant){.factor = 1 / scale}, "scale is missing in %s", name);
    try_variant(c, (Variant){.factor = scale}, "scale is applied twice in %s", name);
  }
  try_variant(c, (Variant){.no_lse = true}, "LSE is missing: P is exp(S)");
  for (int power = -5; power <= 5; ++power) {
    if (power == 0) continue;
    try_variant(c, (Variant){.factor = exp2(power)}, "%s is %g times what is expected",
                gradient_name(c->gradient), exp2(power));
  }
}

static void try_masks(Case *c) {
  try_variant(c, (Variant){.all_keys = true}, "the mask is ignored: all entries are unmasked");
  try_variant(c, (Variant){.top_left = true}, "the causal mask is aligned to the top left: k <= q");
}

static void try_heads(Case *c) {
  const Problem *p = c->judgement->problem;
  const int group = p->q_heads / p->kv_heads;
  if (group == 1 || c->gradient == GRADIENT_Q) return;
  for (int h = 0; h < group; ++h) {
    const int head = c->row.head * group + h;
    try_variant(c, (Variant){.only_head = h + 1},
                "%s is that of query head %d alone: it must be the sum over the group",
                gradient_name(c->gradient), head);
    if (group == 2) continue; /* the same as the other alone */
    try_variant(c, (Variant){.without_head = h + 1}, "query head %d of the group is missing", head);
  }
}

static void try_places(Case *c) {
  const bool of_keys = c->gradient != GRADIENT_Q;
  const Description *tiles = c->judgement->tiles;
  const int tile = of_keys ? tiles->block_n : tiles->block_m;
  for (int away = -2; away <= 2 && tile > 1; ++away) {
    if (away == 0) continue;
    try_variant(c, (Variant){.away = (int64_t)away * tile}, "%s is that of the tile %d %s away",
                gradient_name(c->gradient), abs(away) * tile, of_keys ? "keys" : "queries");
  }
  for (int64_t away = -15; away <= 15; ++away) {
    if (away == 0) continue;
    try_variant(c, (Variant){.away = away}, "the row holds the result of row %lld",
                (long long)(c->row.q + away));
  }
}

/* Tries tiles of the other side: lost, or stale in one of the products. */
static void try_tiles(Case *c) {
  const Problem *p = c->judgement->problem;
  const bool of_keys = c->gradient != GRADIENT_Q;
  const Description *tiles = c->judgement->tiles;
  const int tile = of_keys ? tiles->block_m : tiles->block_n;
  const int64_t others = of_keys ? p->q_len : p->kv_len;
  const char *side = of_keys ? "query" : "key/value", *a = of_keys ? "Q" : "K",
             *b = of_keys ? "dO" : "V", *term = c->gradient == GRADIENT_V ? "dO" : a;
  for (int64_t from = 0; from < others; from += tile) {
    const int64_t to = from + tile < others ? from + tile : others, t = from / tile;
    try_variant(c, (Variant){.from = from, .to = to, .lost = true}, "%s tile %lld is missing", side,
                (long long)t);
    for (int away = -2; away <= 2; ++away) {
      const int64_t stale = (int64_t)away * tile;
      if (away == 0 || from + stale < 0 || to + stale > others) continue;
      try_variant(c, (Variant){.from = from, .to = to, .stale_s = stale},
                  "%s of %s tile %lld is stale in Q K^T: it is that of tile %lld", a, side,
                  (long long)t, (long long)(t + away));
      if (c->gradient != GRADIENT_V) {
        try_variant(c, (Variant){.from = from, .to = to, .stale_dp = stale},
                    "%s of %s tile %lld is stale in dO V^T: it is that of tile %lld", b, side,
                    (long long)t, (long long)(t + away));
      }
      try_variant(c, (Variant){.from = from, .to = to, .stale_term = stale},
                  "%s of %s tile %lld is stale in the product for %s: it is that of tile %lld",
                  term, side, (long long)t, gradient_name(c->gradient), (long long)(t + away));
    }
  }
}

void explain_gradient(const GradientJudgement *j, Gradient gradient, RowIndex row, char text[160],
                      double *distance) {
  enum { MOST_TILES = 32 }; /* each takes as long as the row of the reference */
  const Problem *p = j->problem;
  Case c = {.judgement = j, .gradient = gradient, .row = row, .text = text, .best = INFINITY};
  const uint16_t *bits = gradient_row(j, gradient, row);
  for (int d = 0; d < p->head_dim; ++d) c.x[d] = element_value(p->dtype, bits[d]);
  text[0] = '\0';
  try_formulas(&c);
  try_heads(&c);
  try_masks(&c);
  try_places(&c);
  const int64_t tiles =
      gradient == GRADIENT_Q ? p->kv_len / j->tiles->block_n : p->q_len / j->tiles->block_m;
  if (tiles <= MOST_TILES) try_tiles(&c);
  *distance = c.best;
}
