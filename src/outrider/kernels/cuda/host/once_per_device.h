// What is set on a device before its first launch of a kernel: attributes of kernels are a device's
// own.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>

namespace outrider::cuda {

/// A static variable at the launch. May be used on several threads.
class OncePerDevice {
 public:
  /// What `set` returned when it was called on the current device, for the first time.
  template <typename Set>
  cudaError_t Call(const Set& set) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    if (device < 0 || static_cast<size_t>(device) >= kMostDevices) return cudaErrorInvalidDevice;
    Device& of_device = devices_[static_cast<size_t>(device)];
    std::call_once(of_device.once, [&] { of_device.result = set(); });
    return of_device.result;
  }

 private:
  static constexpr size_t kMostDevices = 64;
  struct Device {
    std::once_flag once;
    cudaError_t result = cudaSuccess;
  };

  std::array<Device, kMostDevices> devices_;
};

}  // namespace outrider::cuda
