// Rows of a window, latents and heads of queries against double precision, and the equality of a
// row's bits over batches. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/compressed/query_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/expected_codes.h"

namespace outrider::cuda {
namespace {

constexpr int kDim = 512;
constexpr int kHalf = 32;
constexpr int kRows = 37;
constexpr int kBlockSize = 16;
constexpr int kBlocks = 5;
constexpr int kBlockNumbers = kBlockSize * kDim + 24;  // with something else behind a block
constexpr float kEpsilon = 1e-6F;

/// weight * x / rms(x), whose last 64 numbers are rotated where there are angles.
std::vector<double> NormOf(std::span<const float> x, const float* weight, const float* cos,
                           const float* sin) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{kEpsilon});
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(x[i] * factor * (weight == nullptr ? 1.0 : weight[i]));
  }
  for (int i = 0; cos != nullptr && i < kHalf; ++i) {
    double& a = out[x.size() - 2 * kHalf + 2 * static_cast<size_t>(i)];
    double& b = out[x.size() - 2 * kHalf + 2 * static_cast<size_t>(i) + 1];
    const double rotated = a * cos[i] - b * sin[i];
    b = a * sin[i] + b * cos[i];
    a = rotated;
  }
  return out;
}

void ExpectRow(std::span<const uint16_t> got, const std::vector<double>& wanted, int row) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    // bfloat16 has 8 bits.
    ASSERT_NEAR(ToFloats(got.subspan(i, 1))[0], wanted[i], 0.005 * (0.1 + std::abs(wanted[i])))
        << "row " << row << ", number " << i;
  }
}

class QueryRowsTest : public HopperTest<> {
 protected:
  static constexpr int kStride = kDim + 12;
  static constexpr int kLatent = 1536;
  static constexpr int kHeads = 5;
  static constexpr int kIndexHeads = 8;
  static constexpr int kIndexDim = 128;
  static constexpr int kProducts = kHeads * kDim + kIndexHeads * kIndexDim;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    kv_ = NormalFloats(random_, size_t{kRows} * kStride, 2.0F);
    q_ = NormalFloats(random_, size_t{kRows} * kLatent, 2.0F);
    heads_ = NormalBf16(random_, size_t{kRows} * kProducts, 2.0F);
    weight_ = NormalFloats(random_, kDim);
    q_weight_ = NormalFloats(random_, kLatent);
    for (int i = 0; i < kRows * kHalf; ++i) {
      const float angle = static_cast<float>(random_() % 1000) / 100;
      cos_.push_back(1.5F * std::cos(angle));
      sin_.push_back(1.5F * std::sin(angle));
    }
    for (int slot = 0; slot < kRows; ++slot) slots_.push_back(slot * 2);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    slots_[0] = slots_[4] = -1;
  }

  template <typename T>
  static DeviceArray<T> Part(const std::vector<T>& values, int64_t width, int first, int rows) {
    return DeviceArray<T>(
        std::vector<T>(values.begin() + first * width, values.begin() + (first + rows) * width));
  }

  struct Written {
    std::vector<uint16_t> cache;  // 0xFFFF where nothing was written
    std::vector<uint16_t> latents;
  };
  /// With `codes` a block has the bytes of its bf16 form, of which half are used.
  Written Write(int first, int rows, bool codes = false, bool rounds = false) const {
    const auto kv = Part(kv_, kStride, first, rows);
    const auto q = Part(q_, kLatent, first, rows);
    const auto cos = Part(cos_, kHalf, first, rows);
    const auto sin = Part(sin_, kHalf, first, rows);
    const auto slots = Part(slots_, 1, first, rows);
    const DeviceArray<float> weight(weight_), q_weight(q_weight_);
    const DeviceArray<uint16_t> cache(size_t{kBlocks} * kBlockNumbers),
        out(size_t{1} * rows * kLatent);
    WindowRowsParams params;
    params.num_rows = rows;
    params.kv = kv.data();
    params.kv_stride = kStride;
    params.weight = weight.data();
    params.epsilon = kEpsilon;
    params.cos = cos.data();
    params.sin = sin.data();
    params.slots = slots.data();
    params.cache = cache.data();
    params.codes = codes;
    params.rounds = rounds;
    params.block_stride = kBlockNumbers * 2;
    params.block_size = kBlockSize;
    params.q = q.data();
    params.q_stride = kLatent;
    params.q_columns = kLatent;
    params.q_weight = q_weight.data();
    params.q_out = out.data();
    params.q_out_stride = kLatent;
    CudaOk(WriteWindowRows(params, nullptr), "WriteWindowRows");
    CudaOk(cudaDeviceSynchronize(), "run");
    return {cache.Download(), out.Download()};
  }

  /// Heads, and those of an indexer; without one heads are finished in place.
  struct Finished {
    std::vector<uint16_t> q;
    std::vector<uint16_t> index;
  };
  Finished Finish(int first, int rows, bool has_indexer) const {
    const auto from = Part(heads_, kProducts, first, rows);
    const auto cos = Part(cos_, kHalf, first, rows);
    const auto sin = Part(sin_, kHalf, first, rows);
    const DeviceArray<uint16_t> q(size_t{1} * rows * kHeads * kDim),
        index(size_t{1} * rows * kIndexHeads * kIndexDim);
    QueryHeadsParams params;
    params.num_rows = rows;
    params.heads = kHeads;
    params.from = from.data();
    params.from_stride = kProducts;
    params.epsilon = kEpsilon;
    params.cos = cos.data();
    params.sin = sin.data();
    params.q = has_indexer ? q.data() : from.data();
    params.q_stride = has_indexer ? kHeads * kDim : kProducts;
    if (has_indexer) {
      params.index_heads = kIndexHeads;
      params.index_q = index.data();
      params.index_stride = kIndexHeads * kIndexDim;
    }
    CudaOk(FinishQueryHeads(params, nullptr), "FinishQueryHeads");
    CudaOk(cudaDeviceSynchronize(), "run");
    Finished finished = {has_indexer ? q.Download() : from.Download(), index.Download()};
    if (has_indexer) return finished;
    // Leaves out what stands behind the heads of a row.
    std::vector<uint16_t> dense;
    for (int row = 0; row < rows; ++row) {
      const auto begin = finished.q.begin() + int64_t{row} * kProducts;
      dense.insert(dense.end(), begin, begin + kHeads * kDim);
    }
    finished.q = dense;
    return finished;
  }

  static size_t At(int64_t slot) {
    return static_cast<size_t>(slot / kBlockSize * kBlockNumbers + slot % kBlockSize * kDim);
  }

  std::mt19937 random_{3};
  std::vector<float> kv_, q_, weight_, q_weight_, cos_, sin_;
  std::vector<uint16_t> heads_;
  std::vector<int64_t> slots_;
};

