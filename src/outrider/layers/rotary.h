// Rotary position embedding: frequencies, and the angles of a step's rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// Inverse frequencies [dims / 2] in float32. With YaRN (Peng et al., arXiv:2309.00071) they blend
/// theta^(-2i/dims) / factor and theta^(-2i/dims) by a ramp between the dimensions that turn
/// beta_fast and beta_slow times over the original context. With Llama3Scaling the blend is by
/// turns over the original context, between low_frequency_factor and high_frequency_factor. Zeros
/// where nothing turns.
std::vector<float> RotaryFrequencies(const RotarySpec& spec);

/// The rotary embeddings of a network: one for each kind that its layers have.
class RotaryKinds {
 public:
  /// The number of this kind, from 0; equal kinds have one number. The inverse of a kind rotates
  /// back.
  int32_t Add(const RotarySpec& spec, bool inverse = false);

  std::span<const float> frequencies(int32_t kind) const {
    return kinds_[static_cast<size_t>(kind)].frequencies;
  }

  /// The angles of a step's rows for every kind, by number, until the next call.
  std::span<const Rotary> Rows(const Context& context, const StepInputs& inputs);

 private:
  struct Kind {
    RotarySpec spec;
    bool inverse = false;
    std::vector<float> frequencies;
  };
  std::vector<Kind> kinds_;
  std::vector<Rotary> rows_;  // by kind
};

}  // namespace outrider
