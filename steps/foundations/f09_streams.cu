/**
 * @file
 * f09: n floats go to the device, are changed there, and come back.
 *
 * Operations of one stream run one after the other. Operations of different streams may overlap:
 * the GPU has engines for copies in each direction beside its SMs. So the numbers are cut into
 * chunks, and while one is computed, the next comes and the last goes. An event says when something
 * in a stream is done, so that another stream can wait for it. A graph is a list of operations that
 * is put into a stream as a whole, so that the host needs one call and not hundreds.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "foundation.h"

constexpr int THREADS = 256, ROUNDS = 64;
constexpr int CHUNKS = 8, STREAMS = 3;  // chunks take the streams in turns
constexpr int LINKS = 100;              // kernels of the chain

/** A linear map that floats compute without rounding, so that the host gets the same bits. */
__host__ __device__ float change(float x) {
  for (int i = 0; i < ROUNDS; i++) x = x > 0 ? x - 1 : x + 2;
  return x;
}

__global__ void __launch_bounds__(THREADS) change_kernel(float *x, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) x[i] = change(x[i]);
}

/** Adds 1 to a few numbers: so short that a launch takes longer than the kernel. */
__global__ void __launch_bounds__(THREADS) link_kernel(float *x, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) x[i] += 1;
}

static int n;
static float *from, *to;  // pinned memory of the host: copies need no help of the CPU
static float *x, *right;  // on the device; what must come back
static cudaStream_t streams[STREAMS], copying, computing;
static cudaEvent_t start, end, arrived[CHUNKS], changed[CHUNKS];
static cudaGraphExec_t graph;
static float *chained;  // the numbers of the chain
static int chained_n;

static int chunk_begin(int chunk) {
  return (int)((int64_t)n * chunk / CHUNKS);
}
static int chunk_size(int chunk) {
  return chunk_begin(chunk + 1) - chunk_begin(chunk);
}

static void copy_in(int chunk, cudaStream_t stream) {
  const int i = chunk_begin(chunk);
  CHECK(cudaMemcpyAsync(&x[i], &from[i], sizeof(float) * chunk_size(chunk), cudaMemcpyHostToDevice,
                        stream));
}
static void compute(int chunk, cudaStream_t stream) {
  const int size = chunk_size(chunk), blocks = (size + THREADS - 1) / THREADS;
  if (blocks > 0) change_kernel<<<blocks, THREADS, 0, stream>>>(&x[chunk_begin(chunk)], size);
}
static void copy_out(int chunk, cudaStream_t stream) {
  const int i = chunk_begin(chunk);
  CHECK(cudaMemcpyAsync(&to[i], &x[i], sizeof(float) * chunk_size(chunk), cudaMemcpyDeviceToHost,
                        stream));
}

// [fork_join]
/** Other streams begin after what is in the default stream, which the time of a stage begins with.
 */
static void fork(cudaStream_t stream) {
  CHECK(cudaEventRecord(start, 0));
  CHECK(cudaStreamWaitEvent(stream, start, 0));
}
/** And what comes in the default stream, the end of the time, waits for them. */
static void join(cudaStream_t stream) {
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaStreamWaitEvent(0, end, 0));
}
// [fork_join]

/** One stream: copy in, compute, copy out, with nothing at the same time. */
static void run_in_turn(void) {
  fork(streams[0]);
  for (int c = 0; c < CHUNKS; c++)
    copy_in(c, streams[0]), compute(c, streams[0]), copy_out(c, streams[0]);
  join(streams[0]);
}

// [streams]
/** The chunks are independent of each other: each can go through a stream of its own. */
static void run_streams(void) {
  for (int s = 0; s < STREAMS; s++) fork(streams[s]);
  for (int c = 0; c < CHUNKS; c++) {
    const cudaStream_t stream = streams[c % STREAMS];
    copy_in(c, stream), compute(c, stream), copy_out(c, stream);
  }
  for (int s = 0; s < STREAMS; s++) join(streams[s]);
}
// [streams]

