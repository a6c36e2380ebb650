// The DSpark drafter against the golden file of the bundled checkpoint: what it reads of the
// target, the rows of blocks, their logits, the drafts and their confidences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "outrider/draft/block_drafter.h"
#include "outrider/networks/dspark_draft_model.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr float kTolerance = 1e-3F;

class DSparkGolden : public ::testing::Test {
 protected:
  static constexpr int kCases = 5;

  DSparkGolden()
      : golden_(GoldenDirectory() / "tiny-v4/golden_dspark.safetensors"),
        loaded_(TinyDSparkDirectory(), DType::kF32, SelectIsa(), 2, KvCacheForm::kHeads),
        model_(dynamic_cast<DeepSeekV4Network&>(*loaded_.model)),
        block_(model_.block_size()) {}

  /// `unit`: what differences are measured by.
  static void ExpectClose(std::span<const float> got, std::span<const float> want,
                          const std::string& what, float unit = 1) {
    ASSERT_EQ(got.size(), want.size()) << what;
    float worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const float difference = std::fabs(got[i] - want[i]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    EXPECT_LT(worst / unit, kTolerance) << what;
  }

  GoldenFile golden_;
  LoadedModel loaded_;
  DSparkDraftModel model_;
  int32_t block_;  // drafts of a block
};

/// The names of the golden file begin with what its caches are rounded by.
struct GoldenCache {
  const char* prefix;
  CacheNumbers numbers;
};

class DSparkGoldenOfCaches : public DSparkGolden,
                             public ::testing::WithParamInterface<GoldenCache> {};

TEST_P(DSparkGoldenOfCaches, RowsLogitsDraftsAndConfidences) {
  const auto& [prefix, numbers] = GetParam();
  const bool rounded = *prefix != 0;
  const int64_t vocab = model_.vocab_size();
  const int64_t width = model_.width();
  const auto taps = static_cast<int64_t>(model_.taps().size());
  for (int c = 0; c < kCases; ++c) {
    const auto name = [c](std::string_view what) { return fmt::format("case{}.{}", c, what); };
    const auto ids = golden_.Read<int32_t>(name("ids"));
    const auto length = static_cast<int32_t>(ids.size());
    const auto rounded_name = [&](std::string_view what) { return prefix + name(what); };
    KvCache cache = loaded_.MakeCache(600, 16, numbers);
    std::vector<std::vector<int32_t>> tables;
    int32_t page = 0;
    for (const CacheGroupSpec& group : cache.config().groups) {
      tables.emplace_back(static_cast<size_t>(group.BlocksBefore(length + block_)));
      for (int32_t& entry : tables.back()) entry = page++;
    }
    BatchLayout layout(cache.config().groups);
    layout.Assign(std::vector{RequestWork{.phase = Phase::kPromptChunk,
                                          .tokens = ids,
                                          .draft_tokens = {},
                                          .samples = false,
                                          .block_tables = tables}});
    std::vector<float> output(static_cast<size_t>(length * loaded_.model->output_width()));
    std::vector<float> tapped(static_cast<size_t>(length * taps * width));
    const Tensor all_taps(tapped.data(), length, taps * width);
    std::vector<LayerTap> wanted;
    for (int64_t t = 0; t < taps; ++t) {
      wanted.push_back({model_.taps()[static_cast<size_t>(t)], all_taps.Columns(t * width, width)});
    }
    loaded_.model->Forward(layout, cache, {output.data(), length, loaded_.model->output_width()},
                           wanted);
    if (c == 0 && !rounded) {
      std::vector<float> main(static_cast<size_t>(length * width));
      model_.Project(all_taps, Tensor(main.data(), length, width));
      ExpectClose(tapped, golden_.Read<float>(name("taps")), "taps");
      ExpectClose(main, golden_.Read<float>(name("main_x")), "main_x");
    }

    const auto positions = golden_.Read<int32_t>(name("pos"));
    const auto hidden = golden_.Read<float>(rounded_name("hidden"));
    const auto drafts = golden_.Read<int32_t>(rounded_name("tokens"));
    const auto confidences = golden_.Read<float>(rounded_name("confidence_logits"));
    for (size_t b = 0; b < positions.size(); ++b) {
      SCOPED_TRACE(fmt::format("case {} after position {}", c, positions[b]));
      const std::span<const int32_t> known(ids.data(), static_cast<size_t>(positions[b]) + 2);
      const DraftRequest request = {.tokens = known,
                                    .prompt_length = length,
                                    .frontier = positions[b],
                                    .num_rows = positions[b] + 1,
                                    .num_drafts = block_,
                                    .block_tables = tables};
      DraftRows entries(model_, cache.config().groups);
      DraftRows rows(model_, cache.config().groups);
      entries.Assign(std::vector{DraftWindow{&request, 0, positions[b] + 1, length}},
                     [](size_t, int32_t) { return 0; });
      rows.Assign(
          std::vector{DraftWindow{&request, positions[b] + 1, positions[b] + 1 + block_, 0}},
          [&](size_t, int32_t p) {
            return p == positions[b] + 1 ? known.back() : model_.noise_token();
          });
      std::vector<float> x(static_cast<size_t>(block_ * width));
      const Tensor x_rows(x.data(), block_, width);
      model_.Forward(
          {0, entries.inputs(), rows.inputs(), all_taps.Rows(0, positions[b] + 1), x_rows}, cache);
      const auto of_block = [&](const auto& values, int64_t each) {
        return std::span(values).subspan(b * static_cast<size_t>(each), static_cast<size_t>(each));
      };
      // A rounded value may fall to the other side of an edge: relative to the largest, then.
      const auto want_hidden = of_block(hidden, block_ * width);
      float largest = 0;
      for (const float value : want_hidden) largest = std::max(largest, std::fabs(value));
      ExpectClose(x, want_hidden, "hidden", rounded ? largest : 1);

      std::vector<int32_t> block(static_cast<size_t>(block_));
      std::iota(block.begin(), block.end(), 0);
      std::vector<float> logits(static_cast<size_t>(block_ * vocab));
      model_.BaseLogits(x_rows, block, {logits.data(), block_, vocab});
      const bool has_logits = c == 0 && !rounded && b + 1 == positions.size();
      if (has_logits) ExpectClose(logits, golden_.Read<float>(name("base_logits")), "base logits");
      TokenRef before = known.back();
      for (int32_t d = 0; d < block_; ++d) {
        // The distribution that the draft is drawn from tells the biased logits.
        SamplingParams sampling;
        std::vector<float> probs(static_cast<size_t>(vocab));
        const DrawRequest drawn = {.sampling = &sampling, .draw = {.seed = 1, .probs = probs}};
        TokenRef token;
        model_.Draw({0, x_rows, {&d, 1}, {&before, 1}, {&drawn, 1}}, {&token, 1});
        if (has_logits) {
          const auto biased = golden_.Read<float>(name("biased_logits"));
          const auto of_row =
              std::span(biased).subspan(static_cast<size_t>(d * vocab), static_cast<size_t>(vocab));
          double sum = 0;
          for (const float logit : of_row) sum += std::exp(double{logit});
          float worst = 0;
          for (size_t i = 0; i < of_row.size(); ++i) {
            const auto want = static_cast<float>(of_row[i] - std::log(sum));
            if (want > -15) worst = std::max(worst, std::fabs(std::log(probs[i]) - want));
          }
          EXPECT_LT(worst, kTolerance) << "draft " << d;
        }
        const DrawRequest likeliest;
        model_.Draw({0, x_rows, {&d, 1}, {&before, 1}, {&likeliest, 1}}, {&token, 1});
        const size_t at = b * block_ + static_cast<size_t>(d);
        EXPECT_EQ(token, drafts[at]) << "draft " << d;
        float chance = 0;
        model_.ReadConfidences({&chance, 1});
        // A chance near 1 is rounded to 2^-24.
        EXPECT_NEAR(std::log(chance / (1 - chance)), confidences[at],
                    kTolerance + 6e-8F * std::exp(std::fabs(confidences[at])));
        before = drafts[at];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, DSparkGoldenOfCaches,
                         testing::Values(GoldenCache{"", DType::kF32},
                                         GoldenCache{"cache.", {DType::kF8E4M3, DType::kF32}}),
                         [](const auto& test) {
                           return *test.param.prefix == 0 ? "Exact" : "Rounded";
                         });

}  // namespace
}  // namespace outrider
