/*
 * Barriers of compute capability 9.0 (PTX ISA 8.7): mbarriers (9.7.13.15), named barriers
 * (9.7.13.1), and setmaxnreg (9.7.19.5), which waits like a barrier.
 */
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

enum { REGISTER_FILE = 65536, MOST_REGISTERS = 255, REGISTER_STEP = 8, FEWEST_REGISTERS = 24 };

/* --- State ------------------------------------------------------------------------------------ */

Hopper *simt_hopper(Worker *worker) {
  if (worker->hopper == NULL) {
    worker->hopper = simt_zeroed(1, sizeof *worker->hopper);
    simt_begin_hopper(worker);
  }
  return worker->hopper;
}

/** Registers per thread that a kernel is compiled for if a block of it fills a multiprocessor. */
static unsigned registers_at_start(const Worker *worker) {
  const dim3 dim = worker->block.dim;
  const unsigned most = REGISTER_FILE / (dim.x * dim.y * dim.z);
  return (most < MOST_REGISTERS ? most : MOST_REGISTERS) / REGISTER_STEP * REGISTER_STEP;
}

void simt_begin_hopper(Worker *worker) {
  Hopper *hopper = worker->hopper;
  if (hopper == NULL) return;
  hopper->shared = (uintptr_t)worker->shared;
  hopper->mbarrier_count = 0;
  hopper->loads.count = hopper->stores.count = 0;
  memset(hopper->named, 0, sizeof hopper->named);
  memset(hopper->store_groups, 0, sizeof hopper->store_groups);
  for (int g = 0; g < WARPGROUPS; g++) {
    WarpGroup *group = &hopper->groups[g];
    memset(group->issued, 0, sizeof group->issued);
    memset(group->done, 0, sizeof group->done);
    memset(group->commits, 0, sizeof group->commits);
    memset(group->waited, 0, sizeof group->waited);
    for (int i = 0; i < MAX_IN_FLIGHT && group->ring[i] != NULL; i++) group->ring[i]->issued = 0;
  }
  for (int warp = 0; warp < MAX_WARPS; warp++) hopper->registers[warp] = registers_at_start(worker);
  memset(hopper->setmaxnreg, 0, sizeof hopper->setmaxnreg);
  hopper->free_registers = 0;
}

void simt_free_hopper(Worker *worker) {
  Hopper *hopper = worker->hopper;
  if (hopper == NULL) return;
  free(hopper->loads.list);
  free(hopper->stores.list);
  for (int g = 0; g < WARPGROUPS; g++) {
    for (int i = 0; i < MAX_IN_FLIGHT; i++) {
      if (hopper->groups[g].ring[i] != NULL) free(hopper->groups[g].ring[i]->saved);
      free(hopper->groups[g].ring[i]);
    }
  }
  free(hopper);
  worker->hopper = NULL;
}

/* --- mbarriers -------------------------------------------------------------------------------- */

/** In dynamic shared memory; another OS thread may write the report. */
static unsigned offset_of(const Hopper *hopper, const Mbarrier *barrier) {
  return (unsigned)(barrier->address - hopper->shared);
}

/** Its number; -1: there is none at this address. */
static int find_mbarrier(const Hopper *hopper, const void *address) {
  int i = hopper->mbarrier_count - 1;
  while (i >= 0 && hopper->mbarriers[i].address != (uintptr_t)address) i--;
  return i;
}

