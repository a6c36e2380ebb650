// Runs another executor's calls on a thread of its own, in their order. So the engine plans step
// n + 1 while step n runs, and delivers the tokens of step n - 1 beside it: a device never waits
// for them. Where `inner` can launch step n + 1 before it knows what step n gave, it does; else
// that step's inputs are laid out when step n has ended. A second thread waits for such late steps:
// what step n gave is handed out as soon as it is there, also while step n + 1 is being launched.
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

/// What a call throws on a thread comes out of the next Wait or WaitDrafts, of every later one,
/// too; nothing runs any more.
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
  /// As they were when the last step that was waited for had ended; of a late one, was launched.
  ExecutorSeconds seconds() const override { return seconds_; }
  ReplayCounts passes() const override { return passes_; }

 private:
  static constexpr size_t kSteps = Scheduler::kMostInFlight;

  struct Step {
    // The caller writes these before the step is queued.
    StepPlan plan;
    std::vector<CacheTables> tables;  // copies: the scheduler goes on with its own
    // The threads write these, and then note with `mutex_` how far they have come.
    std::span<const RequestResult> results;
    std::span<const int32_t> num_drafts;
    ExecutorSeconds seconds;
    ReplayCounts passes;
  };

  Step& StepOf(Ticket ticket) { return steps_[static_cast<size_t>(ticket) % kSteps]; }
  void Push(std::function<void()> call);
  /// Returns when the thread has made the call.
  void CallAndWait(const std::function<void()>& call);
  /// Makes `calls` of a thread; what one throws is everybody's error.
  void Guard(const std::function<void()>& calls);
  /// The first thread makes the calls of the queue.
  void Run();
  void RunLaunch(Ticket ticket, int32_t num_drafts);
  /// The second thread ends late steps.
  void FinishLateSteps();
  /// Of the oldest of the steps that were launched: waits for all that it gives.
  void TakeResults(Ticket ticket);
  /// Of the first thread, which the counters of `inner` are for.
  void NoteSeconds(Ticket ticket);
  /// Until a thread has counted up to `ticket`; throws what a call threw.
  void WaitFor(const Ticket& count, Ticket ticket);
  void CountTo(Ticket& count, Ticket ticket);

  std::unique_ptr<Executor> inner_;
  std::array<Step, kSteps> steps_;  // by ticket
  // The caller's.
  Ticket last_launched_ = 0;
  Ticket last_called_ = 0;  // by CallAndWait
  ExecutorSeconds seconds_;
  ReplayCounts passes_;

  std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable ran_;
  std::deque<std::function<void()>> calls_;
  bool stopping_ = false;
  bool stopped_ = false;     // the first thread has
  Ticket last_late_ = 0;     // for the second thread
  Ticket last_sampled_ = 0;  // its results are there
  Ticket last_ended_ = 0;    // its drafts are, too
  Ticket last_made_ = 0;     // of the calls of CallAndWait
  std::exception_ptr error_;

  // The last members: they use the others.
  std::thread thread_;
  std::thread late_thread_;
};

}  // namespace outrider
