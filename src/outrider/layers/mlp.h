// The MLP of a layer: dense, or a mixture of experts.
#pragma once

#include <vector>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/kernels/compute.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider {

/// A gated MLP: down(silu(gate x) * up x).
struct MlpWeights {
  PackedMatrix gate_up;  // [2 * width, hidden], gate first
  PackedMatrix down;     // [hidden, width]
};

struct MoeWeights {
  PackedMatrix router;                 // [experts, hidden]
  const float* router_bias = nullptr;  // [experts], kNoAuxTc only
  std::vector<MlpWeights> experts;
  MlpWeights shared;  // if there are shared experts
};

/// x += mlp(h); h, x [rows, hidden].
void DenseMlp(const Compute& compute, const MlpWeights& weights, MatrixView<const float> h,
              MatrixView<float> x);

/// x += the chosen experts of h, weighted, in order of choice, then the shared expert; h, x
/// [rows, hidden].
void MixtureOfExperts(const Compute& compute, const MoeSpec& spec, const MoeWeights& weights,
                      MatrixView<const float> h, MatrixView<float> x);

}  // namespace outrider
