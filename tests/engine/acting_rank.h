// A rank that fails or hangs in the middle of a request, and what becomes of the request.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "tests/engine/test_engine.h"

namespace outrider {

/// Acts in a rank's drafter.
class ActingDrafter : public NgramDrafter {
 public:
  explicit ActingDrafter(std::function<void()> act) : NgramDrafter(3, 2, 5), act_(std::move(act)) {}
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target_hidden,
               MatrixView<TokenRef> drafts) override {
    NgramDrafter::Propose(requests, depth, target_hidden, drafts);
    if (++calls_ == 4) act_();
  }

 private:
  std::function<void()> act_;
  int calls_ = 0;
};

/// Runs `request` on an engine whose rank `rank` does `act` at its fourth step: what the request is
/// told, as the next one is, and after which time.
inline std::pair<std::string, double> ToldWhenRankActs(TestEngineOptions options, int32_t rank,
                                                       double rank_seconds,
                                                       const std::function<void()>& act,
                                                       const GenerationRequest& request) {
  options.drafter = DrafterKind::kNgram;
  options.rank_seconds = rank_seconds;
  options.make_executor = [&](std::vector<RankParts> ranks) {
    ranks[static_cast<size_t>(rank)].drafter = std::make_unique<ActingDrafter>(act);
    return std::make_unique<StepRunner>(std::move(ranks), rank_seconds);
  };
  const auto engine = MakeTestEngine(options);
  std::string told;
  engine->Submit(request, [&](RequestId, OutputDelta&& delta) {
    if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) told = *text;
  });
  const auto start = std::chrono::steady_clock::now();
  try {
    RunUntilIdle(*engine);
  } catch (const Error&) {
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // one that hangs comes back
  EXPECT_EQ(RefusalOf(*engine, request), "the engine has stopped: " + told);
  return {told, seconds.count()};
}

}  // namespace outrider