void simt_mbarrier_init(void *address, unsigned arrivals) {
  Worker *worker = simt_worker;
  Hopper *hopper = simt_hopper(worker);
  const void *call_site = __builtin_return_address(0);
  simt_require_aligned(address, 8, "mbarrier", call_site);
  if ((uintptr_t)address - (uintptr_t)smem >= worker->launch->dynamic_shared_bytes) {
    simt_complain(call_site, "an mbarrier outside of dynamic shared memory");
  }
  if (arrivals == 0) simt_complain(call_site, "an mbarrier of 0 arrivals");
  if (find_mbarrier(hopper, address) >= 0) {
    simt_complain(call_site, "an mbarrier is initialised again");
  }
  if (hopper->mbarrier_count == MAX_MBARRIERS) {
    simt_complain(call_site, "more than the %d mbarriers that are simulated", MAX_MBARRIERS);
  }
  if (simt_observer != NULL) simt_observer->mbarrier_used(address, MBARRIER_BEGINS, call_site);
  hopper->mbarriers[hopper->mbarrier_count++] = (Mbarrier){.address = (uintptr_t)address,
                                                           .arrivals = arrivals,
                                                           .pending = arrivals,
                                                           .initialised_by = worker->running};
  memset(address, 0, 8);
}

void simt_fence_mbarrier_init(void) {
  Worker *worker = simt_worker;
  Hopper *hopper = simt_hopper(worker);
  for (int i = 0; i < hopper->mbarrier_count; i++) {
    Mbarrier *barrier = &hopper->mbarriers[i];
    if (barrier->initialised_by != worker->running || barrier->fenced) continue;
    barrier->fenced = true;
    barrier->fenced_in = worker->cluster->phase;
  }
}

int simt_find_mbarrier(Worker *worker, const void *barrier, const void *call_site) {
  const int i = find_mbarrier(simt_hopper(worker), barrier);
  if (i >= 0) return i;
  char block[48] = "";
  if (worker != simt_worker)
    snprintf(block, sizeof block, " of the block of rank %u", worker->rank);
  simt_complain(call_site, "no mbarrier has been initialised at this address, shared + %td%s",
                (const char *)barrier - (const char *)worker->shared, block);
}

bool simt_is_published(const Worker *worker, const void *barrier) {
  const int i = worker->hopper != NULL ? find_mbarrier(worker->hopper, barrier) : -1;
  if (i < 0 || !worker->hopper->mbarriers[i].fenced) return false;
  return worker->cluster->phase != worker->hopper->mbarriers[i].fenced_in &&
         simt_worker->arrived_at[simt_worker->running] == 0;
}

static void end_phase_if_complete(Worker *worker, int i) {
  Mbarrier *barrier = &worker->hopper->mbarriers[i];
  if (barrier->pending > 0 || barrier->bytes != 0) return;
  barrier->phase++;
  barrier->pending = barrier->arrivals;
  simt_unpark(worker, AN_MBARRIER, (unsigned)i);
}

static void arrive(Worker *worker, void *address, unsigned bytes, const void *call_site) {
  const int i = simt_find_mbarrier(worker, address, call_site);
  Mbarrier *barrier = &worker->hopper->mbarriers[i];
  if (barrier->pending == 0) {
    simt_complain(call_site, "more than the %u arrivals of a phase at the mbarrier at shared + %u",
                  barrier->arrivals, offset_of(worker->hopper, barrier));
  }
  if (barrier->phase - barrier->awaited > 1) { /* a wait for the first of them would not end */
    simt_complain(call_site, "two phases of the mbarrier at shared + %u have ended without a wait",
                  offset_of(worker->hopper, barrier));
  }
  if (simt_observer != NULL) {
    simt_observer->mbarrier_used(address, MBARRIER_TALKS, call_site);
    simt_observer->mbarrier_arrived(worker, i);
  }
  barrier->bytes += bytes;
  barrier->pending--;
  end_phase_if_complete(worker, i);
}

void simt_mbarrier_arrive(void *address, unsigned bytes) {
  arrive(simt_worker, address, bytes, __builtin_return_address(0));
}

void simt_mbarrier_arrive_at(void *address, unsigned rank) {
  const void *call_site = __builtin_return_address(0);
  Worker *worker = simt_cluster_member(rank, call_site);
  simt_require_live(worker, call_site);
  arrive(worker, simt_cluster_map(address, rank), 0, call_site);
}

