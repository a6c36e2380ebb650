// The network against transformers' float32 outputs: hidden states, logits, MTP modules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr float kLogitTolerance = 1e-3F;

/// Largest |actual - golden| over the golden's rows, which are the last of `actual`.
float MaxDifference(MatrixView<const float> actual, const std::vector<float>& golden) {
  const auto rows = static_cast<int64_t>(golden.size()) / actual.cols;
  OUTRIDER_CHECK(rows > 0 && rows <= actual.rows);
  float worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = actual.row(actual.rows - rows + r);
    for (int64_t i = 0; i < actual.cols; ++i) {
      const float difference = std::fabs(a[i] - golden[static_cast<size_t>(r * actual.cols + i)]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
  }
  return worst;
}

struct Rows {
  Rows(int64_t rows, int64_t cols) : values(static_cast<size_t>(rows * cols)) {
    view = {values.data(), rows, cols};
  }
  std::vector<float> values;
  MatrixView<float> view;
};

/// The whole prompt in one chunk (prompt role), or token after token in the absorbed form.
struct PromptRun {
  PromptRun(LoadedModel& loaded, const std::vector<int32_t>& ids, Phase phase, int32_t chunk)
      : model(*loaded.model),
        cache(loaded.MakeCache(64, 16)),
        hidden(static_cast<int64_t>(ids.size()), model.hidden_size()),
        tokens(ids) {
    for (int32_t first = 0; first < Length(); first += chunk) {
      const int32_t count = std::min(chunk, Length() - first);
      layout.Assign(std::vector{Work(first, count, phase, 0)});
      model.Forward(layout, cache, hidden.view.Rows(first, count));
    }
  }

  int32_t Length() const { return static_cast<int32_t>(tokens.size()); }

  RequestWork Work(int32_t first, int32_t count, Phase phase, int32_t shift) const {
    return {.slot = 0,
            .phase = phase,
            .context_length = first,
            .tokens = std::span(tokens).subspan(static_cast<size_t>(first + shift),
                                                static_cast<size_t>(count)),
            .draft_tokens = {},
            .samples = false,
            .block_tables = {&blocks, 1}};
  }

  Rows Logits(int32_t module, MatrixView<const float> rows) const {
    std::vector<int32_t> all(static_cast<size_t>(rows.rows));
    std::iota(all.begin(), all.end(), 0);
    Rows logits(rows.rows, model.vocab_size());
    model.Logits(module, rows, all, logits.view);
    return logits;
  }

  Network& model;
  KvCache cache;
  Rows hidden;
  std::vector<int32_t> tokens;
  std::vector<int32_t> blocks = FirstBlocks(64);
  BatchLayout layout{16};
};

LoadedModel Load(const std::filesystem::path& checkpoint, KvCacheForm form) {
  return LoadedModel(checkpoint, DType::kF32, SelectIsa(), 1, form);
}

/// A folder of tests/golden, whose checkpoint lies beside the golden file or in models/, with a
/// cache of either form.
class FamilyGoldenTest : public ::testing::TestWithParam<std::tuple<const char*, KvCacheForm>> {
 protected:
  const char* name = std::get<0>(GetParam());
  LoadedModel loaded = Load(CheckpointDirectory(name), std::get<1>(GetParam()));
  GoldenFile golden{GoldenDirectory() / name / "golden.safetensors"};
};

/// "tiny_v2_heads".
std::string FormCaseName(std::string name, KvCacheForm form) {
  std::replace(name.begin(), name.end(), '-', '_');
  return fmt::format("{}_{}", name, KvCacheFormName(form));
}

TEST_P(FamilyGoldenTest, HiddenStatesOfEveryLayer) {
  const auto ids = golden.Read<int32_t>("case0.ids");
  PromptRun run(loaded, ids, Phase::kPromptChunk, 1000);
  run.layout.Assign(std::vector{run.Work(0, run.Length(), Phase::kPromptChunk, 0)});
  const int64_t layers = run.model.config().num_hidden_layers();
  std::vector<Rows> outputs;
  std::vector<LayerTap> taps;
  for (int32_t layer = 0; layer + 1 < layers; ++layer) {  // the list holds the last one normalised
    outputs.emplace_back(run.Length(), run.model.hidden_size());
    taps.push_back({layer, outputs.back().view});
  }
  ASSERT_FALSE(taps.empty());
  run.model.Forward(run.layout, run.cache, run.hidden.view, taps);
  for (const LayerTap& tap : taps) {
    const auto want = golden.Read<float>(fmt::format("case0.hidden_states.{}", tap.layer + 1));
    EXPECT_LT(MaxDifference(tap.out.floats(), want), kLogitTolerance) << "layer " << tap.layer;
  }
  const auto last = golden.Read<float>(fmt::format("case0.hidden_states.{}", layers));
  EXPECT_LT(MaxDifference(run.hidden.view, last), kLogitTolerance);
}

TEST_P(FamilyGoldenTest, TapsOfAnyLayersChangeNoBit) {
  const auto ids = golden.Read<int32_t>("case0.ids");
  PromptRun run(loaded, ids, Phase::kPromptChunk, 1000);
  const std::vector<float> hidden = run.hidden.values;
  const auto layers = static_cast<int32_t>(run.model.config().num_hidden_layers());
  run.layout.Assign(std::vector{run.Work(0, run.Length(), Phase::kPromptChunk, 0)});
  const auto outputs_of = [&](const std::vector<int32_t>& wanted) {
    std::vector<Rows> outputs;
    std::vector<LayerTap> taps;
    for (const int32_t layer : wanted) {
      outputs.emplace_back(run.Length(), run.model.hidden_size());
      taps.push_back({layer, outputs.back().view});
    }
    run.model.Forward(run.layout, run.cache, run.hidden.view, taps);
    EXPECT_EQ(run.hidden.values, hidden);
    return outputs;
  };
  std::vector<int32_t> all(static_cast<size_t>(layers));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<Rows> of_all = outputs_of(all);
  for (const auto& wanted : {std::vector{0, layers - 1}, std::vector{layers - 1, layers - 1}}) {
    const std::vector<Rows> some = outputs_of(wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(some[i].values, of_all[static_cast<size_t>(wanted[i])].values);
    }
  }
}

TEST_P(FamilyGoldenTest, LogitsInBothFormsAndInChunks) {
  ASSERT_TRUE(golden.Has("case0.ids"));
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    const auto ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto want = golden.Read<float>(fmt::format("case{}.logits", c));
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      for (const int32_t chunk : {1024, 50}) {
        const PromptRun run(loaded, ids, phase, chunk);
        EXPECT_LT(MaxDifference(run.Logits(Network::kTarget, run.hidden.view).view, want),
                  kLogitTolerance)
            << "case " << c << " phase " << static_cast<int>(phase) << " chunk " << chunk;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, FamilyGoldenTest,
    ::testing::Combine(::testing::Values("tiny-v3-mtp3", "tiny-v3-options", "tiny-v2",
                                         "tiny-v2-lite", "tiny-glm4-moe-lite", "tiny-kimi-k25-fp8"),
                       ::testing::ValuesIn(kAllKvCacheForms)),
    [](const auto& test) {
      return FormCaseName(std::get<0>(test.param), std::get<1>(test.param));
    });

// Rows that choose what they read have one form.
INSTANTIATE_TEST_SUITE_P(Sparse, FamilyGoldenTest,
                         ::testing::Combine(::testing::Values("tiny-v32", "tiny-glm-dsa",
                                                              "tiny-v32-gpu", "tiny-glm-dsa-gpu"),
                                            ::testing::Values(KvCacheForm::kHeads)),
                         [](const auto& test) {
                           return FormCaseName(std::get<0>(test.param), std::get<1>(test.param));
                         });

class MtpGoldenTest : public FamilyGoldenTest {};

TEST_P(MtpGoldenTest, EveryModule) {
  const int modules = loaded.model->num_mtp_modules();
  ASSERT_GT(modules, 0);
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    ASSERT_FALSE(golden.Has(fmt::format("case{}.mtp{}.hidden", c, modules)));
    const auto ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    PromptRun run(loaded, ids, Phase::kPromptChunk, 1024);
    for (int m = 0; m < modules; ++m) {
      const int32_t rows = run.Length() - 1 - m;
      run.layout.Assign(std::vector{run.Work(0, rows, Phase::kPromptChunk, m + 1)});
      const MatrixView<float> hidden = run.hidden.view.Rows(0, rows);
      run.model.ForwardMtp(m, run.layout, run.cache, hidden, hidden);
      EXPECT_LT(MaxDifference(hidden, golden.Read<float>(fmt::format("case{}.mtp{}.hidden", c, m))),
                kLogitTolerance)
          << "case " << c << " module " << m;
      EXPECT_LT(MaxDifference(run.Logits(m, hidden).view,
                              golden.Read<float>(fmt::format("case{}.mtp{}.logits", c, m))),
                kLogitTolerance)
          << "case " << c << " module " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, MtpGoldenTest,
                         ::testing::Combine(::testing::Values("tiny-v3-mtp3"),
                                            ::testing::ValuesIn(kAllKvCacheForms)),
                         [](const auto& test) {
                           return std::string(KvCacheFormName(std::get<1>(test.param)));
                         });
INSTANTIATE_TEST_SUITE_P(Sparse, MtpGoldenTest,
                         ::testing::Combine(::testing::Values("tiny-v32-gpu", "tiny-glm-dsa-gpu"),
                                            ::testing::Values(KvCacheForm::kHeads)),
                         [](const auto& test) {
                           return FormCaseName(std::get<0>(test.param), std::get<1>(test.param));
                         });

}  // namespace
}  // namespace outrider
