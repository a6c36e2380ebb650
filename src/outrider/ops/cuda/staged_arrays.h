// Arrays that the host makes and copies to the device together, in one copy from page-locked
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/host/device_memory.h"

namespace outrider::cuda {

class StagedArrays {
 public:
  explicit StagedArrays(cudaStream_t stream) : stream_(stream) {}

  void Clear() { bytes_.clear(); }

  /// Adds an array of `count` values: `values`, then `filling`. Returns where it begins, which
  /// depends only on the lengths of the arrays before it.
  template <typename T>
  size_t Add(std::span<const T> values, size_t count, T filling = {}) {
    constexpr size_t kAlignment = 16;
    const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(at + count * sizeof(T));
    auto* const to = reinterpret_cast<T*>(bytes_.data() + at);
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + count, filling);
    return at;
  }
  template <typename T>
  size_t Add(const std::vector<T>& values) {
    return Add(std::span<const T>(values), values.size());
  }

  /// Writes over the values at `at`.
  template <typename T>
  void Replace(size_t at, std::span<const T> values) {
    std::copy(values.begin(), values.end(), reinterpret_cast<T*>(bytes_.data() + at));
  }

  /// Copies in the stream. The memory on the device stays where it is until it is too small.
  void Copy() { CopyFirst(bytes_.size()); }
  /// Copies the first `bytes` again, of arrays that were copied.
  void CopyFirst(size_t bytes);

  template <typename T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(device_.As<std::byte>() + offset);
  }

 private:
  // The host's memory of a copy must stay as it is until the copy is done.
  struct Staged {
    PinnedMemory memory;
    size_t bytes = 0;
    DeviceEvent copied;
  };

  cudaStream_t stream_;
  std::vector<std::byte> bytes_;
  Staged staged_[2];
  int next_staged_ = 0;
  DeviceMemory device_;
};

}  // namespace outrider::cuda
