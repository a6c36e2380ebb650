// Cache entries that pool several tokens, and attention to them (DeepSeek-V4).
#pragma once

#include <cstdint>
#include <span>

#include "outrider/ops/compressed_attention.h"
#include "outrider/ops/context.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

struct Product;

/// A facet of Ops (Ops::compressed).
class CompressedOps {
 public:
  virtual ~CompressedOps() = default;

  /// Finishes queries behind their products.
  virtual void FinishQueries(const Context& context, const QueryArgs& args) const = 0;

  /// Normalises and rotates a row per token and writes it to the window's cache; normalises the
  /// queries' latents beside it.
  virtual void WriteWindowRows(const Context& context, const StepInputs& inputs,
                               const WindowRowArgs& args) const = 0;

  /// For each of the compressors of a layer: multiplies x [rows, K] with its weights, into the rows
  /// of the step's tokens in the cache. `beside`: one more product of x, whose weight may lie
  /// beside theirs; null: none.
  virtual void WriteTokenRows(const Context& context, const StepInputs& inputs, Tensor x,
                              std::span<const TokenRowArgs> compressors,
                              const Product* beside) const = 0;

  /// For each of the compressors of a layer, which have one ratio: writes the entries that the
  /// step's rows complete: in every channel the mean of the tokens' values, weighted by the softmax
  /// of their gates; then normalised and rotated.
  virtual void Compress(const Context& context, const StepInputs& inputs,
                        std::span<const CompressArgs> compressors) const = 0;

  virtual void CompressedAttention(const Context& context, const StepInputs& inputs,
                                   const CompressedAttentionArgs& args) const = 0;
};

}  // namespace outrider
