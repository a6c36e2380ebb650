// An engine on a thread of its own that is going to fail, and what its requests are told.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/engine/engine_thread.h"

namespace outrider::cuda {

class FailingService {
 public:
  explicit FailingService(Engine& engine) : engine_(engine) {
    thread_.emplace(engine, [this](const std::string& reason) { failure_ = reason; });
  }

  void Submit(const GenerationRequest& request) {
    std::string& reason = reasons_.emplace_back();
    engine_.Submit(request, [this, &reason](RequestId, OutputDelta&& delta) {
      num_tokens_ += static_cast<int>(delta.token_ids.size());
      if (delta.finish_reason != FinishReason::kError) return;
      if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) reason = *text;
    });
  }
  /// A request that runs until the context is full.
  void SubmitLong() {
    GenerationRequest request;
    request.prompt_token_ids = {5, 6, 7, 8};
    request.sampling.max_tokens = engine_.max_model_len() - 4;
    request.sampling.ignore_eos = true;
    Submit(request);
  }

  /// Waits for so many tokens of all requests together; returns when the engine fails, too.
  void WaitForTokens(int count) const {
    while (num_tokens_ < count && !thread_->failed()) std::this_thread::yield();
  }
  /// Whether the engine fails, within half a minute. Ends its thread.
  bool Fails() {
    const auto start = std::chrono::steady_clock::now();
    while (!thread_->failed() &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) {
      std::this_thread::yield();
    }
    const bool failed = thread_->failed();
    thread_.reset();
    return failed;
  }

  // When it has failed.
  const std::string& failure() const { return failure_; }
  /// Every request was told so, none has kept pages, and no other is taken.
  void ExpectAllTold() {
    EXPECT_THAT(reasons_, testing::Each(failure_));
    EXPECT_EQ(engine_.Counters().kv_cache_usage, 0);
    EXPECT_THROW(SubmitLong(), Error);
  }

 private:
  Engine& engine_;
  std::atomic<int> num_tokens_ = 0;
  std::deque<std::string> reasons_;  // of each request; empty: not told that the engine failed
  std::string failure_;
  std::optional<EngineThread> thread_;
};

}  // namespace outrider::cuda
