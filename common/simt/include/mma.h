/** @file Not in the CPU backend: says what to use instead. */
#error "no wmma on the CPU backend: call mma_m16n8k16() of device/ptx.cuh"
