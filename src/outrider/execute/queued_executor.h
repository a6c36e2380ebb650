// Runs another executor's calls on a thread of its own, in their order. While step n runs, the
// engine plans step n + 1 and delivers the tokens of step n - 1; the device waits for neither.
//
// Where `inner` can launch step n + 1 before the results of step n are known, it does. Else the
// inputs of step n + 1 are laid out when step n has ended. The results of step n are handed out
// when somebody waits for them, also while step n + 1 is being launched.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "outrider/execute/executor.h"

namespace outrider {

/// When a call throws on the thread, nothing runs any more. Wait and WaitDrafts for steps that had
/// not ended throw the same exception from then on.
class QueuedExecutor : public Executor {
 public:
  explicit QueuedExecutor(std::unique_ptr<Executor> inner);
  /// Waits for the call that runs, and drops those that have not begun.
  ~QueuedExecutor() override;
  QueuedExecutor(const QueuedExecutor&) = delete;
  QueuedExecutor& operator=(const QueuedExecutor&) = delete;

  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override { return inner_->eos_token_ids(); }
  int32_t max_in_flight() const override { return kSteps; }
  void Admit(const SlotAdmission& admission) override;
  void Release(int32_t slot) override;
  int64_t page_bytes() const override { return inner_->page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) override;
  void WritePage(int32_t page, std::span<const std::byte> from) override;
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override;
  std::span<const RequestResult> Wait(Ticket ticket) override;
  std::span<const int32_t> WaitDrafts(Ticket ticket) override;
  /// As they were at the end of the last step that was waited for.
  ExecutorSeconds seconds() const override { return seconds_; }
  ReplayCounts passes() const override { return passes_; }

 private:
  static constexpr size_t kSteps = Scheduler::kMostInFlight;

  struct Step {
    // The caller writes these before the step is queued.
    StepPlan plan;
    std::vector<CacheTables> tables;  // copies: the scheduler goes on with its own
    // The thread writes these, and then notes with `mutex_` how far it has come.
    std::span<const RequestResult> results;
    std::span<const int32_t> num_drafts;
    ExecutorSeconds seconds;
    ReplayCounts passes;
  };

  Step& StepOf(Ticket ticket) { return steps_[static_cast<size_t>(ticket) % kSteps]; }
  void Push(std::function<void()> call);
  /// Returns when the thread has made the call.
  void CallAndWait(const std::function<void()>& call);
  void Run();
  /// The first in the queue; none at the end.
  std::function<void()> NextCall();
  void RunLaunch(Ticket ticket, int32_t num_drafts);
  /// Ends the steps that were launched, up to `ticket`.
  void Finish(Ticket ticket);
  /// Until the thread has counted up to `ticket`; throws what a call threw.
  void WaitFor(const Ticket& count, Ticket ticket);
  void CountTo(Ticket& count, Ticket ticket);

  std::unique_ptr<Executor> inner_;
  std::array<Step, kSteps> steps_;  // by ticket
  // The caller's.
  Ticket last_launched_ = 0;
  Ticket last_called_ = 0;  // by CallAndWait
  ExecutorSeconds seconds_;
  ReplayCounts passes_;

  // The thread's; tickets are those of `inner`.
  Ticket last_run_ = 0;  // launched
  Ticket last_finished_ = 0;

  std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable ran_;
  std::deque<std::function<void()>> calls_;
  bool stopping_ = false;
  Ticket last_sampled_ = 0;  // its results are there
  Ticket last_ended_ = 0;    // its drafts are, too
  Ticket last_made_ = 0;     // of the calls of CallAndWait
  std::exception_ptr error_;

  std::thread thread_;  // the last member: it uses the others
};

}  // namespace outrider
