// Microseconds of device work in a CUDA graph, and random data for it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {

/// Captures launch(0) .. launch(count - 1) as one graph and gives the median of its replays,
/// divided by count. launch takes (int, cudaStream_t).
template <typename Launch>
double MicrosecondsPerLaunch(int count, int replays, cudaStream_t stream, Launch launch) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < count; ++i) launch(i, stream);
  CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
  CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  CudaOk(cudaEventCreate(&begin), "event");
  CudaOk(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < replays + 2; ++i) {
    CudaOk(cudaEventRecord(begin, stream), "record");
    CudaOk(cudaGraphLaunch(executable, stream), "replay");
    CudaOk(cudaEventRecord(end, stream), "record");
    CudaOk(cudaEventSynchronize(end), "replay");
    float ms = 0;
    CudaOk(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 2) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return times[times.size() / 2] / count;
}

/// Reads everything and, as no value is that sum, writes nothing.
static __global__ void ReadAll(const uint4* values, size_t count, uint32_t* never) {
  uint32_t sum = 0;
  constexpr int kTogether = 8;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i + (kTogether - 1) * step < count;
       i += kTogether * step) {
    uint4 four[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) four[j] = __ldcs(values + i + j * step);
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sum |= four[j].x | four[j].y | four[j].z | four[j].w;
  }
  if (sum == 0x12345678) *never = sum;
}

/// Bytes per microsecond that a kernel which does nothing else reads on this card: what limits are
/// held against. Measured once.
inline double BytesPerUs() {
  static const double rate = [] {
    constexpr size_t kBytes = size_t{1} << 30;
    const DeviceArray<uint8_t> from(kBytes);
    const DeviceArray<uint32_t> never(1);
    cudaDeviceProp properties;
    CudaOk(cudaGetDeviceProperties(&properties, 0), "device");
    cudaStream_t stream;
    CudaOk(cudaStreamCreate(&stream), "stream");
    const int blocks = properties.multiProcessorCount * 4;
    const double us = MicrosecondsPerLaunch(1, 9, stream, [&](int, cudaStream_t on) {
      ReadAll<<<blocks, 512, 0, on>>>(reinterpret_cast<const uint4*>(from.data()), kBytes / 16,
                                      never.data());
    });
    cudaStreamDestroy(stream);
    std::printf("%s: reads of 1 GiB go at %.2f TB/s\n", properties.name, 1e-6 * kBytes / us);
    return kBytes / us;
  }();
  return rate;
}

/// Fills with values of a hash of (seed, index): bf16 in [-scale, scale), or e4m3 codes without
/// NaN.
static __global__ void FillBf16(uint16_t* values, size_t count, uint32_t seed, float scale = 1) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed ^ static_cast<uint32_t>(i >> 32);
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    h ^= h >> 16;
    const float value = static_cast<float>(static_cast<int32_t>(h)) * 0x1p-31F * scale;
    values[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}
static __global__ void FillCodes(uint8_t* values, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed ^ static_cast<uint32_t>(i >> 32);
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    const auto code = static_cast<uint8_t>(h >> 24);
    values[i] = (code & 0x7F) == 0x7F ? static_cast<uint8_t>(code ^ 1) : code;
  }
}

}  // namespace outrider::cuda
