/*
 * Streams, events and graphs. What a program puts into a stream of its own waits in a queue until
 * the program waits for it: for the stream, an event, the device, or by an operation on the default
 * stream. Then operations run one after the other, in an order that streams and events allow:
 * SIMT_ORDER says whether the one that was put first, last, or a random one is chosen. So a program
 * that lacks an event gives a wrong answer in some order.
 *
 * Operations on the default stream run at once, after all others that wait (but for streams with
 * cudaStreamNonBlocking). Streams are for one thread of the host.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hopper.h"
#include "program.h"

typedef struct Operation {
  enum { KERNEL, COPY, SET, RECORD, AWAIT, GRAPH } kind;
  uint64_t ticket; /* the order in which the program put them */
  Launch launch;   /* KERNEL; owns the arguments */
  void *target;    /* COPY and SET */
  const void *source;
  void *staged; /* COPY: the source, if it was memory that is not pinned */
  size_t count;
  cudaMemcpyKind direction;
  int value;
  cudaEvent_t event; /* RECORD */
  uint64_t awaited;  /* AWAIT: the ticket of a RECORD, 0: none */
  cudaGraph_t graph; /* GRAPH */
  struct Operation *next;
} Operation;

struct CUgraph_st {
  Operation *first, **end;
  int owners; /* the graph, what was instantiated of it, and launches that wait */
};

struct CUstream_st {
  Operation *first, **end;
  bool waits_for_default;
  cudaGraph_t captured; /* what is put goes there; NULL: no capture */
  struct CUstream_st *next;
};

struct CUevent_st {
  bool recorded;
  uint64_t ticket;      /* of the latest RECORD */
  cudaGraph_t captured; /* where that went; NULL: not into a capture */
  double ms;
};

static struct {
  struct CUstream_st *first;
  uint64_t tickets, random;
} streams;

double simt_clock_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* --- Operations ------------------------------------------------------------------------------- */

static void free_operations(Operation *first);

static void release_graph(cudaGraph_t graph) {
  if (graph == NULL || --graph->owners > 0) return;
  free_operations(graph->first);
  free(graph);
}

static void free_operations(Operation *first) {
  while (first != NULL) {
    Operation *next = first->next;
    if (first->kind == GRAPH) release_graph(first->graph);
    free(first->launch.arguments);
    free(first->staged);
    free(first);
    first = next;
  }
}

static void run_operation(const Operation *o) {
  cudaError_t error = cudaSuccess;
  switch (o->kind) {
    case KERNEL:
      simt_launch_now(&o->launch);
      break;
    case COPY:
      error = simt_copy_now(o->target, o->staged != NULL ? o->staged : o->source, o->count,
                            o->direction);
      break;
    case SET:
      error = simt_set_now(o->target, o->value, o->count);
      break;
    case RECORD:
      o->event->ms = simt_clock_ms();
      break;
    case AWAIT:
      break;
    case GRAPH:
      for (const Operation *part = o->graph->first; part != NULL; part = part->next) {
        run_operation(part);
      }
      break;
  }
  if (error != cudaSuccess) simt_set_last_error(error);
}

/** Does a RECORD still wait? */
static bool is_waiting(uint64_t ticket) {
  for (const struct CUstream_st *s = streams.first; s != NULL; s = s->next) {
    for (const Operation *o = s->first; o != NULL; o = o->next) {
      if (o->ticket == ticket) return true;
    }
  }
  return false;
}

/** The stream whose next operation is to run; NULL: none waits. The oldest operation can always
 * run, since what it awaits is older. */
static cudaStream_t choose_stream(void) {
  const Order order = simt_settings()->order;
  cudaStream_t chosen = NULL;
  uint64_t count = 0;
  for (cudaStream_t s = streams.first; s != NULL; s = s->next) {
    const Operation *o = s->first;
    if (o == NULL || (o->kind == AWAIT && is_waiting(o->awaited))) continue;
    count++;
    streams.random = streams.random * 6364136223846793005 + simt_settings()->seed * 2 + 1;
    const bool better = chosen == NULL     ? true
                        : order == RANDOM  ? (streams.random >> 33) % count == 0
                        : order == REVERSE ? o->ticket > chosen->first->ticket
                                           : o->ticket < chosen->first->ticket;
    if (better) chosen = s;
  }
  return chosen;
}

