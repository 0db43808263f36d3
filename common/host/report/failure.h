/**
 * @file
 * The report of a wrong answer: failure.c says what is wrong, failure_places.c describes sets of
 * rows, failure_map.c draws them.
 */
#ifndef HOST_FAILURE_H
#define HOST_FAILURE_H

#include <stdio.h>

#include "host/check/check.h"
#include "host/check/gradient_check.h"

/**
 * Writes what is wrong: the counts, the first wrong element as (b, h, q, d) with both values, the
 * positions of the errors, a text heat map of the tiles, and the known mistake, if any, that
 * explains the worst row. EXIT_DEVICE if memory runs out.
 */
bool report_failure(const Judgement *judgement, FILE *out, Error *error);

/** The same for a backward step: gradient_failure.c. */
bool report_gradient_failure(const GradientJudgement *judgement, FILE *out, Error *error);

/** The state of a row of the output, in the plan or not. */
typedef struct RowView {
  RowIndex row;
  bool checked;      /**< compared with the reference */
  bool not_compared; /**< V holds NaN or Inf */
  int faults;
  double share; /**< error divided by the row's tolerance; 0 if not checked */
} RowView;

typedef void RowVisitor(void *context, const RowView *view);

/** Visits every row of the output, in the order of batch, head and q. */
void visit_rows(const Judgement *judgement, RowVisitor *visit, void *context);

/** Draws heads and query tiles as text, at most 40 lines of 64 columns. */
void draw_fault_map(const Judgement *judgement, FILE *out);

/** Flags of an index of a row, a head or a column. */
enum { INDEX_RIGHT = 1, INDEX_FAULTY = 2 };

/**
 * Writes which of `n` indices are faulty as a short phrase: "row 5", "the last 17 rows", "rows
 * 8..15 of every 16", "every head but 0". `seen`, [n], holds INDEX_RIGHT, INDEX_FAULTY, both or
 * neither. A `tile_noun` has `tile` indices; 0 if there are no tiles.
 */
void describe_indices(FILE *out, const char *noun, const uint8_t *seen, int64_t n,
                      const char *tile_noun, int tile);

#endif
