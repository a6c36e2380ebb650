// The operations of sparse attention against what their definitions say in float64. The choice of
// entries is tested with that of DeepSeek-V4 (compressed_ops_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/sparse.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_cache.h"
#include "tests/ops/test_step.h"

namespace outrider {
namespace {

class SparseOpsTest : public KernelTest {
 protected:
  const Ops& ops() const { return cpu::GetCpuOps(GetParam()); }
  Context MakeContext() { return {{ops(), &pool}, arena_, DType::kF32}; }

  /// Rows first .. first + rows - 1 of a request whose tokens are in `cache`.
  static TestStep MakeStep(const Context& context, int32_t rows, int32_t first, Phase phase,
                           const TestCache& cache) {
    return {context,
            {{.tokens_per_block = TestCache::kBlock}},
            {{.phase = phase,
              .context = first,
              .tokens = std::vector<int32_t>(static_cast<size_t>(rows), 1),
              .tables = {cache.table}}},
            {.listed = true}};
  }

  Arena arena_;
};

TEST_P(SparseOpsTest, IndexKeysAreNormalisedThenRotatedThenStored) {
  constexpr int32_t kWidth = 37;
  constexpr int32_t kRows = 5;
  constexpr int32_t kHalf = 3;  // rotated pairs
  for (const bool interleaved : {false, true}) {
    TestCache cache(0, kWidth, 24);
    TestMatrix x = TestMatrix::Random(kRows, kWidth, random, 3);
    const TestMatrix before = x;
    const TestMatrix weight = TestMatrix::Random(1, kWidth, random);
    const TestMatrix bias = TestMatrix::Random(1, kWidth, random);
    const Context context = MakeContext();
    const TestStep step = MakeStep(context, kRows, 9, Phase::kDecode, cache);
    constexpr float kFrequencies[kHalf] = {1.0F, 0.3F, 0.02F};
    const Rotary rotary =
        ops().MakeRotary(context, kFrequencies, 1.25F, interleaved, step.inputs());
    ops().sparse()->WriteIndexKeys(context, step.inputs(),
                                   {.keys = x.view(),
                                    .norm = weight.values.data(),
                                    .bias = bias.values.data(),
                                    .norm_eps = 0.5F,
                                    .rotary = rotary,
                                    .cache = cache.cache});
    for (int32_t r = 0; r < kRows; ++r) {
      const float* row = before.view().row(r);
      const double mean = std::accumulate(row, row + kWidth, 0.0) / kWidth;
      double variance = 0;
      for (int32_t i = 0; i < kWidth; ++i) variance += (row[i] - mean) * (row[i] - mean) / kWidth;
      std::vector<double> want;
      for (size_t i = 0; i < kWidth; ++i) {
        want.push_back(weight.values[i] * (row[i] - mean) / std::sqrt(variance + 0.5) +
                       bias.values[i]);
      }
      for (size_t i = 0; i < kHalf; ++i) {
        double& a = want[interleaved ? 2 * i : i];
        double& b = want[interleaved ? 2 * i + 1 : kHalf + i];
        const double angle = (9 + r) * double{kFrequencies[i]};
        const double cos = 1.25 * std::cos(angle);
        const double sin = 1.25 * std::sin(angle);
        const double rotated = a * cos - b * sin;
        b = a * sin + b * cos;
        a = rotated;
      }
      for (size_t i = 0; i < kWidth; ++i) {
        EXPECT_NEAR(cache.At(9 + r)[i], want[i], 3e-5)
            << "row " << r << ", number " << i << (interleaved ? ", interleaved" : "");
      }
    }
  }
}

// The rows of a step in one call, and in calls of a few rows.
TEST_P(SparseOpsTest, AttentionReadsWhatWasChosen) {
  constexpr int32_t kHeads = 3;
  constexpr int32_t kLatent = 20;
  constexpr int32_t kWidth = 24;
  constexpr int32_t kTokens = 40;
  constexpr int32_t kFirst = 13;
  constexpr int32_t kRows = kTokens - kFirst;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    TestCache cache(0, kWidth, kTokens, dtype);
    TestMatrix tokens = TestMatrix::Random(kTokens, kWidth, random);
    for (float& v : tokens.values) {
      v = dtype == DType::kF8E4M3 ? Float8E4M3ToFloat(ToFloat8E4M3(v)) : RoundToBFloat16(v);
    }
    cache.Fill(tokens);
    const TestMatrix q = TestMatrix::Random(kRows, kHeads * kWidth, random);
    TestMatrix out(kRows, kHeads * kLatent);
    constexpr int64_t kStride = 8;
    std::vector<int32_t> entries(kRows * kStride, -1);
    std::vector<int32_t> counts;
    for (int32_t r = 0; r < kRows; ++r) {
      std::vector<int32_t> seen(static_cast<size_t>(kFirst + r + 1));
      std::iota(seen.begin(), seen.end(), 0);
      std::shuffle(seen.begin(), seen.end(), random);
      seen.resize(static_cast<size_t>(1 + r % 7));
      std::ranges::sort(seen);
      std::ranges::copy(seen, entries.begin() + r * kStride);
      counts.push_back(static_cast<int32_t>(seen.size()));
    }
    const SelectedEntries selected = {entries.data(), counts.data(), kStride};
    const Context context = MakeContext();
    const TestStep step = MakeStep(context, kRows, kFirst, Phase::kPromptChunk, cache);
    const auto run = [&](int32_t first, int32_t rows, TestMatrix& to) {
      ops().sparse()->SelectedAttention(context, step.inputs(),
                                        {.heads = kHeads,
                                         .softmax_scale = 0.3F,
                                         .first_row = first,
                                         .q = Tensor(q.view()).Rows(first, rows),
                                         .out = Tensor(to.view()).Rows(first, rows),
                                         .entries = cache.cache,
                                         .selected = &selected});
    };
    run(0, kRows, out);
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t h = 0; h < kHeads; ++h) {
        double sum = 0;
        std::vector<double> want(kLatent);
        for (int32_t i = 0; i < counts[static_cast<size_t>(r)]; ++i) {
          const float* entry = tokens.view().row(entries[static_cast<size_t>(r * kStride + i)]);
          double score = 0;
          for (int32_t c = 0; c < kWidth; ++c) {
            const float value = q.view().row(r)[h * kWidth + c];
            score += double{dtype == DType::kF32 ? value : RoundToBFloat16(value)} * entry[c];
          }
          const double weight = std::exp(0.3 * score);
          sum += weight;
          for (int32_t c = 0; c < kLatent; ++c) want[static_cast<size_t>(c)] += weight * entry[c];
        }
        for (int32_t c = 0; c < kLatent; ++c) {
          // Over bfloat16 entries weights are rounded, too.
          EXPECT_NEAR(out.view().row(r)[h * kLatent + c], want[static_cast<size_t>(c)] / sum,
                      dtype == DType::kF32 ? 1e-5 : 8e-3)
              << "row " << r << ", head " << h;
        }
      }
    }
    TestMatrix pieces(kRows, kHeads * kLatent);
    for (int32_t first = 0; first < kRows; first += 5) {
      run(first, std::min(5, kRows - first), pieces);
    }
    EXPECT_EQ(pieces.values, out.values);
  }
}

