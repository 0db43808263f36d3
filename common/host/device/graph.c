#include "host/device/graph.h"

cudaError_t make_decode_graph(const Problem *problem, const DecodeTensors *tensors,
                              cudaGraphExec_t *made) {
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  cudaError_t error = cudaStreamCreate(&stream);
  if (error != cudaSuccess) return error;
  error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (error == cudaSuccess) {
    error = step.decode(problem, tensors, stream);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = ended;
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(made, graph, 0);
  if (graph != NULL) cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return error;
}
