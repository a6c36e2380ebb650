// From a step's hidden rows to tokens. Gathers what every request wants of the sampler, which is
// called once for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/execute/request_slot.h"
#include "outrider/execute/step_layout.h"
#include "outrider/networks/network.h"
#include "outrider/ops/step_sampler.h"

namespace outrider {

class LogitsPass {
 public:
  /// pool: for what the host computes, the masks of grammars.
  LogitsPass(Network& model, ThreadPool& pool, const Verifier& verifier, int32_t max_drafts)
      : model_(model),
        pool_(pool),
        max_drafts_(max_drafts),
        sampler_(model.device().ops.MakeSampler(model.device(), verifier)) {}

  // hidden [rows of the step, output width]: what the target's forward pass gave.

  /// Replaces RequestResult::verified of the requests that have rows of logits.
  void Verify(const StepLayout& step, Tensor hidden);

  /// Begins what Verify does, and returns while the device works on it (StepSampler::Launch).
  /// Requests have no grammar. Runs on all ranks, so it only reads requests' states.
  std::optional<Ticket> Launch(const StepLayout& step, Tensor hidden);
  bool Ready(Ticket ticket) const { return sampler_->Ready(ticket); }
  void Wait(Ticket ticket) { sampler_->Wait(ticket); }

  /// Adds the log-probabilities of prompt tokens to the slots of requests that ask for them.
  void ScorePrompts(const StepLayout& step, Tensor hidden);

  // The parts of Verify and ScorePrompts on ranks that draw nothing. They read no request's state.

  void FollowVerify(const StepLayout& step, Tensor hidden);
  void FollowScores(const StepLayout& step, Tensor hidden);

 private:
  /// Fills verify_, but for masks.
  void Describe(const StepLayout& step);
  /// Fills the masks of the requests with a grammar.
  void FillMasks();
  void ScoreRows(const RequestRows& rows, Tensor hidden, RequestSlot& slot);
  /// The request's rows, in score_rows_.
  void ListScoreRows(const RequestRows& rows);

  Network& model_;
  ThreadPool& pool_;
  int32_t max_drafts_;
  std::unique_ptr<StepSampler> sampler_;
  // Kept to reuse memory.
  std::vector<VerifyRequest> verify_;
  std::vector<uint32_t> masks_;  // [rows of requests with a grammar, MaskWords(vocab)]
  std::vector<size_t> masked_;   // these requests' places in verify_
  std::vector<RequestSlot*> masked_slots_;
  std::vector<int32_t> score_rows_;
  std::vector<ScoreRequest> score_;
};

}  // namespace outrider