TEST_P(SparseOpsTest, LatentsOfEightBitsAreRoundedOnce) {
  constexpr int32_t kLatent = 40;
  constexpr int32_t kRope = 6;
  constexpr int32_t kWidth = kLatent + kRope;
  constexpr int32_t kRows = 7;
  const TestMatrix kv = TestMatrix::Random(kRows, kWidth, random, 3);
  const TestMatrix norm = TestMatrix::Random(1, kLatent, random);
  const Context context = MakeContext();
  const auto write = [&](TestCache& cache) {
    const TestStep step = MakeStep(context, kRows, 9, Phase::kDecode, cache);
    constexpr float kFrequencies[kRope / 2] = {1.0F, 0.3F, 0.02F};
    TestMatrix rows = kv;
    ops().mla()->WriteLatentEntries(
        context, {.heads = 1, .latent = kLatent, .rope = kRope, .norm_eps = 1e-6F}, step.inputs(),
        {.kv = rows.view(),
         .norm = norm.values.data(),
         .rotary = ops().MakeRotary(context, kFrequencies, 1.0F, true, step.inputs()),
         .cache = cache.cache});
  };
  TestCache exact(0, kWidth, 24);
  TestCache codes(0, kWidth, 24, DType::kF8E4M3);
  write(exact);
  write(codes);
  int32_t equal = 0;
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t i = 0; i < kWidth; ++i) {
      const float want = Float8E4M3ToFloat(ToFloat8E4M3(exact.At(9 + r)[i]));
      const float got = Float8E4M3ToFloat(
          std::to_integer<uint8_t>(codes.bytes[static_cast<size_t>(codes.Offset(9 + r) + i)]));
      // The last bit before rounding may differ, and with it the code.
      EXPECT_NEAR(got, want, 0.126 * std::abs(want) + 0x1.01p-9) << "row " << r << ", number " << i;
      equal += got == want ? 1 : 0;
    }
  }
  EXPECT_GE(equal, kRows * kWidth - 3);
}

