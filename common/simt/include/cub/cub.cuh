/** @file Not in the CPU backend: says what to use instead. */
#error "no CUB on the CPU backend: call lanes_reduce_sum() of device/warp.cuh"
