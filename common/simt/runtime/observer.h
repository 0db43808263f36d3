/** @file The interface through which the runtime reports what happens while kernels run. */
#ifndef SIMT_OBSERVER_H
#define SIMT_OBSERVER_H

#include <simt.h>

/* Defined in runtime.h. */
typedef struct Launch Launch;
typedef struct Worker Worker;
typedef struct AsyncCopy AsyncCopy;
typedef struct TensorCopy TensorCopy;
typedef struct Wgmma Wgmma;

/** A launch that was refused or ended early. */
typedef struct Failure {
  const void *kernel;
  bool refused;
  const char *what;
  const Worker *worker;   /* whose block failed; NULL: no block */
  uintptr_t pc, other_pc; /* of the failure and of a related place; 0: unknown */
  int thread, other_thread;
} Failure;

/** What is done with an mbarrier: it is initialised, a thread arrives at it or waits, or a tensor
 * copy names it, which will count there when it lands. */
typedef enum { MBARRIER_BEGINS, MBARRIER_TALKS, MBARRIER_COUNTS } MbarrierUse;

/** Every function must be set. What happens in a block is told by the OS thread of its worker,
 * simt_worker. */
typedef struct Observer {
  void (*launch_begins)(const Launch *launch);
  void (*launch_ended)(const Launch *launch);
  void (*launch_failed)(const Failure *failure); /* before the launch has ended */
  void (*worker_begins)(Worker *worker);         /* before its first block of the launch */
  void (*worker_ended)(void);
  void (*block_begins)(void);
  void (*barrier_opens)(void);  /* all live threads have arrived */
  void (*warp_waits)(int warp); /* no lane is ready, or held lanes continue */
  void (*warp_instruction)(const SimtWarpOperation *operation, unsigned lanes, int warp,
                           const void *call_site); /* before it is executed */
  /** A shuffle of the running warp: `lane` reads a lane that takes no part. */
  void (*no_source)(int lane, int source, const void *call_site);
  /** Before an ldmatrix or, with `stores`, an stmatrix of the running warp. */
  void (*matrices)(const void *const *rows, int matrices, bool stores);
  void (*copy_issued)(const AsyncCopy *copy);
  void (*copy_arrived)(const AsyncCopy *copy);
  /** Before it is. */
  void (*mbarrier_used)(const void *barrier, MbarrierUse use, const void *call_site);
  /* By the number of the barrier among its owner's; arrivals before they count, passes after the
     wait. */
  void (*mbarrier_arrived)(Worker *owner, int barrier);
  void (*mbarrier_passed)(int barrier, bool of_cluster); /* .acquire.cluster */
  void (*named_barrier_arrived)(unsigned id);
  /** For those that wait, and for the running thread, the last to arrive, if it `waits`. */
  void (*named_barrier_opens)(unsigned id, bool waits);
  /** barrier.cluster: a thread arrives, unless with .relaxed; all have; a thread has waited. */
  void (*cluster_arrived)(void);
  void (*cluster_opens)(void);
  void (*cluster_passed)(void);
  void (*block_ended)(void); /* one of several of its cluster */
  void (*tensor_copy_issued)(const TensorCopy *copy);
  void (*tensor_copy_landed)(const TensorCopy *copy); /* before it is visible */
  void (*proxy_fence)(bool of_cluster);
  void (*wgmma_issued)(const Wgmma *wgmma, bool first_warp);
  /* `reads_end`: from now on it does not read shared memory. */
  void (*wgmma_done)(const Wgmma *wgmma, bool reads_end);
  void (*wgmma_fence)(void);
  /** Before an atomic is executed, and right after; `writes` is false for a failed comparison. */
  void (*atomic)(void *address, unsigned size, SimtAccess access, SimtOrder order,
                 const void *call_site);
  void (*words_stored)(void *address, unsigned size, const void *call_site); /* by such a store */
  void (*atomic_done)(SimtAccess access, bool writes, SimtOrder order);
  void (*fence)(void);                       /* one that other blocks can observe */
  void (*unset_used)(const void *call_site); /* see simt_use_unset() */
  /** A kernel's access faulted at `address` of the device. Returns whether this was reported, so
     that the kernel may continue. */
  bool (*fault)(uintptr_t address);
  bool (*tells_bounds)(void); /* if so, damage next to allocations is not reported again */
  void (*memory_allocated)(uintptr_t begin, size_t size);
  void (*memory_freed)(uintptr_t begin);
  void (*memory_written)(uintptr_t begin, size_t size); /* by the host */
} Observer;

/** NULL: no observer. Must not change while a kernel runs. */
extern const Observer *simt_observer;

#endif
