// transformers' greedy continuations, token for token, with and without speculation.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

class GoldenGreedyTest : public testing::TestWithParam<DrafterKind> {};

TEST_P(GoldenGreedyTest, EqualsTransformers) {
  std::ifstream file(GoldenDirectory() / "tiny-v3-mtp3/golden_greedy.json");
  const auto golden = nlohmann::json::parse(file);
  TestEngineOptions options;
  options.dtype = DType::kF32;
  options.drafter = GetParam();
  const auto engine = MakeTestEngine(options);
  std::vector<Generated> results(golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    GenerationRequest request;
    request.prompt_token_ids = golden[i]["prompt_ids"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 128;
    Submit(*engine, std::move(request), &results[i]);
  }
  RunUntilIdle(*engine);
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(results[i].tokens, golden[i]["greedy_ids"].get<std::vector<int32_t>>()) << i;
    EXPECT_TRUE(results[i].finish_reason.has_value()) << i;
  }
  if (GetParam() == DrafterKind::kChain) {
    EXPECT_GT(engine->Counters().speculation.MeanAcceptanceLength(), 3.3);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, GoldenGreedyTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated));

}  // namespace
}  // namespace outrider