void simt_mbarrier_complete(const TensorCopy *copy) {
  Mbarrier *barrier = &copy->target->hopper->mbarriers[copy->barrier];
  barrier->bytes -= copy->bytes;
  barrier->brought_by = copy->call_site;
  end_phase_if_complete(copy->target, copy->barrier);
}

static void wait_for(void *address, unsigned parity, bool of_cluster, const void *call_site) {
  Worker *worker = simt_worker;
  const int i = simt_find_mbarrier(worker, address, call_site);
  Mbarrier *barrier = &worker->hopper->mbarriers[i];
  if (simt_observer != NULL) simt_observer->mbarrier_used(address, MBARRIER_TALKS, call_site);
  while ((barrier->phase & 1) == (parity & 1)) simt_park(AN_MBARRIER, (unsigned)i, call_site);
  barrier->awaited = barrier->phase;
  if (simt_observer != NULL) simt_observer->mbarrier_passed(i, of_cluster);
}

void simt_mbarrier_wait(void *address, unsigned parity) {
  wait_for(address, parity, false, __builtin_return_address(0));
}

void simt_mbarrier_wait_cluster(void *address, unsigned parity) {
  wait_for(address, parity, true, __builtin_return_address(0));
}

void simt_refuse_end_of_bytes(Worker *worker) {
  const Hopper *hopper = worker->hopper;
  for (int i = 0; hopper != NULL && i < hopper->mbarrier_count; i++) {
    const Mbarrier *barrier = &hopper->mbarriers[i];
    if (barrier->bytes >= 0) continue;
    simt_complain(barrier->brought_by,
                  "the block ends after tensor copies brought %lld bytes to its mbarrier at shared "
                  "+ %u that nobody expected",
                  (long long)-barrier->bytes, offset_of(hopper, barrier));
  }
}

/* --- Named barriers --------------------------------------------------------------------------- */

void simt_named_barrier(unsigned id, unsigned threads, bool wait) {
  Worker *worker = simt_worker;
  const void *call_site = __builtin_return_address(0);
  if (id == 0 || id >= NAMED_BARRIERS) {
    simt_complain(call_site, "barrier %u: named barriers are 1 to %d", id, NAMED_BARRIERS - 1);
  }
  if (threads == 0 || threads % WARP_SIZE != 0) {
    simt_complain(call_site, "barrier %u for %u threads: must be a multiple of 32", id, threads);
  }
  NamedBarrier *barrier = &simt_hopper(worker)->named[id];
  if (barrier->arrived > 0 && barrier->threads != threads) {
    simt_complain(call_site, "barrier %u for %u threads, for %u by those that have arrived", id,
                  threads, barrier->threads);
  }
  barrier->threads = threads;
  barrier->thread = worker->running;
  barrier->call_site = call_site;
  if (simt_observer != NULL) simt_observer->named_barrier_arrived(id);
  if (++barrier->arrived == threads) {
    barrier->arrived = 0;
    if (simt_observer != NULL) simt_observer->named_barrier_opens(id, wait);
    simt_unpark(worker, A_NAMED_BARRIER, id);
  } else if (wait) {
    simt_park(A_NAMED_BARRIER, id, call_site);
  }
}

void simt_refuse_end_of_arrivals(Worker *worker) {
  for (int id = 0; worker->hopper != NULL && id < NAMED_BARRIERS; id++) {
    const NamedBarrier *barrier = &worker->hopper->named[id];
    if (barrier->arrived == 0) continue;
    worker->running = barrier->thread; /* that the report names */
    simt_complain(barrier->call_site, "the block ends after %u of %u arrivals at barrier %d",
                  barrier->arrived, barrier->threads, id);
  }
}

/* --- setmaxnreg ------------------------------------------------------------------------------- */

static const SimtWarpOperation setmaxnreg = {"setmaxnreg", SIMT_SETMAXNREG, NULL};

