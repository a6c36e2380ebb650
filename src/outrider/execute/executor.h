// Runs steps: layout, forward, verify, propose. An executor keeps, by request slot, what steps read
// and change of a request: tokens, drafts, length, state of the grammar.
//
// A step can be launched while the one before it is in flight, though its rows depend on what that
// step accepts. The plan names slots and gives bounds: a request in flight advances by 1 to
// 1 + drafts tokens, and its number of drafts is not known yet. The executor knows the numbers when
// the step runs. The host learns them at Wait, one step late.
//
// Calls take effect in their order, as on a stream: a step sees all Admit and Release before its
// Launch. So the host may give slots and pages to the next request as soon as it knows that they
// are free, even while a step with their last owner is in flight.
//
// The host lags by one step: text, stop strings, removal of requests, publication of prefixes and
// the choice of the number of drafts. A request that has ended or was aborted may be in one more
// step. Its rows are computed, and their results are dropped.
//
// The executor does not lag. Masks, ends, drafts and lengths are exact at every launch. One
// exception: a step that yields only tokens may be followed before they are read; if one of them
// ended its request, the extra row is computed and dropped. Hence output is the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "outrider/execute/draft_limit.h"
#include "outrider/execute/request_parameters.h"
#include "outrider/kv/host_cache.h"
#include "outrider/ops/replayer.h"
#include "outrider/ops/ticket.h"
#include "outrider/sampling/logprobs.h"
#include "outrider/sampling/verifier.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// A request that gets a slot: for the first time, or again after a preemption.
struct SlotAdmission {
  int32_t slot = 0;
  std::shared_ptr<const RequestParameters> parameters;
  std::span<const int32_t> tokens;  // the prompt, then what was emitted; read during Admit only
  int32_t cached_tokens = 0;        // of the prompt, found in the prefix cache
};

/// What a step did for one planned request.
struct RequestResult {
  /// False: the request had ended in the step before, and nothing ran.
  bool ran = false;
  std::vector<int32_t> drafts;                 // that were verified
  DraftLimit draft_limit = DraftLimit::kNone;  // why there are no more of them
  /// Filled when the plan samples the request. Tokens behind one that ends it do not count.
  VerifiedTokens verified;
  bool grammar_failed = false;    // the grammar refused a token that its mask had allowed
  bool grammar_complete = false;  // the output is a whole text of the grammar
  /// With the first token, when asked for: of the prompt's tokens from the second on.
  std::vector<PositionLogprobs> prompt_logprobs;
  /// Filled when the request asks for its experts: [rows, layers, top_k] of RoutedShapeOf, with the
  /// rows of drafts that were right. The first row is of token `experts_from`.
  std::vector<int16_t> experts;
  int32_t experts_from = 0;
};

/// Seconds since the executor was made.
struct ExecutorSeconds {
  double forward = 0;  // the target's forward pass
  double verify = 0;   // head, logits processing, sampling
  double propose = 0;  // drafter, without what a GPU still does when the host goes on
  double kernels = 0;  // of all these, in kernels
  double idle = 0;     // without work for a device that runs beside the host, while a slot is taken
};

class Executor : public PageAccess {
 public:
  virtual int32_t vocab_size() const = 0;
  virtual std::span<const int32_t> eos_token_ids() const = 0;

  /// How many steps may be in flight: 1 or 2.
  virtual int32_t max_in_flight() const = 0;

  /// Whether one step more than max_in_flight() may be launched now: the device works on the last
  /// one and has all that the next needs of it. Both plans must stay until their steps have ended.
  virtual bool CanLaunchAhead() const { return false; }

  /// Whether Wait for a step in flight would return at once.
  virtual bool Ready(Ticket /*ticket*/) const { return false; }

  /// Sets what is called now and then during a long Launch, on devices that allow it
  /// (Context::PauseLaunching). Empty: nothing. `look` may wait for the step before.
  virtual void WhileLaunching(const std::function<void()>& /*look*/) {}

  /// The slot must be free.
  virtual void Admit(const SlotAdmission& admission) = 0;

  /// The request has finished, was aborted or preempted.
  virtual void Release(int32_t slot) = 0;

  /// Bytes that ReadPage and WritePage (PageAccess) copy: a page of the cache on all ranks, with
  /// what the drafter keeps of it. Both take effect in order with the other calls, and return then.
  virtual int64_t page_bytes() const = 0;

  /// Starts a step of requests that have slots. Its drafter proposes up to `num_drafts` tokens for
  /// the next. Reads the plan and its block tables during the call only if max_in_flight() > 1,
  /// else until WaitDrafts returns.
  virtual Ticket Launch(const StepPlan& plan, int32_t num_drafts) = 0;

  /// Waits for the oldest step in flight. Returns its results by index in its plan, valid until the
  /// second Launch after this step's own. May return before drafts are proposed, so that tokens
  /// need not wait for them.
  virtual std::span<const RequestResult> Wait(Ticket ticket) = 0;

  /// Ends the step, after Wait. Returns how many drafts of each request the next step verifies; 0
  /// for requests whose slot was released since. Valid as long as the results.
  virtual std::span<const int32_t> WaitDrafts(Ticket ticket) = 0;

  virtual ExecutorSeconds seconds() const = 0;

  /// Passes of the target and of a drafter's modules.
  virtual ReplayCounts passes() const = 0;
};

}  // namespace outrider
