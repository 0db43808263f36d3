/**
 * @file
 * f02: n particles move for a time step: position += dt * velocity, in three dimensions.
 *
 * A warp's 32 addresses become sectors of 32 bytes. Where they are neighbours, 4 sectors bring what
 * 32 lanes need; where they are not, up to 32 sectors come, and most of their bytes are for
 * nothing. All stages compute the same and differ in who loads what, and in how the particles are
 * stored.
 */
#include <stdlib.h>

#include "foundation.h"

constexpr int THREADS = 256;
constexpr int PER_THREAD = 8;   // particles of a thread in the stage "chunks"
constexpr int IN = 6, OUT = 3;  // floats of a particle: position and velocity; position
constexpr int IN_ODD = IN + 1;  // lanes that read 32 particles use 32 banks; f03's page counts more
constexpr float DT = 0.125f;    // a power of two, so that the host gets the same bits

// [chunks]
/** Arrays: x of all particles, then y of all, ... : element (field, i) is at [field * n + i]. */
__device__ void move_in_arrays(const float *in, float *out, int n, int i) {
  for (int axis = 0; axis < OUT; axis++) {
    out[axis * n + i] = in[axis * n + i] + DT * in[(axis + OUT) * n + i];
  }
}

/** A thread takes 8 neighbouring particles: at a time, a warp's lanes are 8 floats apart. */
__global__ void chunks_kernel(const float *in, float *out, int n) {
  const int first = (blockIdx.x * THREADS + threadIdx.x) * PER_THREAD;
  for (int i = first; i < first + PER_THREAD && i < n; i++) move_in_arrays(in, out, n, i);
}
// [chunks]
// [arrays]
/** Neighbouring threads take neighbouring particles. */
__global__ void arrays_kernel(const float *in, float *out, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) move_in_arrays(in, out, n, i);
}
// [arrays]
// [vectors]
__device__ float4 moved(float4 p, float4 v) {
  return make_float4(p.x + DT * v.x, p.y + DT * v.y, p.z + DT * v.z, p.w + DT * v.w);
}
/** A thread takes four neighbours with one access of 16 bytes; n is a multiple of 4. */
__global__ void vectors_kernel(const float *in, float *out, int n) {
  const int i = (blockIdx.x * THREADS + threadIdx.x) * 4;
  if (i >= n) return;
#pragma unroll
  for (int axis = 0; axis < OUT; axis++) {
    const float4 p = *reinterpret_cast<const float4 *>(&in[axis * n + i]);
    const float4 v = *reinterpret_cast<const float4 *>(&in[(axis + OUT) * n + i]);
    *reinterpret_cast<float4 *>(&out[axis * n + i]) = moved(p, v);
  }
}
// [vectors]

// [structures]
/** Structures: element (i, field) is at [6 * i + field], so a warp's lanes are 24 bytes apart. */
__global__ void structures_kernel(const float *in, float *out, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  for (int axis = 0; axis < OUT; axis++) {
    out[OUT * i + axis] = in[IN * i + axis] + DT * in[IN * i + OUT + axis];
  }
}
// [structures]
// [staged]
/** Structures, too: a block copies them to and from shared memory as if they were plain floats. */
__global__ void staged_kernel(const float *in, float *out, int n) {
  __shared__ float in_shared[THREADS * IN_ODD], out_shared[THREADS * OUT];
  const int thread = threadIdx.x, first = blockIdx.x * THREADS;
  const int count = min(THREADS, n - first);
#pragma unroll
  for (int j = 0; j < IN; j++) {  // the number of rounds is known, so that all loads start at once
    const int i = thread + j * THREADS;
    if (i < IN * count) in_shared[i / IN * IN_ODD + i % IN] = in[IN * first + i];
  }
  __syncthreads();  // all particles of the block are in shared memory
  if (thread < count) {
    const float *p = &in_shared[thread * IN_ODD];
    for (int axis = 0; axis < OUT; axis++) {
      out_shared[thread * OUT + axis] = p[axis] + DT * p[OUT + axis];
    }
  }
  __syncthreads();  // all results are
  for (int i = thread; i < OUT * count; i += THREADS) out[OUT * first + i] = out_shared[i];
}
// [staged]

static int n, pitch;  // pitch: n rounded up, so that each array begins at a multiple of 16 bytes
static float *right_arrays, *right_structures;
static float *arrays, *structures, *out;  // on the device; arrays holds the same particles

static int blocks(int per_block) {
  return (pitch + per_block - 1) / per_block;
}
static void run_chunks(void) {
  chunks_kernel<<<blocks(THREADS * PER_THREAD), THREADS>>>(arrays, out, pitch);
}
static void run_arrays(void) {
  arrays_kernel<<<blocks(THREADS), THREADS>>>(arrays, out, pitch);
}
static void run_vectors(void) {
  vectors_kernel<<<blocks(THREADS * 4), THREADS>>>(arrays, out, pitch);
}
static void run_structures(void) {
  structures_kernel<<<blocks(THREADS), THREADS>>>(structures, out, n);
}
static void run_staged(void) {
  staged_kernel<<<blocks(THREADS), THREADS>>>(structures, out, n);
}

static bool arrays_are_right(char note[200]) {
  return foundation_equal(out, right_arrays, (int64_t)OUT * pitch, note);
}
static bool structures_are_right(char note[200]) {
  return foundation_equal(out, right_structures, (int64_t)OUT * n, note);
}

/** What every stage must give, in both orders. */
static void move_on_host(const float *particles) {
  for (int i = 0; i < n; i++) {
    for (int axis = 0; axis < OUT; axis++) {
      const float moved = particles[IN * i + axis] + DT * particles[IN * i + OUT + axis];
      right_structures[OUT * i + axis] = right_arrays[axis * pitch + i] = moved;
    }
  }
}

int main(int argc, char **argv) {
  const Program program = {"f02", "Moves N particles for a time step.", 100000000, 10000, 10000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  pitch = (n + 3) / 4 * 4;
  const size_t bytes = sizeof(float) * IN * pitch;
  float *structures_host = (float *)foundation_allocate(bytes);
  float *arrays_host = (float *)foundation_allocate(bytes);
  right_structures = (float *)foundation_allocate(sizeof(float) * OUT * n);
  right_arrays = (float *)foundation_allocate(sizeof(float) * OUT * pitch);
  for (int i = 0; i < n; i++) {
    for (int field = 0; field < IN; field++) {
      const float x = foundation_float(run.seed, (uint64_t)IN * i + field);
      structures_host[IN * i + field] = arrays_host[field * pitch + i] = x;
    }
  }
  move_on_host(structures_host);
  CHECK(cudaMalloc(&arrays, bytes));
  CHECK(cudaMalloc(&structures, bytes));
  CHECK(cudaMalloc(&out, sizeof(float) * OUT * pitch));
  CHECK(cudaMemcpy(arrays, arrays_host, bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(structures, structures_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(sizeof(float) * (IN + OUT) * (double)n, 0);
  foundation_stage("chunks", run_chunks, arrays_are_right);
  foundation_stage("arrays", run_arrays, arrays_are_right);
  foundation_stage("vectors", run_vectors, arrays_are_right);
  foundation_stage("structures", run_structures, structures_are_right);
  foundation_stage("staged", run_staged, structures_are_right);
  const int code = foundation_end();

  CHECK(cudaFree(arrays)), CHECK(cudaFree(structures)), CHECK(cudaFree(out));
  free(structures_host), free(arrays_host), free(right_structures), free(right_arrays);
  return code;
}