/** Runs one operation; false: none waits. */
static bool run_next(void) {
  cudaStream_t s = choose_stream();
  if (s == NULL) return false;
  Operation *o = s->first;
  s->first = o->next;
  if (s->first == NULL) s->end = &s->first;
  o->next = NULL;
  run_operation(o);
  free_operations(o);
  return true;
}

void simt_finish_streams(bool all) {
  bool waits;
  if (streams.first == NULL) return;
  do {
    waits = false;
    for (cudaStream_t s = streams.first; s != NULL; s = s->next) {
      waits = waits || (s->first != NULL && (all || s->waits_for_default));
    }
  } while (waits && run_next());
}

/** Puts an operation, whose other fields are set, into a stream or what is captured of it. */
static Operation *put(cudaStream_t stream, Operation operation) {
  Operation *o = simt_zeroed(1, sizeof *o);
  *o = operation;
  o->ticket = ++streams.tickets;
  Operation ***end = stream->captured != NULL ? &stream->captured->end : &stream->end;
  **end = o;
  *end = &o->next;
  return o;
}

static void finish(cudaStream_t stream) {
  while (stream->first != NULL && run_next()) continue;
}

/* --- Launches --------------------------------------------------------------------------------- */

static void put_launch(const Launch *launch, cudaStream_t stream) {
  Operation *o = put(stream, (Operation){.kind = KERNEL, .launch = *launch});
  o->launch.arguments = simt_zeroed(1, launch->arguments_bytes + 1);
  memcpy(o->launch.arguments, launch->arguments, launch->arguments_bytes);
}

void simt_launch(const void *kernel, dim3 grid, dim3 block, const dim3 *cluster, bool cooperative,
                 size_t dynamic_shared_bytes, cudaStream_t stream, void (*entry)(void *arguments),
                 void *arguments, size_t arguments_bytes) {
  Launch launch = {
      .kernel = kernel,
      .entry = entry,
      .arguments = arguments,
      .arguments_bytes = arguments_bytes,
      .grid = grid,
      .block = block,
      .cluster = cluster != NULL ? *cluster : simt_declaration(kernel).cluster,
      .cooperative = cooperative,
      .dynamic_shared_bytes = dynamic_shared_bytes,
  };
  if (simt_worker != NULL) { /* it would wait for the launch that it belongs to */
    simt_complain(__builtin_return_address(0),
                  "a launch from a kernel, which this backend does not support,");
  }
  if (simt_sticky_error() != cudaSuccess) return;
  const cudaError_t error = simt_check_launch(&launch);
  if (error != cudaSuccess) {
    simt_set_last_error(error);
  } else if (stream != NULL) {
    put_launch(&launch, stream);
  } else {
    simt_finish_streams(false);
    simt_launch_now(&launch);
  }
}

/* --- Memory ----------------------------------------------------------------------------------- */

/** Host memory that copies read and write when they run, not when they are put. */
typedef struct Pinned {
  struct Pinned *next;
  size_t size;
  max_align_t memory[];
} Pinned;
static Pinned *pinned;

static bool is_pinned(const void *pointer) {
  for (const Pinned *p = pinned; p != NULL; p = p->next) {
    const char *begin = (const char *)p->memory;
    if ((const char *)pointer >= begin && (const char *)pointer < begin + p->size) return true;
  }
  return false;
}

cudaError_t cudaMallocHost(void **pointer, size_t size) {
  Pinned *p = calloc(1, sizeof *p + size);
  if (p == NULL) return simt_result(cudaErrorMemoryAllocation);
  *p = (Pinned){pinned, size};
  pinned = p;
  *pointer = p->memory;
  return simt_result(cudaSuccess);
}

