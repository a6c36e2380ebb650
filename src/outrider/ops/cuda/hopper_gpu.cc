#include "outrider/ops/cuda/hopper_gpu.h"

#include "outrider/base/error.h"

namespace outrider::cuda {

GpuDescription DescribeGpu(int device) {
  GpuDescription gpu;
  gpu.error = cudaGetDeviceCount(&gpu.count);
  if (gpu.error != cudaSuccess || gpu.count == 0) return gpu;
  cudaDeviceProp properties;
  gpu.error = cudaGetDeviceProperties(&properties, device);
  if (gpu.error != cudaSuccess) return gpu;
  gpu.name = properties.name;
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  return gpu;
}

void CheckIsHopper(const GpuDescription& gpu) {
  if (gpu.error != cudaSuccess || gpu.count == 0) {
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("no GPU can be used ({}): --device cuda needs an NVIDIA GPU of compute "
                    "capability 9.0 and driver 580 or newer; --device cpu runs without",
                    gpu.error == cudaSuccess ? "there is none" : cudaGetErrorString(gpu.error)));
  }
  if (gpu.major != 9 || gpu.minor != 0) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("the GPU is {} of compute capability {}.{}: --device cuda needs 9.0 "
                            "(H100, H200); --device cpu runs without",
                            gpu.name, gpu.major, gpu.minor));
  }
}

}  // namespace outrider::cuda
