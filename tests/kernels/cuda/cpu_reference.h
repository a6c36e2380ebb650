// The reference table of CPU kernels as the oracle of device operations, and bf16 rows as it takes
// them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/cpu_features.h"
#include "outrider/base/dtype.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cuda {

inline const KernelTable& CpuReference() { return GetKernels(Isa::kReference); }

inline std::vector<float> ToFloats(std::span<const uint16_t> bf16) {
  std::vector<float> values;
  values.reserve(bf16.size());
  for (const uint16_t bits : bf16) values.push_back(ToFloat(BFloat16{bits}));
  return values;
}

/// A packed weight that owns its memory: bf16 [rows, cols].
class PackedBf16 {
 public:
  PackedBf16(std::span<const uint16_t> weight, int64_t rows, int64_t cols) {
    const PackedFormat format = {.dtype = DType::kBF16};
    const size_t bytes = PackedBytes(format, rows, cols);
    storage_.resize(bytes / sizeof(Line) + 1);
    auto* data = reinterpret_cast<std::byte*>(storage_.data());
    const std::vector<float> values = ToFloats(weight);
    for (int64_t row = 0; row < rows; row += kPanelRows) {
      PackPanel(DType::kBF16, values.data() + row * cols, std::min(kPanelRows, rows - row), cols,
                data + row / kPanelRows * PanelBytes(DType::kBF16, cols));
    }
    matrix_ = {.format = format, .rows = rows, .cols = cols, .data = data};
  }
  const PackedMatrix& matrix() const { return matrix_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> storage_;
  PackedMatrix matrix_;
};

}  // namespace outrider::cuda
