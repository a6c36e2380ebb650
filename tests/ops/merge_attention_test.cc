// Merging partial attention: against a softmax over all keys in double, and empty parts bit by bit.
#include "outrider/ops/cpu/merge_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace outrider::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kStateHeads = 3;
constexpr int64_t kValue = 5;

/// Keys of all heads of one row: scores [keys] and values [keys, kValue] per head.
struct Keys {
  Keys(int count, float spread, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < count * kStateHeads; ++i) {
      scores.push_back(spread * normal(random));
      for (int64_t v = 0; v < kValue; ++v) values.push_back(normal(random));
    }
  }
  std::vector<float> scores;  // of key t, head h at t * kStateHeads + h
  std::vector<float> values;
};

/// Owned memory of a partial of `rows` rows.
struct Partial {
  explicit Partial(int64_t rows)
      : out(static_cast<size_t>(rows * kStateHeads * kValue)),
        lse(static_cast<size_t>(rows * kStateHeads), -kInfinity),
        num_rows(rows) {}

  /// Attention of one row, in double.
  explicit Partial(const std::vector<const Keys*>& sets) : Partial(1) {
    for (int64_t h = 0; h < kStateHeads; ++h) {
      double sum = 0;
      std::vector<double> weighted(kValue);
      for (const Keys* keys : sets) {
        for (size_t i = static_cast<size_t>(h); i < keys->scores.size(); i += kStateHeads) {
          const double p = std::exp(double{keys->scores[i]});
          sum += p;
          for (size_t v = 0; v < kValue; ++v) weighted[v] += p * keys->values[i * kValue + v];
        }
      }
      if (sum == 0) continue;
      lse[static_cast<size_t>(h)] = static_cast<float>(std::log(sum));
      for (size_t v = 0; v < kValue; ++v) {
        out[static_cast<size_t>(h) * kValue + v] = static_cast<float>(weighted[v] / sum);
      }
    }
  }

  PartialAttention view() {
    return {{out.data(), num_rows, kStateHeads * kValue}, {lse.data(), num_rows, kStateHeads}};
  }

  std::vector<float> out;
  std::vector<float> lse;
  int64_t num_rows;
};

void ExpectNear(const Partial& got, const Partial& want) {
  for (size_t i = 0; i < want.out.size(); ++i) EXPECT_NEAR(got.out[i], want.out[i], 3e-6) << i;
  for (size_t i = 0; i < want.lse.size(); ++i) EXPECT_NEAR(got.lse[i], want.lse[i], 3e-6) << i;
}

