/** @file The time of a decode pass, of its limits, and of what comes with it. */
#include "host/device/decode_timing.h"

#include "host/device/graph.h"
#include "host/device/limits.h"

/** What the turns need. */
typedef struct Work {
  const Problem *problem;
  const DeviceTensors *tensors;
  size_t bytes; /* of K, and of V */
  cudaGraphExec_t graph;
} Work;

static cudaError_t enqueue_pass(const void *context) {
  const Work *work = context;
  return device_launch(&step, work->problem, work->tensors);
}

static cudaError_t enqueue_nothing(const void *context) {
  (void)context;
  return launch_empty(0);
}

static cudaError_t enqueue_reads(const void *context) {
  const Work *work = context;
  return launch_reads(work->tensors->decode.k, work->tensors->decode.v, work->bytes, 0);
}

static cudaError_t enqueue_graph(const void *context) {
  return cudaGraphLaunch(((const Work *)context)->graph, 0);
}

static cudaError_t enqueue_schedule(const void *context) {
  const Work *work = context;
  return step.schedule(work->problem, &work->tensors->decode, 0);
}

bool time_decode(const Problem *problem, const DeviceTensors *tensors, size_t tensor_bytes,
                 bool graph, size_t l2_bytes, Sampling sampling, Timing *pass, DecodeTiming *decode,
                 Error *error) {
  Work work = {problem, tensors, tensor_bytes, NULL};
  Turn turns[MOST_TURNS] = {
      {enqueue_pass, &work}, {enqueue_nothing, &work}, {enqueue_reads, &work}};
  Timing timings[MOST_TURNS];
  Timing *targets[MOST_TURNS] = {pass, &decode->empty, &decode->read};
  int count = 3;
  if (graph &&
      !device_ok(make_decode_graph(problem, &tensors->decode, &work.graph), "CUDA graph", error)) {
    return false;
  }
  if (graph) {
    targets[count] = &decode->graph;
    turns[count++] = (Turn){enqueue_graph, &work};
  }
  if (step.schedule != NULL) {
    targets[count] = &decode->schedule;
    turns[count++] = (Turn){enqueue_schedule, &work};
  }
  const bool ok = time_turns(turns, count, l2_bytes, sampling, timings, error);
  for (int i = 0; ok && i < count; i++) *targets[i] = timings[i];
  if (graph) cudaGraphExecDestroy(work.graph);
  return ok;
}
