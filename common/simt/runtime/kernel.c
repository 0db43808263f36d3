/*
 * Attributes of kernels, which programs query and set, and limits of launches. A kernel is
 * identified by its address.
 */
#include <stdlib.h>

#include "program.h"

/** A kernel whose attributes have been used. */
typedef struct Kernel {
  const void *kernel;
  SimtDeclaration declared;
  bool raised; /* cudaFuncAttributeMaxDynamicSharedMemorySize has been set */
  size_t dynamic_shared_bytes;
} Kernel;

static struct {
  pthread_mutex_t lock;
  Kernel *list;
  size_t count;
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Kernel *find_or_make(const void *kernel) {
  for (size_t i = 0; i < kernels.count; i++) {
    if (kernels.list[i].kernel == kernel) return &kernels.list[i];
  }
  kernels.list = simt_with_room(kernels.list, kernels.count, sizeof *kernels.list);
  Kernel *made = &kernels.list[kernels.count++];
  *made = (Kernel){.kernel = kernel, .declared = simt_declaration(kernel)};
  return made;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

/** The most threads of a block, by the kernel's launch bound if it has one. */
static int most_threads(const Kernel *kernel) {
  const int bound = kernel->declared.most_threads;
  return bound > 0 && bound < MAX_THREADS ? bound : MAX_THREADS;
}

/** `bytes` minus the kernel's static arrays, at least 0. */
static size_t beside_static(const Kernel *kernel, size_t bytes) {
  return bytes - smaller(bytes, kernel->declared.static_shared_bytes);
}

/** The kernel's current attributes; `dynamic_shared_bytes` is the limit for launches. */
static Kernel look_up(const void *kernel) {
  const size_t most =
      simt_settings()->shared_bytes; /* may be lower than before; may end the program */
  pthread_mutex_lock(&kernels.lock);
  Kernel own = *find_or_make(kernel);
  pthread_mutex_unlock(&kernels.lock);
  if (!own.raised) own.dynamic_shared_bytes = beside_static(&own, DEFAULT_SHARED_BYTES);
  own.dynamic_shared_bytes = smaller(own.dynamic_shared_bytes, beside_static(&own, most));
  return own;
}

static void set_limit(const void *kernel, size_t bytes) {
  pthread_mutex_lock(&kernels.lock);
  Kernel *known = find_or_make(kernel);
  known->raised = true;
  known->dynamic_shared_bytes = bytes;
  pthread_mutex_unlock(&kernels.lock);
}

void simt_forget_kernel_attributes(void) {
  pthread_mutex_lock(&kernels.lock);
  free(kernels.list);
  kernels.list = NULL;
  kernels.count = 0;
  pthread_mutex_unlock(&kernels.lock);
}

/* --- Refusals ------------------------------------------------------------------------------- */

enum { WHY_BYTES = 160 };

/** Reports the exceeded limit to the observer. */
static cudaError_t refuse(const void *kernel, const char *why, cudaError_t error) {
  simt_tell_refusal(kernel, why);
  return error;
}

/** Describes which of the three numbers is out of its limits; false if none is. */
static bool describe_excess(const char *what, const char *unit, dim3 given, dim3 most, char *why) {
  const unsigned numbers[] = {given.x, given.y, given.z}, limits[] = {most.x, most.y, most.z};
  for (int i = 0; i < 3; i++) {
    if (numbers[i] >= 1 && numbers[i] <= limits[i]) continue;
    snprintf(why, WHY_BYTES, "%s of %u x %u x %u %s: %c is %u, at %s %u", what, given.x, given.y,
             given.z, unit, "xyz"[i], numbers[i], numbers[i] < 1 ? "least" : "most",
             numbers[i] < 1 ? 1 : limits[i]);
    return true;
  }
  return false;
}

static bool has_too_many_threads(dim3 block, int most, char *why) {
  const unsigned threads = block.x * block.y * block.z;
  if (threads <= (unsigned)most) return false;
  snprintf(why, WHY_BYTES, "block of %u x %u x %u threads: %u in all, at most %d%s", block.x,
           block.y, block.z, threads, most, most < MAX_THREADS ? " by __launch_bounds__" : "");
  return true;
}

/** Does the grid not consist of clusters, or is one too large? */
static bool is_no_cluster(const Launch *launch, char *why) {
  const dim3 own = launch->cluster;
  const unsigned numbers[] = {launch->grid.x, launch->grid.y, launch->grid.z};
  const unsigned sizes[] = {own.x, own.y, own.z};
  for (int i = 0; i < 3; i++) {
    if (sizes[i] >= 1 && numbers[i] % sizes[i] == 0) continue;
    snprintf(why, WHY_BYTES, "clusters of %u x %u x %u blocks in a grid whose %c is %u", own.x,
             own.y, own.z, "xyz"[i], numbers[i]);
    return true;
  }
  const uint64_t size = (uint64_t)own.x * own.y * own.z;
  if (size <= MAX_CLUSTER) return false;
  snprintf(why, WHY_BYTES, "clusters of %u x %u x %u blocks: %llu in all, at most %d", own.x, own.y,
           own.z, (unsigned long long)size, MAX_CLUSTER);
  return true;
}

/** Blocks that wait for each other must all fit into the device. */
static bool is_too_large(const Launch *launch, char *why) {
  if (!launch->cooperative) return false;
  const dim3 grid = launch->grid, block = launch->block;
  const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  int most;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &most, launch->kernel, (int)(block.x * block.y * block.z), launch->dynamic_shared_bytes);
  most *= simt_settings()->multiprocessors;
  if (most > MAX_WORKERS) most = MAX_WORKERS;
  if (blocks <= (uint64_t)most) return false;
  snprintf(why, WHY_BYTES, "cooperative launch of %llu blocks: at most %d run at the same time",
           (unsigned long long)blocks, most);
  return true;
}

/** Unless a limit was set, static and dynamic shared memory share the default size. */
static bool has_too_much_shared(const Kernel *kernel, size_t dynamic, char *why) {
  const size_t fixed = kernel->declared.static_shared_bytes;
  if (fixed > DEFAULT_SHARED_BYTES) {
    snprintf(why, WHY_BYTES, "%zu bytes of static shared memory, at most %d", fixed,
             DEFAULT_SHARED_BYTES);
    return true;
  }
  if (dynamic <= kernel->dynamic_shared_bytes) return false;
  snprintf(why, WHY_BYTES,
           "%zu bytes of dynamic and %zu of static shared memory: %zu in all, at most %zu %s",
           dynamic, fixed, dynamic + fixed, kernel->dynamic_shared_bytes + fixed,
           kernel->raised ? "as the limit was set"
                          : "without cudaFuncAttributeMaxDynamicSharedMemorySize");
  return true;
}

cudaError_t simt_check_launch(const Launch *launch) {
  static const dim3 MOST_BLOCKS = {INT32_MAX, 65535, 65535}, MOST = {MAX_THREADS, MAX_THREADS, 64};
  char why[WHY_BYTES];
  if (launch->kernel == NULL) return cudaErrorInvalidDeviceFunction;
  if (describe_excess("grid", "blocks", launch->grid, MOST_BLOCKS, why) ||
      describe_excess("block", "threads", launch->block, MOST, why) ||
      has_too_many_threads(launch->block, MAX_THREADS, why)) {
    return refuse(launch->kernel, why, cudaErrorInvalidConfiguration);
  }
  if (is_no_cluster(launch, why)) {
    return refuse(launch->kernel, why, cudaErrorInvalidClusterSize);
  }
  const Kernel kernel = look_up(launch->kernel);
  if (has_too_many_threads(launch->block, most_threads(&kernel), why) ||
      has_too_much_shared(&kernel, launch->dynamic_shared_bytes, why)) {
    return refuse(launch->kernel, why, cudaErrorInvalidValue);
  }
  if (is_too_large(launch, why)) {
    return refuse(launch->kernel, why, cudaErrorCooperativeLaunchTooLarge);
  }
  return cudaSuccess;
}

/* --- CUDA's interface ----------------------------------------------------------------------- */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0) {
    return simt_result(cudaErrorInvalidValue);
  }
  const Kernel known = look_up(kernel);
  const size_t fixed = known.declared.static_shared_bytes, most = simt_settings()->shared_bytes;
  if ((size_t)value + fixed > most) {
    char why[WHY_BYTES];
    snprintf(why, sizeof why,
             "limit of %d bytes of dynamic beside %zu of static shared memory: %zu in all, at most "
             "%zu",
             value, fixed, (size_t)value + fixed, most);
    return simt_result(refuse(kernel, why, cudaErrorInvalidValue));
  }
  /* A value below the default limits later launches too. */
  set_limit(kernel, (size_t)value);
  return simt_result(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel) {
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  const Kernel known = look_up(kernel);
  *attributes = (cudaFuncAttributes){
      .maxThreadsPerBlock = most_threads(&known),
      .maxDynamicSharedSizeBytes = (int)known.dynamic_shared_bytes,
  };
  return simt_result(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int block_threads,
                                                          size_t dynamic_shared_bytes) {
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  if (block_threads < 1) return simt_result(cudaErrorInvalidValue);
  *blocks = 0;
  const Kernel known = look_up(kernel);
  if (block_threads > most_threads(&known) || dynamic_shared_bytes > known.dynamic_shared_bytes) {
    return simt_result(cudaSuccess);
  }
  const int warps = (block_threads + WARP_SIZE - 1) / WARP_SIZE;
  const int by_threads = THREADS_PER_MULTIPROCESSOR / (warps * WARP_SIZE);
  const size_t shared = simt_settings()->shared_bytes + RESERVED_SHARED_BYTES;
  const size_t by_block =
      dynamic_shared_bytes + known.declared.static_shared_bytes + RESERVED_SHARED_BYTES;
  const int by_shared = (int)(shared / by_block);
  *blocks = BLOCKS_PER_MULTIPROCESSOR;
  if (*blocks > by_threads) *blocks = by_threads;
  if (*blocks > by_shared) *blocks = by_shared;
  return simt_result(cudaSuccess);
}
