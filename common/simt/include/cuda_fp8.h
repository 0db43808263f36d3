/** @file Not in the CPU backend: says what to use instead. */
#error "no cuda_fp8.h on the CPU backend: call pack_e4m3() of device/ptx_hopper.cuh"
