/*
 * wgmma: what it reads from shared memory until it is waited for, and its registers. On the CPU
 * backend these are arrays in the local memory of threads.
 */
#include "internal.h"

/* --- Registers -------------------------------------------------------------------------------- */

static RegisterRange *find_range(ThreadRegisters *registers, uintptr_t address) {
  for (int i = 0; i < registers->count; i++) {
    RegisterRange *range = &registers->ranges[i];
    if (address - range->begin < range->end - range->begin) return range;
  }
  return NULL;
}

void lab_use_local(LabWorker *lab, uintptr_t address, bool is_write, uint32_t pc) {
  const int thread = (int)((address - lab->fibers) / SIMT_SLOT_BYTES);
  RegisterRange *range = find_range(&lab->hopper->registers[thread], address);
  if (range == NULL) return;
  if (is_write) lab->hopper->registers_written[thread / WARP_SIZE] = true;
  if (range->in_flight == 0 || !(lab->checks & LAB_RACES)) return;
  if (!range->accumulators && !is_write) return;
  const WarpGroup *group = &lab->worker->hopper->groups[thread / GROUP_THREADS];
  const uint64_t committed = simt_committed_wgmma(group, thread / WARP_SIZE % GROUP_WARPS);
  const LabKind kind = range->number < committed ? LAB_WGMMA_REGISTERS : LAB_WGMMA_NOT_COMMITTED;
  RawFinding *finding = lab_count_finding(lab, kind, pc, range->pc, (uint64_t)thread);
  if (finding == NULL) return;
  snprintf(finding->where, sizeof finding->where, "%s, element %zu of it",
           range->accumulators ? "an accumulator" : "operand A",
           (size_t)(address - range->begin) / sizeof(uint32_t));
}

/** A free place, or that of one that is not in flight, or else any. */
static RegisterRange *new_range(ThreadRegisters *registers) {
  if (registers->count < RANGES) return &registers->ranges[registers->count++];
  for (int i = 0; i < RANGES; i++) {
    registers->oldest = (registers->oldest + 1) % RANGES;
    if (registers->ranges[registers->oldest].in_flight == 0) break;
  }
  return &registers->ranges[registers->oldest];
}

/** Notes a wgmma that uses these registers of a thread. */
static void begin_use(LabWorker *lab, int thread, const void *begin, size_t bytes,
                      bool accumulators, uint32_t pc) {
  const WarpGroup *group = &lab->worker->hopper->groups[thread / GROUP_THREADS];
  ThreadRegisters *registers = &lab->hopper->registers[thread];
  RegisterRange *range = find_range(registers, (uintptr_t)begin);
  if (range == NULL || range->begin != (uintptr_t)begin) {
    if (range == NULL) range = new_range(registers);
    *range = (RegisterRange){.begin = (uintptr_t)begin};
  }
  range->end = (uintptr_t)begin + bytes;
  range->pc = pc;
  range->accumulators = accumulators;
  range->number = group->issued[thread / WARP_SIZE % GROUP_WARPS] - 1;
  range->in_flight++;
}

static void end_use(LabWorker *lab, int thread, const void *begin) {
  RegisterRange *range = find_range(&lab->hopper->registers[thread], (uintptr_t)begin);
  if (range != NULL && range->in_flight > 0) range->in_flight--;
}

enum { CORE_ROWS = 8 };

/** A core matrix of 8 rows of 16 bytes is one wavefront, unless rows share banks. */
static void count_banks(const uintptr_t *chunks, int count, LabTraffic *traffic) {
  traffic->requests++;
  traffic->bytes += (uint64_t)count * COPY_BYTES;
  for (int first = 0; first < count; first += CORE_ROWS) {
    unsigned rows_of[CORE_ROWS] = {0}, most = 0; /* by four neighbouring banks */
    for (int i = first; i < first + CORE_ROWS; i++) {
      const unsigned rows = ++rows_of[chunks[i] / COPY_BYTES % CORE_ROWS];
      if (rows > most) most = rows;
    }
    lab_add_wavefronts(traffic, most);
  }
}

