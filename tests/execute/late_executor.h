// An executor for tests that works as a device does: behind the caller's back. Calls go into a
// queue and take effect in order, at random moments; a step runs at the latest when it is waited
// for. The engine gets its results one step late.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/execute/executor.h"

namespace outrider {

class LateExecutor : public Executor {
 public:
  LateExecutor(std::unique_ptr<Executor> inner, uint32_t seed)
      : inner_(std::move(inner)), random_(seed) {}

  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override { return inner_->eos_token_ids(); }
  ExecutorSeconds seconds() const override { return inner_->seconds(); }
  ReplayCounts passes() const override { return inner_->passes(); }

  /// Steps that were launched and not waited for.
  size_t num_in_flight() const { return steps_.size(); }

  /// Sometimes one: then a step is planned with nothing in flight.
  int32_t max_in_flight() const override { return random_() % 8 == 0 ? 1 : 2; }

  void Admit(const SlotAdmission& admission) override {
    const std::vector<int32_t> tokens(admission.tokens.begin(), admission.tokens.end());
    Push([this, admission = SlotAdmission(admission), tokens]() mutable {
      admission.tokens = tokens;
      inner_->Admit(admission);
    });
  }

  void Release(int32_t slot) override {
    Push([this, slot] { inner_->Release(slot); });
  }

  int64_t page_bytes() const override { return inner_->page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) override {
    while (!queue_.empty()) RunNext();
    inner_->ReadPage(page, to);
  }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    while (!queue_.empty()) RunNext();
    inner_->WritePage(page, from);
  }

  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override {
    OUTRIDER_CHECK(steps_.size() < 2);
    const auto step = std::make_shared<Step>();
    step->plan = plan;
    step->tables.reserve(plan.requests.size());
    for (PlannedRequest& planned : step->plan.requests) {
      step->tables.push_back(*planned.tables);
      planned.tables = &step->tables.back();
    }
    steps_.push_back(step);
    Push([this, step, num_drafts] {
      if (!launched_.empty() && !inner_->CanLaunchAhead()) FinishOldest();
      step->inner_ticket = inner_->Launch(step->plan, num_drafts);
      launched_.push_back(step);
      if (launched_.size() > 1) FinishOldest();
      if (!inner_->CanLaunchAhead() || random_() % 2 == 0) FinishOldest();
    });
    return ++last_ticket_;
  }

  std::span<const RequestResult> Wait(Ticket ticket) override {
    OUTRIDER_CHECK(ticket == ++last_waited_);
    waited_ = steps_.front();
    steps_.pop_front();
    while (!waited_->done) {
      if (!launched_.empty() && (queue_.empty() || random_() % 2 == 0)) {
        FinishOldest();
      } else {
        RunNext();
      }
    }
    RunSome();
    return waited_->results;
  }

  std::span<const int32_t> WaitDrafts(Ticket ticket) override {
    OUTRIDER_CHECK(ticket == last_waited_);
    return waited_->num_drafts;
  }

 private:
  struct Step {
    StepPlan plan;
    std::vector<CacheTables> tables;  // copies: the scheduler goes on with its own
    std::vector<RequestResult> results;
    std::vector<int32_t> num_drafts;
    Ticket inner_ticket = 0;
    bool done = false;
  };

  /// Finishes the oldest of the steps of `inner`.
  void FinishOldest() {
    Step& step = *launched_.front();
    const auto results = inner_->Wait(step.inner_ticket);
    step.results.assign(results.begin(), results.end());
    const auto drafts = inner_->WaitDrafts(step.inner_ticket);
    step.num_drafts.assign(drafts.begin(), drafts.end());
    step.done = true;
    launched_.pop_front();
  }

  void Push(std::function<void()> call) {
    queue_.push_back(std::move(call));
    RunSome();
  }

  /// Mostly none or all.
  void RunSome() {
    const uint32_t kind = random_() % 4;
    size_t count = kind < 2 ? 0 : kind == 2 ? queue_.size() : random_() % (queue_.size() + 1);
    while (count-- > 0) RunNext();
  }

  void RunNext() {
    const std::function<void()> call = std::move(queue_.front());
    queue_.pop_front();
    call();
  }

  std::unique_ptr<Executor> inner_;
  mutable std::mt19937 random_;
  std::deque<std::function<void()>> queue_;
  std::deque<std::shared_ptr<Step>> steps_;     // launched and not waited for
  std::deque<std::shared_ptr<Step>> launched_;  // of `inner`, and not finished
  std::shared_ptr<Step> waited_;
  Ticket last_ticket_ = 0;
  Ticket last_waited_ = 0;
};

}  // namespace outrider