TEST_F(QueryRowsTest, WindowRowsMatchDoublePrecisionAndTouchNothingElse) {
  const Written got = Write(0, kRows);
  std::vector<bool> written(got.cache.size());
  for (int row = 0; row < kRows; ++row) {
    ExpectRow(std::span(got.latents).subspan(size_t{1} * row * kLatent, kLatent),
              NormOf(std::span(q_).subspan(size_t{1} * row * kLatent, kLatent), q_weight_.data(),
                     nullptr, nullptr),
              row);
    if (slots_[row] < 0) continue;
    const size_t at = At(slots_[row]);
    std::fill_n(written.begin() + static_cast<int64_t>(at), kDim, true);
    ExpectRow(std::span(got.cache).subspan(at, kDim),
              NormOf(std::span(kv_).subspan(size_t{1} * row * kStride, kDim), weight_.data(),
                     cos_.data() + row * kHalf, sin_.data() + row * kHalf),
              row);
  }
  for (size_t i = 0; i < got.cache.size(); ++i) {
    ASSERT_TRUE(written[i] || got.cache[i] == 0xFFFF) << "number " << i << " of the cache";
  }
}

TEST_F(QueryRowsTest, WindowCodesMatchDoublePrecisionAndTouchNothingElse) {
  const Written got = Write(0, kRows, /*codes=*/true);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(got.cache.data());
  std::vector<bool> written(got.cache.size() * 2);
  for (int row = 0; row < kRows; ++row) {
    if (slots_[row] < 0) continue;
    const int64_t at =
        slots_[row] / kBlockSize * kBlockNumbers * 2 + slots_[row] % kBlockSize * kDim;
    std::fill_n(written.begin() + at, kDim, true);
    const std::vector<double> wanted =
        NormOf(std::span(kv_).subspan(size_t{1} * row * kStride, kDim), weight_.data(),
               cos_.data() + row * kHalf, sin_.data() + row * kHalf);
    ExpectRounded(bytes + at, 1.0F, wanted, 1.0, "row " + std::to_string(row));
  }
  for (size_t i = 0; i < written.size(); ++i) {
    ASSERT_TRUE(written[i] || bytes[i] == 0xFF) << "byte " << i << " of the cache";
  }
}

TEST_F(QueryRowsTest, WindowRowsAreRoundedAsPublished) {
  const Written got = Write(0, kRows, /*codes=*/false, /*rounds=*/true);
  for (int row = 0; row < kRows; ++row) {
    if (slots_[row] < 0) continue;
    const std::vector<double> wanted =
        NormOf(std::span(kv_).subspan(size_t{1} * row * kStride, kDim), weight_.data(),
               cos_.data() + row * kHalf, sin_.data() + row * kHalf);
    const std::span<const uint16_t> numbers = std::span(got.cache).subspan(At(slots_[row]), kDim);
    constexpr size_t kPlain = kDim - 2 * kHalf;
    ExpectPublished(numbers, std::span(wanted).first(kPlain), false, "row " + std::to_string(row));
    ExpectRow(numbers.subspan(kPlain), {wanted.begin() + kPlain, wanted.end()}, row);
  }
}