// [events]
/** A stream for each engine: events say that a chunk has arrived and that it has been changed. */
static void run_events(void) {
  const cudaStream_t leaving = streams[0];
  fork(copying), fork(computing), fork(leaving);
  for (int c = 0; c < CHUNKS; c++) {
    copy_in(c, copying);
    CHECK(cudaEventRecord(arrived[c], copying));
    CHECK(cudaStreamWaitEvent(computing, arrived[c], 0));
    compute(c, computing);
    CHECK(cudaEventRecord(changed[c], computing));
    CHECK(cudaStreamWaitEvent(leaving, changed[c], 0));
    copy_out(c, leaving);
  }
  join(copying), join(computing), join(leaving);
}
// [events]

static void put_chain(cudaStream_t stream) {
  CHECK(cudaMemsetAsync(chained, 0, sizeof(float) * chained_n, stream));
  for (int i = 0; i < LINKS; i++) {
    link_kernel<<<(chained_n + THREADS - 1) / THREADS, THREADS, 0, stream>>>(chained, chained_n);
  }
}

/** Launches one by one. */
static void run_chain(void) {
  fork(streams[0]);
  put_chain(streams[0]);
  join(streams[0]);
}

// [graph]
/** The same, captured once: the stream does not run what is put into it, but remembers it. */
static void capture_chain(void) {
  cudaGraph_t captured;
  CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
  put_chain(streams[0]);
  CHECK(cudaStreamEndCapture(streams[0], &captured));
  CHECK(cudaGraphInstantiate(&graph, captured, 0));
  CHECK(cudaGraphDestroy(captured));
}
static void run_graph(void) {
  fork(streams[0]);
  CHECK(cudaGraphLaunch(graph, streams[0]));
  join(streams[0]);
}
// [graph]

static bool copies_are_right(char note[200]) {
  int i = 0;
  while (i < n && to[i] == right[i]) i++;
  if (i < n) snprintf(note, 200, "element %d is %g, should be %g", i, to[i], right[i]);
  for (int j = 0; j < n; j++) to[j] = NAN;  // the next stage must copy all of it
  CHECK(cudaMemset(x, 0xff, sizeof(float) * n));
  return i == n;
}

static bool chain_is_right(char note[200]) {
  float *all = (float *)foundation_allocate(sizeof(float) * chained_n);
  for (int i = 0; i < chained_n; i++) all[i] = LINKS;
  const bool is_right = foundation_equal(chained, all, chained_n, note);
  free(all);
  return is_right;
}

int main(int argc, char **argv) {
  const Program program = {"f09", "Changes N floats on the device and copies them back.", 500000000,
                           5000, 50000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  chained_n = n < 10000 ? n : 10000;
  const size_t bytes = sizeof(float) * n;
  CHECK(cudaMallocHost(&from, bytes));
  CHECK(cudaMallocHost(&to, bytes));
  CHECK(cudaMalloc(&x, bytes));
  CHECK(cudaMalloc(&chained, sizeof(float) * chained_n));
  right = (float *)foundation_allocate(bytes);
  for (int i = 0; i < n; i++) {
    from[i] = foundation_bits(run.seed, i) % 100;
    right[i] = change(from[i]);
  }
  for (cudaStream_t &stream : streams)
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&copying, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&computing, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&end));
  for (cudaEvent_t &event : arrived) CHECK(cudaEventCreate(&event));
  for (cudaEvent_t &event : changed) CHECK(cudaEventCreate(&event));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("in-turn", run_in_turn, copies_are_right);
  foundation_stage("streams", run_streams, copies_are_right);
  foundation_stage("events", run_events, copies_are_right);
  foundation_work(0, 0);
  foundation_stage("chain", run_chain, chain_is_right);
  capture_chain();
  foundation_stage("graph", run_graph, chain_is_right);
  const int code = foundation_end();

  CHECK(cudaGraphExecDestroy(graph));
  for (cudaEvent_t event : arrived) CHECK(cudaEventDestroy(event));
  for (cudaEvent_t event : changed) CHECK(cudaEventDestroy(event));
  CHECK(cudaEventDestroy(start)), CHECK(cudaEventDestroy(end));
  for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
  CHECK(cudaStreamDestroy(copying)), CHECK(cudaStreamDestroy(computing));
  CHECK(cudaFreeHost(from)), CHECK(cudaFreeHost(to)), CHECK(cudaFree(x)), CHECK(cudaFree(chained));
  free(right);
  return code;
}
