/*
 * One access of one thread: which memory it is, whether it may be made, and its place in the log.
 */
#include <string.h>

#include "internal.h"

static const char IMAGE_HAS_NO_NAME[] = "no memory of the device";

/** End of the program's own data; constants of a kernel lie below. */
extern const char _end[];

/** Where the runtime keeps kernel parameters: on the stack of the thread that launches. */
static bool is_parameter(const LabWorker *lab, uintptr_t address) {
  enum { PARAMETER_BYTES = 64 << 10 };
  return address - (uintptr_t)lab->launch->arguments < PARAMETER_BYTES;
}

/** Constants in the program, parameters, and what threads know of their block. */
static bool is_constant(const LabWorker *lab, uintptr_t address) {
  return (address >= (uintptr_t)__executable_start && address < (uintptr_t)_end) ||
         is_parameter(lab, address) || address - (uintptr_t)lab->worker < sizeof(Worker);
}

static void describe(const LabWorker *lab, uintptr_t address, char *text, size_t text_size) {
  if (address - lab->shared >= lab->shared_bytes) {
    for (size_t i = 0; i < lab_region_count; i++) {
      const Region *region = &lab_regions[i];
      if (address < region->begin || address >= region->end) continue;
      lab_describe_region(region, address, text, text_size);
      return;
    }
    simt_memory_describe(address, text, text_size);
    if (!simt_memory_is_device((const void *)address)) {
      snprintf(text, text_size, "%s", address < 4096 ? "a null pointer" : IMAGE_HAS_NO_NAME);
    }
  } else if (address - lab->dynamic < MAX_SHARED_BYTES) {
    const size_t requested = lab->launch->dynamic_shared_bytes;
    const size_t offset = address - lab->dynamic;
    if (offset < requested) {
      snprintf(text, text_size, "dynamic shared memory + %zu", offset);
    } else {
      snprintf(text, text_size, "%zu bytes past dynamic shared memory (%zu bytes)",
               offset - requested + 1, requested);
    }
  } else {
    snprintf(text, text_size, "static shared memory");
  }
}

RawFinding *lab_count_finding(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                              uint64_t other_thread) {
  const RawFinding key = {
      .kernel = lab->launch->kernel,
      .kind = kind,
      .pc = pc,
      .other_pc = other_pc,
      .has_thread = true,
      .block = lab->block,
      .thread = (uint64_t)lab_thread(lab),
      .other_thread = other_thread,
  };
  bool made;
  RawFinding *finding = lab_find_or_make(&lab->findings, &key, &made);
  finding->count++;
  const bool earlier =
      key.block < finding->block || (key.block == finding->block && key.thread < finding->thread);
  if (!made && !earlier) return NULL;
  finding->block = key.block;
  finding->thread = key.thread;
  finding->other_thread = other_thread;
  return finding;
}

void lab_report_here(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                     uint64_t other_thread, uintptr_t address) {
  RawFinding *finding = lab_count_finding(lab, kind, pc, other_pc, other_thread);
  if (finding != NULL) describe(lab, address, finding->where, sizeof finding->where);
}

/** Regions do not overlap and are in order. */
static bool find_region(LabWorker *lab, uintptr_t address, size_t *found) {
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

/** Is it an access within an allocation? If not, it is reported. */
static bool check_bounds(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc,
                         size_t *region) {
  const bool found = find_region(lab, address, region);
  if (found && lab_regions[*region].end - address >= size) return true;
  if (lab->checks & LAB_BOUNDS) {
    /* Of an access that begins well, what is told is where it leaves. */
    const uintptr_t culprit = found ? lab_regions[*region].end : address;
    lab_report_here(lab, LAB_GLOBAL_OUTSIDE, pc, 0, 0, culprit);
  }
  return false;
}

void lab_log(LabWorker *lab, RecordKind kind, uintptr_t address, unsigned size, uint32_t pc,
             unsigned copy) {
  const int thread = lab_thread(lab);
  if (lab->log_counts[thread] == LOG_RECORDS) simt_hold(); /* the warp's logs are emptied */
  const unsigned at = lab->log_counts[thread]++;
  lab->logs[(size_t)thread * LOG_RECORDS + at] =
      (Record){address, pc, (uint8_t)size, (uint8_t)kind, (uint16_t)copy};
  lab->dirty_warps |= 1u << thread / WARP_SIZE;
}

void lab_check_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  const uintptr_t offset = address - lab->dynamic;
  if (offset < MAX_SHARED_BYTES && offset + size > lab->launch->dynamic_shared_bytes) {
    if (lab->checks & LAB_BOUNDS) {
      const size_t requested = lab->launch->dynamic_shared_bytes;
      const uintptr_t culprit = offset < requested ? lab->dynamic + requested : address;
      lab_report_here(lab, LAB_SHARED_OUTSIDE, pc, 0, 0, culprit);
    }
  } else if (use != ATOMICALLY && lab->checks & (LAB_RACES | LAB_INIT)) {
    lab_use_shared(lab, address, size, use, lab_thread(lab), pc);
  }
}

void lab_check_global(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  size_t region = 0;
  if (check_bounds(lab, address, size, pc, &region) && lab->checks & (LAB_INIT | LAB_BLOCKS)) {
    lab_use_global(lab, region, address, size, use, pc);
  }
}

void lab_check_atomic(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  if (address - lab->shared < lab->shared_bytes) {
    lab_check_shared(lab, address, size, ATOMICALLY, pc);
  } else {
    lab_check_global(lab, address, size, ATOMICALLY, pc);
  }
}

void lab_access(LabWorker *lab, uintptr_t address, unsigned size, bool is_write, uint32_t pc) {
  const bool shared = address - lab->shared < lab->shared_bytes;
  const bool device = !shared && simt_memory_is_device((const void *)address);
  if (!shared && !device) {
    if (!is_constant(lab, address) && lab->checks & LAB_BOUNDS) {
      lab_report_here(lab, LAB_GLOBAL_OUTSIDE, pc, 0, 0, address);
    }
    return;
  }
  if (address % size != 0 && lab->checks & LAB_ALIGNMENT) {
    lab_report_here(lab, LAB_MISALIGNED, pc, 0, 0, address);
  }
  const Use use = is_write ? WRITES : READS;
  if (shared) {
    lab_check_shared(lab, address, size, use, pc);
    if (!(lab->checks & LAB_BANKS)) return;
    lab_log(lab, is_write ? SHARED_STORE : SHARED_LOAD, address, size, pc, 0);
  } else {
    lab_check_global(lab, address, size, use, pc);
    if (!(lab->checks & LAB_TRAFFIC)) return;
    lab_log(lab, is_write ? GLOBAL_STORE : GLOBAL_LOAD, address, size, pc, 0);
  }
}
