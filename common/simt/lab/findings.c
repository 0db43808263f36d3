#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "simt/runtime/program.h"

/** Findings of launches have no place: each reason is a finding. */
static bool same(const RawFinding *a, const RawFinding *b) {
  return a->kernel == b->kernel && a->kind == b->kind && a->pc == b->pc &&
         a->other_pc == b->other_pc && (a->pc != 0 || strcmp(a->where, b->where) == 0);
}

RawFinding *lab_find_or_make(FindingList *list, const RawFinding *key, bool *made) {
  *made = false;
  for (size_t i = 0; i < list->count; i++) {
    if (same(&list->list[i], key)) return &list->list[i];
  }
  list->list = simt_with_room(list->list, list->count, sizeof *list->list);
  *made = true;
  RawFinding *finding = &list->list[list->count++];
  *finding = *key;
  finding->count = 0;
  return finding;
}

static bool is_earlier(const RawFinding *a, const RawFinding *b) {
  if (a->block != b->block) return a->block < b->block;
  return a->thread < b->thread;
}

void lab_add_finding(FindingList *list, const RawFinding *other) {
  bool made;
  RawFinding *finding = lab_find_or_make(list, other, &made);
  const uint64_t count = finding->count + other->count;
  if (!made && is_earlier(other, finding)) *finding = *other;
  finding->count = count;
}

void lab_add_findings(FindingList *list, const FindingList *others) {
  for (size_t i = 0; i < others->count; i++) lab_add_finding(list, &others->list[i]);
}

