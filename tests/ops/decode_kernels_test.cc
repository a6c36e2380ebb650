// The uniform and padded decode kernels against the ragged one, bit by bit. Cache slots that no
// request has hold NaN.
#include "outrider/ops/cpu/decode_kernels.h"

#include "tests/kernels/paged_cache.h"

namespace outrider::cpu {
namespace {

constexpr int32_t kHeads = 3;
constexpr int32_t kLatent = 20;
constexpr int32_t kRope = 6;

class DecodeKernelsTest : public KernelTest {
 protected:
  /// Requests of (context, rows) over a cache that holds exactly their keys.
  struct Batch {
    Batch(const std::vector<std::pair<int32_t, int32_t>>& lengths, std::mt19937& random)
        : paged(DType::kBF16, 8, kLatent + kRope, Blocks(lengths), random), q(0, 1) {
      int32_t row = 0;
      tables.reserve(lengths.size());
      for (const auto& [context, rows] : lengths) {
        tables.push_back(paged.Allocate(context + rows));
        paged.Fill(tables.back(), 0, context + rows, random);
        spans.push_back({row, rows, context, tables.back().data()});
        row += rows;
      }
      q = TestMatrix::Random(row, int64_t{kHeads} * (kLatent + kRope), random);
    }

    static int32_t Blocks(const std::vector<std::pair<int32_t, int32_t>>& lengths) {
      int32_t blocks = 1;
      for (const auto& [context, rows] : lengths) blocks += (context + rows + 7) / 8;
      return blocks;
    }

    AbsorbedAttentionArgs Args(TestMatrix& out) {
      return {.q = q.view(),
              .heads = kHeads,
              .latent = kLatent,
              .rope = kRope,
              .scale = 0.2F,
              .cache = paged.cache(),
              .requests = spans,
              .out = out.view()};
    }

    TestMatrix Out() const {
      TestMatrix out(q.view_rows, int64_t{kHeads} * kLatent);
      out.values.assign(out.values.size(), kNaN);
      return out;
    }

    PagedCache paged;
    std::vector<std::vector<int32_t>> tables;
    std::vector<AttentionSpan> spans;
    TestMatrix q;
  };

  TestMatrix Ragged(Batch& batch) {
    TestMatrix out = batch.Out();
    kernels.absorbed_attention(pool, batch.Args(out));
    return out;
  }

  static void ExpectSame(const TestMatrix& got, const TestMatrix& want) {
    for (int64_t r = 0; r < want.view_rows; ++r) {
      for (int64_t i = 0; i < want.view_cols; ++i) {
        ASSERT_FALSE(std::isnan(want.view().row(r)[i]));
      }
      EXPECT_TRUE(SameBits(got.view().row(r), want.view().row(r), want.view_cols)) << "row " << r;
    }
  }

  Scratch scratch;
  const Compute compute{kernels, pool, scratch, DType::kF32};
};

TEST_P(DecodeKernelsTest, UniformEqualsRagged) {
  for (const int32_t length : {1, 2, 5}) {
    Batch batch({{0, length}, {7, length}, {300, length}, {255, length}}, random);
    TestMatrix out = batch.Out();
    UniformDecodeAttention(compute, batch.Args(out), length);
    ExpectSame(out, Ragged(batch));
  }
}

TEST_P(DecodeKernelsTest, PaddedEqualsRagged) {
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::pair<int32_t, int32_t>> lengths;
    const int32_t padded = Pick(1, 6);
    for (int i = Pick(1, 7); i > 0; --i) {
      lengths.emplace_back(trial % 2 == 0 ? Pick(0, 5) : Pick(0, 600), Pick(1, padded));
    }
    Batch batch(lengths, random);
    TestMatrix out = batch.Out();
    PaddedDecodeAttention(compute, batch.Args(out), padded);
    ExpectSame(out, Ragged(batch));
  }
}

TEST_P(DecodeKernelsTest, RequestsShorterThanThePaddingHaveRowsBeforeTheFirstPosition) {
  Batch batch({{0, 1}, {1, 1}, {0, 3}, {2, 2}}, random);
  TestMatrix out = batch.Out();
  PaddedDecodeAttention(compute, batch.Args(out), 4);
  ExpectSame(out, Ragged(batch));
}

TEST_P(DecodeKernelsTest, RowsBeforeTheFirstPositionGiveZeros) {
  Batch batch({{0, 3}, {0, 3}}, random);
  batch.spans[0].context_length = -2;
  batch.spans[1].context_length = -7;
  TestMatrix out = batch.Out();
  UniformDecodeAttention(compute, batch.Args(out), 3);
  for (const int64_t row : {0, 1, 3, 4, 5}) {
    for (int64_t i = 0; i < out.view_cols; ++i) EXPECT_EQ(out.view().row(row)[i], 0.0F);
  }
  // The third row of the first request has position 0 and sees one key: itself.
  for (int64_t i = 0; i < kLatent; ++i) {
    EXPECT_EQ(out.view().row(2)[i], batch.paged.Get(batch.paged.Element(batch.tables[0], 0) + i));
  }
}

TEST_P(DecodeKernelsTest, PaddingWritesNothing) {
  Batch batch({{40, 1}, {40, 2}}, random);
  // Room around and between the outputs that no row owns.
  batch.spans[0].first_row = 1;
  batch.spans[1].first_row = 4;
  batch.q = TestMatrix::Random(8, batch.q.view_cols, random);
  TestMatrix out = batch.Out();
  std::vector<float> before(size_t{41} * (kLatent + kRope));
  for (size_t i = 0; i < before.size(); ++i) before[i] = batch.paged.Get(static_cast<int64_t>(i));
  PaddedDecodeAttention(compute, batch.Args(out), 4);
  for (int64_t row = 0; row < 8; ++row) {
    const bool owned = row == 1 || row == 4 || row == 5;
    for (int64_t i = 0; i < out.view_cols; ++i) {
      EXPECT_EQ(std::isnan(out.view().row(row)[i]), !owned) << "row " << row;
    }
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const float now = batch.paged.Get(static_cast<int64_t>(i));
    EXPECT_TRUE(SameBits(&now, &before[i], 1));
  }
}

TEST_P(DecodeKernelsTest, AUniformKernelRefusesOtherLengths) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Batch batch({{9, 2}, {9, 1}}, random);
  TestMatrix out = batch.Out();
  EXPECT_DEATH(UniformDecodeAttention(compute, batch.Args(out), 2), "query_length");
  EXPECT_DEATH(PaddedDecodeAttention(compute, batch.Args(out), 1), "padding >= 0");
}

INSTANTIATE_TEST_SUITE_P(Isas, DecodeKernelsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider::cpu
