// Runs steps on the caller's thread. Launch does everything up to the tokens, Wait waits for a
// device that has them, WaitDrafts makes the drafts; a GPU may still work on drafts when it returns
// (tokens_on_device.h). On a CPU this is the engine's executor. On a GPU it runs on a thread of its
// own (queued_executor.h).
//
// A device may keep a step's results where later work reads them. Then that work is launched before
// the host has read them. With a drafter it is the beginning of the drafter's pass: it runs while
// the host reads how many drafts were right and lays out the rest. Without a drafter it is the next
// step, as every request gets exactly one token. So it is where a drafter without state has nothing
// to do: the step verifies no drafts, and none are wanted behind it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "outrider/execute/executor.h"
#include "outrider/execute/rank_team.h"
#include "outrider/execute/slot_table.h"
#include "outrider/execute/step_layout.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider {

class StepRunner : public Executor {
 public:
  /// Runs the only rank.
  explicit StepRunner(RankParts parts);
  /// Runs the ranks that share a model, in order; see RankTeam.
  explicit StepRunner(std::vector<RankParts> parts, double rank_seconds = kRankSeconds);

  /// Returns what its ranks were made of, in order. No slot may be taken and no step in flight. It
  /// can only be destroyed afterwards.
  std::vector<RankParts> TakeApart() { return ranks_.TakeApart(); }

  int32_t vocab_size() const override { return ranks_.first().model().vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override {
    return ranks_.first().model().config().eos_token_ids;
  }
  int32_t max_in_flight() const override { return 1; }
  bool CanLaunchAhead() const override;
  bool Ready(Ticket ticket) const override;
  void WhileLaunching(const std::function<void()>& look) override;
  void Admit(const SlotAdmission& admission) override;
  void Release(int32_t slot) override;
  int64_t page_bytes() const override {
    return first().page_bytes() *
           (first().divides_cache() ? 1 : static_cast<int64_t>(ranks_.size()));
  }
  void ReadPage(int32_t page, std::span<std::byte> to) override;
  void WritePage(int32_t page, std::span<const std::byte> from) override;
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override;
  std::span<const RequestResult> Wait(Ticket ticket) override;
  std::span<const int32_t> WaitDrafts(Ticket ticket) override;
  ExecutorSeconds seconds() const override;
  ReplayCounts passes() const override { return ranks_.first().passes(); }

 private:
  /// What the device has drawn for a request and the host has not read.
  struct UnreadResult {
    RequestSlot* slot = nullptr;                          // null: the request has left it
    size_t index = 0;                                     // of the slot's tokens
    std::shared_ptr<const RequestParameters> parameters;  // kept until the result is read
    RequestResult* result = nullptr;
  };
  /// What a step gives, by index in its plan.
  struct StepOutputs {
    std::vector<RequestResult> results;  // and some more, whose memory is kept
    std::vector<int32_t> num_drafts;
    /// Whether the drafter sees the step, before another is launched. Else each request gets one
    /// token and no drafts.
    bool for_drafter = false;
    bool entries_finished = false;  // of the drafter, of all rows
    /// None: the host has the results. Of a step for the drafter in the order of step_, which is
    /// still this step's then.
    std::vector<UnreadResult> unread;
    Ticket verify = 0;  // of the rank; what is unread comes with it
  };

  Rank& first() { return ranks_.first(); }
  const Rank& first() const { return ranks_.first(); }
  StepOutputs& OutputsOf(Ticket ticket) {
    return outputs_[static_cast<size_t>(ticket) % outputs_.size()];
  }
  const StepOutputs& OutputsOf(Ticket ticket) const {
    return outputs_[static_cast<size_t>(ticket) % outputs_.size()];
  }
  StepOutputs& outputs() { return OutputsOf(last_launched_); }
  void LayOut(const StepPlan& plan);
  /// Whether step_ is for the drafter; see StepOutputs.
  bool NeedsDrafter() const;
  void Verify();
  /// Advances a request by what the step verified.
  void Take(const RequestRows& rows);
  /// Whether the host need not know this step's tokens before what follows is launched: the next
  /// step or, of a step for the drafter, the beginning of its pass.
  bool CanLeaveTokens();
  /// Notes which results are unread. Of a step that is not for the drafter, requests go on with the
  /// places of their tokens.
  void LeaveTokens(Ticket verify);
  /// Waits for the tokens of a step that were left on the device.
  void ReadTokens(StepOutputs& outputs);
  void Propose();
  /// Launches the drafter's pass with what the device knows of the step.
  void LaunchDrafts();
  DraftRequest DraftRequestOf(const RequestRows& rows, int32_t frontier);
  /// Drafts for the requests in draft_requests_.
  MatrixView<TokenRef> DraftFor(int32_t depth);
  /// Lets the drafter see the last rows of requests that have ended, where the plan publishes
  /// their blocks and their entries are not there.
  void FinishEntries();

  RankTeam ranks_;
  SlotTable slots_;
  StepLayout step_;  // of the last step that was launched
  ExecutorSeconds seconds_;
  Ticket last_launched_ = 0;
  Ticket last_ended_ = 0;
  int32_t wanted_drafts_ = 0;
  std::array<StepOutputs, 2> outputs_;  // of the last step and the one before it
  // Kept to reuse memory.
  std::vector<DraftRequest> draft_requests_;
  std::vector<const RequestRows*> draft_rows_;  // of each
  std::vector<TokenRef> drafts_;                // [draft requests, k]
};

}  // namespace outrider
