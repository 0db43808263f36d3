/* Draws one access of a warp: the offset of each lane, and its sector or bank. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/report/lab/parts.h"

enum { LANES_A_ROW = 8, MOST_DRAWINGS = 8, SECTOR_BYTES = 32 };

/** True if `wanted` is the file, or the end of its path. */
static bool names_file(const char *file, const char *wanted) {
  const size_t length = strlen(file), wanted_length = strlen(wanted);
  if (wanted_length > length || strcmp(file + length - wanted_length, wanted) != 0) return false;
  return wanted_length == length || file[length - wanted_length - 1] == '/';
}

static void print_row(const LabAccess *access, int first, const char *name,
                      const uint64_t values[LAB_LANES], FILE *out) {
  fprintf(out, "           %-7s", name);
  for (int lane = first; lane < first + LANES_A_ROW; lane++) {
    if (access->lanes >> lane & 1) {
      fprintf(out, " %9" PRIu64, values[lane]);
    } else {
      fprintf(out, " %9s", "-");
    }
  }
  fputc('\n', out);
}

/** Prints the memory of the first active lane, and each lane that accesses other memory. */
static void print_memory(const LabAccess *access, FILE *out) {
  const char *memory = access->memory[__builtin_ctz(access->lanes)];
  fprintf(out, "           offsets in %s, in bytes", memory);
  if (strncmp(memory, "static", 6) == 0) fprintf(out, " from the lowest lane's");
  fputc('\n', out);
  for (unsigned rest = access->lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (strcmp(access->memory[lane], memory) == 0) continue;
    fprintf(out, "           but lane %d: %s\n", lane, access->memory[lane]);
  }
}

static void print_verdict(const LabAccess *access, FILE *out) {
  const LabTraffic *t = &access->traffic;
  if (!lab_access_is_shared(access->kind)) {
    fprintf(out, "           %" PRIu64 " sectors of 32 bytes, %.0f %% of them used\n", t->sectors,
            lab_used_percent(t));
    return;
  }
  const uint64_t conflicts = t->wavefronts - t->ideal_wavefronts;
  fprintf(out, "           %" PRIu64 " wavefront%s: ", t->wavefronts,
          t->wavefronts == 1 ? "" : "s");
  if (conflicts == 0) {
    fprintf(out, "no conflict\n");
  } else {
    fprintf(out, "%" PRIu64 " would do without conflicts, the worst is %u-way\n",
            t->ideal_wavefronts, t->most_ways);
  }
}

static void draw(const LabAccess *access, Sources *sources, FILE *out) {
  const bool shared = lab_access_is_shared(access->kind);
  const char *text = source_line(sources, access->file, access->line);
  fprintf(out, "access     %s at %s:%d in %s\n", lab_access_text(access->kind), access->file,
          access->line, access->kernel);
  if (text != NULL) fprintf(out, "           %s\n", text + strspn(text, " \t"));
  fprintf(out, "           block %" PRIu64 ", warp %d, %u bytes a lane%s\n", access->block,
          access->warp, access->size,
          access->kind == LAB_LDMATRIX ? "; lane i gives the address of row i" : "");
  print_memory(access, out);
  uint64_t places[LAB_LANES]; /* sectors count from the start of the allocation, which is aligned */
  for (int lane = 0; lane < LAB_LANES; lane++) {
    places[lane] = shared ? access->banks[lane] : access->offsets[lane] / SECTOR_BYTES;
  }
  for (int first = 0; first < LAB_LANES; first += LANES_A_ROW) {
    fprintf(out, "           lane   ");
    for (int lane = first; lane < first + LANES_A_ROW; lane++) fprintf(out, " %9d", lane);
    fputc('\n', out);
    print_row(access, first, "offset", access->offsets, out);
    print_row(access, first, shared ? "bank" : "sector", places, out);
  }
  print_verdict(access, out);
}

bool draw_access(const LabResults *results, const ReportRequest *request, Sources *sources,
                 FILE *out, Error *error) {
  size_t found = 0;
  for (size_t i = 0; i < results->access_count; i++) {
    const LabAccess *access = &results->accesses[i];
    if (access->line != request->access_line) continue;
    if (!names_file(access->file, request->access_file)) continue;
    if (++found <= MOST_DRAWINGS) draw(access, sources, out);
  }
  if (found > MOST_DRAWINGS) {
    fprintf(out, "access     and %zu more instructions at that line\n", found - MOST_DRAWINGS);
  }
  return found > 0 ||
         fail(error, EXIT_USAGE,
              "--report=access:%s:%d: no access there; --report=annotate shows the lines with some",
              request->access_file, request->access_line);
}
