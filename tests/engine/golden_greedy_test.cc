// The goldens' greedy continuations, token for token, with and without speculation, and what the
// MTP modules draft on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tests/engine/scenario_requests.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

struct GoldenCase {
  const char* golden;
  DrafterKind drafter;
  AttentionBackend attention_backend = AttentionBackend::kRagged;
  KvCacheForm cache_form = KvCacheForm::kLatent;
  bool llama = false;  // kEagle3: with Llama's attention

  /// Which continuations: every one, every second, ...
  size_t Every() const {
    if (kSanitized) return 8;
    return attention_backend == AttentionBackend::kRagged ? 1 : 4;
  }
};

class GoldenGreedyTest : public testing::TestWithParam<GoldenCase> {};

/// Drafts of each step after the first, against golden ones by number of emitted tokens (-1: a near
/// tie). How many were compared.
int ExpectGoldenDrafts(const Generated& result, const nlohmann::json& golden) {
  const auto all = golden["draft_ids"].get<std::vector<std::vector<int32_t>>>();
  EXPECT_TRUE(result.drafts.front().empty());
  int compared = 0;
  size_t emitted = 1;
  for (size_t step = 1; step < result.drafts.size(); ++step) {
    const std::vector<int32_t>& drafts = result.drafts[step];
    const std::vector<int32_t>& expected = all.at(emitted - 1);
    for (size_t i = 0; i < drafts.size() && expected.at(i) >= 0; ++i, ++compared) {
      EXPECT_EQ(drafts[i], expected[i]) << "draft " << i << " after " << emitted << " tokens";
    }
    size_t accepted = 0;
    while (accepted < drafts.size() && drafts[accepted] == result.tokens.at(emitted + accepted)) {
      ++accepted;
    }
    emitted += accepted + 1;
  }
  EXPECT_EQ(emitted, result.tokens.size());
  return compared;
}

TEST_P(GoldenGreedyTest, EqualsTheGoldens) {
  const auto golden = ReadJson(GoldenDirectory() / GetParam().golden / "golden_greedy.json");
  TestEngineOptions options;
  options.dtype = DType::kF32;
  options.checkpoint = CheckpointDirectory(GetParam().golden);
  options.drafter = GetParam().drafter;
  // kEagle3
  options.drafter_checkpoint =
      GetParam().llama ? TinyLlamaEagle3Directory() : TinyEagle3Directory();
  options.attention_backend = GetParam().attention_backend;
  options.cache_form = GetParam().cache_form;
  const auto engine = MakeTestEngine(options);
  const size_t every = GetParam().Every();
  std::vector<Generated> results(golden.size());
  for (size_t i = 0; i < golden.size(); i += every) {
    GenerationRequest request = GreedyRequest(golden[i]);
    request.trace_steps = true;
    Submit(*engine, std::move(request), &results[i]);
  }
  RunUntilIdle(*engine);
  for (size_t i = 0; i < golden.size(); i += every) {
    EXPECT_EQ(results[i].tokens, golden[i]["greedy_ids"].get<std::vector<int32_t>>()) << i;
    EXPECT_TRUE(results[i].finish_reason.has_value()) << i;
  }
  if (GetParam().drafter == DrafterKind::kNone) return;
  if (golden[0].contains("draft_ids")) {
    int compared = 0;
    for (size_t i = 0; i < golden.size(); i += every) {
      compared += ExpectGoldenDrafts(results[i], golden[i]);
    }
    EXPECT_GT(compared, every == 1 ? 100 : 40);
  } else if (GetParam().drafter != DrafterKind::kRepeated) {
    EXPECT_GT(engine->Counters().speculation.MeanAcceptanceLength(), 3.3);
  }
}

