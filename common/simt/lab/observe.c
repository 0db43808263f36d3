/* The observer of the lab: passes the runtime's events to the rest of the lab. */
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"
#include "simt/runtime/program.h"

static unsigned checks;
static LabWorker *watched[MAX_WORKERS]; /* with blocks of the running launch, in any order */
static _Atomic int watched_count;
static double launch_start_ms;

/* --- Workers -------------------------------------------------------------------------------- */

/** Finds the thread-local variables of the program, which include all shared memory. */
static int find_shared(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  LabWorker *lab = argument;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    const uintptr_t begin = (uintptr_t)info->dlpi_tls_data;
    if (segment->p_type != PT_TLS || (uintptr_t)smem - begin >= segment->p_memsz) continue;
    lab->shared = begin;
    lab->shared_bytes = segment->p_memsz;
    return 1;
  }
  return 0;
}

enum { LOGS_BYTES = MAX_THREADS * LOG_RECORDS * sizeof(Record) };

static size_t shadow_bytes(const LabWorker *lab) {
  return (lab->shared_bytes / UNIT_BYTES + 2) * sizeof(Cell);
}

/** Memory of zeros, of which little is used. */
static void *mapped(size_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  return memory;
}

static void worker_begins(Worker *worker) {
  LabWorker *lab = simt_zeroed(1, sizeof *lab);
  lab->worker = worker;
  lab->launch = worker->launch;
  lab->checks = checks;
  lab->fibers = (uintptr_t)worker->slots;
  lab->dynamic = (uintptr_t)smem;
  dl_iterate_phdr(find_shared, lab);
  lab->logs = mapped(LOGS_BYTES);
  lab->shadow = mapped(shadow_bytes(lab));
  watched[atomic_fetch_add(&watched_count, 1)] = lab;
  worker->lab = lab_worker = lab;
}

static void worker_ended(void) {
  lab_worker = NULL;
}

static void free_worker(LabWorker *lab) {
  lab->worker->lab = NULL;
  munmap(lab->logs, LOGS_BYTES);
  munmap(lab->shadow, shadow_bytes(lab));
  lab_free_behind(lab);
  lab_free_suspects(lab);
  free(lab->hopper);
  lab_free_cluster(lab);
  lab_free_clocks(lab);
  lab_free_histories(lab);
  lab_free_arena(lab);
  free(lab->findings.list);
  free(lab->block_findings.list);
  lab_free_sites(&lab->sites);
  lab_free_first(&lab->first);
  free(lab);
}

/* --- Launches ------------------------------------------------------------------------------- */

static void launch_begins(const Launch *launch) {
  watched_count = 0;
  lab_begin_regions();
  lab_begin_arrays(launch);
  launch_start_ms = simt_clock_ms();
}

/** Stores the findings of a block that has ended. */
static void end_block(LabWorker *lab) {
  lab_end_pages(lab);
  lab_end_suspects(lab);
  lab_add_findings(&lab->findings, &lab->block_findings);
  lab->block_findings.count = 0;
}

static void launch_failed(const Failure *failure) {
  lab_store_failure(failure);
  for (int i = 0; i < watched_count && failure->worker != NULL; i++) {
    if (watched[i]->worker->team != failure->worker->team) continue;
    lab_end_suspects(watched[i]);
    lab_store_findings(&watched[i]->block_findings);
  }
}

/** Stores the results of a launch whose blocks have all finished. */
static void store_launch(const Launch *launch) {
  bool atomics = false, fences = false;
  for (int i = 0; i < watched_count; i++) {
    end_block(watched[i]);
    atomics |= watched[i]->atomics;
    fences |= watched[i]->fences;
  }
  /* With both, blocks may signal each other that data is ready. */
  const bool talk = atomics && fences, teams = launch->team_size > 1;
  FindingList *findings = lab_begin_store(launch, talk && (checks & LAB_BLOCKS) != 0);
  lab_judge_suspects(watched, watched_count, talk || teams, findings);
  lab_end_regions(watched, watched_count, launch, (checks & LAB_BLOCKS) != 0, findings);
  for (int i = 0; i < watched_count; i++) lab_store(launch, watched[i]);
}

/**
 * Which blocks ran before a failure depends on the OS threads. So for a failed launch, only the
 * findings of the failed block are reported.
 */
static void launch_ended(const Launch *launch) {
  if (launch->failed) {
    lab_begin_store(launch, false);
    lab_forget_touched(watched, watched_count);
  } else {
    store_launch(launch);
  }
  for (int i = 0; i < watched_count; i++) free_worker(watched[i]);
  lab_end_arrays();
  lab_store_time(simt_clock_ms() - launch_start_ms);
}

/* --- Blocks --------------------------------------------------------------------------------- */