bool SameNumbers(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class MergeAttentionTest : public testing::Test {
 protected:
  Partial Merged(const Partial& total, const Partial& part) {
    Partial a = total;
    Partial b = part;
    MergeAttention(pool, b.view(), a.view());
    return a;
  }

  ThreadPool pool{2};
  std::mt19937 random{7};
};

TEST_F(MergeAttentionTest, EqualsAttentionOverAllKeys) {
  for (int trial = 0; trial < 200; ++trial) {
    const float spread = trial % 2 == 0 ? 1.0F : 8.0F;
    const Keys a(1 + trial % 7, spread, random);
    const Keys b(1 + trial % 5, spread, random);
    ExpectNear(Merged(Partial({&a}), Partial({&b})), Partial({&a, &b}));
  }
}

TEST_F(MergeAttentionTest, IsAssociativeAndIndependentOfOrder) {
  for (int trial = 0; trial < 100; ++trial) {
    const Keys a(3, 4, random);
    const Keys b(1, 4, random);
    const Keys c(9, 4, random);
    const Partial all({&a, &b, &c});
    ExpectNear(Merged(Merged(Partial({&a}), Partial({&b})), Partial({&c})), all);
    ExpectNear(Merged(Partial({&c}), Merged(Partial({&b}), Partial({&a}))), all);
  }
}

TEST_F(MergeAttentionTest, AnEmptyPartChangesNoBit) {
  const Keys keys(4, 2, random);
  Partial total({&keys});
  total.out[0] = -0.0F;
  Partial nothing(1);
  nothing.out.assign(nothing.out.size(), kNaN);
  const Partial merged = Merged(total, nothing);
  EXPECT_TRUE(SameNumbers(merged.out, total.out));
  EXPECT_TRUE(SameNumbers(merged.lse, total.lse));
}

TEST_F(MergeAttentionTest, AnEmptyTotalBecomesThePart) {
  const Keys keys(4, 2, random);
  const Partial part({&keys});
  Partial nothing(1);
  nothing.out.assign(nothing.out.size(), kNaN);
  const Partial merged = Merged(nothing, part);
  EXPECT_TRUE(SameNumbers(merged.out, part.out));
  EXPECT_TRUE(SameNumbers(merged.lse, part.lse));
}

TEST_F(MergeAttentionTest, TwoEmptyPartsStayEmpty) {
  const Partial nothing(1);
  const Partial merged = Merged(nothing, nothing);
  EXPECT_TRUE(SameNumbers(merged.out, std::vector<float>(kStateHeads * kValue)));
  EXPECT_TRUE(SameNumbers(merged.lse, std::vector<float>(kStateHeads, -kInfinity)));
}

TEST_F(MergeAttentionTest, HeadsAreEmptyOnTheirOwn) {
  const Keys a(2, 1, random);
  const Keys b(2, 1, random);
  Partial part({&b});
  part.lse[1] = -kInfinity;
  const Partial merged = Merged(Partial({&a}), part);
  const Partial total({&a});
  const Partial both({&a, &b});
  for (size_t i = 0; i < merged.out.size(); ++i) {
    const Partial& want = i / kValue == 1 ? total : both;
    EXPECT_NEAR(merged.out[i], want.out[i], 3e-6);
  }
}

TEST_F(MergeAttentionTest, ExtremeScoresNeitherOverflowNorVanish) {
  Partial high(1);
  Partial low(1);
  high.out.assign(high.out.size(), 2.0F);
  low.out.assign(low.out.size(), 4.0F);
  for (const float offset : {3e4F, -3e4F, 2e38F, -2e38F}) {
    high.lse.assign(kStateHeads, offset);
    low.lse.assign(kStateHeads, offset);
    const Partial even = Merged(high, low);
    for (const float value : even.out) EXPECT_EQ(value, 3.0F);
    high.lse.assign(kStateHeads, offset + std::abs(offset) / 2);
    const Partial one_sided = Merged(low, high);
    for (const float value : one_sided.out) EXPECT_EQ(value, 2.0F);
    EXPECT_EQ(one_sided.lse, high.lse);
  }
}

TEST_F(MergeAttentionTest, EveryRowIsMergedWithItsOwnWeights) {
  // [rows, heads] read as [heads, rows] has as many elements and scrambles the weights.
  Partial total(2);
  Partial part(2);
  for (size_t i = 0; i < total.lse.size(); ++i) {
    total.lse[i] = 0;
    part.lse[i] = static_cast<float>(i);
  }
  std::fill(part.out.begin(), part.out.end(), 1.0F);
  const Partial merged = Merged(total, part);
  for (size_t i = 0; i < merged.out.size(); ++i) {
    const size_t row_and_head = i / kValue;
    const auto w = std::exp(static_cast<float>(row_and_head));
    EXPECT_NEAR(merged.out[i], w / (1 + w), 1e-6) << i;
  }
}

TEST_F(MergeAttentionTest, ARunningSoftmaxBecomesAPartial) {
  Partial state(2);
  std::vector<float> sums(2 * kStateHeads, 4.0F);
  state.lse.assign(state.lse.size(), 3.0F);
  std::fill(state.out.begin(), state.out.end(), 2.0F);
  sums[4] = 0;  // row 1, head 1 saw no key
  state.lse[4] = -kInfinity;
  std::fill_n(state.out.begin() + 4 * kValue, kValue, kNaN);
  FinishPartial(pool, {sums.data(), 2, kStateHeads}, state.view());
  for (size_t i = 0; i < state.lse.size(); ++i) {
    EXPECT_EQ(state.lse[i], i == 4 ? -kInfinity : 3.0F + std::log(4.0F));
    for (size_t v = 0; v < kValue; ++v) {
      EXPECT_EQ(state.out[i * kValue + v], i == 4 ? 0.0F : 0.5F);
    }
  }
}

}  // namespace
}  // namespace outrider::cpu
