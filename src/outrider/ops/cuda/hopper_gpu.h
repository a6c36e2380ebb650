// Whether the engine's kernels run on this machine's GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace outrider::cuda {

/// What the driver says of a device.
struct GpuDescription {
  cudaError_t error = cudaSuccess;  // of asking for what follows
  int count = 0;                    // devices
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
};

GpuDescription DescribeGpu(int device = 0);

/// Throws Error{kUnavailable}, which says what is needed, unless it is a GPU of compute capability
/// 9.0 that the driver can use.
void CheckIsHopper(const GpuDescription& gpu);

}  // namespace outrider::cuda
