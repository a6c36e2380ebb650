// Networks with linear attention whose routed experts are codes of 4 bits, as compressed-tensors
// publishes them: a request's tokens and logprob bits depend neither on drafts nor on company and
// chunks. running_state_test.cc has the scenarios.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider {
namespace {

/// Kimi-Linear of sizes that are cut into groups of 32 columns.
nlohmann::json Int4KimiConfig() {
  nlohmann::json config = SmallKimiConfig(kBundledVocab);
  config.update({{"hidden_size", 64}, {"moe_intermediate_size", 32}});
  config["quantization_config"] = nlohmann::json::parse(
      test_checkpoints::QuantizationConfig(test_checkpoints::StoredAs::kInt4));
  return config;
}

void ExpectExpertsOfFourBits(const TestEngineOptions& options) {
  const ModelConfig config = ReadModelConfig(options.checkpoint);
  const auto source = options.dummy_seed ? MakeDummyWeights(config, *options.dummy_seed)
                                         : OpenCheckpoint(options.checkpoint, config);
  const std::vector<WeightGroup> groups =
      MeasureWeights(cpu::GetCpuOps(SelectIsa()), config, 0, *source, WeightFormOf(options)).groups;
  const auto experts = std::ranges::find(groups, "routed experts", &WeightGroup::name);
  ASSERT_NE(experts, groups.end());
  EXPECT_EQ(experts->stored, "int4, a bfloat16 scale for 32 columns");
  EXPECT_TRUE(experts->packed.contains(DType::kI4));
}

/// With the drafts of `options`, and in chunks, requests have the bits of each alone without.
void ExpectExactInInt4(TestEngineOptions options) {
  ExpectExpertsOfFourBits(options);
  const std::vector<GenerationRequest> requests = RandomRequests(7, 16);
  TestEngineOptions plain = options;
  plain.drafter = DrafterKind::kNone;
  plain.prefix_caching = false;
  plain.num_blocks = options.num_blocks = 2048;
  plain.max_num_batched_tokens = 1024;
  const auto engine = MakeTestEngine(plain);
  const std::vector<Generated> alone = RunEach(*engine, requests);
  for (const int32_t chunk : {37, 256}) {
    options.max_num_batched_tokens = chunk;
    const auto drafting = MakeTestEngine(options);
    ExpectEqual(RunTogether(*drafting, requests), alone);
    EXPECT_GT(drafting->Counters().speculation.num_accepted_tokens, 0);
  }
}

TEST(Int4HybridTest, LingWithItsModuleAndWithLookup) {
  const Int4TinyModel model(TinyLingDirectory());
  for (const DrafterKind drafter : {DrafterKind::kRepeated, DrafterKind::kNgram}) {
    ExpectExactInInt4({.checkpoint = model.directory(), .drafter = drafter, .k = 3});
  }
}

TEST(Int4HybridTest, KimiWithLookup) {
  const ModelDirectory model(Int4KimiConfig());
  ExpectExactInInt4(
      {.checkpoint = model.directory(), .dummy_seed = 3, .drafter = DrafterKind::kNgram, .k = 4});
}

}  // namespace
}  // namespace outrider