static void block_begins(void) {
  LabWorker *lab = lab_worker;
  end_block(lab);
  lab->block = simt_block_number(lab->worker);
  lab->block_tag = lab_block_tag(lab->block);
  lab->first_epoch = ++lab->epoch;
  lab->wiped_around_dynamic = lab->wiped_between_arrays = false;
  lab_fill_arrays(lab);
  lab_begin_hopper(lab);
  lab_begin_clocks(lab);
  lab_begin_talk(lab);
  lab_begin_cluster(lab);
  lab->talked = false;
  lab->copies_reading = 0;
}

/** Its initialisation counts as a write, each use as a read, which must be ordered behind it. */
static void mbarrier_used(const void *barrier, MbarrierUse use, const void *call_site) {
  LabWorker *lab = lab_worker, *owner = lab_owner(lab, (uintptr_t)barrier);
  const uint32_t pc = lab_pc(call_site);
  const bool begins = use == MBARRIER_BEGINS;
  if (begins || !simt_is_published(owner->worker, barrier)) {
    lab_check_shared(lab, (uintptr_t)barrier, sizeof(uint64_t), begins ? WRITES : READS, pc);
  } else if (owner != lab) {
    lab_touch_remote(lab, owner, (uintptr_t)barrier, use == MBARRIER_COUNTS, pc);
  }
}

static void barrier_opens(void) {
  LabWorker *lab = lab_worker;
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    const unsigned lanes = lab->worker->warps[warp].at_barrier;
    if (lanes == 0) continue;
    const Wait *wait = &lab->worker->waits[warp * WARP_SIZE + __builtin_ctz(lanes)];
    lab_counts(&lab->sites, lab_pc(wait->call_site))->barriers++;
  }
  if (lab->checks & LAB_RACES) lab_check_barrier(lab);
  lab_meet_all(lab);
  lab_end_pages(lab);
  lab->epoch++;
}

static void warp_waits(int warp) {
  if (lab_worker->dirty_warps >> warp & 1) lab_flush_warp(lab_worker, warp);
}

static void warp_instruction(const SimtWarpOperation *operation, unsigned lanes, int warp,
                             const void *call_site) {
  LabWorker *lab = lab_worker;
  const Worker *worker = lab->worker;
  if (lab->checks & LAB_RACES) lab_check_lanes(lab, operation, warp, lanes);
  LabCounts *counts = lab_counts(&lab->sites, lab_pc(call_site));
  const SimtKind kind = operation->kind;
  counts->shuffles += kind == SIMT_SHUFFLE;
  counts->votes += kind == SIMT_VOTE;
  counts->reductions += kind == SIMT_REDUCTION;
  counts->warp_barriers += kind == SIMT_SYNCWARP;
  counts->mma += kind == SIMT_MMA;
  if (kind == SIMT_SHUFFLE) counts->shuffles_under_wgmma += lab_wgmma_in_flight(worker, warp);
  if (kind == SIMT_MMA) counts->mma_under_copy += simt_warp_copies_in_flight(worker);
  if (kind != SIMT_SYNCWARP) return;
  /* With those that it names and that have exited. */
  lab_meet_lanes(lab, warp, worker->waits[warp * WARP_SIZE + __builtin_ctz(lanes)].mask);
}

static void use_matrices(const void *const *rows, int matrices, bool stores) {
  LabWorker *lab = lab_worker;
  Worker *worker = lab->worker;
  const uint32_t pc = lab_pc(worker->access_call_site);
  const LabAccessKind kind = stores ? LAB_SHARED_STORE : LAB_LDMATRIX;
  if (lab->checks & LAB_BANKS) lab_count_matrices(lab, kind, rows, matrices, pc);
  const int running = worker->running;
  const int first = running / WARP_SIZE * WARP_SIZE;
  for (int lane = 0; lane < 8 * matrices; lane++) {
    worker->running = first + lane;
    lab_check_shared(lab, (uintptr_t)rows[lane], COPY_BYTES, stores ? WRITES : READS, pc);
  }
  worker->running = running;
}

static void copy_issued(const AsyncCopy *copy) {
  LabWorker *lab = lab_worker;
  const uint32_t pc = lab_pc(copy->call_site);
  const uintptr_t target = (uintptr_t)copy->shared, source = (uintptr_t)copy->global;
  lab_check_shared(lab, target, COPY_BYTES, COPIES, pc);
  if (lab->checks & LAB_BANKS) {
    lab_log(lab, LAB_COPY_SHARED, target, COPY_BYTES, pc, copy->source_bytes);
  }
  if (copy->source_bytes == 0) {
    if (lab->checks & LAB_TRAFFIC) lab_log(lab, LAB_COPY_GLOBAL, source, COPY_BYTES, pc, NO_SOURCE);
    return;
  }
  lab_check_global(lab, source, copy->source_bytes, COPY_READS, pc);
  lab_source_issued(lab, copy);
  if (lab->checks & LAB_TRAFFIC) {
    const unsigned piece = (unsigned)((target - lab->dynamic) / COPY_BYTES) % PIECES;
    lab_log(lab, LAB_COPY_GLOBAL, source, copy->source_bytes, pc, piece);
  }
}