std::string CaseName(const testing::TestParamInfo<GoldenCase>& test) {
  constexpr std::array kDrafters = {"", "_chain", "_repeated", "", "", "", "_eagle3"};
  std::string name =
      std::string(test.param.golden) + kDrafters[static_cast<size_t>(test.param.drafter)];
  if (test.param.attention_backend != AttentionBackend::kRagged) {
    name += fmt::format("_{}", AttentionBackendName(test.param.attention_backend));
  }
  if (test.param.llama) name += "_llama";
  if (test.param.cache_form == KvCacheForm::kHeads) name += "_heads";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

GoldenCase WithHeads(const char* golden, DrafterKind drafter) {
  return {golden, drafter, AttentionBackend::kRagged, KvCacheForm::kHeads};
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenGreedyTest,
                         testing::Values(GoldenCase{"tiny-v3-mtp3", DrafterKind::kNone},
                                         GoldenCase{"tiny-v3-mtp3", DrafterKind::kChain},
                                         GoldenCase{"tiny-v3-mtp3", DrafterKind::kRepeated},
                                         GoldenCase{"tiny-v3-mtp3", DrafterKind::kEagle3},
                                         GoldenCase{.golden = "tiny-v3-mtp3",
                                                    .drafter = DrafterKind::kEagle3,
                                                    .llama = true},
                                         GoldenCase{"tiny-v3-options", DrafterKind::kNone},
                                         GoldenCase{"tiny-v2", DrafterKind::kNone},
                                         GoldenCase{"tiny-v2-lite", DrafterKind::kNone},
                                         GoldenCase{"tiny-glm4-moe-lite", DrafterKind::kNone},
                                         GoldenCase{"tiny-kimi-k25-fp8", DrafterKind::kNone}),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(PerHeadCache, GoldenGreedyTest,
                         testing::Values(WithHeads("tiny-v3-mtp3", DrafterKind::kNone),
                                         WithHeads("tiny-v3-mtp3", DrafterKind::kChain),
                                         WithHeads("tiny-v3-mtp3", DrafterKind::kEagle3),
                                         GoldenCase{.golden = "tiny-v3-mtp3",
                                                    .drafter = DrafterKind::kEagle3,
                                                    .cache_form = KvCacheForm::kHeads,
                                                    .llama = true},
                                         WithHeads("tiny-v3-options", DrafterKind::kNone),
                                         WithHeads("tiny-v2", DrafterKind::kNone),
                                         WithHeads("tiny-v2-lite", DrafterKind::kNone),
                                         WithHeads("tiny-glm4-moe-lite", DrafterKind::kNone),
                                         WithHeads("tiny-kimi-k25-fp8", DrafterKind::kNone),
                                         WithHeads("tiny-step3p5", DrafterKind::kNone),
                                         WithHeads("tiny-step3p5", DrafterKind::kChain),
                                         WithHeads("tiny-step3p5-fp8", DrafterKind::kNone),
                                         WithHeads("tiny-step3p5-fp8", DrafterKind::kChain),
                                         WithHeads("tiny-v32", DrafterKind::kNone),
                                         WithHeads("tiny-v32-gpu", DrafterKind::kNone),
                                         WithHeads("tiny-glm-dsa", DrafterKind::kNone),
                                         WithHeads("tiny-glm-dsa-gpu", DrafterKind::kNone),
                                         WithHeads("tiny-v4", DrafterKind::kNone),
                                         WithHeads("tiny-v4", DrafterKind::kRepeated)),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(
    Backends, GoldenGreedyTest,
    testing::Values(
        GoldenCase{"tiny-v3-mtp3", DrafterKind::kChain, AttentionBackend::kUniformPad},
        GoldenCase{"tiny-v3-mtp3", DrafterKind::kChain, AttentionBackend::kUniformShortest},
        GoldenCase{"tiny-v3-mtp3", DrafterKind::kChain, AttentionBackend::kUniformLargest},
        GoldenCase{"tiny-v3-mtp3", DrafterKind::kChain, AttentionBackend::kSingle}),
    CaseName);

}  // namespace
}  // namespace outrider