static void describe(LabWorker *lab, uintptr_t address, char *text, size_t text_size) {
  size_t region;
  const LabWorker *owner = lab_owner(lab, address);
  if (owner != lab) {
    lab_describe_shared(owner, address, text, text_size);
    const size_t length = strlen(text);
    snprintf(text + length, text_size - length, " of the block of rank %u", owner->worker->rank);
  } else if (address - lab->shared < lab->shared_bytes) {
    lab_describe_shared(lab, address, text, text_size);
  } else if (lab_find_region(lab, address, &region)) {
    lab_describe_region(&lab_regions[region], address, text, text_size);
  } else {
    simt_memory_describe(address, text, text_size);
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
  RawFinding *finding = lab_find_or_make(&lab->block_findings, &key, &made);
  finding->count++;
  if (made) finding->order = (unsigned)lab->block_findings.count;
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

const char *lab_kind_text(LabKind kind) {
  static const char *const TEXTS[LAB_KINDS] = {
      [LAB_RACE_WRITE_READ] =
          "shared memory race: read of what another thread wrote, no barrier between",
      [LAB_RACE_READ_WRITE] =
          "shared memory race: write to what another thread read, no barrier between",
      [LAB_RACE_WRITE_WRITE] =
          "shared memory race: write to what another thread wrote, no barrier between",
      [LAB_BARRIER_APART] =
          "barrier that not all threads of the block reach: others wait elsewhere",
      [LAB_BARRIER_EXITED] = "barrier that not all threads of the block reach: others have exited",
      [LAB_BARRIER_REUSED] =
          "named barrier that others may not have passed yet, nothing orders these uses",
      [LAB_WARP_APART] = "warp instruction that not all its lanes reach: others are elsewhere",
      [LAB_WARP_MASKS] = "warp instruction that its lanes execute with different masks",
      [LAB_NO_SOURCE] = "shuffle from a lane that takes no part: the value is undefined",
      [LAB_CLUSTER_UNSTARTED] =
          "use of shared memory of a block that may not have started, no cluster barrier between",
      [LAB_CLUSTER_ENDED] =
          "use of shared memory of a block that may have ended: it does not wait for this",
      [LAB_COPY_NOT_WAITED] = "use of shared memory that a cp.async is on its way to",
      [LAB_COPY_NO_BARRIER] =
          "read of what another thread's cp.async copied, no barrier since its wait",
      [LAB_COPY_OVER_READ] = "cp.async into what another thread may still read, no barrier between",
      [LAB_TENSOR_NOT_WAITED] =
          "use of what a tensor copy brings, no wait for its mbarrier between",
      [LAB_TENSOR_OVER_READ] = "tensor copy into what another thread may still read",
      [LAB_ASYNC_OVER_READ] = "write to shared memory that a wgmma or tensor copy may still read",
      [LAB_NO_PROXY_FENCE] =
          "wgmma or tensor copy of what threads have stored, no fence.proxy.async between",
      [LAB_WGMMA_REGISTERS] = "use of registers of a wgmma in flight, no wait between",
      [LAB_WGMMA_NOT_COMMITTED] =
          "use of registers of a wgmma before its wgmma.commit_group: no wait covers it",
      [LAB_NO_WGMMA_FENCE] = "wgmma after its registers were written, no wgmma.fence between",
      [LAB_COPY_SOURCE_WRITTEN] = "write to the source of a cp.async, no wait and barrier between",
      [LAB_SHARED_UNWRITTEN] = "read of shared memory that nobody wrote",
      [LAB_SHARED_OUTSIDE] = "shared memory out of bounds",
      [LAB_GLOBAL_OUTSIDE] = "global memory out of bounds",
      [LAB_FLOAT_UNSET] = "use of a float that nobody has set",
      [LAB_GLOBAL_UNWRITTEN] = "read of global memory that nobody wrote",
      [LAB_INDEX_OUTSIDE] = "index out of the bounds of an array",
      [LAB_MISALIGNED] = "misaligned access",
      [LAB_GLOBAL_RACE_WRITE_READ] =
          "global memory race: read of what another thread of the block wrote, nothing orders them",
      [LAB_GLOBAL_RACE_READ_WRITE] =
          "global memory race: write to what another thread of the block read, nothing orders them",
      [LAB_GLOBAL_RACE_WRITE_WRITE] =
          "global memory race: write to what another thread of the block wrote, nothing orders "
          "them",
      [LAB_BLOCKS_WRITE_WRITE] = "global memory race: two blocks write the same bytes",
      [LAB_BLOCKS_WRITE_READ] = "global memory race: one block reads what another writes",
      [LAB_LAUNCH_REFUSED] = "launch limits exceeded",
      [LAB_LAUNCH_FAILED] = "the launch ended early",
      [LAB_SUM_UNORDERED] = "the sum depends on the order: blocks add floats, nothing orders them",
  };
  return TEXTS[kind];
}

bool lab_is_between_blocks(LabKind kind) {
  return kind == LAB_BLOCKS_WRITE_WRITE || kind == LAB_BLOCKS_WRITE_READ ||
         kind == LAB_SUM_UNORDERED;
}

/** How the other place of a finding relates to the first. */
static const char *relation(LabKind kind) {
  if (lab_is_between_blocks(kind)) return "and at";
  if (kind == LAB_LAUNCH_FAILED) return "see also";
  return kind == LAB_BARRIER_APART || kind == LAB_WARP_APART ? "others at" : "after";
}

/** Prints the number of occurrences and the first one. */
static void print_occurrences(const LabFinding *f, FILE *out) {
  const char *unit = lab_is_between_blocks(f->kind) ? "byte" : "time";
  fprintf(out, "           %llu %s%s, first: ", (unsigned long long)f->count, unit,
          f->count == 1 ? "" : "s");
  if (lab_is_between_blocks(f->kind)) {
    fprintf(out, "block %llu, the other block %llu, ", (unsigned long long)f->block,
            (unsigned long long)f->other_block);
  }
  if (f->has_thread) {
    fprintf(out, "block %llu thread %llu, ", (unsigned long long)f->block,
            (unsigned long long)f->thread);
  }
  if (f->other_place != NULL && f->has_thread) {
    fprintf(out, "the other thread %llu, ", (unsigned long long)f->other_thread);
  }
  fprintf(out, "%s\n", f->where);
}

static void print_finding(const char *word, const LabFinding *f, FILE *out) {
  fprintf(out, "%-10s %s\n", word, lab_kind_text(f->kind));
  if (f->place == NULL) {
    fprintf(out, "           in %s: %s\n", f->kernel, f->where);
    return;
  }
  fprintf(out, "           at %s%s in %s\n", f->place, f->calls, f->kernel);
  if (f->other_place != NULL) {
    fprintf(out, "           %s %s%s\n", relation(f->kind), f->other_place, f->other_calls);
  }
  print_occurrences(f, out);
}

void lab_print_findings(const LabResults *results, FILE *out) {
  for (size_t i = 0; i < results->finding_count; i++) {
    print_finding("finding", &results->findings[i], out);
  }
  for (size_t i = 0; i < results->note_count; i++) print_finding("note", &results->notes[i], out);
}
