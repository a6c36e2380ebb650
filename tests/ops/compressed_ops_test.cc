// DeepSeek-V4's operations against what their definitions say in float64. Long because each oracle
// is written out.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/sparse.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_cache.h"
#include "tests/ops/test_step.h"

namespace outrider {
namespace {

using Doubles = std::vector<double>;

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

class CompressedOpsTest : public KernelTest {
 protected:
  const Ops& ops() const { return cpu::GetCpuOps(GetParam()); }
  Context MakeContext(DType dtype = DType::kF32) { return {{ops(), &pool}, arena_, dtype}; }

  /// `rows` rows of a request from position `first` on, with the tables of both groups.
  static TestStep MakeStep(const Context& context, int32_t rows, int32_t first,
                           std::vector<int32_t> tokens, std::vector<int32_t> entries) {
    const std::vector<CacheGroupSpec> groups = {
        {.tokens_per_block = TestCache::kBlock},
        {.tokens_per_block = 4 * TestCache::kBlock, .unit_tokens = 4}};
    const int32_t end = first + rows;
    tokens.resize(static_cast<size_t>(groups[0].BlocksBefore(end)));
    entries.resize(static_cast<size_t>(groups[1].BlocksBefore(end)));
    return {context,
            groups,
            {{.phase = Phase::kPromptChunk,
              .context = first,
              .tokens = std::vector<int32_t>(static_cast<size_t>(rows), 1),
              .tables = {std::move(tokens), std::move(entries)}}},
            {.listed = true}};
  }

