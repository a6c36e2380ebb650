// Shape and weights of one layer's multi-head latent attention.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/kernels/packed_matrix.h"

namespace outrider {

struct MlaShape {
  int32_t hidden = 0;
  int32_t heads = 0;
  int32_t q_lora = 0;  // 0: one q projection
  int32_t latent = 0;  // L, kv_lora_rank
  int32_t nope = 0;    // P
  int32_t rope = 0;    // R
  int32_t value = 0;   // V
  float softmax_scale = 0;
  float norm_eps = 0;  // of the two latent norms
  bool rope_interleaved = true;
};

/// The weights of one layer's attention; views into memory that the model owns.
struct MlaWeights {
  PackedMatrix q_a;                    // [q_lora, hidden]; absent without q_lora
  PackedMatrix q_b;                    // [heads * (P + R), q_lora]; without q_lora [.., hidden]
  PackedMatrix kv_a;                   // [L + R, hidden]
  PackedMatrix o;                      // [hidden, heads * V]
  const float* q_a_norm = nullptr;     // [q_lora]
  const float* kv_a_norm = nullptr;    // [L]
  std::vector<PackedMatrix> key_up;    // per head W_UK [P, L]: expands keys
  std::vector<PackedMatrix> key_up_t;  // per head W_UK^T [L, P]: absorbs queries
  std::vector<PackedMatrix> value_up;  // per head W_UV [V, L]
};

}  // namespace outrider
