// Columns of rows copied as they are, between memory of one GPU or of GPUs that reach each other's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace outrider::cuda {

/// to[r][0, width) = from[r][0, width) for r below `rows`. All numbers are bytes; they do not
/// overlap.
struct ColumnCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t from_stride = 0;
  int64_t to_stride = 0;
  int64_t width = 0;
  int64_t rows = 0;
};

inline constexpr size_t kMostColumnCopies = 32;

/// All copies in one launch, which moves 16 bytes at a time where every copy begins and ends at
/// multiples of it, else 4 or 2, else 1. Throws Error for more than kMostColumnCopies; otherwise
/// returns what the launch returned.
cudaError_t CopyColumns(std::span<const ColumnCopy> copies, cudaStream_t stream);

}  // namespace outrider::cuda
