// What an executor on its own thread adds to the one that it runs: order, overlap, errors.
#include "outrider/execute/queued_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {
namespace {

/// Notes its calls. A step may begin when the test lets it, and has as many results as its plan.
class NotingExecutor : public Executor {
 public:
  NotingExecutor(std::vector<std::string>& calls, std::counting_semaphore<>& steps)
      : calls_(calls), steps_(steps) {}

  int32_t vocab_size() const override { return 7; }
  std::span<const int32_t> eos_token_ids() const override { return {}; }
  int32_t max_in_flight() const override { return 1; }
  bool CanLaunchAhead() const override { return later_ && ticket_ == ended_ + 1; }
  /// Steps leave their tokens on the device.
  void set_later() { later_ = true; }
  void Admit(const SlotAdmission& admission) override {
    calls_.push_back("admit " + std::to_string(admission.slot) + " with " +
                     std::to_string(admission.tokens.back()));
  }
  void Release(int32_t slot) override { calls_.push_back("release " + std::to_string(slot)); }
  int64_t page_bytes() const override { return 2; }
  void ReadPage(int32_t page, std::span<std::byte> to) override {
    calls_.push_back("read page " + std::to_string(page));
    std::ranges::fill(to, std::byte{7});
  }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    calls_.push_back("write page " + std::to_string(page) + " of " + std::to_string(from.size()));
  }
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override {
    steps_.acquire();
    calls_.push_back("launch " + std::to_string(plan.requests.size()) + " for " +
                     std::to_string(num_drafts));
    if (num_drafts < 0) throw Error(ErrorCode::kUnavailable, "the device is lost");
    ++ticket_;
    results_[ticket_ % 2].resize(plan.requests.size());
    drafts_[ticket_ % 2].assign(plan.requests.size(), num_drafts);
    seconds_.forward += 1;
    return ticket_;
  }
  std::span<const RequestResult> Wait(Ticket ticket) override {
    if (later_) calls_.push_back("wait for " + std::to_string(ticket));
    return results_[ticket % 2];
  }
  std::span<const int32_t> WaitDrafts(Ticket ticket) override {
    ended_ = ticket;
    return drafts_[ticket % 2];
  }
  ExecutorSeconds seconds() const override { return seconds_; }
  ReplayCounts passes() const override { return {}; }

 private:
  std::vector<std::string>& calls_;
  std::counting_semaphore<>& steps_;
  Ticket ticket_ = 0;
  Ticket ended_ = 0;
  bool later_ = false;
  std::vector<RequestResult> results_[2];
  std::vector<int32_t> drafts_[2];
  ExecutorSeconds seconds_;
};

class QueuedExecutorTest : public testing::Test {
 protected:
  /// Launches so many requests. The plan and its tables may be changed after the launch.
  Ticket Launch(size_t requests, int32_t num_drafts) {
    StepPlan plan;
    const CacheTables tables;
    plan.requests.resize(requests, {.tables = &tables});
    return executor_->Launch(plan, num_drafts);
  }

  std::vector<std::string> calls_;
  std::counting_semaphore<> steps_{0};
  NotingExecutor* inner_ = new NotingExecutor(calls_, steps_);
  std::unique_ptr<QueuedExecutor> executor_ =
      std::make_unique<QueuedExecutor>(std::unique_ptr<Executor>(inner_));
};

TEST_F(QueuedExecutorTest, TakesASecondStepWhileTheFirstRuns) {
  std::vector<int32_t> tokens = {3, 5};
  executor_->Admit({.slot = 4, .parameters = nullptr, .tokens = tokens});
  tokens = {0, 0};  // read during the call
  const Ticket first = Launch(1, 2);
  executor_->Release(4);
  const Ticket second = Launch(3, 1);
  steps_.release();
  EXPECT_EQ(executor_->Wait(first).size(), 1U);
  EXPECT_EQ(executor_->WaitDrafts(first).front(), 2);
  EXPECT_EQ(executor_->seconds().forward, 1);
  steps_.release();
  EXPECT_EQ(executor_->Wait(second).size(), 3U);
  EXPECT_EQ(executor_->WaitDrafts(second).size(), 3U);
  EXPECT_EQ(executor_->seconds().forward, 2);
  executor_.reset();
  EXPECT_EQ(calls_, (std::vector<std::string>{"admit 4 with 5", "launch 1 for 2", "release 4",
                                              "launch 3 for 1"}));
}

TEST_F(QueuedExecutorTest, LaunchesBeforeItWaitsForTokensThatStayOnTheDevice) {
  inner_->set_later();
  steps_.release(3);
  Launch(1, 0);
  Launch(2, 0);
  EXPECT_EQ(executor_->Wait(1).size(), 1U);
  EXPECT_EQ(executor_->WaitDrafts(1).size(), 1U);
  executor_->Release(4);
  Launch(3, 0);
  for (const Ticket ticket : {2, 3}) {
    EXPECT_EQ(executor_->Wait(ticket).size(), static_cast<size_t>(ticket));
    EXPECT_EQ(executor_->WaitDrafts(ticket).size(), static_cast<size_t>(ticket));
  }
  executor_.reset();
  EXPECT_EQ(calls_,
            (std::vector<std::string>{"launch 1 for 0", "launch 2 for 0", "wait for 1", "release 4",
                                      "launch 3 for 0", "wait for 2", "wait for 3"}));
}

TEST_F(QueuedExecutorTest, PagesAreCopiedBehindEarlierCalls) {
  steps_.release();
  const Ticket ticket = Launch(1, 0);
  std::vector<std::byte> page(static_cast<size_t>(executor_->page_bytes()));
  executor_->ReadPage(3, page);
  EXPECT_EQ(page, std::vector(2, std::byte{7})) << "it returns when it was read";
  executor_->WritePage(5, page);
  EXPECT_EQ(calls_,
            (std::vector<std::string>{"launch 1 for 0", "read page 3", "write page 5 of 2"}));
  executor_->Wait(ticket);
  executor_->WaitDrafts(ticket);
}

TEST_F(QueuedExecutorTest, ErrorsComeOutOfTheirStepAndEveryLaterOne) {
  steps_.release(3);
  const Ticket good = Launch(1, 0);
  const Ticket bad = Launch(2, -1);
  EXPECT_EQ(executor_->Wait(good).size(), 1U);
  EXPECT_EQ(executor_->WaitDrafts(good).size(), 1U);
  EXPECT_THROW(executor_->Wait(bad), Error);
  EXPECT_THROW(executor_->WaitDrafts(bad), Error);
  EXPECT_THROW(executor_->Wait(Launch(3, 0)), Error);
  executor_.reset();
  EXPECT_EQ(calls_.size(), 2U) << "nothing runs after an error";
}

TEST_F(QueuedExecutorTest, EndsWithStepsThatNobodyWaitsFor) {
  steps_.release();
  Launch(1, 0);
  Launch(1, 0);
  steps_.release();
  executor_.reset();
  EXPECT_LE(calls_.size(), 2U);
}

}  // namespace
}  // namespace outrider
