// Device memory that owns itself, and CUDA's errors as Error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace outrider::cuda {

/// Throws Error{kUnavailable} that begins with `what`, unless `error` is success.
void CheckCuda(cudaError_t error, const char* what);

/// Bytes in device memory, 256-byte aligned, not initialised.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws OutOfMemory where the device has no room: it says what for, how much was asked and is
  /// free.
  DeviceMemory(size_t bytes, const char* what);
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// Gives the memory up, for cudaFree by the caller.
  void* Release() {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Page-locked host memory that owns itself.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// An event that owns itself; without times.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent() { cudaEventDestroy(event_); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void Record(cudaStream_t stream);
  /// What is launched in `stream` from now on waits for what was recorded last.
  void Hold(cudaStream_t stream);
  bool IsDone();
  /// The host waits for what was in the stream when the event was recorded.
  void Wait();

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace outrider::cuda
