// Drawing the tokens of a step: one call for all of its requests. A device has one for an engine,
// with memory that it keeps from step to step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "outrider/ops/context.h"
#include "outrider/ops/ticket.h"
#include "outrider/ops/tokens_on_device.h"
#include "outrider/ops/weights.h"
#include "outrider/sampling/draw_draft.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/verifier.h"

namespace outrider {

/// Rows of logits: row i is head x[rows[i]].
struct HeadRows {
  const Weight& head;
  Tensor x;
  std::span<const int32_t> rows;
  /// The rows of the network's output that these were made of; empty: they are `rows`.
  std::span<const int32_t> output_rows = {};

  int32_t OutputRow(size_t i) const { return output_rows.empty() ? rows[i] : output_rows[i]; }
};

/// One request of a step: its rows of logits are first_row .. first_row + drafts.
struct VerifyRequest {
  VerifyInput input;  // without logits and drawn
  int32_t first_row = 0;
  VerifiedTokens* result = nullptr;  // is replaced
  VerifyPlaces places = {};          // where the device may keep what it comes to

  int64_t num_rows() const { return static_cast<int64_t>(input.drafts.size()) + 1; }
};

/// The tokens that may be drafted: those of a head's first rows.
struct DraftTokens {
  int32_t rows = 0;
  /// The token of each row, each once; empty: token i is row i's.
  std::span<const int32_t> ids = {};
  int32_t vocab_size = 0;  // of the target, with ids
};

/// A draft to be drawn. Request i is drawn from row i of the logits.
struct DrawRequest {
  /// Null: the most likely token.
  const SamplingParams* sampling = nullptr;
  DraftDraw draw;
  int32_t place = 0;  // where the device may keep it (tokens_on_device.h)
};

/// A token whose log-probability is wanted. Request i is of row i of the logits.
struct ScoreRequest {
  int32_t token = 0;
  int32_t num_top = 0;                 // most likely tokens beside it
  PositionLogprobs* result = nullptr;  // is replaced
};

class StepSampler {
 public:
  virtual ~StepSampler() = default;

  /// Verifies the drafts of all requests and draws the token behind them. Where no request needs
  /// more than the likeliest token of its rows, no logits are stored.
  virtual void Verify(const Context& context, const HeadRows& rows,
                      std::span<const VerifyRequest> requests) = 0;

  /// Begins what Verify does, on all ranks, and returns while the device works on it. Every rank
  /// has what was drawn at the requests' places (tokens_on_device.h). Wait on the first rank fills
  /// the requests' results; their parameters must stay until then. At most two tickets may be
  /// waited for at a time. Nothing: nothing was begun, because the host has to draw for one of the
  /// requests or to know its drafts.
  virtual std::optional<Ticket> Launch(const Context& /*context*/, const HeadRows& /*rows*/,
                                       std::span<const VerifyRequest> /*requests*/) {
    return std::nullopt;
  }
  virtual bool Ready(Ticket /*ticket*/) const { return true; }
  virtual void Wait(Ticket /*ticket*/) {}

  /// tokens[i] = a draft from `among`, which may stay on the device. It is a token even where
  /// numbers have overflowed. Noise and distributions go by token, not by row of the head. All
  /// ranks have all requests and get all tokens.
  virtual void Draw(const Context& context, const HeadRows& rows,
                    std::span<const DrawRequest> requests, const DraftTokens& among,
                    std::span<TokenRef> tokens) = 0;

  virtual void Score(const Context& context, const HeadRows& rows,
                     std::span<const ScoreRequest> requests) = 0;

  /// Seconds spent on products with heads so far.
  double head_seconds() const { return head_seconds_; }

 protected:
  double head_seconds_ = 0;
};

}  // namespace outrider
