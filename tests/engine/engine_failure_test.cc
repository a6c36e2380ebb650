// A device that fails while requests run: all of them are told why, and no other is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/engine_thread.h"
#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

using testing::HasSubstr;

/// Runs so many steps.
class FailingExecutor : public Executor {
 public:
  FailingExecutor(std::unique_ptr<Executor> inner, int steps)
      : inner_(std::move(inner)), steps_left_(steps) {}

  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override { return inner_->eos_token_ids(); }
  int32_t max_in_flight() const override { return inner_->max_in_flight(); }
  void Admit(const SlotAdmission& admission) override { inner_->Admit(admission); }
  void Release(int32_t slot) override { inner_->Release(slot); }
  int64_t page_bytes() const override { return inner_->page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) override { inner_->ReadPage(page, to); }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    inner_->WritePage(page, from);
  }
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override {
    if (steps_left_-- == 0) throw Error(ErrorCode::kUnavailable, "the device is lost");
    return inner_->Launch(plan, num_drafts);
  }
  std::span<const RequestResult> Wait(Ticket ticket) override { return inner_->Wait(ticket); }
  std::span<const int32_t> WaitDrafts(Ticket ticket) override { return inner_->WaitDrafts(ticket); }
  ExecutorSeconds seconds() const override { return inner_->seconds(); }
  ReplayCounts passes() const override { return inner_->passes(); }

 private:
  std::unique_ptr<Executor> inner_;
  int steps_left_;
};

std::unique_ptr<Engine> MakeFailingEngine(int steps, bool queued) {
  TestEngineOptions options;
  options.queued = queued;
  options.max_num_seqs = 2;
  options.make_executor = [steps](std::vector<RankParts> parts) {
    return std::make_unique<FailingExecutor>(std::make_unique<StepRunner>(std::move(parts)), steps);
  };
  return MakeTestEngine(options);
}

GenerationRequest FiftyTokens() {
  GenerationRequest request;
  request.prompt_token_ids = {5, 6, 7, 8};
  request.sampling.max_tokens = 50;
  request.sampling.ignore_eos = true;
  return request;
}

void ExpectTold(const std::vector<Generated>& results, const std::vector<std::string>& reasons) {
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].finish_reason, FinishReason::kError) << i;
    EXPECT_EQ(reasons[i], "the device is lost") << i;
  }
}

/// Whether steps run on a thread of their own.
class EngineFailureTest : public testing::TestWithParam<bool> {};

TEST_P(EngineFailureTest, EveryRequestIsToldAndNoOtherIsTaken) {
  const auto engine = MakeFailingEngine(5, GetParam());
  std::vector<Generated> results(3);  // the third waits for a slot
  std::vector<std::string> reasons(3);
  for (size_t i = 0; i < results.size(); ++i) {
    engine->Submit(FiftyTokens(), [&, i](RequestId, OutputDelta&& delta) {
      if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) reasons[i] = *text;
      EXPECT_EQ(engine->Counters().failed, delta.finish_reason == FinishReason::kError);
      results[i].Take(std::move(delta));
    });
  }
  EXPECT_THROW(RunUntilIdle(*engine), Error);
  EXPECT_FALSE(results[0].tokens.empty());
  EXPECT_TRUE(results[2].tokens.empty());
  ExpectTold(results, reasons);
  EXPECT_TRUE(engine->Idle());
  EXPECT_EQ(engine->Counters().finished_error, 3);
  EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  try {
    engine->Submit(FiftyTokens(), [](RequestId, OutputDelta&&) { ADD_FAILURE(); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("the engine has stopped: the device is lost"));
  }
}

TEST_P(EngineFailureTest, TheThreadSaysSoOnceAndEnds) {
  const auto engine = MakeFailingEngine(0, GetParam());
  std::atomic<int> calls = 0;
  Generated result;
  {
    const EngineThread thread(*engine, [&](const std::string& reason) {
      EXPECT_EQ(reason, "the device is lost");
      ++calls;
    });
    Submit(*engine, FiftyTokens(), &result);
    while (!thread.failed()) std::this_thread::yield();
    EXPECT_EQ(engine->CountersAfterStep().finished_error, 1);  // waits for no step that never comes
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(result.finish_reason, FinishReason::kError);
}

INSTANTIATE_TEST_SUITE_P(Executors, EngineFailureTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Queued" : "Inline"; });

}  // namespace
}  // namespace outrider
