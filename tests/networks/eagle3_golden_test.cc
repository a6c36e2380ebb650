// EAGLE-3 drafters against tools/eagle3_reference.py: what they read of the target, their layer,
// and passes on their own output.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr float kEagleTolerance = 1e-3F;

struct DrafterCase {
  const char* drafter;
  const char* target;
};

using Values = std::vector<float>;

float Furthest(const Values& actual, const Values& golden) {
  OUTRIDER_CHECK(actual.size() == golden.size() && !golden.empty());
  float worst = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const float difference = std::fabs(actual[i] - golden[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

class Eagle3GoldenTest : public ::testing::TestWithParam<std::tuple<DrafterCase, KvCacheForm>> {
 protected:
  Eagle3GoldenTest()
      : loaded(GoldenDirectory() / std::get<0>(GetParam()).target, DType::kF32, SelectIsa(), 1,
               std::get<1>(GetParam())),
        directory(GoldenDirectory() / std::get<0>(GetParam()).drafter),
        golden(directory / "golden.safetensors"),
        config(ReadModelConfig(directory)),
        needs(
            Eagle3DraftModel::CacheNeeds(loaded.model->config(), config, std::get<1>(GetParam()))),
        cache(loaded.model->device(), MakeCacheConfig(needs, DType::kF32, 8, 64), needs.layers,
              DType::kF32),
        draft(config, Eagle3Taps(*config.eagle3, target().config().num_hidden_layers(), {}, ""),
              LoadEagle3(config, *OpenCheckpoint(directory, config), {DType::kF32},
                         target().device(), nullptr),
              target()) {
    for (const CacheGroupSpec& group : cache.config().groups) {
      tables.push_back(FirstBlocks(group.BlocksBefore(256)));
    }
  }

  Network& target() const { return *loaded.model; }

  /// The outputs that the drafter reads, side by side.
  Values TapsOf(const std::vector<int32_t>& ids) {
    const auto rows = std::ssize(ids);
    const int64_t width = target().hidden_size();
    const auto count = std::ssize(draft.taps());
    Values hidden(static_cast<size_t>(rows * width));
    Values tapped(static_cast<size_t>(rows * count * width));
    const Tensor all(tapped.data(), rows, count * width);
    std::vector<LayerTap> taps;
    for (const int32_t layer : draft.taps()) {
      taps.push_back({layer, all.Columns(std::ssize(taps) * width, width)});
    }
    BatchLayout layout(cache.config().groups);
    layout.Assign(std::vector{Work(0, ids, Phase::kPromptChunk)});
    target().Forward(layout, cache, {hidden.data(), rows, width}, taps);
    return tapped;
  }

  RequestWork Work(int32_t first, std::span<const int32_t> tokens, Phase phase) const {
    return {.phase = phase,
            .context_length = first,
            .tokens = tokens,
            .draft_tokens = {},
            .samples = false,
            .block_tables = tables};
  }

  /// The inputs of rows from position `first` on, and what they read.
  struct PassRows {
    BatchLayout layout;
    AttentionPlan plan;
    std::unique_ptr<StepInputs> inputs;
  };
  PassRows RowsOf(int32_t first, std::span<const int32_t> tokens, Phase phase) {
    PassRows rows{BatchLayout(cache.config().groups), draft.attention(),
                  draft.device().ops.MakeStepInputs()};
    if (tokens.empty()) return rows;
    rows.layout.Assign(std::vector{Work(first, tokens, phase)});
    rows.plan.Assign(rows.layout);
    rows.inputs->Assign(rows.layout, rows.plan, RowCount::kExact);
    return rows;
  }

  /// Rows from position `first` on, which read `previous` and `tokens`; all come out.
  Values Run(int32_t first, std::span<const int32_t> tokens, Phase phase, Tensor previous) {
    const PassRows none = RowsOf(0, {}, phase);
    const PassRows rows = RowsOf(first, tokens, phase);
    Values out(tokens.size() * static_cast<size_t>(draft.width()));
    draft.Forward(
        {0, *none.inputs, *rows.inputs, previous, {out.data(), std::ssize(tokens), draft.width()}},
        cache);
    return out;
  }

  Values Logits(Values& hidden) {
    const auto rows = std::ssize(hidden) / draft.width();
    const int64_t tokens = config.eagle3->draft_vocab_size;
    Values logits(static_cast<size_t>(rows * tokens));
    draft.Logits({hidden.data(), rows, draft.width()}, FirstBlocks(static_cast<int32_t>(rows)),
                 {logits.data(), rows, tokens});
    return logits;
  }

  LoadedModel loaded;
  std::filesystem::path directory;
  GoldenFile golden;
  ModelConfig config;
  NetworkCache needs;
  KvCache cache;
  Eagle3DraftModel draft;
  std::vector<std::vector<int32_t>> tables;
};

TEST_P(Eagle3GoldenTest, RowsOfThePromptInBothRolesAndInChunks) {
  for (int c = 0; c < 2; ++c) {
    const auto ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto next = golden.Read<int32_t>(fmt::format("case{}.next", c));
    Values tapped = TapsOf(ids);
    const auto rows = std::ssize(ids);
    const Tensor read = draft.ReadTarget({tapped.data(), rows, std::ssize(tapped) / rows});
    const MatrixView<float> view = read.floats();
    EXPECT_LT(Furthest({view.data, view.data + rows * draft.width()},
                       golden.Read<float>(fmt::format("case{}.read", c))),
              kEagleTolerance);
    for (const Phase phase : {Phase::kPromptChunk, Phase::kDecode}) {
      for (const int32_t chunk : {100, 7}) {
        Values hidden;
        for (int32_t first = 0; first < rows; first += chunk) {
          const auto count = std::min<std::ptrdiff_t>(chunk, rows - first);
          const Values part =
              Run(first,
                  std::span(next).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                  phase, read.Rows(first, count));
          hidden.insert(hidden.end(), part.begin(), part.end());
        }
        EXPECT_LT(Furthest(hidden, golden.Read<float>(fmt::format("case{}.hidden", c))),
                  kEagleTolerance);
        EXPECT_LT(Furthest(Logits(hidden), golden.Read<float>(fmt::format("case{}.logits", c))),
                  kEagleTolerance)
            << "case " << c << " phase " << static_cast<int>(phase) << " chunk " << chunk;
      }
    }
  }
}

TEST_P(Eagle3GoldenTest, PassesOnItsOwnOutput) {
  for (int c = 0; c < 2; ++c) {
    const auto ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    const auto next = golden.Read<int32_t>(fmt::format("case{}.next", c));
    const auto drafts = golden.Read<int32_t>(fmt::format("case{}.drafts", c));
    Values tapped = TapsOf(ids);
    const auto rows = std::ssize(ids);
    const Tensor read = draft.ReadTarget({tapped.data(), rows, std::ssize(tapped) / rows});
    Values hidden = Run(0, next, Phase::kPromptChunk, read);
    hidden.erase(hidden.begin(), hidden.end() - draft.width());
    Values logits = Logits(hidden);
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (i > 0) {
        hidden = Run(static_cast<int32_t>(static_cast<size_t>(rows) + i - 1),
                     std::span(drafts).subspan(i - 1, 1), Phase::kDecode,
                     {hidden.data(), 1, draft.width()});
        const Values more = Logits(hidden);
        logits.insert(logits.end(), more.begin(), more.end());
      }
      const std::vector<TokenRef> before = {0};
      const std::vector<DrawRequest> requests(1);
      TokenRef token;
      draft.Draw({0, {hidden.data(), 1, draft.width()}, FirstBlocks(1), before, requests},
                 {&token, 1});
      EXPECT_EQ(token, drafts[i]) << "case " << c << " draft " << i;
    }
    EXPECT_LT(Furthest(logits, golden.Read<float>(fmt::format("case{}.chain_logits", c))),
              kEagleTolerance);
  }
}

// What nobody reads is not computed; what it leaves in the cache is the same.
TEST_P(Eagle3GoldenTest, RowsThatLeaveEntriesOnly) {
  const auto ids = golden.Read<int32_t>("case0.ids");
  const auto next = golden.Read<int32_t>("case0.next");
  Values tapped = TapsOf(ids);
  const auto rows = std::ssize(ids);
  const Tensor read = draft.ReadTarget({tapped.data(), rows, std::ssize(tapped) / rows});
  const Values all = Run(0, next, Phase::kPromptChunk, read);
  const auto last = static_cast<int32_t>(rows - 1);
  const PassRows entries = RowsOf(0, std::span(next).first(next.size() - 1), Phase::kPromptChunk);
  const PassRows outputs = RowsOf(last, std::span(next).last(1), Phase::kPromptChunk);
  KvCache fresh(target().device(), cache.config(), needs.layers, DType::kF32);
  Values out(static_cast<size_t>(draft.width()));
  draft.Forward({0, *entries.inputs, *outputs.inputs, read, {out.data(), 1, draft.width()}}, fresh);
  EXPECT_EQ(out, Values(all.end() - draft.width(), all.end()));
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, Eagle3GoldenTest,
    ::testing::Combine(::testing::Values(DrafterCase{"tiny-eagle3", "tiny-v3-options"},
                                         DrafterCase{"tiny-eagle3.1", "tiny-v2-lite"},
                                         DrafterCase{"tiny-eagle3-llama", "tiny-v3-options"}),
                       ::testing::ValuesIn(kAllKvCacheForms)),
    [](const auto& test) {
      std::string name = std::get<0>(test.param).drafter;
      std::ranges::replace_if(name, [](char c) { return c == '-' || c == '.'; }, '_');
      return fmt::format("{}_{}", name, KvCacheFormName(std::get<1>(test.param)));
    });

}  // namespace
}  // namespace outrider
