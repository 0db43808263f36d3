/** @file The time of a decode pass, of its limits, and of what comes with it. */
#ifndef HOST_DECODE_TIMING_H
#define HOST_DECODE_TIMING_H

#include "host/device/timing.h"

/** Timings beside that of the pass, in the same turns; no samples: not timed. */
typedef struct DecodeTiming {
  Timing empty;    /**< of a kernel that does nothing */
  Timing read;     /**< of a kernel that only reads as many bytes as the pass must of K and V */
  Timing graph;    /**< of a CUDA graph of the pass */
  Timing schedule; /**< of Step::schedule(), once for each batch of lengths */
} DecodeTiming;

/** Times them in turns with the pass; `tensor_bytes` are those of K, and of V, that it must read.
 */
bool time_decode(const Problem *problem, const DeviceTensors *tensors, size_t tensor_bytes,
                 bool graph, size_t l2_bytes, Sampling sampling, Timing *pass, DecodeTiming *decode,
                 Error *error);

#endif