static void copy_arrived(const AsyncCopy *copy) {
  LabWorker *lab = lab_worker;
  lab_source_arrived(lab, copy);
  if (!(lab->checks & (LAB_RACES | LAB_INIT))) return;
  lab_copy_arrived(lab, (uintptr_t)copy->shared, lab_thread(lab), -1, lab_pc(copy->call_site));
}

static void atomic(void *address, unsigned size, SimtAccess access, SimtOrder order,
                   const void *call_site) {
  LabWorker *lab = lab_worker;
  const uint32_t pc = lab_pc(call_site);
  const Use use = access == SIMT_LOADS         ? ATOMIC_LOADS
                  : access == SIMT_UPDATES     ? ATOMICALLY
                  : access == SIMT_ADDS_FLOATS ? ADDS_FLOATS
                                               : EXCHANGES;
  lab_counts(&lab->sites, pc)->atomics += access != SIMT_LOADS && access != SIMT_STORES;
  const bool global = simt_memory_is_global(address);
  if (global) lab->atomics = lab->talked = true;
  if (order != SIMT_RELAXED) lab->fences = true;
  if (global) lab->times[lab_thread(lab)]++; /* a time of its own: talk.c */
  lab_check_atomic(lab, (uintptr_t)address, size, use, pc);
  /* If there is no such memory, the atomic itself may end the block. */
  if (global && simt_memory_contains(address, size)) lab_begin_atomic(lab, address, access, order);
}

/** The loads that wait for it are not logged: there are as many as the wait takes. */
static void words_stored(void *address, unsigned size, const void *call_site) {
  LabWorker *lab = lab_worker;
  if (!(lab->checks & LAB_TRAFFIC) || !simt_memory_is_global(address)) return;
  lab_log(lab, LAB_GLOBAL_STORE, (uintptr_t)address, size, lab_pc(call_site), 0);
}

static void unset_used(const void *call_site) {
  if (!(checks & LAB_INIT)) return;
  RawFinding *finding = lab_count_finding(lab_worker, LAB_FLOAT_UNSET, lab_pc(call_site), 0, 0);
  if (finding != NULL) snprintf(finding->where, sizeof finding->where, "0xffffffff, a NaN");
}

static bool tells_bounds(void) {
  return (checks & LAB_BOUNDS) != 0;
}

static bool fault(uintptr_t address) {
  return tells_bounds() && simt_memory_lend(address);
}

static const Observer observer = {
    .launch_begins = launch_begins,
    .launch_ended = launch_ended,
    .launch_failed = launch_failed,
    .worker_begins = worker_begins,
    .worker_ended = worker_ended,
    .block_begins = block_begins,
    .barrier_opens = barrier_opens,
    .warp_waits = warp_waits,
    .warp_instruction = warp_instruction,
    .no_source = lab_no_source,
    .matrices = use_matrices,
    .copy_issued = copy_issued,
    .copy_arrived = copy_arrived,
    .mbarrier_used = mbarrier_used,
    .mbarrier_arrived = lab_mbarrier_arrived,
    .mbarrier_passed = lab_mbarrier_passed,
    .named_barrier_arrived = lab_named_barrier_arrived,
    .named_barrier_opens = lab_named_barrier_opens,
    .cluster_arrived = lab_cluster_arrived,
    .cluster_opens = lab_cluster_opens,
    .cluster_passed = lab_cluster_passed,
    .block_ended = lab_block_ended,
    .tensor_copy_issued = lab_tensor_copy_issued,
    .tensor_copy_landed = lab_tensor_copy_landed,
    .proxy_fence = lab_proxy_fence,
    .wgmma_issued = lab_wgmma_issued,
    .wgmma_done = lab_wgmma_done,
    .wgmma_fence = lab_wgmma_fence,
    .atomic = atomic,
    .words_stored = words_stored,
    .atomic_done = lab_end_atomic,
    .fence = lab_fence,
    .unset_used = unset_used,
    .fault = fault,
    .tells_bounds = tells_bounds,
    .memory_allocated = lab_memory_allocated,
    .memory_freed = lab_memory_freed,
    .memory_written = lab_memory_written,
};

void lab_start(unsigned wanted) {
  checks = wanted;
  lab_forget_store();
  if (wanted == 0) lab_free_regions();
  simt_observer = wanted != 0 ? &observer : NULL;
}
