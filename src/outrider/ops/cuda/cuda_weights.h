// Weights as the Hopper kernels read them: what `packed` of the handles in ops/weights.h points to.
#pragma once

#include <cstddef>

#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/ops/weights.h"

namespace outrider::cuda {

struct CudaTable {
  const void* rows = nullptr;  // bf16 [rows, cols]
};

/// A matrix of float32 values as they are (WeightLoader::StreamMatrix).
struct CudaFloats {
  const float* values = nullptr;  // [rows, cols]
};

struct CudaKvUp {
  PackedWeight kv_up;              // kv_b_proj [heads * (P + V), L], bf16: expands keys
  const void* key_up_t = nullptr;  // bf16 [heads, L, P]: absorbs queries
  const void* value_up = nullptr;  // bf16 [heads, V, L]
};

/// All experts, one after the other: the routed ones, then the shared MLP, cut into as many of
/// their width, if it is packed as they are.
struct CudaExperts {
  PackedWeight gate_up;  // the first one's
  PackedWeight down;
  int shared = 0;  // experts that the shared MLP is
  // Else the shared MLP by itself; n is 0 where there is none.
  PackedWeight shared_gate_up;
  PackedWeight shared_down;
};

inline const PackedWeight& Packed(const Weight& w) {
  return *static_cast<const PackedWeight*>(w.packed);
}
/// Whether `second` begins where `first` ends.
inline bool Follows(const void* first, size_t bytes, const void* second) {
  return static_cast<const std::byte*>(first) + bytes == second;
}
/// Whether `second` lies behind `first` in memory, units and scales, so that both can be one weight
/// (WeightLoader::SideBySide).
inline bool LiesBehind(const PackedWeight& first, const PackedWeight& second) {
  const size_t scales = PackedScaleBytes(first.format, first.n, first.k);
  return second.format == first.format && first.segments != 0 &&
         first.segments == second.segments && first.k == second.k && first.n % 64 == 0 &&
         Follows(first.data, PackedUnitBytes(first.format, first.n, first.k), second.data) &&
         (scales == 0 || (first.scales != nullptr && Follows(first.scales, scales, second.scales)));
}
/// The numbers of a weight of WeightLoader::StreamMatrix.
inline const float* FloatsOf(const Weight& w) {
  return static_cast<const CudaFloats*>(w.packed)->values;
}
inline const CudaTable& Packed(const TokenTable& w) {
  return *static_cast<const CudaTable*>(w.packed);
}
inline const CudaKvUp& Packed(const KvUpWeight& w) {
  return *static_cast<const CudaKvUp*>(w.packed);
}
inline const CudaExperts& Packed(const ExpertWeights& w) {
  return *static_cast<const CudaExperts*>(w.packed);
}

}  // namespace outrider::cuda