  Arena arena_;
};

TEST_P(CompressedOpsTest, StreamsAreMixedAndAddedAsSinkhornSays) {
  constexpr int32_t kStreams = 3;
  constexpr int64_t kWidth = 37;
  constexpr int64_t kRows = 5;
  const HyperShape shape = {.streams = kStreams, .iterations = 7, .eps = 1e-3F, .norm_eps = 1e-5F};
  const TestMatrix before = TestMatrix::Random(kRows, kStreams * kWidth, random);
  TestMatrix streams = before;
  const auto source = MakeDummyWeights(ModelConfig{}, 7);
  const auto loader = ops().MakeWeightLoader(*source, {.compute_dtype = DType::kF32});
  Weight fn;
  Weight head_fn;
  loader->StreamMatrix(&fn, "fn", (2 + kStreams) * kStreams, kStreams * kWidth);
  loader->StreamMatrix(&head_fn, "head_fn", kStreams, kStreams * kWidth);
  const auto memory = loader->Load({ops(), &pool}, nullptr);
  const TestMatrix y = TestMatrix::Random(kRows, kWidth, random);
  const TestMatrix base = TestMatrix::Random(1, (2 + kStreams) * kStreams, random);
  const float scale[3] = {0.7F, 1.3F, 2.1F};
  TestMatrix mixture(kRows, kWidth);
  TestMatrix weights(kRows, (1 + kStreams) * kStreams);
  const Context context = MakeContext();
  ops().hyper()->HyperMix(context, shape,
                          {.streams = streams.view(),
                           .fn = &fn,
                           .scale = scale,
                           .base = base.values.data(),
                           .mixture = mixture.view(),
                           .weights = weights.view()});
  const HyperAddArgs add = {.y = y.view(), .weights = weights.view()};
  ops().hyper()->HyperAdd(context, shape, add, streams.view());
  TestMatrix contracted(kRows, kWidth);
  ops().hyper()->HyperMix(context, shape,
                          {.streams = before.view(),
                           .fn = &head_fn,
                           .scale = scale,
                           .base = base.values.data(),
                           .mixture = contracted.view()});
  // With what is added before, and a norm behind.
  TestMatrix added_before = before;
  const TestMatrix norm = TestMatrix::Random(1, kWidth, random);
  TestMatrix normed(kRows, kWidth);
  TestMatrix plain(kRows, kWidth);
  for (const bool norms : {true, false}) {
    ops().hyper()->HyperMix(context, shape,
                            {.streams = norms ? added_before.view() : streams.view(),
                             .add = norms ? add : HyperAddArgs{},
                             .fn = &head_fn,
                             .scale = scale,
                             .base = base.values.data(),
                             .norm = norms ? norm.values.data() : nullptr,
                             .mixture = norms ? normed.view() : plain.view()});
  }
  EXPECT_EQ(added_before.values, streams.values);
  ops().Norm(context, plain.view(), norm.values.data(), shape.norm_eps, plain.view());
  EXPECT_EQ(normed.values, plain.values);
  TestMatrix sums(kRows, (2 + kStreams) * kStreams);
  TestMatrix head_sums(kRows, kStreams);
  ops().Multiply(
      context,
      std::array{
          Product{.x = before.view(), .w = &fn, .y = sums.view(), .float32 = true},
          Product{.x = before.view(), .w = &head_fn, .y = head_sums.view(), .float32 = true}});
  for (int64_t r = 0; r < kRows; ++r) {
    const float* x = before.view().row(r);
    double squares = 0;
    for (int64_t i = 0; i < kStreams * kWidth; ++i) squares += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(squares / (kStreams * kWidth) + 1e-5);
    const auto sum = [&](int part, int i) {
      const int at = part * kStreams + i;
      return sums.view().row(r)[at] * inverse * scale[part] + base.values[static_cast<size_t>(at)];
    };
    double comb[kStreams][kStreams];
    for (int j = 0; j < kStreams; ++j) {
      double total = 0;
      for (int k = 0; k < kStreams; ++k) total += std::exp(sum(2, j * kStreams + k));
      for (int k = 0; k < kStreams; ++k) {
        comb[j][k] = std::exp(sum(2, j * kStreams + k)) / total + 1e-3;
      }
    }
    for (int half = 0; half < 2 * shape.iterations - 1; ++half) {
      for (int a = 0; a < kStreams; ++a) {
        double total = 1e-3;
        for (int b = 0; b < kStreams; ++b) total += half % 2 == 0 ? comb[b][a] : comb[a][b];
        for (int b = 0; b < kStreams; ++b) (half % 2 == 0 ? comb[b][a] : comb[a][b]) /= total;
      }
    }
    for (int64_t i = 0; i < kWidth; ++i) {
      double mixed = 0;
      double head = 0;
      for (int j = 0; j < kStreams; ++j) {
        mixed += (SigmoidOf(sum(0, j)) + 1e-3) * x[j * kWidth + i];
        const double m =
            head_sums.view().row(r)[j] * inverse * scale[0] + base.values[static_cast<size_t>(j)];
        head += (SigmoidOf(m) + 1e-3) * x[j * kWidth + i];
      }
      EXPECT_NEAR(mixture.view().row(r)[i], mixed, 1e-5);
      EXPECT_NEAR(contracted.view().row(r)[i], head, 1e-5);
      for (int k = 0; k < kStreams; ++k) {
        double added = 2 * SigmoidOf(sum(1, k)) * y.view().row(r)[i];
        for (int j = 0; j < kStreams; ++j) added += comb[j][k] * x[j * kWidth + i];
        EXPECT_NEAR(streams.view().row(r)[k * kWidth + i], added, 1e-5);
      }
    }
  }
}

TEST_P(CompressedOpsTest, EntriesArePooledFromTheirTokensAndTheOnesBefore) {
  constexpr int32_t kTokens = 27;
  for (const bool overlaps : {false, true}) {
    const CompressorShape shape = {
        .ratio = 4, .overlaps = overlaps, .width = 18, .rope = 6, .norm_eps = 1e-5F};
    const int32_t channels = shape.channels();
    TestCache tokens(0, 2 * channels, kTokens);
    TestMatrix rows = TestMatrix::Random(kTokens, 2 * channels, random);
    tokens.Fill(rows);
    // The step's rows are written before they are pooled, with the biases of their places.
    const TestMatrix bias = TestMatrix::Random(4, channels, random);
    TestMatrix written = rows;
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t i = 0; i < channels; ++i) {
        written.view().row(t)[channels + i] -= bias.view().row(t % 4)[i];
      }
    }
    TestCache entries(1, shape.width, kTokens / 4);
    const TestMatrix norm = TestMatrix::Random(1, shape.width, random);
    // The rows of a step that begins inside of the second entry.
    constexpr int32_t kFirst = 6;
    const float frequencies[3] = {0.7F, 0.2F, 0.05F};
    const Context context = MakeContext();
    const TestStep step = MakeStep(context, kTokens - kFirst, kFirst, tokens.table, entries.table);
    ops().compressed()->Compress(
        context, step.inputs(),
        std::array{CompressArgs{.shape = shape,
                                .rows = Tensor(written.view()).Rows(kFirst, kTokens - kFirst),
                                .bias = bias.values.data(),
                                .tokens = tokens.cache,
                                .norm = norm.values.data(),
                                .frequencies = frequencies,
                                .entries = entries.cache}});
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t i = 0; i < 2 * channels; ++i) {
        EXPECT_NEAR(tokens.At(t)[i], rows.view().row(t)[i], 1e-6) << "token " << t;
      }
    }
    for (int32_t j = 1; j < kTokens / 4; ++j) {
      Doubles want(static_cast<size_t>(shape.width));
      double squares = 0;
      for (int32_t i = 0; i < shape.width; ++i) {
        double weighted = 0;
        double total = 0;
        for (int32_t t = overlaps ? 4 * j - 4 : 4 * j; t < 4 * j + 4; ++t) {
          const int32_t channel = overlaps && t >= 4 * j ? shape.width + i : i;
          const double weight = std::exp(double{rows.view().row(t)[channels + channel]});
          weighted += weight * rows.view().row(t)[channel];
          total += weight;
        }
        want[static_cast<size_t>(i)] = weighted / total;
        squares += weighted / total * weighted / total;
      }
      const double inverse = 1 / std::sqrt(squares / shape.width + 1e-5);
      for (size_t i = 0; i < want.size(); ++i) want[i] *= inverse * norm.values[i];
      for (size_t i = 0; i < 3; ++i) {
        const double angle = 4.0 * j * frequencies[i];  // of its first position
        double& a = want[12 + 2 * i];
        double& b = want[13 + 2 * i];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
      for (int32_t i = 0; i < shape.width; ++i) {
        EXPECT_NEAR(entries.At(j)[i], want[static_cast<size_t>(i)], 1e-5) << "entry " << j;
      }
    }
    EXPECT_EQ(entries.At(0)[0], 0) << "no row completes it";
  }
}

