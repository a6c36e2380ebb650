// Another program that takes all memory of a GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/host/device_memory.h"

namespace outrider::cuda {

/// Everything that can be had of this thread's GPU, down to the smallest piece.
inline std::vector<DeviceMemory> AllFreeMemory() {
  std::vector<DeviceMemory> all;
  for (size_t bytes = size_t{1} << 40; bytes >= 256;) {
    try {
      all.emplace_back(bytes, "all memory");
    } catch (const Error&) {
      bytes /= 2;
    }
  }
  return all;
}

}  // namespace outrider::cuda
