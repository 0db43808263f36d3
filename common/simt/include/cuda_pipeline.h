/** @file Not in the CPU backend: says what to use instead. */
#error "no __pipeline_*() on the CPU backend: call cp_async_16() of device/ptx.cuh"