// Keys as the cache gives them back, and queries rounded likewise.
TEST_P(SparseOpsTest, ChoiceIsByTheRoundedNumbers) {
  constexpr int32_t kHeads = 3;
  constexpr int32_t kWidth = 32;
  constexpr int32_t kTokens = 60;
  constexpr int32_t kFirst = 5;
  constexpr int32_t kRows = kTokens - kFirst;
  constexpr int32_t kTopK = 7;
  TestCache cache(0, kWidth, kTokens, DType::kF8E4M3);
  cache.cache.has_scales = true;
  cache.cache.block_stride = TestCache::kBlock * (kWidth + 4);
  const TestMatrix keys = TestMatrix::Random(kTokens, kWidth, random, 3);
  const auto slot_of = [&](int32_t token) {
    return int64_t{cache.table[static_cast<size_t>(token / TestCache::kBlock)]} *
               TestCache::kBlock +
           token % TestCache::kBlock;
  };
  for (int32_t t = 0; t < kTokens; ++t) {
    cpu::StoreEntry(cache.cache, slot_of(t), keys.view().row(t));
  }
  const TestMatrix q = TestMatrix::Random(kRows, kHeads * kWidth, random);
  const TestMatrix weights = TestMatrix::Random(kRows, kHeads, random);
  const Context context = MakeContext();
  const TestStep step = MakeStep(context, kRows, kFirst, Phase::kPromptChunk, cache);
  const SelectedEntries selected = ops().sparse()->SelectEntries(context, step.inputs(),
                                                                 {.heads = kHeads,
                                                                  .ratio = 1,
                                                                  .top_k = kTopK,
                                                                  .q = Tensor(q.view()),
                                                                  .weights = Tensor(weights.view()),
                                                                  .keys = cache.cache});
  int32_t unlike_exact = 0;  // rows that would choose others without the rounding
  for (int32_t r = 0; r < kRows; ++r) {
    const int32_t visible = kFirst + r + 1;
    std::vector<double> rounded(static_cast<size_t>(visible));
    std::vector<double> exact(static_cast<size_t>(visible));
    for (int32_t h = 0; h < kHeads; ++h) {
      const float* const of_head = q.view().row(r) + h * kWidth;
      std::vector<float> query(of_head, of_head + kWidth);
      cpu::RoundIndexQuery(cache.cache, query.data());
      for (int32_t j = 0; j < visible; ++j) {
        std::vector<float> key(kWidth);
        cpu::LoadFloats(cache.cache, slot_of(j), key.data());
        const double weight = weights.view().row(r)[h];
        const double dot = std::inner_product(key.begin(), key.end(), query.begin(), 0.0);
        rounded[static_cast<size_t>(j)] += weight * std::max(dot, 0.0);
        const double of_exact =
            std::inner_product(of_head, of_head + kWidth, keys.view().row(j), 0.0);
        exact[static_cast<size_t>(j)] += weight * std::max(of_exact, 0.0);
      }
    }
    const auto chosen_of = [&](const std::vector<double>& scores) {
      std::vector<int32_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
      });
      order.resize(std::min<size_t>(order.size(), kTopK));
      std::ranges::sort(order);
      return order;
    };
    const std::vector<int32_t> got(selected.entries + r * selected.stride,
                                   selected.entries + r * selected.stride + selected.counts[r]);
    EXPECT_EQ(got, chosen_of(rounded)) << "row " << r;
    unlike_exact += got == chosen_of(exact) ? 0 : 1;
  }
  EXPECT_GT(unlike_exact, 0) << "the rounding changes nothing";
}

// A product that is NaN is not above 0, and counts as 0; a score that is NaN is below all others.
// So a checkpoint with such numbers leaves the choice what it is on a GPU.
TEST_P(SparseOpsTest, ScoresThatAreNoNumbersAreTheLowest) {
  constexpr int32_t kWidth = 8;
  constexpr int32_t kTokens = 400;
  constexpr float kHuge = 3e38F;
  TestCache cache(0, kWidth, kTokens);
  TestMatrix keys(kTokens, kWidth);
  const auto number_of = [](int32_t t) { return static_cast<float>(1 + t * 37 % 101); };
  const auto is_nan = [](int32_t t) { return t % 5 == 1; };     // its first product
  const auto overflows = [](int32_t t) { return t % 3 == 2; };  // both heads' products
  for (int32_t t = 0; t < kTokens; ++t) {
    keys.view().row(t)[0] = number_of(t);
    if (is_nan(t)) keys.view().row(t)[1] = std::nanf("");
    if (overflows(t)) keys.view().row(t)[2] = kHuge;
  }
  cache.Fill(keys);
  // The second head's product is 0, or infinite, and is taken off.
  TestMatrix q(1, 2 * kWidth);
  q.view().row(0)[0] = q.view().row(0)[1] = 1;
  q.view().row(0)[2] = q.view().row(0)[kWidth + 2] = kHuge;
  TestMatrix weights(1, 2);
  weights.view().row(0)[0] = 1;
  weights.view().row(0)[1] = -1;
  const Context context = MakeContext();
  const TestStep step = MakeStep(context, 1, kTokens - 1, Phase::kDecode, cache);
  // Where both overflow the score is NaN. A key with a NaN has NaN for both heads' products.
  const auto score = [&](int32_t t) {
    if (is_nan(t)) return 0.0F;
    return overflows(t) ? -1.0F : number_of(t);
  };
  std::vector<int32_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return score(a) > score(b); });
  for (const int32_t top_k : {1, 20, 100, 200}) {
    const SelectedEntries selected =
        ops().sparse()->SelectEntries(context, step.inputs(),
                                      {.heads = 2,
                                       .ratio = 1,
                                       .top_k = top_k,
                                       .q = Tensor(q.view()),
                                       .weights = Tensor(weights.view()),
                                       .keys = cache.cache});
    std::vector<int32_t> want(order.begin(), order.begin() + top_k);
    std::ranges::sort(want);
    EXPECT_EQ(std::vector<int32_t>(selected.entries, selected.entries + selected.counts[0]), want)
        << "top " << top_k;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SparseOpsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
