/** @file A CUDA graph of a decode pass. */
#ifndef HOST_GRAPH_H
#define HOST_GRAPH_H

#include "decode.h"

/** Captures one pass of the step; `made` is freed by cudaGraphExecDestroy(). */
cudaError_t make_decode_graph(const Problem *problem, const DecodeTensors *tensors,
                              cudaGraphExec_t *made);

#endif