cudaError_t cudaFreeHost(void *pointer) {
  simt_finish_streams(true);
  for (Pinned **at = &pinned; *at != NULL; at = &(*at)->next) {
    if ((void *)(*at)->memory != pointer) continue;
    Pinned *next = (*at)->next;
    free(*at);
    *at = next;
    return simt_result(cudaSuccess);
  }
  return simt_result(pointer == NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (stream == NULL) {
    simt_finish_streams(false);
    return simt_copy_now(target, source, count, kind);
  }
  Operation *o =
      put(stream,
          (Operation){
              .kind = COPY, .target = target, .source = source, .count = count, .direction = kind});
  const bool to_host = !simt_memory_is_global(target), from_host = !simt_memory_is_global(source);
  if (from_host && !is_pinned(source) && count > 0) {
    o->staged = simt_zeroed(1, count);
    memcpy(o->staged, source, count);
  }
  if (to_host && !is_pinned(target) && stream->captured == NULL) finish(stream);
  return simt_result(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count, cudaStream_t stream) {
  if (stream == NULL) {
    simt_finish_streams(false);
    return simt_set_now(pointer, value, count);
  }
  put(stream, (Operation){.kind = SET, .target = pointer, .value = value, .count = count});
  return simt_result(cudaSuccess);
}

/* --- Streams ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  cudaStream_t made = calloc(1, sizeof *made);
  if (made == NULL) return simt_result(cudaErrorMemoryAllocation);
  made->end = &made->first;
  made->waits_for_default = (flags & cudaStreamNonBlocking) == 0;
  made->next = streams.first;
  streams.first = *stream = made;
  return simt_result(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  finish(stream);
  cudaStream_t *at = &streams.first;
  while (*at != stream) at = &(*at)->next;
  *at = stream->next;
  free(stream);
  return simt_result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == NULL) {
    simt_finish_streams(false);
  } else {
    finish(stream);
  }
  return simt_result(cudaSuccess);
}

/** Programs ask again and again, so each time an operation runs. */
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream != NULL && stream->first != NULL) run_next();
  return stream != NULL && stream->first != NULL ? cudaErrorNotReady : simt_result(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  if (!event->recorded) return simt_result(cudaSuccess);
  if (stream == NULL) {
    while (is_waiting(event->ticket)) run_next();
  } else if (event->captured != NULL) {
    stream->captured = event->captured; /* parts of a graph run in the order of their capture */
  } else {
    put(stream, (Operation){.kind = AWAIT, .awaited = event->ticket});
  }
  return simt_result(cudaSuccess);
}

/* --- Events ----------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return simt_result(*event != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  while (is_waiting(event->ticket)) run_next();
  free(event);
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  event->recorded = true;
  event->captured = stream != NULL ? stream->captured : NULL;
  if (stream == NULL) {
    simt_finish_streams(false);
    event->ticket = ++streams.tickets;
    event->ms = simt_clock_ms();
  } else if (event->captured == NULL) {
    event->ticket = put(stream, (Operation){.kind = RECORD, .event = event})->ticket;
  }
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  while (is_waiting(event->ticket)) run_next();
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  if (is_waiting(event->ticket)) run_next();
  return is_waiting(event->ticket) ? cudaErrorNotReady : simt_result(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (start == NULL || stop == NULL || !start->recorded || !stop->recorded) {
    return simt_result(cudaErrorInvalidResourceHandle);
  }
  if (is_waiting(start->ticket) || is_waiting(stop->ticket)) return cudaErrorNotReady;
  *milliseconds = (float)(stop->ms - start->ms);
  return simt_result(cudaSuccess);
}

/* --- Graphs ----------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  (void)mode;
  if (stream == NULL || stream->captured != NULL) {
    return simt_result(cudaErrorStreamCaptureUnsupported);
  }
  stream->captured = simt_zeroed(1, sizeof *stream->captured);
  *stream->captured = (struct CUgraph_st){.end = &stream->captured->first, .owners = 1};
  return simt_result(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  if (stream == NULL || stream->captured == NULL) return simt_result(cudaErrorIllegalState);
  *graph = stream->captured;
  for (cudaStream_t s = streams.first; s != NULL; s = s->next) {
    if (s->captured == *graph) s->captured = NULL;
  }
  return simt_result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph,
                                 unsigned long long flags) {
  (void)flags;
  if (graph == NULL) return simt_result(cudaErrorInvalidValue);
  graph->owners++;
  *made = graph;
  return simt_result(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (graph == NULL) return simt_result(cudaErrorInvalidValue);
  const Operation launch = {.kind = GRAPH, .graph = graph};
  if (stream == NULL) {
    simt_finish_streams(false);
    run_operation(&launch);
  } else {
    graph->owners++;
    put(stream, launch);
  }
  return simt_result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  release_graph(graph);
  return simt_result(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  release_graph(graph);
  return simt_result(cudaSuccess);
}
