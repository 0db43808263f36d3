/** @file What the tests of the lab with instructions of compute capability 9.0 share. */
#ifndef LAB_HOPPER_H
#define LAB_HOPPER_H

#include "../tests/unit/lab/lab_testing.h"
#include "../tests/unit/simt/hopper_testing.h"

enum { BARRIERS = 8192, SHARED = BARRIERS + 64 };

/** Global atomics that one thread waits with for another: they do not order shared memory. */
__device__ inline void raise_flag(int *flag) {
  atomicExch(flag, 1);
}
__device__ inline void await_flag(int *flag) {
  while (atomicAdd(flag, 0) == 0) continue;
}

#endif
