// The step itself, on one thread: plan, layout, forward, verify, propose, commit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/engine/generation_service.h"
#include "outrider/engine/logits_pass.h"
#include "outrider/engine/request_state.h"
#include "outrider/kv/kv_cache.h"
#include "outrider/networks/network.h"
#include "outrider/sampling/verifier.h"
#include "outrider/schedule/scheduler.h"
#include "outrider/speculate/draft_length_policy.h"
#include "outrider/speculate/draft_schedule.h"
#include "outrider/speculate/drafter.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

/// What an engine is made of.
struct EngineParts {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Network> model;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Drafter> drafter;                      // null: no speculation
  DraftSchedule draft_schedule{0, {}};                   // with a drafter: by its max_drafts
  std::optional<DraftLengthPolicy> draft_length_policy;  // decides instead of draft_schedule
  AcceptanceOptions acceptance;
  bool probabilistic_drafts = false;     // drafts of sampled requests are drawn
  const Tokenizer* tokenizer = nullptr;  // null: no text
  SchedulerConfig scheduler;
  bool prefix_caching = true;
  std::optional<int32_t> max_num_queued_reqs;
  int32_t max_logprobs = 20;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  uint64_t seed = 0;
};

class EngineCore {
 public:
  explicit EngineCore(EngineParts parts);
  /// Ends the engine, which has no requests.
  EngineParts ReleaseParts() && { return std::move(parts_); }

  const EngineParts& parts() const { return parts_; }
  StepLog& step_log() { return step_log_; }
  /// From the next step on, unless there is a draft_length_policy.
  void SetDraftSchedule(DraftSchedule schedule) { parts_.draft_schedule = std::move(schedule); }

  void Add(RequestId id, GenerationRequest request, OutputSink sink);
  void Abort(RequestId id);

  /// Runs one step; false when there is nothing to run.
  bool Step();

  bool Idle() const { return requests_.empty(); }
  /// Replaces `counters`, whose memory is reused.
  void ReadCounters(EngineCounters& counters) const;

 private:
  RequestState& StateOf(RequestId id) { return *requests_.at(id); }
  /// The plan that ran; null when there was nothing to run.
  const StepPlan* RunStep(double& step_seconds);
  /// Of a step that has run.
  StepRecord DescribeStep(const StepPlan& plan, double seconds) const;
  void ApplyPlan(const StepPlan& plan);
  void Forward();
  void EmitTokens(const StepPlan& plan);
  void ProposeDrafts(const StepPlan& plan);
  /// Drafts per request after this step, in which `decodes` requests were sampled and go on.
  int32_t ChooseDraftLength(int32_t decodes);
  /// Tells the policy what became of the step's drafts.
  void ObserveStep(const StepPlan& plan);
  void Commit(const StepPlan& plan);
  void Remove(RequestId id);
  void CountFinish(FinishReason reason);

  /// What became of one planned request in this step.
  struct Outcome {
    int32_t num_emitted = 0;
    int32_t num_drafts = 0;  // proposed for the next step
  };

  EngineParts parts_;
  Scheduler scheduler_;
  BlockKeyHasher hasher_;
  LogitsPass logits_pass_;
  std::map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<RequestState*> by_slot_;  // of running requests
  EngineCounters counters_;
  StepLog step_log_;

  // Of the step in flight; kept to reuse memory.
  BatchLayout layout_;
  std::vector<RequestWork> work_;
  std::vector<RequestState*> states_;     // by index in the plan
  std::vector<VerifiedTokens> verified_;  // by index in the plan
  std::vector<Outcome> outcomes_;         // by index in the plan
  std::vector<float> hidden_;             // [rows, hidden]
  std::vector<DraftRequest> draft_requests_;
  std::vector<size_t> draft_plan_index_;
  std::vector<int32_t> drafts_;    // [draft requests, k]
  std::vector<int32_t> tried_;     // [k] as DraftLengthPolicy counts them
  std::vector<int32_t> accepted_;  // [k]
};

}  // namespace outrider
