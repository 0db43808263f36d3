/**
 * @file
 * Stands in for the CUDA toolkit's header of the same name, so that a C++ compiler accepts CUDA C:
 * qualifiers, built-in variables, launches, and the runtime API with typed pointers.
 *
 * A launch reaches the compiler as `kernel *simt::launch(grid, block, bytes, stream)(arguments)`,
 * and kernels begin with `SIMT_KERNEL(bounds)`: see rewrite_launches.c.
 */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <simt.h>

#include <cstdint>
#include <cstdio>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ SIMT_INLINE
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __managed__

#define SIMT_TEXT_OF(x) #x
#define SIMT_AS_TEXT(x) SIMT_TEXT_OF(x)

/** One section per variable: a section cannot hold both const and non-const variables. */
#define __constant__ __attribute__((section("simt_constant." SIMT_AS_TEXT(__COUNTER__))))

/** What rewrite_launches.c writes for the __device__ of a variable. */
#define SIMT_DEVICE_VARIABLE __attribute__((section("simt_device." SIMT_AS_TEXT(__COUNTER__))))

/** What it writes for an asm with instructions: a static_assert that says this. */
#define SIMT_NO_INLINE_PTX                                                                        \
  "the CPU backend cannot execute inline PTX: call a function of device/ptx.cuh, or put the asm " \
  "between #ifdef __CUDACC__ and #else, and C++ behind the #else"
#define SIMT_OMIT(...)

/** The kernel's launch bound. The runtime finds it by its symbol name: see symbols.c. */
#define SIMT_KERNEL(...) \
  static constexpr int simt_launch_bound __attribute__((used)) = simt::most_threads(__VA_ARGS__);

/** The same for __cluster_dims__. */
#define SIMT_CLUSTER(...) \
  static constexpr int simt_cluster_dims __attribute__((used)) = simt::packed_dims(__VA_ARGS__);

/**
 * An OS thread runs one block at a time, so its thread-local variables belong to the block. In the
 * checking build there are gaps between static arrays (48 KiB at most) to detect bad accesses.
 */
#ifdef SIMT_CHECKING
/* The lab's, which note what they access. __builtin_memcpy() is for registers. */
extern "C" {
void *memcpy(void *, const void *, size_t) noexcept __asm__("__tsan_memcpy");
void *memmove(void *, const void *, size_t) noexcept __asm__("__tsan_memmove");
void *memset(void *, int, size_t) noexcept __asm__("__tsan_memset");
}

#define __shared__ thread_local __attribute__((aligned(65536)))
#else
#define __shared__ thread_local
#endif

#define threadIdx (simt_self()->index)
#define blockIdx (simt_self()->block->index)

constexpr int warpSize = 32;

#include <device_functions.h>

namespace simt {

/** The first argument of __launch_bounds__; 0 if there is none. */
constexpr int most_threads(int threads = 0, int blocks = 0, int cluster = 0) {
  (void)blocks;
  (void)cluster;
  return threads;
}

/** The dimensions of a cluster, in a byte each. */
constexpr int packed_dims(int x, int y = 1, int z = 1) {
  return x | y << 8 | z << 16;
}

template <typename... Arguments>
struct Call {
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  cudaStream_t stream;
  const dim3 *cluster; /**< NULL: as the kernel was declared */
  bool cooperative;
  std::tuple<Arguments...> arguments;
};

struct Configuration {
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  cudaStream_t stream;
  const dim3 *cluster = nullptr;
  bool cooperative = false;

  template <typename... Arguments>
  Call<Arguments &&...> operator()(Arguments &&...arguments) const {
    return {grid,
            block,
            dynamic_shared_bytes,
            stream,
            cluster,
            cooperative,
            {static_cast<Arguments &&>(arguments)...}};
  }
};

/** The configuration in `kernel<<<...>>>`. Streams order nothing: a launch returns when done. */
inline Configuration launch(dim3 grid, dim3 block, size_t dynamic_shared_bytes = 0,
                            cudaStream_t stream = nullptr) {
  return {grid, block, dynamic_shared_bytes, stream};
}

template <typename... Parameters>
struct Invocation {
  void (*kernel)(Parameters...);
  std::tuple<Parameters...> parameters;
};

/** Arguments are converted to parameters once, before the launch; each thread gets its own copy.
 * Inline, so that the report of a launch by a kernel names the kernel's line. */
template <typename... Parameters, typename... Arguments>
SIMT_INLINE void operator*(void (*kernel)(Parameters...), Call<Arguments...> call) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "wrong number of kernel arguments");
  static_assert(
      (std::is_convertible<Arguments, Parameters>::value && ...),
      "an argument does not convert to the kernel's parameter (write nullptr, not NULL or 0)");
  Invocation<Parameters...> invocation{kernel, std::move(call.arguments)};
  auto run_thread = [](void *argument) {
    auto &its = *static_cast<Invocation<Parameters...> *>(argument);
    std::apply(its.kernel, its.parameters);
  };
  simt_launch((const void *)kernel, call.grid, call.block, call.cluster, call.cooperative,
              call.dynamic_shared_bytes, call.stream, run_thread, &invocation, sizeof invocation);
}

}  // namespace simt

/** Returns the last error. */
template <typename... Parameters, typename... Arguments>
SIMT_INLINE cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                           void (*kernel)(Parameters...),
                                           Arguments &&...arguments) {
  simt::Configuration own{config->gridDim, config->blockDim, config->dynamicSmemBytes,
                          config->stream};
  dim3 cluster;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const auto &value = config->attrs[i].val;
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster = dim3(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
      own.cluster = &cluster;
    } else if (config->attrs[i].id == cudaLaunchAttributeCooperative) {
      own.cooperative = value.cooperative;
    }
  }
  kernel *own(static_cast<Arguments &&>(arguments)...);
  return cudaPeekAtLastError();
}

template <typename T>
cudaError_t cudaMalloc(T **pointer, size_t size) {
  return cudaMalloc((void **)(void *)pointer, size);
}

template <typename T>
cudaError_t cudaMallocHost(T **pointer, size_t size) {
  return cudaMallocHost((void **)(void *)pointer, size);
}

/* Variables of the device, and __constant__ ones. cudaMemcpy() refuses a null pointer. */

template <typename T>
cudaError_t cudaGetSymbolAddress(void **pointer, const T &symbol) {
  *pointer = (void *)&symbol;
  return cudaPeekAtLastError();
}

namespace simt {

template <typename T>
char *part_of(const T &symbol, size_t count, size_t offset) {
  const bool inside = offset <= sizeof symbol && count <= sizeof symbol - offset;
  return inside ? (char *)&symbol + offset : nullptr;
}

}  // namespace simt

template <typename T>
cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *source, size_t count, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  return cudaMemcpy(simt::part_of(symbol, count, offset), source, count, cudaMemcpyDefault);
}

template <typename T>
cudaError_t cudaMemcpyFromSymbol(void *target, const T &symbol, size_t count, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  return cudaMemcpy(target, simt::part_of(symbol, count, offset), count, cudaMemcpyDefault);
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, (const void *)kernel);
}

template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                          void (*kernel)(Parameters...),
                                                          int block_threads,
                                                          size_t dynamic_shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, block_threads,
                                                       dynamic_shared_bytes);
}

#endif
