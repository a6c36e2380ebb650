// The MLP of a layer: dense, or a mixture of experts.
#pragma once

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// A gated MLP: down(silu(gate x) * up x).
struct MlpWeights {
  Weight gate_up;  // [2 * width, hidden], gate first
  Weight down;     // [hidden, width]
};

struct MoeWeights {
  Weight router;                           // [experts, hidden]
  const float* router_bias = nullptr;      // [experts], kNoAuxTc only
  const int32_t* token_experts = nullptr;  // [vocab, top_k], kTokenTable only
  ExpertWeights experts;
};

/// x += mlp(h), then the norm of x; h, x [rows, hidden]. norm.out may be h.
void DenseMlp(const Context& context, const DenseMlpSpec& spec, const MlpWeights& weights, Tensor h,
              Tensor x, const NormOut& norm = {});

/// x += the chosen experts of h, weighted, in order of choice, then the shared MLP; then the norm
/// of x. h, x [rows, hidden], all rows of the step. norm.out may be h. Tells the rows' experts
/// where somebody asks, on a device that can (Ops::chosen_experts).
void MixtureOfExperts(const Context& context, const MoeSpec& spec, const MoeWeights& weights,
                      const StepInputs& inputs, Tensor h, Tensor x, const NormOut& norm = {},
                      ChosenExperts chosen = {});

/// Computes a mixture's outputs of at most Ops::mlp_tile rows, and leaves their sum to the caller.
/// They lie in the arena, as MoeOps::Route says.
ExpertSum ExpertOutputs(const Context& context, const MoeSpec& spec, const MoeWeights& weights,
                        const StepInputs& inputs, Tensor h, ChosenExperts chosen = {});

}  // namespace outrider