TEST_P(CompressedOpsTest, TheFirstEntryHasNoTokensBefore) {
  const CompressorShape shape = {
      .ratio = 4, .overlaps = true, .width = 2, .rope = 2, .norm_eps = 0};
  TestCache tokens(0, 8, 4);
  TestMatrix rows(4, 8);
  for (int64_t t = 0; t < 4; ++t) rows.view().row(t)[2] = rows.view().row(t)[3] = 3;
  for (int64_t t = 0; t < 4; ++t) rows.view().row(t)[0] = rows.view().row(t)[1] = -100;
  tokens.Fill(rows);
  TestCache entries(1, 2, 1);
  const float norm[2] = {1, 2};
  const float frequency = 1;
  const Context context = MakeContext();
  const TestStep step = MakeStep(context, 4, 0, tokens.table, entries.table);
  const TestMatrix bias(4, 4);
  ops().compressed()->Compress(context, step.inputs(),
                               std::array{CompressArgs{.shape = shape,
                                                       .rows = rows.view(),
                                                       .bias = bias.values.data(),
                                                       .tokens = tokens.cache,
                                                       .norm = norm,
                                                       .frequencies = {&frequency, 1},
                                                       .entries = entries.cache}});
  EXPECT_FLOAT_EQ(entries.At(0)[0], 1);
  EXPECT_FLOAT_EQ(entries.At(0)[1], 2);
}

