// What kernels leave for the host: the drafts that were drawn last, by place (Ops::KeepDrafts),
// and behind them what a sampler lays out for its call. One copy brings back both.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cuda/device_memory.h"

namespace outrider::cuda {

class StepResults {
 public:
  /// Places for so many drafts, and `bytes` behind them: 256-byte aligned. What results there were
  /// are lost, drafts are not. Waits for the stream where it needs more memory, and then returns
  /// true: the memory has moved.
  bool Reserve(size_t num_drafts, size_t bytes, cudaStream_t stream);

  // On the device.
  int32_t* drafts() const { return device_.As<int32_t>(); }
  size_t num_drafts() const { return num_drafts_; }
  std::byte* results() const { return device_.As<std::byte>() + DraftBytes(num_drafts_); }

  /// Copies drafts and the first `bytes` of the results to the host, in the stream.
  void Copy(size_t bytes, cudaStream_t stream);

  // Copied to the host.
  const int32_t* host_drafts() const { return reinterpret_cast<const int32_t*>(host_.data()); }
  const std::byte* host_results() const { return host_.data() + DraftBytes(num_drafts_); }

 private:
  static size_t DraftBytes(size_t num_drafts) {
    return (num_drafts * sizeof(int32_t) + 255) / 256 * 256;
  }

  DeviceMemory device_;
  PinnedMemory host_;
  size_t num_drafts_ = 0;
};

}  // namespace outrider::cuda
