// Runs steps on the caller's thread. Launch does all up to the tokens, Wait waits for a device that
// has them, WaitDrafts does the proposals; a GPU may still work on drafts then
// (tokens_on_device.h). The CPU's executor; the GPU's has it on a thread of its own
// (queued_executor.h).
//
// Where the device keeps what a step comes to and the host need not know it first, Launch goes on
// with what reads it there. With a drafter that is the beginning of its pass, which runs while the
// host reads how many drafts were right and lays out the rest. Without one a step gives each
// request one token, and it is the next step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/batch/batch_layout.h"
#include "outrider/draft/drafter.h"
#include "outrider/execute/executor.h"
#include "outrider/execute/logits_pass.h"
#include "outrider/execute/request_slot.h"
#include "outrider/networks/network.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/sampling/acceptance.h"

namespace outrider {

struct InlineExecutorParts {
  std::unique_ptr<Ops> ops;  // the model's, if it is the engine's own; all below may use it
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Network> model;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Drafter> drafter;  // null: no speculation
  AcceptanceOptions acceptance;
  bool probabilistic_drafts = false;  // drafts of sampled requests are drawn
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  int32_t num_slots = 0;
};

class InlineExecutor : public Executor {
 public:
  explicit InlineExecutor(InlineExecutorParts parts);

  int32_t vocab_size() const override { return parts_.model->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override {
    return parts_.model->config().eos_token_ids;
  }
  int32_t max_in_flight() const override { return 1; }
  bool CanLaunchAhead() const override;
  bool ResultsAreThere() const override;
  void WhileLaunching(const std::function<void()>& look) override;
  void Admit(const SlotAdmission& admission) override;
  void Release(int32_t slot) override;
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override;
  std::span<const RequestResult> Wait(Ticket ticket) override;
  std::span<const int32_t> WaitDrafts(Ticket ticket) override;
  ExecutorSeconds seconds() const override;
  ReplayCounts passes() const override;

 private:
  RequestSlot& SlotAt(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  int32_t max_drafts() const { return parts_.drafter ? parts_.drafter->max_drafts() : 0; }
  /// What the device has drawn for a request and the host has not read.
  struct UnreadResult {
    RequestSlot* slot = nullptr;                          // null: the request has left it
    size_t index = 0;                                     // of the slot's tokens
    std::shared_ptr<const RequestParameters> parameters;  // kept until the result is read
    RequestResult* result = nullptr;
  };
  /// Of a step, by index in its plan.
  struct StepOutputs {
    std::vector<RequestResult> results;  // and some more, whose memory is kept
    std::vector<int32_t> num_drafts;
    /// None: the host has the results. With a drafter in the order of layout_, which is still the
    /// step's then.
    std::vector<UnreadResult> unread;
  };

  StepOutputs& OutputsOf(Ticket ticket) {
    return outputs_[static_cast<size_t>(ticket) % outputs_.size()];
  }
  const StepOutputs& OutputsOf(Ticket ticket) const {
    return outputs_[static_cast<size_t>(ticket) % outputs_.size()];
  }
  StepOutputs& outputs() { return OutputsOf(last_launched_); }
  void LayOut(const StepPlan& plan);
  /// What a planned request runs, from the state of its slot.
  RequestWork WorkOf(const PlannedRequest& planned, const RequestSlot& slot) const;
  void Forward();
  void Verify();
  /// Goes on by what a step verified.
  void Take(const RequestRows& rows);
  /// Whether the host need not know this step's tokens before what follows is launched: the next
  /// step or, with a drafter, the beginning of its pass.
  bool CanReadLater() const;
  /// Notes what is to be read. Without a drafter goes on with the places of the step's tokens.
  void ReadLater();
  /// The results of a step whose tokens were left on the device.
  void Read(StepOutputs& outputs);
  void Propose();
  /// Lets the drafter begin beside the host, with what the device knows of the step.
  void BeginDrafts();
  DraftRequest DraftRequestOf(const RequestRows& rows, int32_t frontier);
  /// Drafts for the requests in draft_requests_.
  MatrixView<int32_t> DraftFor(int32_t depth);
  /// Lets the drafter see the last rows of requests that have ended, where the plan publishes
  /// their blocks.
  void FinishEntries();
  Tensor drafter_reads() const { return taps_.empty() ? hidden_ : tapped_; }

  InlineExecutorParts parts_;
  LogitsPass logits_pass_;
  std::vector<RequestSlot> slots_;
  int32_t num_taken_ = 0;  // of the slots
  ExecutorSeconds seconds_;

  // The last step that was launched; kept to reuse memory.
  Ticket last_launched_ = 0;
  Ticket last_ended_ = 0;
  int32_t wanted_drafts_ = 0;
  BatchLayout layout_;
  AttentionPlan attention_;
  std::unique_ptr<StepInputs> inputs_;
  std::vector<RequestWork> work_;          // of the requests that run
  std::vector<RequestSlot*> work_slots_;   // by index of the work, as are the next three
  std::vector<VerifiedTokens*> verified_;  // into the results
  std::vector<uint8_t> publishes_;         // as the plan says
  std::vector<size_t> plan_index_;
  std::array<StepOutputs, 2> outputs_;  // of the last step and the one before it
  std::unique_ptr<RowMemory> hidden_memory_;
  std::unique_ptr<RowMemory> tapped_memory_;
  Tensor hidden_;  // [rows of inputs_, the output width]
  Tensor tapped_;  // [rows of inputs_, taps * hidden], of the layers that the drafter reads
  std::vector<LayerTap> taps_;
  std::vector<DraftRequest> draft_requests_;
  std::vector<size_t> draft_work_;  // the work of each
  std::vector<int32_t> drafts_;     // [draft requests, k]
};

}  // namespace outrider
