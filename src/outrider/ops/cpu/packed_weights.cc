#include "outrider/ops/cpu/packed_weights.h"

#include <cstring>

#include "outrider/base/error.h"

namespace outrider::cpu {

void PackedTable::Read(int32_t token, float* out) const {
  OUTRIDER_CHECK(token >= 0 && token < rows, "token id {}", token);
  if (format == DType::kF32) {
    std::memcpy(out, reinterpret_cast<const float*>(data) + token * cols,
                static_cast<size_t>(cols) * sizeof(float));
    return;
  }
  const auto* row = reinterpret_cast<const BFloat16*>(data) + token * cols;
  for (int64_t i = 0; i < cols; ++i) out[i] = ToFloat(row[i]);
}

}  // namespace outrider::cpu
