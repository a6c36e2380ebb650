// Large anonymous memory: weights, cache and activations live in Buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace outrider {

/// Zeroed anonymous pages, aligned to 4 KiB (2 MiB pages are asked for where they help, and pages
/// lie on all NUMA nodes in turn where there are several). Pages cost memory only once they are
/// touched. Move-only. Throws Error{kTooLarge} when the system refuses.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace outrider
