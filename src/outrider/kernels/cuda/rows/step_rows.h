// What the rows of a step leave in the latent cache. Sums go in a fixed order, so a row's bits do
// not depend on the other rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"

namespace outrider::cuda {

/// The angles of the rotary embedding of 64 values: float32 [entries, 32], magnitude included. Row
/// r of a step has the angles of entry positions[r], or of entry r where there are no positions.
struct RotaryTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int32_t* positions = nullptr;  // optional [rows]
  bool interleaved = true;             // rotated pairs (2i, 2i + 1); false: (i, i + 32)
};

struct LatentWriteParams {
  int num_rows = 0;                    // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // optional [1] on the device: rows from it on are left alone
  DType input_dtype = DType::kBF16;    // of kv and q: kBF16 or kF32
  int64_t row_stride = 576;            // of kv and q, in elements, a multiple of 4
  const void* kv = nullptr;       // [num_rows, 576]: latent 512, rotary key 64; 16-byte aligned
  const float* weight = nullptr;  // [512], of the RMS norm of the latent
  float epsilon = 1e-6f;
  RotaryTable rotary;
  // int64 [num_rows]: block * page size + offset; negative: the row writes nothing
  const int64_t* slot_mapping = nullptr;
  void* cache = nullptr;  // [slots, 576]
  // Slots are block * block_size + place. Entries of a block follow each other, and blocks lie
  // block_stride bytes apart, a multiple of 16. 0: all entries follow each other.
  int64_t block_stride = 0;
  int block_size = 0;
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float cache_scale = 1.0f;  // e4m3 only: stores value / cache_scale, saturated to +-448
  // Optional: the queries' latent, which is normalised in the same launch, every row of it.
  const void* q = nullptr;          // [num_rows, q_columns]; 16-byte aligned
  int q_columns = 0;                // a multiple of 4 in 4 .. 2048
  const float* q_weight = nullptr;  // [q_columns]
  void* q_out = nullptr;            // bf16 [num_rows, q_columns]
};

/// Normalises each row's latent (weight * x / sqrt(mean(x^2) + epsilon)), rotates its key and
/// writes both to the row's cache slot, rounded once; normalises q likewise. Throws Error for
/// parameters outside the ranges above; otherwise returns what the launch returned.
cudaError_t WriteLatentRows(const LatentWriteParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
