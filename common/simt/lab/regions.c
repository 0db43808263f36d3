/* The allocations of global memory, and which of their bytes have ever been written. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "simt/runtime/program.h"

Region *lab_regions;
size_t lab_region_count;

/** The written bytes of each allocation. The host may allocate from any thread. */
static struct {
  pthread_mutex_t lock;
  Region *list;
  size_t count;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Bits ----------------------------------------------------------------------------------- */

static size_t bit_words(size_t bytes) {
  return (bytes + 63) / 64;
}

static void set_bits(uint64_t *bits, size_t begin, size_t end) {
  for (size_t i = begin; i < end;) {
    if (i % 64 == 0 && end - i >= 64) {
      bits[i / 64] = UINT64_MAX;
      i += 64;
    } else {
      bits[i / 64] |= UINT64_C(1) << i % 64;
      i++;
    }
  }
}

static bool all_bits(const uint64_t *bits, size_t begin, unsigned count) {
  const uint64_t wanted = (UINT64_C(1) << count) - 1;
  const unsigned shift = begin % 64;
  if (((bits[begin / 64] >> shift) & wanted) == (wanted & UINT64_MAX >> shift)) {
    if (shift + count <= 64) return true;
    const unsigned beyond = shift + count - 64;
    const uint64_t rest = (UINT64_C(1) << beyond) - 1;
    return (bits[begin / 64 + 1] & rest) == rest;
  }
  return false;
}

void lab_mark_written(const Region *region, size_t begin, size_t end) {
  if (region->initialised != NULL) set_bits(region->initialised, begin, end);
}

bool lab_is_written(const Region *region, size_t offset, unsigned size) {
  return region->initialised == NULL || all_bits(region->initialised, offset, size);
}

/* --- Allocations ---------------------------------------------------------------------------- */

static Region *find_known(uintptr_t address) {
  for (size_t i = 0; i < known.count; i++) {
    if (address >= known.list[i].begin && address < known.list[i].end) return &known.list[i];
  }
  return NULL;
}

void lab_memory_allocated(uintptr_t begin, size_t size) {
  pthread_mutex_lock(&known.lock);
  known.list = simt_with_room(known.list, known.count, sizeof *known.list);
  /* Without memory for the bits, the allocation counts as written. */
  known.list[known.count++] =
      (Region){.begin = begin, .end = begin + size, .initialised = calloc(bit_words(size) + 1, 8)};
  pthread_mutex_unlock(&known.lock);
}

void lab_memory_freed(uintptr_t begin) {
  pthread_mutex_lock(&known.lock);
  Region *region = find_known(begin);
  if (region != NULL) {
    free(region->initialised);
    *region = known.list[--known.count];
  }
  pthread_mutex_unlock(&known.lock);
}

void lab_memory_written(uintptr_t begin, size_t size) {
  pthread_mutex_lock(&known.lock);
  const Region *region = find_known(begin);
  if (region != NULL) lab_mark_written(region, begin - region->begin, begin - region->begin + size);
  pthread_mutex_unlock(&known.lock);
}

void lab_free_regions(void) {
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < known.count; i++) free(known.list[i].initialised);
  free(known.list);
  known.list = NULL;
  known.count = 0;
  pthread_mutex_unlock(&known.lock);
}

static int by_address(const void *a, const void *b) {
  const Region *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/** Adds the `__device__` variables: all of their bytes have a value from the start. */
static void add_variables(const SimtVariable *variables, size_t count) {
  for (size_t i = 0; i < count; i++) {
    Region *region = &lab_regions[lab_region_count++];
    *region = (Region){.begin = variables[i].begin, .end = variables[i].begin + variables[i].size};
    memcpy(region->name, variables[i].name, sizeof region->name);
  }
}

/** The allocations do not change while a kernel runs. */
void lab_begin_regions(void) {
  SimtAllocation *live;
  SimtVariable *variables;
  const size_t variable_count = simt_device_variables(&variables);
  lab_region_count = simt_memory_list(&live);
  lab_regions = simt_zeroed(lab_region_count + variable_count, sizeof *lab_regions);
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < lab_region_count; i++) {
    Region *region = &lab_regions[i];
    const Region *before = find_known(live[i].begin);
    *region = (Region){.begin = live[i].begin, .end = live[i].end};
    if (before != NULL && before->initialised != NULL) {
      region->initialised = before->initialised + live[i].guard / 64;
    }
    if (live[i].name[0] != '\0') {
      snprintf(region->name, sizeof region->name, "%s", live[i].name);
    } else {
      snprintf(region->name, sizeof region->name, "allocation %u", live[i].ordinal);
    }
  }
  pthread_mutex_unlock(&known.lock);
  add_variables(variables, variable_count);
  free(variables);
  free(live);
  qsort(lab_regions, lab_region_count, sizeof *lab_regions, by_address);
}

void lab_describe_region(const Region *region, uintptr_t address, char *text, size_t text_size) {
  snprintf(text, text_size, "%s + %zu (%zu bytes)", region->name, (size_t)(address - region->begin),
           (size_t)(region->end - region->begin));
}

/** Regions are sorted and do not overlap. */
bool lab_find_region(LabWorker *lab, uintptr_t address, size_t *found) {
  if (lab->last_region < lab_region_count) {
    const Region *last = &lab_regions[lab->last_region];
    if (address >= last->begin && address < last->end) {
      *found = lab->last_region;
      return true;
    }
  }
  size_t low = 0, high = lab_region_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (lab_regions[middle].end <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == lab_region_count || address < lab_regions[low].begin) return false;
  *found = lab->last_region = low;
  return true;
}
