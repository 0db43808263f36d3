/**
 * @file
 * Visits every row of the output in order, and draws a text heat map of heads and query tiles.
 */
#include <math.h>
#include <string.h>

#include "host/report/failure.h"

enum { MAP_LINES = 40, MAP_COLUMNS = 64 };

/* Symbols of the heat map, from best to worst. */
static const char SYMBOLS[] = " -.L123456789NU";

/* The state of a row. `planned` is the next entry of the plan, whose rows have the same order. */
static RowView view_row(const Judgement *j, RowIndex row, size_t *planned) {
  RowView view = {.row = row};
  if (*planned < j->plan->count) {
    const RowIndex *next = &j->plan->rows[*planned];
    if (lse_index(j->problem, *next) == lse_index(j->problem, row)) {
      const RowFinding *finding = &j->findings[(*planned)++];
      view.checked = !finding->not_compared;
      view.not_compared = finding->not_compared;
      view.faults = finding->faults;
      view.share = finding->share;
      return view;
    }
  }
  const RowScan scan = scan_row(j->problem->o_dtype, output_row(j, row), j->problem->head_dim);
  const float lse = j->outputs->lse[lse_index(j->problem, row)];
  if (scan.unwritten) view.faults |= FAULT_UNWRITTEN;
  if (j->inputs_finite && scan.nan + scan.inf) view.faults |= FAULT_NAN;
  if (lse_is_unwritten(lse) || (j->inputs_finite && isnan(lse))) view.faults |= FAULT_LSE;
  return view;
}

void visit_rows(const Judgement *j, RowVisitor *visit, void *context) {
  size_t planned = 0;
  for (int b = 0; b < j->problem->batch; ++b) {
    for (int h = 0; h < j->problem->q_heads; ++h) {
      for (int q = 0; q < j->problem->q_len; ++q) {
        const RowView view = view_row(j, (RowIndex){b, h, q}, &planned);
        visit(context, &view);
      }
    }
  }
}

/* A cell stands for some heads and query tiles and holds the symbol of their worst row. */
typedef struct FaultMap {
  const Problem *problem;
  int64_t heads_per_line;
  int rows_per_column, lines, columns;
  char cells[MAP_LINES][MAP_COLUMNS];
} FaultMap;

static char symbol_of(const RowView *view) {
  if (view->faults & FAULT_UNWRITTEN) return 'U';
  if (view->faults & FAULT_NAN) return 'N';
  if (view->faults & FAULT_VALUE) {
    if (!(view->share < 256)) return '9';
    return (char)('1' + (view->share > 1 ? ilogb(view->share) : 0));
  }
  if (view->faults & FAULT_LSE) return 'L';
  return view->not_compared ? '-' : view->checked ? '.' : ' ';
}

static void mark_cell(void *context, const RowView *view) {
  FaultMap *map = context;
  const int64_t head = (int64_t)view->row.batch * map->problem->q_heads + view->row.head;
  char *cell = &map->cells[head / map->heads_per_line][view->row.q / map->rows_per_column];
  const char symbol = symbol_of(view);
  if (strchr(SYMBOLS, symbol) > strchr(SYMBOLS, *cell)) *cell = symbol;
}

void draw_fault_map(const Judgement *j, FILE *out) {
  const Problem *p = j->problem;
  const int64_t heads = (int64_t)p->batch * p->q_heads;
  const int block_m = j->tiles->block_m;
  const int tiles = (p->q_len - 1) / block_m + 1;
  const int tiles_per_column = (tiles - 1) / MAP_COLUMNS + 1;
  FaultMap map = {.problem = p,
                  .heads_per_line = (heads - 1) / MAP_LINES + 1,
                  .rows_per_column = tiles_per_column * block_m};
  map.lines = (int)((heads - 1) / map.heads_per_line) + 1;
  map.columns = (tiles - 1) / tiles_per_column + 1;
  memset(map.cells, ' ', sizeof map.cells);
  visit_rows(j, mark_cell, &map);

  fprintf(out, "  Map: a line is %lld head%s (b, h), a column %d query rows.\n",
          (long long)map.heads_per_line, map.heads_per_line == 1 ? "" : "s", map.rows_per_column);
  for (int line = 0; line < map.lines; ++line) {
    const int64_t head = line * map.heads_per_line;
    fprintf(out, "  %4lld,%-4lld |%.*s|\n", (long long)(head / p->q_heads),
            (long long)(head % p->q_heads), map.columns, map.cells[line]);
  }
  fputs(
      "  . right   1..9 error from 1, 2, 4, .. 256 times the allowed   N NaN or Inf   U unwritten\n"
      "  L only LSE wrong   - not compared (NaN or Inf in V)   blank: not checked\n",
      out);
}