/* --- Events ----------------------------------------------------------------------------------- */

void lab_wgmma_issued(const Wgmma *wgmma, bool first_warp) {
  LabWorker *lab = lab_worker;
  Worker *worker = lab->worker;
  LabHopper *hopper = lab_hopper(lab);
  const int running = worker->running, warp = running / WARP_SIZE;
  const uint32_t pc = lab_pc(wgmma->call_site);
  const int columns = wgmma->common.n;
  LabCounts *counts = lab_counts(&lab->sites, pc);
  counts->wgmma += first_warp;
  counts->wgmma_flop +=
      2ull * WARP_ROWS * (unsigned)simt_wgmma_depth(&wgmma->common) * (unsigned)columns;
  worker->running = warp * WARP_SIZE; /* reports name the first lane */
  if (hopper->registers_written[warp] && lab->checks & LAB_RACES) {
    RawFinding *finding = lab_count_finding(lab, LAB_NO_WGMMA_FENCE, pc, 0, 0);
    if (finding != NULL) snprintf(finding->where, sizeof finding->where, "warp %d", warp);
  }
  uintptr_t chunks[MOST_CHUNKS];
  const int count = simt_wgmma_chunks(wgmma, chunks);
  if (first_warp && lab->checks & LAB_BANKS) count_banks(chunks, count, &counts->wgmma_read);
  for (int i = 0; i < count; i++) {
    lab_check_shared(lab, chunks[i], COPY_BYTES, READS_AS_PROXY, pc);
    if (first_warp) lab_begin_async_read(lab, chunks[i], pc);
  }
  for (int lane = warp * WARP_SIZE; lane < (warp + 1) * WARP_SIZE; lane++) {
    const int in_group = lane % GROUP_THREADS;
    begin_use(lab, lane, wgmma->d[in_group], (size_t)columns / 2 * sizeof(float), true, pc);
    if (wgmma->common.a == NULL) continue;
    begin_use(lab, lane, wgmma->a[in_group], 4 * sizeof(uint32_t), false, pc);
  }
  worker->running = running;
}

void lab_wgmma_done(const Wgmma *wgmma, bool reads_end) {
  LabWorker *lab = lab_worker;
  const Worker *worker = lab->worker;
  const int warp = worker->running / WARP_SIZE, group = warp / GROUP_WARPS;
  const uint64_t number = worker->hopper->groups[group].done[warp % GROUP_WARPS];
  lab_see(lab, warp, FIRST_GROUP + group, (uint32_t)number + 1);
  if (reads_end) {
    uintptr_t chunks[MOST_CHUNKS];
    const int count = simt_wgmma_chunks(wgmma, chunks);
    for (int i = 0; i < count; i++) {
      AsyncReads *reads = lab_async_reads(lab, chunks[i]);
      reads->under_way--;
      reads->ended[group] = (uint32_t)number + 1;
    }
  }
  for (int lane = warp * WARP_SIZE; lane < (warp + 1) * WARP_SIZE; lane++) {
    const int in_group = lane % GROUP_THREADS;
    end_use(lab, lane, wgmma->d[in_group]);
    if (wgmma->common.a != NULL) end_use(lab, lane, wgmma->a[in_group]);
  }
}

void lab_wgmma_fence(void) {
  lab_hopper(lab_worker)->registers_written[lab_thread(lab_worker) / WARP_SIZE] = false;
}

/** Has the warp issued a wgmma that it has not waited for? */
bool lab_wgmma_in_flight(const Worker *worker, int warp) {
  if (worker->hopper == NULL) return false;
  const WarpGroup *group = &worker->hopper->groups[warp / GROUP_WARPS];
  return group->issued[warp % GROUP_WARPS] > group->done[warp % GROUP_WARPS];
}
