// Operations of drafters that draft a block of tokens at once (DSpark).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "outrider/ops/context.h"
#include "outrider/ops/replayer.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/step_sampler.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// The token before a draw: one that is known, or the result of an earlier step's draw.
struct TokenBefore {
  TokenRef token = {};
  int32_t draw = -1;  // index of that draw; negative: the token is `token`
};

/// The draws of blocks' tokens, step by step. A draw reads no token that its own step draws. All
/// arrays but `steps` are by draw, in order of steps.
struct BlockDraws {
  std::span<const int32_t> rows;  // of a drafter's hidden rows
  std::span<const TokenBefore> before;
  std::span<const DrawRequest> requests;
  std::span<const int32_t> steps;  // draws of each, at least 1
  /// Of a device that keeps numbers (tokens_on_device.h), by draw: the place of the one to subtract
  /// from the draw's position; negative: none. Empty: none at all.
  std::span<const int32_t> moved_places = {};
};

/// Runs the draws of one drafter. Operations take rows of draws. A device may add rows behind a
/// step's draws; their results are not read.
class BlockSampler {
 public:
  virtual ~BlockSampler() = default;

  /// Takes draws in place of those before. What they refer to must stay until TakeTokens.
  virtual void Assign(const BlockDraws& draws) = 0;

  // About the draws that were assigned.

  /// The number of rows of all draws, and the rows of one step. A step's first draw is its first
  /// row.
  virtual int64_t num_rows() const = 0;
  virtual RowRange rows_of(size_t step) const = 0;

  /// Whether ReadRows, EmbedBefore and Draw only launch work, so that a run of them may be
  /// recorded. AddTo then adds to its key all that they read on the host.
  virtual bool launches_only() const = 0;
  virtual void AddTo(RunKey& key) const = 0;

  /// x[r] = hidden[the draw's row] for all rows r; x [num_rows(), cols of hidden].
  virtual void ReadRows(const Context& context, Tensor hidden, Tensor x) const = 0;
  /// x = the table's rows of the tokens before a step's draws; x [rows of the step, cols].
  virtual void EmbedBefore(const Context& context, const TokenTable& table, size_t step,
                           Tensor x) const = 0;
  /// Draws a step's tokens from logits [rows of the step, tokens], which it may change.
  virtual void Draw(const Context& context, size_t step, Tensor logits) = 0;

  /// After the last step: tokens[i] = the token of draw i, which may be on the device
  /// (tokens_on_device.h).
  virtual void TakeTokens(std::span<TokenRef> tokens) = 0;
};

/// A facet of Ops (Ops::block_drafts).
class BlockDraftOps {
 public:
  virtual ~BlockDraftOps() = default;

  /// What draws the tokens of blocks on `device`, whose operations these are.
  virtual std::unique_ptr<BlockSampler> MakeBlockSampler(const Device& device) const = 0;
};

}  // namespace outrider
