#include <algorithm>

#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/copy_columns.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 512;  // of a copy: enough for the memory's speed

struct ColumnCopies {
  ColumnCopy copies[kMostColumnCopies];
};

template <typename Unit>
__global__ void __launch_bounds__(kThreads) CopyColumnsKernel(const ColumnCopies all) {
  const ColumnCopy& copy = all.copies[blockIdx.y];
  const int64_t columns = copy.width / static_cast<int64_t>(sizeof(Unit));
  const int64_t units = columns * copy.rows;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < units; i += step) {
    const int64_t row = i / columns;
    const int64_t column = i - row * columns;
    const auto* from = reinterpret_cast<const Unit*>(copy.from + row * copy.from_stride);
    auto* to = reinterpret_cast<Unit*>(copy.to + row * copy.to_stride);
    to[column] = from[column];
  }
}

/// Bits that are set where an address, a stride or a width is no multiple of a power of two.
uint64_t OddBits(const ColumnCopy& copy) {
  return reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to) |
         static_cast<uint64_t>(copy.from_stride | copy.to_stride | copy.width);
}

}  // namespace

cudaError_t CopyColumns(std::span<const ColumnCopy> copies, cudaStream_t stream) {
  if (copies.size() > kMostColumnCopies) {
    RefuseArgument("CopyColumns: ", copies.size(), " copies: at most ", kMostColumnCopies,
                   " are possible");
  }
  if (copies.empty()) return cudaSuccess;
  ColumnCopies all = {};
  std::copy(copies.begin(), copies.end(), all.copies);
  uint64_t odd = 0;
  int64_t most = 0;  // bytes of a copy
  for (const ColumnCopy& copy : copies) {
    odd |= OddBits(copy);
    most = std::max(most, copy.width * copy.rows);
  }
  if (most == 0) return cudaSuccess;
  const auto launch = [&](auto kernel, int64_t unit) {
    const int64_t blocks = (most / unit + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)),
                    static_cast<unsigned>(copies.size()));
    kernel<<<grid, kThreads, 0, stream>>>(all);
    return cudaGetLastError();
  };
  if (odd % 16 == 0) return launch(CopyColumnsKernel<uint4>, 16);
  if (odd % 4 == 0) return launch(CopyColumnsKernel<uint32_t>, 4);
  if (odd % 2 == 0) return launch(CopyColumnsKernel<uint16_t>, 2);
  return launch(CopyColumnsKernel<uint8_t>, 1);
}

}  // namespace outrider::cuda
