// Memory for the intermediate values of a step: a stack that grows to its high-water mark and is
// then reused, so a steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/base/matrix_view.h"

namespace outrider {

class Scratch {
 public:
  using Allocate = std::function<Buffer(size_t bytes)>;

  Scratch() = default;  // of the host's memory
  /// `reach`: bytes behind every piece that are readable, whatever they hold.
  explicit Scratch(Allocate allocate, size_t reach = 0)
      : allocate_(std::move(allocate)), reach_(reach) {}

  /// Everything taken after a Frame was made is given back when it goes out of scope.
  class Frame {
   public:
    explicit Frame(Scratch& scratch)
        : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_), taken_(scratch.taken_) {}
    ~Frame() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
      scratch_.taken_ = taken_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    size_t chunk_;
    size_t used_;
    size_t taken_;
  };

  /// `count` uninitialised elements, aligned to 64 bytes.
  template <typename T>
  T* Take(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    return reinterpret_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }

  /// An uninitialised [rows, cols] matrix.
  MatrixView<float> Matrix(int64_t rows, int64_t cols) {
    return {Take<float>(rows * cols), rows, cols};
  }

  /// Holds as much as was taken at a time so far, in one piece. Nothing may be taken.
  void Fit();

  /// Bytes held, used or not.
  size_t capacity() const;

 private:
  std::byte* TakeBytes(size_t bytes);

  Allocate allocate_ = [](size_t bytes) { return Buffer(bytes); };
  size_t reach_ = 0;
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0;  // the chunk that the next piece comes from
  size_t used_ = 0;   // bytes of it that are taken
  size_t taken_ = 0;  // of all pieces
  size_t most_taken_ = 0;
};

}  // namespace outrider