void simt_set_registers(unsigned registers, bool more) {
  Worker *worker = simt_worker;
  Hopper *hopper = simt_hopper(worker);
  const void *call_site = __builtin_return_address(0);
  unsigned *own = &hopper->registers[worker->running / WARP_SIZE];
  if (registers % REGISTER_STEP != 0 || registers < FEWEST_REGISTERS || registers > 256) {
    simt_complain(call_site, "setmaxnreg %u: must be a multiple of 8 from 24 to 256", registers);
  }
  if (more ? registers < *own : registers > *own) {
    simt_complain(call_site, "setmaxnreg.%s %u by a warp of %u registers per thread",
                  more ? "inc" : "dec", registers, *own);
  }
  simt_warp_instruction_at(&setmaxnreg, ~0u, NULL, call_site);
  hopper->setmaxnreg[worker->running / WARP_SIZE] = call_site;
  /* The first lane that continues does it for its warp. */
  while (registers > *own && registers - *own > hopper->free_registers) {
    simt_park(REGISTERS_TO_BE_FREE, registers, call_site);
  }
  if (registers == *own) return;
  hopper->free_registers += *own - registers;
  *own = registers;
  if (!more) simt_unpark(worker, REGISTERS_TO_BE_FREE, 0);
}

void simt_refuse_unequal_registers(Worker *worker) {
  const dim3 dim = worker->block.dim;
  const int warps = (int)(dim.x * dim.y * dim.z / WARP_SIZE);
  for (int warp = 0; worker->hopper != NULL && warp < warps; warp++) {
    const Hopper *hopper = worker->hopper;
    const int first = warp / GROUP_WARPS * GROUP_WARPS;
    if (hopper->registers[warp] == hopper->registers[first]) continue;
    const int named = hopper->setmaxnreg[warp] != NULL ? warp : first;
    worker->running = named * WARP_SIZE; /* that the report names */
    simt_complain(hopper->setmaxnreg[named],
                  "setmaxnreg by some warps of a warpgroup: warp %d has %u registers per thread, "
                  "warp %d %u",
                  first, hopper->registers[first], warp, hopper->registers[warp]);
  }
}

/* --- Reports ---------------------------------------------------------------------------------- */

void simt_describe_awaited(const Worker *worker, const Wait *wait, char *text, size_t text_size) {
  const Hopper *hopper = worker->hopper;
  switch (wait->awaited) {
    case AN_MBARRIER: {
      const Mbarrier *barrier = &hopper->mbarriers[wait->number];
      int length = snprintf(
          text, text_size, "the mbarrier at shared + %u: its phase %u lacks %u of %u arrivals",
          offset_of(hopper, barrier), barrier->phase, barrier->pending, barrier->arrivals);
      if (barrier->bytes > 0) {
        snprintf(text + length, text_size - (size_t)length, " and %lld bytes of tensor copies",
                 (long long)barrier->bytes);
      } else if (barrier->bytes < 0) {
        snprintf(text + length, text_size - (size_t)length,
                 ", and tensor copies brought %lld bytes more than were expected",
                 (long long)-barrier->bytes);
      }
      break;
    }
    case A_NAMED_BARRIER: {
      const NamedBarrier *barrier = &hopper->named[wait->number];
      snprintf(text, text_size, "barrier %u: %u of %u threads have arrived", wait->number,
               barrier->arrived, barrier->threads);
      break;
    }
    case THE_CLUSTER:
      snprintf(text, text_size, "the cluster's barrier: %u of %u threads have arrived",
               worker->cluster->arrived, worker->cluster->threads);
      break;
    case ANOTHER_VALUE:
      simt_describe_value(worker, wait->address, text, text_size);
      break;
    case ITS_WARPGROUP:
      snprintf(text, text_size, "a wgmma that not all warps of its warpgroup have issued");
      break;
    case REGISTERS_TO_BE_FREE:
      snprintf(text, text_size,
               "setmaxnreg.inc %u of warps with %u registers per thread: %u more are free for one "
               "of them",
               wait->number, hopper->registers[(wait - worker->waits) / WARP_SIZE],
               hopper->free_registers);
      break;
  }
}
