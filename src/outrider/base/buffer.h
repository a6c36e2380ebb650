// A large block of memory: weights, cache and activations live in Buffers. The host's, or memory
// that a device gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace outrider {

/// Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// Zeroed anonymous pages, aligned to 4 KiB (2 MiB pages are asked for where they help, and pages
  /// lie on all NUMA nodes in turn where there are several). Pages cost memory only once they are
  /// touched. Throws Error{kTooLarge} when the system refuses.
  explicit Buffer(size_t bytes);
  /// Takes over a block that `release` gives back.
  using Release = void (*)(std::byte* data, size_t size);
  Buffer(std::byte* data, size_t size, Release release)
      : data_(data), size_(size), release_(release) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        release_(other.release_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
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
  Release release_ = nullptr;
};

}  // namespace outrider
