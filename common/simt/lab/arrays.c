/*
 * The thread-local variables that are shared memory of the running kernel: the part of the dynamic
 * memory that it requested, and its static arrays by name.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "simt/runtime/program.h"

SharedArray *lab_arrays;
size_t lab_array_count;

/** Of the running launch. Without symbols none is known, and all static memory is one array. */
static struct {
  SimtVariable *list; /* thread-local, by offset */
  size_t count;
  SharedArray *guards; /* guard variables of the compiler; stored after the arrays */
  size_t guard_count;
} variables;

/** Returns how many there are. */
static size_t add_arrays(SharedArray *list, SimtOwner owner) {
  size_t count = 0;
  for (size_t i = 0; i < variables.count; i++) {
    const SimtVariable *v = &variables.list[i];
    if (v->owner == owner) list[count++] = (SharedArray){v->begin, v->size, v->name};
  }
  return count;
}

void lab_begin_arrays(const Launch *launch) {
  variables.count = simt_shared_variables(launch->kernel, &variables.list);
  lab_arrays = simt_zeroed(variables.count, sizeof *lab_arrays);
  lab_array_count = add_arrays(lab_arrays, OF_KERNEL);
  lab_array_count += add_arrays(lab_arrays + lab_array_count, OF_DEVICE_FUNCTION);
  variables.guards = lab_arrays + lab_array_count;
  variables.guard_count = add_arrays(variables.guards, OF_COMPILER);
}

void lab_end_arrays(void) {
  free(lab_arrays);
  free(variables.list);
}

static bool is_around_dynamic(const LabWorker *lab, uintptr_t address) {
  return address - (lab->dynamic - SHARED_MARGIN) <
         SHARED_MARGIN + MAX_SHARED_BYTES + SHARED_MARGIN;
}

bool lab_is_of_compiler(const LabWorker *lab, uintptr_t address, unsigned size) {
  if (size != 1) return false; /* an access of the kernel out of the bounds of an array */
  for (size_t i = 0; i < variables.guard_count; i++) {
    if (address - lab->shared == variables.guards[i].begin) return true;
  }
  return false;
}

bool lab_is_unnamed_static(const LabWorker *lab, uintptr_t address) {
  return variables.count == 0 && address - lab->shared < lab->shared_bytes &&
         !is_around_dynamic(lab, address);
}

/* --- Descriptions ----------------------------------------------------------------------------- */

/** A piece of shared memory: dynamic, or an array. */
typedef struct Piece {
  uintptr_t begin;
  size_t size;
  char name[80];
} Piece;

/** Distance in bytes between address and piece; 0 within it, 1 for the adjacent bytes. */
static uintptr_t distance(const Piece *piece, uintptr_t address) {
  if (address < piece->begin) return piece->begin - address;
  return address - piece->begin < piece->size ? 0 : address - piece->begin - piece->size + 1;
}

static Piece nearest(const LabWorker *lab, uintptr_t address) {
  Piece best = {lab->dynamic, lab->launch->dynamic_shared_bytes, "dynamic shared memory"};
  if (best.size > 0 && is_around_dynamic(lab, address)) return best;
  for (size_t i = 0; i < lab_array_count; i++) {
    const SharedArray *array = &lab_arrays[i];
    Piece piece = {.begin = lab->shared + array->begin, .size = array->size};
    if (distance(&piece, address) >= distance(&best, address)) continue;
    snprintf(piece.name, sizeof piece.name, "static shared memory %s", array->name);
    best = piece;
  }
  return best;
}

void lab_describe_shared(const LabWorker *lab, uintptr_t address, char *text, size_t text_size) {
  const Piece piece = nearest(lab, address);
  const size_t away = distance(&piece, address);
  if (lab_is_unnamed_static(lab, address)) {
    snprintf(text, text_size, "static shared memory");
  } else if (away != 0) {
    snprintf(text, text_size, "%zu %s %s %s (%zu bytes)", away, simt_bytes(away),
             address < piece.begin ? "before" : "past", piece.name, piece.size);
  } else if (piece.begin == lab->dynamic) {
    snprintf(text, text_size, "%s + %zu", piece.name, (size_t)(address - piece.begin));
  } else {
    snprintf(text, text_size, "%s + %zu (%zu bytes)", piece.name, (size_t)(address - piece.begin),
             piece.size);
  }
}

/* --- Values of other blocks ------------------------------------------------------------------- */

void lab_fill_arrays(const LabWorker *lab) {
  for (size_t i = 0; i < lab_array_count; i++) {
    memset((char *)lab->shared + lab_arrays[i].begin, 0xff, lab_arrays[i].size);
  }
}

/** Reads around the dynamic memory must not return values of other blocks. */
static void wipe_around_dynamic(LabWorker *lab) {
  if (lab->wiped_around_dynamic) return;
  lab->wiped_around_dynamic = true;
  const size_t requested = lab->launch->dynamic_shared_bytes;
  char *dynamic = (char *)lab->dynamic;
  memset(dynamic - SHARED_MARGIN, 0xff, SHARED_MARGIN);
  memset(dynamic + requested, 0xff, MAX_SHARED_BYTES - requested + SHARED_MARGIN);
}

/** The same for all memory except the runtime's variables and the kernel's arrays. A wiped guard
 * still has the meaning that its array is initialised. */
static void wipe_between_arrays(LabWorker *lab) {
  if (lab->wiped_between_arrays) return;
  lab->wiped_between_arrays = true;
  char *shared = (char *)lab->shared;
  size_t at = 0;
  for (size_t i = 0; i < variables.count; i++) {
    const SimtVariable *v = &variables.list[i];
    if (v->owner == OF_OTHER_KERNEL || v->owner == OF_COMPILER) continue;
    if (v->begin > at) memset(shared + at, 0xff, v->begin - at);
    if (v->begin + v->size > at) at = v->begin + v->size;
  }
  memset(shared + at, 0xff, lab->shared_bytes - at);
}

/* --- Accesses out of bounds ------------------------------------------------------------------- */

static bool is_of_runtime(const LabWorker *lab, uintptr_t address) {
  for (size_t i = 0; i < variables.count; i++) {
    const SimtVariable *v = &variables.list[i];
    if (v->owner == OF_RUNTIME && address - lab->shared - v->begin < v->size) return true;
  }
  return false;
}

bool lab_may_leave_shared(LabWorker *lab, uintptr_t address, unsigned size) {
  const uintptr_t end = address + size - 1;
  if (is_around_dynamic(lab, address) && is_around_dynamic(lab, end)) {
    wipe_around_dynamic(lab);
    return true;
  }
  if (address - lab->shared >= lab->shared_bytes || end - lab->shared >= lab->shared_bytes ||
      is_of_runtime(lab, address) || is_of_runtime(lab, end)) {
    return false;
  }
  wipe_between_arrays(lab);
  return true;
}
