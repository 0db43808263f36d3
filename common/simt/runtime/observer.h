/**
 * @file
 * The interface through which the runtime reports what happens while kernels run.
 */
#ifndef SIMT_OBSERVER_H
#define SIMT_OBSERVER_H

#include <simt.h>

/* runtime.h says what these are. */
typedef struct Launch Launch;
typedef struct Worker Worker;
typedef struct AsyncCopy AsyncCopy;

/** A launch that was refused or ended early. */
typedef struct Failure {
  const void *kernel;
  bool refused;
  const char *what;
  const Worker *worker;   /* whose block it was; NULL: it was in none */
  uintptr_t pc, other_pc; /* of what went wrong and of what it goes with; 0: none is known */
  int thread, other_thread;
} Failure;

/**
 * Every function must be set. Those with a Worker are called by the OS thread that it belongs to.
 */
typedef struct Observer {
  void (*launch_begins)(const Launch *launch);
  void (*launch_ended)(const Launch *launch);
  void (*launch_failed)(const Failure *failure); /* before the launch has ended */
  void (*worker_begins)(Worker *worker);         /* with its first block of the launch */
  void (*worker_ended)(Worker *worker);
  void (*block_begins)(Worker *worker);
  void (*barrier_opens)(Worker *worker);        /* all that are live are there */
  void (*warp_waits)(Worker *worker, int warp); /* no lane of it is ready, or held ones go on */
  void (*warp_instruction)(Worker *worker, const SimtWarpOperation *operation, unsigned lanes,
                           int warp, const void *call_site); /* before it is carried out */
  void (*ldmatrix)(Worker *worker, const void *const *rows, int matrices); /* before it reads */
  void (*copy_issued)(Worker *worker, const AsyncCopy *copy);
  void (*copy_arrived)(Worker *worker, const AsyncCopy *copy);
  void (*atomic)(Worker *worker, void *address, unsigned size, bool reads, const void *call_site);
  void (*fence)(Worker *worker); /* that orders memory for other blocks too */
  void (*unset_used)(Worker *worker, const void *call_site); /* see simt_use_unset() */
  /** An access of a kernel has faulted at `address` of the device: has this been told, so that the
      kernel may go on? */
  bool (*fault)(Worker *worker, uintptr_t address);
  bool (*tells_bounds)(void); /* then damage beside allocations is not reported once more */
  void (*memory_allocated)(uintptr_t begin, size_t size);
  void (*memory_freed)(uintptr_t begin);
  void (*memory_written)(uintptr_t begin, size_t size); /* by the host */
} Observer;

/** NULL: nobody watches. Not to be changed while a kernel runs. */
extern const Observer *simt_observer;

#endif
