// What goes into the engine (a GenerationRequest) and what each step gives back (OutputDeltas).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/execute/draft_limit.h"
#include "outrider/grammar/request_grammar.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/sampling_params.h"
#include "outrider/schedule/scheduler.h"
#include "outrider/text/stop_scope.h"

namespace outrider {

struct GenerationRequest {
  std::vector<int32_t> prompt_token_ids;  // 1 .. max_model_len - 1 tokens
  SamplingParams sampling;
  GrammarConstraint grammar;  // without a grammar: any text
  MakeStopScope stop_scope;   // of sampling.stop; empty: all of the text
  /// Most drafts per step of this request, at most the engine's k; unset: k.
  std::optional<int32_t> num_speculative_tokens;
  /// A lookup that finds nothing drafts the last token again: of made-up requests whose steps are
  /// measured.
  bool always_drafts = false;
  int32_t priority = 0;      // lower runs first
  std::string cache_salt;    // requests with different salts share no cached prefix
  bool trace_steps = false;  // deltas tell what was drafted (OutputDelta::steps)
  /// Deltas tell the experts of tokens from this one on (OutputDelta::experts): 0 .. prompt tokens.
  /// Tokens before it may come from the prefix cache, others are computed. Unset: they tell none.
  std::optional<int32_t> experts_from;
};

/// kError: a fault of the engine's own; the stop reason says which.
enum class FinishReason { kStop, kLength, kAbort, kError };

/// The stop reason of a request whose masks (allowed ids, bad words, grammar, ...) forbid every
/// token before its text is whole.
inline constexpr std::string_view kNoTokenAllowed = "no token allowed";

/// The stop reason of a request whose grammar refused a token that its mask had allowed.
inline constexpr std::string_view kGrammarFailed = "the grammar refused a token it had allowed";

/// The stop reason of a request for which the model's numbers have become infinite or NaN.
inline constexpr std::string_view kLogitsOverflown =
    "the model's logits are not finite: its weights or its dtype let numbers overflow";

/// "stop", "length", "abort", "error".
std::string_view FinishReasonName(FinishReason reason);

/// Acceptance figures of one request or of an engine. One "draft" is one verify step that had at
/// least one draft token.
struct SpeculationCounts {
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t>
      accepted_per_position;  // [k]: drafts whose token at this position was accepted

  /// 1 + accepted / drafts: tokens per verify step; 1 when nothing was drafted.
  double MeanAcceptanceLength() const;

  /// Counts one verify step of one request; nothing when it had no drafts.
  void AddStep(int32_t drafted, int32_t accepted);
};

/// Consecutive tokens of a request that weights of one version drew.
struct WeightSpan {
  std::string version;  // "": nobody named them
  int64_t tokens = 0;
};

/// Times are seconds on the steady clock from the request's submission.
struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  int64_t num_preemptions = 0;
  double queue_seconds = 0;        // until first scheduled
  double first_token_seconds = 0;  // until the first token was emitted
  double total_seconds = 0;
  SpeculationCounts speculation;
  std::vector<WeightSpan> weight_spans;  // of all tokens; several where weights were updated
};

/// A step's drafts for one request and what became of them. The step emitted `num_tokens` tokens:
/// the accepted drafts, then one more; fewer where the request ended among them.
struct StepTrace {
  std::vector<int32_t> drafts;  // that were verified
  int32_t num_accepted = 0;
  int32_t num_tokens = 0;
  DraftLimit draft_limit = DraftLimit::kNone;  // why it verified fewer drafts than k, if it did
};

/// The experts of a request's tokens in the target's layers: [tokens, layers, top_k] ids, best
/// first; zeros in layers without experts. The last token of an output has none, as it went through
/// no layer. Where weights were updated meanwhile, a token's experts are those of the pass that
/// drew the next token.
struct RoutedExperts {
  int32_t from = 0;    // the first of the tokens
  int32_t tokens = 0;  // prompt and output up to the last but one, less `from`
  RoutedShape shape;
  std::vector<int16_t> ids = {};
};

/// What one step did for one request.
struct OutputDelta {
  std::vector<int32_t> token_ids;          // emitted in this step, stop token included
  std::string text;                        // text that became certain; stop strings cut as asked
  std::vector<PositionLogprobs> logprobs;  // one per token id, when asked for
  /// On the first delta with a token, when asked for: of the prompt's tokens from the second on.
  std::vector<PositionLogprobs> prompt_logprobs;
  int32_t num_draft_tokens = 0;  // verified in this step
  int32_t num_accepted_tokens = 0;
  /// When asked for: the step, or the steps of deltas that were joined; their tokens are token_ids.
  std::vector<StepTrace> steps;

  // Set on the last delta of a request.
  std::optional<FinishReason> finish_reason;
  /// Stop token id or stop string; kNoTokenAllowed when the sampling fields left no token to draw;
  /// what went wrong, for kError.
  std::variant<std::monostate, int32_t, std::string> stop_reason;
  RequestStats stats;
  std::shared_ptr<const RoutedExperts> experts;  // null: nobody asked
};

/// Appends a later delta of a request to an earlier one.
void JoinDeltas(OutputDelta&& later, OutputDelta* delta);

/// Called on the engine's thread, in order, until a delta with finish_reason. Must not block and
/// must not throw.
using OutputSink = std::function<void(RequestId, OutputDelta&&)>;

}  // namespace outrider
