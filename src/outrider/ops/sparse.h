// Attention of a row to entries of its own choice (DeepSeek-V3.2, GLM-5, DeepSeek-V4).
#pragma once

#include <cstdint>

#include "outrider/ops/compressed_attention.h"
#include "outrider/ops/context.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

/// A facet of Ops (Ops::sparse).
class SparseOps {
 public:
  virtual ~SparseOps() = default;

  /// y[r] = weight * ((x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps)) + bias; y may be x.
  virtual void LayerNorm(const Context& context, Tensor x, const float* weight, const float* bias,
                         float eps, Tensor y) const = 0;

  /// Writes one cache entry per row as it is.
  virtual void WriteEntries(const Context& context, const StepInputs& inputs, Tensor entries,
                            LayerCache cache) const = 0;

  /// Results live in the arena.
  virtual SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                        const SelectEntriesArgs& args) const = 0;

  virtual void CompressedAttention(const Context& context, const StepInputs& inputs,
                                   const CompressedAttentionArgs& args) const = 0;
};

}  // namespace outrider
