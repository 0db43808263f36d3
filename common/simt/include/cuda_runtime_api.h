/**
 * @file
 * The part of the CUDA runtime API that the programs call, for C and C++. Values of enumerators are
 * CUDA's. Comments at the declarations name the differences from CUDA.
 *
 * Kernels and copies are done when the call that starts them returns: streams order nothing.
 * A kernel that failed leaves a sticky error: every later call that touches the device returns it,
 * until cudaDeviceReset().
 */
#ifndef CUDA_RUNTIME_API_H
#define CUDA_RUNTIME_API_H

#include <stddef.h>
#include <vector_types.h>

/** Tells host code which runtime it was built with. */
#define SIMT_BACKEND 1

#define CUDART_VERSION 12040

#ifdef __cplusplus
#define SIMT_DEFAULT(value) = value
extern "C" {
#else
#define SIMT_DEFAULT(value)
#endif

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
  cudaErrorInvalidClusterSize = 912,
  cudaErrorStreamCaptureUnsupported = 900
} cudaError_t;

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

/* --- The device ----------------------------------------------------------------------------- */

/** The limits of kernels are those of compute capability 9.0; the rest describes this machine. */
typedef struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int maxThreadsPerBlock;
  int major;
  int minor;
  int multiProcessorCount; /**< SIMT_SMS, whatever the number of OS threads */
  int l2CacheSize;         /**< 0: no cache is simulated */
  int maxThreadsPerMultiProcessor;
  size_t sharedMemPerMultiprocessor;
  size_t sharedMemPerBlockOptin;
  int maxBlocksPerMultiProcessor;
  size_t reservedSharedMemPerBlock;
} cudaDeviceProp;

typedef enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
  cudaDevAttrReservedSharedMemoryPerBlock = 111
} cudaDeviceAttr;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);

cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceSynchronize(void);

/** Frees all device memory and forgets every error. Allocations start again with ordinal 1. */
cudaError_t cudaDeviceReset(void);

/* --- Memory --------------------------------------------------------------------------------- */

typedef enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
} cudaMemcpyKind;

typedef struct CUstream_st *cudaStream_t;

/**
 * Memory is aligned to 256 bytes, with inaccessible pages on both sides; its end is as close to
 * them as the alignment allows. A kernel that accesses these pages, or memory after cudaFree(), is
 * stopped and reported. New memory is filled with 0xff, which is NaN in every float format
 * (allocations over 64 MiB: only the first and the last 32 MiB; the rest is zero). More than 15000
 * allocations at a time are refused: Linux limits the number of a program's mappings.
 *
 * Not detected: kernels that access host memory (only the lab detects them), and host code that
 * accesses device memory.
 */
cudaError_t cudaMalloc(void **pointer, size_t size);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

/**
 * Returns cudaErrorInvalidValue and copies nothing if a device range is not within one allocation,
 * or a host range is null or overlaps device memory. Host ranges that are too large go undetected.
 */
cudaError_t cudaMemcpy(void *target, const void *source, size_t count, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream SIMT_DEFAULT(0));
cudaError_t cudaMemset(void *pointer, int value, size_t count);
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count,
                            cudaStream_t stream SIMT_DEFAULT(0));

/* --- Events --------------------------------------------------------------------------------- */

typedef struct CUevent_st *cudaEvent_t;

enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream SIMT_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

/** Time on this machine. It says nothing about the time that a GPU would take. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop);

/* --- Streams and graphs ----------------------------------------------------------------------- */

/**
 * What is put into a stream runs when the program waits for it, in an order that streams and events
 * allow; SIMT_ORDER chooses among those. One thread of the host may use them.
 */
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags SIMT_DEFAULT(0));

/** Pinned memory: copies on a stream read and write it when they run, not when they are put. */
cudaError_t cudaMallocHost(void **pointer, size_t size);
cudaError_t cudaFreeHost(void *pointer);

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraph_st *cudaGraphExec_t;
typedef enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
} cudaStreamCaptureMode;

/** Graphs are captured from streams; their parts run in the order of the capture. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph,
                                 unsigned long long flags SIMT_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* --- Kernels -------------------------------------------------------------------------------- */

/** numRegs and sharedSizeBytes are not known and always 0. */
typedef struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int maxDynamicSharedSizeBytes;
} cudaFuncAttributes;

/** In kernels the shapes of the running launch; they name members of cudaLaunchConfig_t, too. */
#define gridDim simt_grid_dim
#define blockDim simt_block_dim
extern dim3 gridDim, blockDim;

/** Other attributes are ignored. */
typedef enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeCooperative = 2, /**< all blocks run at the same time */
  cudaLaunchAttributeClusterDimension = 4
} cudaLaunchAttributeID;

typedef struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int cooperative;
  } val;
} cudaLaunchAttribute;

typedef struct cudaLaunchConfig_st {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
} cudaLaunchConfig_t;

typedef enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8
} cudaFuncAttribute;

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);

/** Limited by the threads and shared memory of compute capability 9.0; registers are ignored. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int block_threads,
                                                          size_t dynamic_shared_bytes);

/* --- The driver ----------------------------------------------------------------------------- */

typedef enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
} cudaDriverEntryPointQueryResult;

enum { cudaEnableDefault = 0 };

/** Knows cuTensorMapEncodeTiled only: see cudaTypedefs.h. */
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long flags,
    cudaDriverEntryPointQueryResult *status SIMT_DEFAULT(0));

#ifdef __cplusplus
}
#endif

#endif
