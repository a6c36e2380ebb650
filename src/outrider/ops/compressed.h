// Cache entries that pool several tokens, and attention to them (DeepSeek-V4).
#pragma once

#include <cstdint>

#include "outrider/ops/compressed_attention.h"
#include "outrider/ops/context.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

/// A facet of Ops (Ops::compressed).
class CompressedOps {
 public:
  virtual ~CompressedOps() = default;

  /// Norm of every one of the `heads` heads, whose columns they share evenly, in place; weight
  /// [cols / heads].
  virtual void NormHeads(const Context& context, Tensor x, int32_t heads, const float* weight,
                         float eps) const = 0;

  /// x[r] += bias[position % ratio] of every row; bias [ratio, cols].
  virtual void AddPositionBias(const Context& context, const StepInputs& inputs, const float* bias,
                               int32_t ratio, Tensor x) const = 0;

  /// Writes the entries that the rows complete: in every channel the mean of the tokens' values,
  /// weighted by the softmax of their gates; then normalised and rotated. Reads the token rows from
  /// the cache, those of this step too.
  virtual void Compress(const Context& context, const CompressorShape& shape,
                        const StepInputs& inputs, const CompressArgs& args) const = 0;

  /// Writes one cache entry per row as it is.
  virtual void WriteEntries(const Context& context, const StepInputs& inputs, Tensor entries,
                            LayerCache cache) const = 0;

  virtual void CompressedAttention(const Context& context, const StepInputs& inputs,
                                   const CompressedAttentionArgs& args) const = 0;
};

}  // namespace outrider