TEST_P(CompressedOpsTest, AttentionReadsTheWindowTheEntriesAndTheSink) {
  constexpr int32_t kHeads = 2;
  constexpr int32_t kDim = 24;
  constexpr int32_t kTokens = 40;
  constexpr int32_t kFirst = 13;
  constexpr int32_t kRows = kTokens - kFirst;
  const int32_t chosen[4] = {1, 2, 5, -1};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int selection : {0, 1, 2}) {  // the window alone, all entries, chosen ones
      TestCache window(0, kDim, kTokens, dtype);
      TestCache entries(1, kDim, kTokens / 4, dtype);
      TestMatrix tokens = TestMatrix::Random(kTokens, kDim, random);
      TestMatrix pooled = TestMatrix::Random(kTokens / 4, kDim, random);
      for (TestMatrix* rows : {&tokens, &pooled}) {
        for (float& v : rows->values) v = RoundToBFloat16(v);
      }
      window.Fill(tokens);
      entries.Fill(pooled);
      const TestMatrix q = TestMatrix::Random(kRows, kHeads * kDim, random);
      TestMatrix out(kRows, kHeads * kDim);
      const float sinks[kHeads] = {0.5F, -1.0F};
      std::vector<int32_t> selected_entries;
      std::vector<int32_t> counts;
      for (int32_t r = 0; r < kRows; ++r) {
        selected_entries.insert(selected_entries.end(), chosen, chosen + 4);
        counts.push_back(r % 4);
      }
      const SelectedEntries selected = {selected_entries.data(), counts.data(), 4};
      const Context context = MakeContext();
      const TestStep step = MakeStep(context, kRows, kFirst, window.table, entries.table);
      ops().compressed()->CompressedAttention(context, step.inputs(),
                                              {.heads = kHeads,
                                               .window = 9,
                                               .ratio = selection == 0 ? 0 : 4,
                                               .softmax_scale = 0.3F,
                                               .q = q.view(),
                                               .out = out.view(),
                                               .sinks = sinks,
                                               .window_rows = window.cache,
                                               .entries = entries.cache,
                                               .selected = selection == 2 ? &selected : nullptr});
      for (int32_t r = 0; r < kRows; ++r) {
        const int32_t position = kFirst + r;
        std::vector<const float*> rows;
        for (int32_t t = std::max(0, position - 8); t <= position; ++t) {
          rows.push_back(tokens.view().row(t));
        }
        for (int32_t j = 0; selection == 1 && j < (position + 1) / 4; ++j) {
          rows.push_back(pooled.view().row(j));
        }
        for (int32_t i = 0; selection == 2 && i < counts[static_cast<size_t>(r)]; ++i) {
          rows.push_back(pooled.view().row(chosen[i]));
        }
        for (int32_t h = 0; h < kHeads; ++h) {
          double sum = std::exp(double{sinks[h]});
          Doubles want(kDim);
          for (const float* row : rows) {
            double score = 0;
            for (int32_t i = 0; i < kDim; ++i) {
              const float value = q.view().row(r)[h * kDim + i];
              score += double{dtype == DType::kF32 ? value : RoundToBFloat16(value)} * row[i];
            }
            const double weight = std::exp(0.3 * score);
            sum += weight;
            for (size_t i = 0; i < kDim; ++i) want[i] += weight * row[i];
          }
          for (size_t i = 0; i < kDim; ++i) {
            // Over bfloat16 entries weights are rounded, too.
            EXPECT_NEAR(out.view().row(r)[h * kDim + static_cast<int32_t>(i)], want[i] / sum,
                        dtype == DType::kF32 ? 1e-5 : 8e-3);
          }
        }
      }
    }
  }
}

