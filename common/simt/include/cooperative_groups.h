/** @file Not in the CPU backend: says what to use instead. */
#error "no cooperative groups on the CPU backend: call __syncwarp(), __shfl_*_sync()"
