/** @file Headers of the CPU backend, compiled once for all exercises; see exercises.mk. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
