// Operations of mixtures of experts. Results live in the arena.
#pragma once

#include <cstdint>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/context.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// Which rows go to which experts, with what weights. A device derives its own kind from it.
struct Routing {};

/// Where to write the ids of the experts that rows choose: [rows, top_k] from `ids` on, a row every
/// `stride` numbers. Null: nowhere.
struct ChosenExperts {
  int16_t* ids = nullptr;
  int64_t stride = 0;

  ChosenExperts From(int64_t row) const {
    return ids == nullptr ? *this : ChosenExperts{ids + row * stride, stride};
  }
};

/// Where to write the ids of all layers: [rows, layers, top_k].
struct ChosenExpertsOfLayers {
  int16_t* ids = nullptr;
  RoutedShape shape;

  ChosenExperts Layer(int64_t layer) const {
    if (ids == nullptr) return {};
    return {ids + layer * shape.top_k, shape.RowSize()};
  }
};

/// Rows between the operations of a mixture of experts, in the device's order.
struct ExpertRows {
  Tensor routed;
  Tensor shared;
};

/// A mixture's outputs that are still to be added up, as MoeOps::CombineExperts would.
struct ExpertSum {
  const ExpertWeights* weights = nullptr;
  const Routing* routing = nullptr;
  ExpertRows outputs;
};

/// Where the activations of a mixture of experts are cut, as Product::limit does.
struct ExpertLimits {
  float routed = static_cast<float>(kNoActivationLimit);
  float shared = static_cast<float>(kNoActivationLimit);
  bool limits_gate = false;  // gates are cut at the limit before silu, not silu's result
};

/// A facet of Ops (Ops::moe).
class MoeOps {
 public:
  virtual ~MoeOps() = default;

  /// Scores logits [rows, experts], which it may change, chooses each row's experts and groups the
  /// rows by expert for the products with `w`. bias [experts] is added to scores for the choice
  /// (kNoAuxTc), or null. The result holds until the next call.
  /// The logits are those of the rows from first_row on.
  virtual const Routing& Route(const Context& context, const RouterSpec& spec,
                               const StepInputs& inputs, int32_t first_row, const ExpertWeights& w,
                               Tensor logits, const float* bias) const = 0;

  /// silu(gate x) * (up x) of every row's experts, and of the shared MLP, cut at the limits.
  virtual ExpertRows ExpertGateUp(const Context& context, const ExpertWeights& w,
                                  const ExpertLimits& limits, const Routing& routing,
                                  Tensor x) const = 0;

  virtual ExpertRows ExpertDown(const Context& context, const ExpertWeights& w,
                                const Routing& routing, const ExpertRows& inner) const = 0;

  /// x[r] += the weighted outputs of its experts in order of choice, then the shared MLP's; then
  /// the norm of x, where there is one.
  virtual void CombineExperts(const Context& context, const ExpertWeights& w,
                              const Routing& routing, const ExpertRows& outputs, Tensor x,
                              const NormOut& norm) const = 0;
};

/// A facet of Ops: tells which experts rows have chosen (Ops::chosen_experts).
class ChosenExpertOps {
 public:
  virtual ~ChosenExpertOps() = default;

  /// Writes the ids of each row's experts to the device's memory, in order of choice.
  virtual void ReadChosen(const Routing& routing, ChosenExperts chosen) const = 0;
};

/// A facet of Ops: experts by a token's number (Ops::token_router).
class TokenRouterOps {
 public:
  virtual ~TokenRouterOps() = default;

  /// Routes rows by a table that says which experts a token has: table [tokens, top_k]. Otherwise
  /// as MoeOps::Route.
  virtual const Routing& RouteByToken(const Context& context, const RouterSpec& spec,
                                      const StepInputs& inputs, int32_t first_row,
                                      const ExpertWeights& w, Tensor logits,
                                      const int32_t* table) const = 0;
};

}  // namespace outrider