TEST_F(QueryRowsTest, HeadsMatchDoublePrecision) {
  for (const bool has_indexer : {false, true}) {
    const Finished got = Finish(0, kRows, has_indexer);
    for (int row = 0; row < kRows; ++row) {
      const float* const cos = cos_.data() + row * kHalf;
      const float* const sin = sin_.data() + row * kHalf;
      const auto of_row = std::span(heads_).subspan(size_t{1} * row * kProducts, kProducts);
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<float> x = ToFloats(of_row.subspan(size_t{1} * head * kDim, kDim));
        ExpectRow(std::span(got.q).subspan(size_t{1} * (row * kHeads + head) * kDim, kDim),
                  NormOf(x, nullptr, cos, sin), row);
      }
      for (int head = 0; has_indexer && head < kIndexHeads; ++head) {
        const std::vector<float> x =
            ToFloats(of_row.subspan(size_t{1} * kHeads * kDim + head * kIndexDim, kIndexDim));
        // Without the norm.
        double squares = 0;
        for (const float value : x) squares += double{value} * value;
        std::vector<double> wanted = NormOf(x, nullptr, cos, sin);
        for (double& value : wanted) value *= std::sqrt(squares / kIndexDim + double{kEpsilon});
        ExpectRow(std::span(got.index).subspan(size_t{1} * (row * kIndexHeads + head) * kIndexDim,
                                               kIndexDim),
                  wanted, row);
      }
    }
  }
}

TEST_F(QueryRowsTest, ARowsBitsAreItsOwn) {
  const Written all = Write(0, kRows);
  const Finished all_heads = Finish(0, kRows, true);
  ASSERT_EQ(Finish(0, kRows, false).q, all_heads.q) << "in place";
  for (const int rows : {1, 3, 4, 9}) {
    for (const int first : {0, 5, kRows - rows}) {
      const Written some = Write(first, rows);
      const Finished heads = Finish(first, rows, true);
      ASSERT_TRUE(std::equal(heads.q.begin(), heads.q.end(),
                             all_heads.q.begin() + int64_t{first} * kHeads * kDim));
      ASSERT_TRUE(std::equal(heads.index.begin(), heads.index.end(),
                             all_heads.index.begin() + int64_t{first} * kIndexHeads * kIndexDim));
      ASSERT_TRUE(std::equal(some.latents.begin(), some.latents.end(),
                             all.latents.begin() + int64_t{first} * kLatent));
      for (int row = first; row < first + rows; ++row) {
        if (slots_[row] < 0) continue;
        const auto at = static_cast<int64_t>(At(slots_[row]));
        ASSERT_TRUE(std::equal(some.cache.begin() + at, some.cache.begin() + at + kDim,
                               all.cache.begin() + at))
            << "row " << row << " of " << rows << " from " << first;
      }
    }
  }
}

TEST(QueryRowsArguments, AreRefused) {
  const WindowRowsParams good = {
      .num_rows = 1, .kv_stride = 512, .block_stride = 16384, .block_size = 16};
  const auto refused = [&](auto change) {
    WindowRowsParams params = good;
    change(params);
    EXPECT_THROW(static_cast<void>(WriteWindowRows(params, nullptr)), Error);
  };
  refused([](WindowRowsParams& p) { p.num_rows = -1; });
  refused([](WindowRowsParams& p) { p.kv_stride = 508; });
  refused([](WindowRowsParams& p) { p.block_size = 0; });
  refused([](WindowRowsParams& p) { p.block_stride = 16388; });
  refused([](WindowRowsParams& p) { p.input_dtype = DType::kF8E4M3; });
  refused([](WindowRowsParams& p) {
    p.q = &p;
    p.q_columns = 2052;
  });
  const QueryHeadsParams heads = {.num_rows = 1,
                                  .heads = 2,
                                  .index_heads = 4,
                                  .from_stride = 1536,
                                  .q_stride = 1024,
                                  .index_stride = 512};
  const auto refuses = [&](auto change) {
    QueryHeadsParams params = heads;
    change(params);
    EXPECT_THROW(static_cast<void>(FinishQueryHeads(params, nullptr)), Error);
  };
  refuses([](QueryHeadsParams& p) { p.heads = 0; });
  refuses([](QueryHeadsParams& p) { p.index_heads = 6; });
  refuses([](QueryHeadsParams& p) { p.from_stride = 1528; });
  refuses([](QueryHeadsParams& p) { p.q_stride = 1020; });
  refuses([](QueryHeadsParams& p) { p.index_stride = 504; });
}

}  // namespace
}  // namespace outrider::cuda
