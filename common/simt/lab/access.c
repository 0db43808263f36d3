/* One access of one thread: finds its memory space, checks the access and logs it. */
#include <signal.h>

#include "internal.h"
#include "simt/runtime/program.h"

/** Parameters, blockIdx, blockDim and gridDim. */
static bool is_parameter(const LabWorker *lab, uintptr_t address) {
  return address - (uintptr_t)&gridDim < sizeof gridDim ||
         address - (uintptr_t)&blockDim < sizeof blockDim ||
         address - (uintptr_t)&lab->worker->block < sizeof lab->worker->block ||
         address - (uintptr_t)lab->launch->arguments < lab->launch->arguments_bytes;
}

/** Host memory that kernels may read. */
static bool may_read(const LabWorker *lab, uintptr_t address) {
  return is_parameter(lab, address) || simt_is_constant(address);
}

/** Does not look for parameters among the variables: kernels use them before they begin, and the
 * search would leave values on the stack, where variables of the kernel must hold NaN. */
static bool is_global(const LabWorker *lab, uintptr_t address) {
  if (simt_memory_is_device((const void *)address)) return true;
  return !is_parameter(lab, address) && simt_is_device_variable(address);
}

/** Is the access within an allocation? Reports it if not. */
static bool check_bounds(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc,
                         size_t *region) {
  const bool found = lab_find_region(lab, address, region);
  if (found && lab_regions[*region].end - address >= size) return true;
  if (lab->checks & LAB_BOUNDS) {
    /* Report the first byte that is out of bounds. */
    const uintptr_t culprit = found ? lab_regions[*region].end : address;
    lab_report_here(lab, LAB_GLOBAL_OUTSIDE, pc, 0, 0, culprit);
  }
  return false;
}

/** Ends the launch, as on a GPU, because the store would damage the program itself. */
__attribute__((noreturn)) static void end_launch(const LabWorker *lab, uintptr_t address,
                                                 uint32_t pc) {
  lab->worker->fault = (Fault){.signal = SIGSEGV,
                               .address = address,
                               .pc = (uintptr_t)__executable_start + pc,
                               .is_write = true};
  simt_end_block(FAULTED, &(Wait){.call_site = NULL});
}

/** Is the whole access in the kernel's shared memory? */
static inline bool has_shared(const LabWorker *lab, uintptr_t address, unsigned size) {
  uintptr_t offset = address - lab->dynamic;
  const size_t requested = lab->launch->dynamic_shared_bytes;
  if (offset < requested) return size <= requested - offset;
  offset = address - lab->shared;
  for (size_t i = 0; i < lab_array_count; i++) {
    const SharedArray *array = &lab_arrays[i];
    if (offset - array->begin < array->size) return size <= array->size - (offset - array->begin);
  }
  return lab_is_unnamed_static(lab, address);
}

static void leave_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  const bool harmless = lab_may_leave_shared(lab, address, size);
  if (!(lab->checks & LAB_BOUNDS)) return;
  /* Report the first byte that is out of bounds. */
  uintptr_t culprit = address;
  while (has_shared(lab, culprit, 1)) culprit++;
  lab_report_here(lab, LAB_SHARED_OUTSIDE, pc, 0, 0, culprit);
  if (!harmless && use >= WRITES) end_launch(lab, address, pc);
}

/** An access to shared memory of another block. */
static void check_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, unsigned size,
                         Use use, uint32_t pc) {
  if (has_shared(owner, address, size)) {
    lab_use_remote(lab, owner, address, size, use, pc);
  } else if (lab->checks & LAB_BOUNDS) {
    lab_report_here(lab, LAB_SHARED_OUTSIDE, pc, 0, 0, address);
  }
}

void lab_check_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  LabWorker *owner = lab_owner(lab, address);
  if (owner != lab) {
    check_remote(lab, owner, address, size, use, pc);
  } else if (!has_shared(lab, address, size)) {
    leave_shared(lab, address, size, use, pc);
  } else if (lab->checks & (LAB_RACES | LAB_INIT)) {
    lab_use_shared(lab, address, size, use, pc);
  }
}

/** An access to memory of neither the device nor the block. */
static void use_host(LabWorker *lab, uintptr_t address, Use use, uint32_t pc) {
  if (!(lab->checks & LAB_BOUNDS) || (use == READS && may_read(lab, address))) return;
  lab_report_here(lab, LAB_GLOBAL_OUTSIDE, pc, 0, 0, address);
  if (use != READS) end_launch(lab, address, pc);
}

void lab_check_global(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  size_t region = 0;
  lab->source_reported = use >= WRITES && lab_source_written(lab, address, size, pc);
  if (check_bounds(lab, address, size, pc, &region) &&
      lab->checks & (LAB_INIT | LAB_BLOCKS | LAB_RACES)) {
    lab_use_global(lab, region, address, size, use, pc);
  }
}

void lab_check_atomic(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  if (address - lab->shared < lab->shared_bytes || lab_owner(lab, address) != lab) {
    lab_check_shared(lab, address, size, use, pc);
  } else if (is_global(lab, address)) {
    lab_check_global(lab, address, size, use, pc);
  } else {
    use_host(lab, address, use, pc);
  }
}

void lab_access(LabWorker *lab, uintptr_t address, unsigned size, bool is_write, uint32_t pc) {
  const Use use = is_write ? WRITES : READS;
  const bool own = address - lab->shared < lab->shared_bytes;
  const bool shared = own || lab_owner(lab, address) != lab;
  const bool device = !shared && is_global(lab, address);
  if (!shared && !device) {
    use_host(lab, address, use, pc);
    return;
  }
  if (own && lab_is_of_compiler(lab, address, size)) return;
  if (address % size != 0 && lab->checks & LAB_ALIGNMENT) {
    lab_report_here(lab, LAB_MISALIGNED, pc, 0, 0, address);
  }
  if (shared) {
    lab_check_shared(lab, address, size, use, pc);
    if (!(lab->checks & LAB_BANKS)) return;
    const LabAccessKind load = own ? LAB_SHARED_LOAD : LAB_REMOTE_LOAD;
    const LabAccessKind store = own ? LAB_SHARED_STORE : LAB_REMOTE_STORE;
    lab_log(lab, is_write ? store : load, address, size, pc, 0);
  } else {
    lab_check_global(lab, address, size, use, pc);
    if (!(lab->checks & LAB_TRAFFIC)) return;
    lab_log(lab, is_write ? LAB_GLOBAL_STORE : LAB_GLOBAL_LOAD, address, size, pc, 0);
  }
}