/// Random weights in a form.
struct V4OpsWeights {
  V4OpsWeights(const Ops& ops, ThreadPool& pool, const WeightForm& form) {
    const auto source = MakeDummyWeights(ModelConfig{}, 7);
    const auto loader = ops.MakeWeightLoader(*source, form);
    loader->Matrix(&grouped, "grouped", 3 * 32, 48);
    loader->MoeExperts(&experts, {.routed = {{"g0", "u0", "d0"}},
                                  .width = 16,
                                  .shared = {"sg", "su", "sd"},
                                  .shared_width = 16,
                                  .hidden = 48});
    loader->Matrix(&gate, "sg", 16, 48);
    loader->Matrix(&up, "su", 16, 48);
    memory = loader->Load({ops, &pool}, nullptr);
  }

  Weight grouped, gate, up;
  ExpertWeights experts;
  std::unique_ptr<WeightMemory> memory;
};

TEST_P(CompressedOpsTest, AGroupedProductIsThatOfEachGroupsColumns) {
  for (const WeightQuantization quantization :
       {WeightQuantization::kNone, WeightQuantization::kInt8}) {
    const V4OpsWeights w(ops(), pool,
                         {.compute_dtype = DType::kBF16, .quantization = quantization});
    const TestMatrix x = TestMatrix::Random(7, 3 * 48, random);
    TestMatrix y(7, 3 * 32);
    const Context context = MakeContext(DType::kBF16);
    ops().Multiply(context,
                   std::array{Product{.x = x.view(), .w = &w.grouped, .y = y.view(), .groups = 3}});
    for (int64_t g = 0; g < 3; ++g) {
      TestMatrix whole(7, 3 * 32);
      ops().Multiply(context, std::array{Product{.x = Tensor(x.view()).Columns(g * 48, 48),
                                                 .w = &w.grouped,
                                                 .y = whole.view()}});
      for (int64_t r = 0; r < 7; ++r) {
        EXPECT_TRUE(SameBits(y.view().row(r) + g * 32, whole.view().row(r) + g * 32, 32)) << g;
      }
    }
  }
}

TEST_P(CompressedOpsTest, GatesAreCutBeforeSiluWhereTheLimitsSaySo) {
  const V4OpsWeights w(ops(), pool, {.compute_dtype = DType::kF32});
  const TestMatrix x = TestMatrix::Random(9, 48, random);
  const Context context = MakeContext();
  TestMatrix gate(9, 16);
  TestMatrix up(9, 16);
  ops().Multiply(context, std::array{Product{.x = x.view(), .w = &w.gate, .y = gate.view()},
                                     Product{.x = x.view(), .w = &w.up, .y = up.view()}});
  TestMatrix logits(9, 1);
  const RouterSpec router = {.experts = 1, .top_k = 1};
  const std::unique_ptr<StepInputs> no_inputs = ops().MakeStepInputs();  // not read
  const Routing& routing =
      ops().moe()->Route(context, router, *no_inputs, 0, w.experts, logits.view(), nullptr);
  const ExpertRows inner = ops().moe()->ExpertGateUp(
      context, w.experts, {.routed = 0.5F, .shared = 0.5F, .limits_gate = true}, routing, x.view());
  int cut = 0;
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t i = 0; i < 16; ++i) {
      const double g = std::min(double{gate.view().row(r)[i]}, 0.5);
      cut += g == 0.5 ? 1 : 0;
      const double u = std::clamp(double{up.view().row(r)[i]}, -0.5, 0.5);
      EXPECT_NEAR(inner.shared.floats().row(r)[i], g * SigmoidOf(g) * u, 1e-5);
    }
  }
  EXPECT_GT(cut, 5);
}

INSTANTIATE_TEST_SUITE_P(Isas, CompressedOpsTest, ::testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
