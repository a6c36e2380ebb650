// Weights as the CPU packs them: what `packed` of the handles in ops/weights.h points to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kernels/packed_matrix.h"
#include "outrider/ops/weights.h"

namespace outrider::cpu {

/// Rows of bfloat16 where that is exact or asked for, else of float32.
struct PackedTable {
  DType format = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;

  /// Writes the row of `token` as float32 [cols].
  void Read(int32_t token, float* out) const;
};

struct PackedKvUp {
  std::vector<PackedMatrix> key_up;    // per head W_UK [P, L]: expands keys
  std::vector<PackedMatrix> key_up_t;  // per head W_UK^T [L, P]: absorbs queries
  std::vector<PackedMatrix> value_up;  // per head W_UV [V, L]
};

struct PackedMlp {
  PackedMatrix gate_up;  // [2 * width, hidden], gate first
  PackedMatrix down;     // [hidden, width]
};

struct PackedExperts {
  std::vector<PackedMlp> experts;
  PackedMlp shared;  // if shared_width > 0
};

inline const PackedMatrix& Packed(const Weight& w) {
  return *static_cast<const PackedMatrix*>(w.packed);
}
inline const PackedTable& Packed(const TokenTable& w) {
  return *static_cast<const PackedTable*>(w.packed);
}
inline const PackedKvUp& Packed(const KvUpWeight& w) {
  return *static_cast<const PackedKvUp*>(w.packed);
}
inline const PackedExperts& Packed(const ExpertWeights& w) {
  return *static_cast<const PackedExperts*>(w.packed);
}

}  // namespace outrider::cpu
