// Operations of drafters that draft a block of tokens at once (DSpark).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "outrider/ops/context.h"
#include "outrider/ops/step_sampler.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// Draws drafts from logits that a drafter has changed.
class LogitsSampler {
 public:
  virtual ~LogitsSampler() = default;

  /// tokens[i] = a draft from row i of logits [requests, tokens], which it may change.
  virtual void DrawFrom(const Context& context, Tensor logits,
                        std::span<const DrawRequest> requests, std::span<int32_t> tokens) = 0;
};

/// A facet of Ops (Ops::block_drafts).
class BlockDraftOps {
 public:
  virtual ~BlockDraftOps() = default;

  /// What draws the tokens of a block on `device`, whose operations these are.
  virtual std::unique_ptr<LogitsSampler> MakeLogitsSampler(const Device& device) const = 0;

  /// x[i] = the table's row of tokens[i].
  virtual void EmbedTokens(const Context& context, const TokenTable& table,
                           std::span<const int32_t> tokens, Tensor x) const = 0;
};

}  // namespace outrider
