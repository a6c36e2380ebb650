// Random operands, and runs of device operations as a graph that is replayed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {

inline std::vector<float> NormalFloats(std::mt19937& random, size_t count, float size = 1.0F) {
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<uint16_t> NormalBf16(std::mt19937& random, size_t count, float size = 1.0F) {
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = FloatToBf16(normal(random));
  return values;
}

/// Runs what `body(stream)` launches, and waits; with `replays` as a graph that is replayed so
/// often. Replays follow one another without a pause, so that programmatic launches overlap.
template <typename Body>
void RunOnDevice(Body body, int replays) {
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  if (replays == 0) {
    body(stream);
    CudaOk(cudaStreamSynchronize(stream), "run");
  } else {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    body(stream);
    CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
    CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (int i = 0; i < replays; ++i) CudaOk(cudaGraphLaunch(executable, stream), "replay");
    CudaOk(cudaStreamSynchronize(stream), "graph");
    CudaOk(cudaGraphExecDestroy(executable), "destroy");
    CudaOk(cudaGraphDestroy(graph), "destroy");
  }
  CudaOk(cudaStreamDestroy(stream), "destroy");
}

}  // namespace outrider::cuda
