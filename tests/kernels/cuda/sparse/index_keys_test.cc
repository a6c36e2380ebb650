// Index keys from their product to the cache, against double precision, and the equality of a row's
// bits over batches. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sparse/index_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/expected_codes.h"

namespace outrider::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kHalf = 32;
constexpr int kRows = 37;
constexpr int kBlockSize = 16;
constexpr int kBlocks = 5;
constexpr int kGap = 24;  // numbers of something else behind a block
constexpr float kEpsilon = 1e-6F;

/// Keys of rows whose slots are in random order, the first and the fifth without one.
class IndexKeysTest : public HopperTest<::testing::TestWithParam<bool>> {
 protected:
  static constexpr int kStride = kDim + 12;
  static constexpr int kBlockNumbers = kBlockSize * kDim + kGap;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    x_ = NormalFloats(random_, size_t{kRows} * kStride, 2.0F);
    for (float& value : x_) value += 5.0F;  // the mean is not small
    weight_ = NormalFloats(random_, kDim);
    bias_ = NormalFloats(random_, kDim);
    for (int i = 0; i < kRows * kHalf; ++i) {
      const float angle = static_cast<float>(random_() % 1000) / 100;
      cos_.push_back(1.5F * std::cos(angle));
      sin_.push_back(1.5F * std::sin(angle));
    }
    for (int slot = 0; slot < kRows; ++slot) slots_.push_back(slot * 2);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    slots_[0] = slots_[4] = -1;
  }

  /// The cache after rows first .. first + rows - 1; NaN where nothing was written. With `codes`
  /// blocks are of kCodeBlockBytes.
  std::vector<uint16_t> Run(int first, int rows, bool codes = false) const {
    const auto part = [&](const auto& values, int64_t width) {
      return DeviceArray(
          std::vector(values.begin() + first * width, values.begin() + (first + rows) * width));
    };
    const auto x = part(x_, kStride);
    const auto cos = part(cos_, kHalf);
    const auto sin = part(sin_, kHalf);
    const auto slots = part(slots_, 1);
    const DeviceArray<float> weight(weight_), bias(bias_);
    const DeviceArray<uint16_t> cache(
        std::vector<uint16_t>(size_t{kBlocks} * kBlockNumbers, uint16_t{0xFFFF}));
    IndexKeysParams params;
    params.num_rows = rows;
    params.x = x.data();
    params.x_stride = kStride;
    params.weight = weight.data();
    params.bias = bias.data();
    params.epsilon = kEpsilon;
    params.cos = cos.data();
    params.sin = sin.data();
    params.interleaved = GetParam();
    params.slots = slots.data();
    params.cache = cache.data();
    params.codes = codes;
    params.block_stride = codes ? kCodeBlockBytes : kBlockNumbers * 2;
    params.block_size = kBlockSize;
    CudaOk(WriteIndexKeys(params, nullptr), "WriteIndexKeys");
    CudaOk(cudaDeviceSynchronize(), "run");
    return cache.Download();
  }

  static constexpr int64_t kCodeBlockBytes = kBlockSize * (kDim + 4) + 48;

  /// Bytes before a slot's codes, and before its scale.
  static int64_t CodesAt(int64_t slot) {
    return slot / kBlockSize * kCodeBlockBytes + slot % kBlockSize * kDim;
  }
  static int64_t ScaleAt(int64_t slot) {
    return slot / kBlockSize * kCodeBlockBytes + kBlockSize * kDim + slot % kBlockSize * 4;
  }

  static int64_t At(int64_t slot) {
    return slot / kBlockSize * kBlockNumbers + slot % kBlockSize * kDim;
  }

  /// A row's key in double precision.
  std::vector<double> Wanted(int row) const {
    const float* of_row = x_.data() + int64_t{row} * kStride;
    double mean = 0;
    for (int i = 0; i < kDim; ++i) mean += double{of_row[i]} / kDim;
    double variance = 0;
    for (int i = 0; i < kDim; ++i) variance += (of_row[i] - mean) * (of_row[i] - mean) / kDim;
    std::vector<double> key;
    for (int i = 0; i < kDim; ++i) {
      key.push_back(weight_[i] * (of_row[i] - mean) / std::sqrt(variance + kEpsilon) + bias_[i]);
    }
    for (int i = 0; i < kHalf; ++i) {
      double& a = key[GetParam() ? 2 * i : i];
      double& b = key[GetParam() ? 2 * i + 1 : kHalf + i];
      const double cos = cos_[row * kHalf + i];
      const double sin = sin_[row * kHalf + i];
      const double rotated = a * cos - b * sin;
      b = a * sin + b * cos;
      a = rotated;
    }
    return key;
  }

  std::mt19937 random_{3};
  std::vector<float> x_, weight_, bias_, cos_, sin_;
  std::vector<int64_t> slots_;
};

TEST_P(IndexKeysTest, MatchDoublePrecisionAndTouchNothingElse) {
  const std::vector<uint16_t> cache = Run(0, kRows);
  std::vector<bool> written(cache.size());
  for (int row = 0; row < kRows; ++row) {
    if (slots_[row] < 0) continue;
    const std::vector<double> wanted = Wanted(row);
    for (int i = 0; i < kDim; ++i) {
      const auto at = static_cast<size_t>(At(slots_[row]) + i);
      written[at] = true;
      // bfloat16 has 8 bits.
      ASSERT_NEAR(ToFloats(std::span(&cache[at], 1))[0], wanted[i],
                  0.005 * (0.1 + std::abs(wanted[i])))
          << "row " << row << ", value " << i;
    }
  }
  for (size_t i = 0; i < cache.size(); ++i) {
    ASSERT_TRUE(written[i] || cache[i] == 0xFFFF) << "number " << i << " of the cache";
  }
}

TEST_P(IndexKeysTest, ARowsBitsAreItsOwn) {
  const std::vector<uint16_t> all = Run(0, kRows);
  for (const int rows : {1, 3, 4, 9}) {
    for (const int first : {0, 5, kRows - rows}) {
      const std::vector<uint16_t> some = Run(first, rows);
      for (int row = first; row < first + rows; ++row) {
        if (slots_[row] < 0) continue;
        const auto begin = some.begin() + At(slots_[row]);
        ASSERT_TRUE(std::equal(begin, begin + kDim, all.begin() + At(slots_[row])))
            << "row " << row << " of " << rows << " from " << first;
      }
    }
  }
}

TEST_P(IndexKeysTest, CodesMatchDoublePrecisionAndTouchNothingElse) {
  const std::vector<uint16_t> cache = Run(0, kRows, true);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(cache.data());
  std::vector<bool> written(cache.size() * 2);
  for (int row = 0; row < kRows; ++row) {
    const int64_t slot = slots_[row];
    if (slot < 0) continue;
    float scale;
    std::memcpy(&scale, bytes + ScaleAt(slot), sizeof(scale));
    ASSERT_NO_FATAL_FAILURE(
        ExpectCodes(bytes + CodesAt(slot), scale, Wanted(row), "row " + std::to_string(row)));
    std::fill_n(written.begin() + CodesAt(slot), kDim, true);
    std::fill_n(written.begin() + ScaleAt(slot), sizeof(scale), true);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    ASSERT_TRUE(written[i] || bytes[i] == 0xFF) << "byte " << i << " of the cache";
  }
}

TEST_P(IndexKeysTest, ARowsCodesAreItsOwn) {
  const std::vector<uint16_t> all = Run(0, kRows, true);
  const auto* const of_all = reinterpret_cast<const uint8_t*>(all.data());
  for (const int rows : {1, 3, 4, 9}) {
    for (const int first : {0, 5, kRows - rows}) {
      const std::vector<uint16_t> some = Run(first, rows, true);
      const auto* const of_some = reinterpret_cast<const uint8_t*>(some.data());
      for (int row = first; row < first + rows; ++row) {
        const int64_t slot = slots_[row];
        if (slot < 0) continue;
        ASSERT_TRUE(std::equal(of_some + CodesAt(slot), of_some + CodesAt(slot) + kDim,
                               of_all + CodesAt(slot)) &&
                    std::equal(of_some + ScaleAt(slot), of_some + ScaleAt(slot) + 4,
                               of_all + ScaleAt(slot)))
            << "row " << row << " of " << rows << " from " << first;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hopper, IndexKeysTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "interleaved" : "halves");
});

class IndexQueriesTest : public HopperTest<> {};

TEST_F(IndexQueriesTest, AreRoundedByHead) {
  constexpr int kHeads = 3;
  constexpr int kQueryRows = 7;
  constexpr int kWeightsStride = 8;
  std::mt19937 random(9);
  std::vector<uint16_t> q;
  for (int i = 0; i < kQueryRows * kHeads; ++i) {
    // Of very different sizes; one is 0.
    const float size = i == 4 ? 0.0F : std::exp2(static_cast<float>(i) - 12);
    const std::vector<uint16_t> head = NormalBf16(random, kDim, size);
    q.insert(q.end(), head.begin(), head.end());
  }
  const std::vector<float> weights = NormalFloats(random, kQueryRows * kWeightsStride);
  const DeviceArray<uint16_t> d_q(q);
  const DeviceArray<float> d_weights(weights);
  const auto run = [&](int first, int rows) {
    const DeviceArray<uint8_t> codes(size_t{1} * rows * kHeads * kDim);
    const DeviceArray<float> scaled(size_t{1} * rows * kHeads);
    CudaOk(RoundIndexQueries({.num_rows = rows,
                              .heads = kHeads,
                              .q = d_q.data() + first * kHeads * kDim,
                              .weights = d_weights.data() + first * kWeightsStride,
                              .weights_stride = kWeightsStride,
                              .codes = codes.data(),
                              .scaled = scaled.data()},
                             nullptr),
           "RoundIndexQueries");
    CudaOk(cudaDeviceSynchronize(), "run");
    return std::pair(codes.Download(), scaled.Download());
  };
  const auto [codes, scaled] = run(0, kQueryRows);
  for (int i = 0; i < kQueryRows * kHeads; ++i) {
    const std::vector<float> head = ToFloats(std::span(q).subspan(size_t{1} * i * kDim, kDim));
    const float weight = weights[i / kHeads * kWeightsStride + i % kHeads];
    ASSERT_NO_FATAL_FAILURE(
        ExpectCodes(&codes[size_t{1} * i * kDim], i == 4 ? 0x1p-22F : scaled[i] / weight,
                    std::vector<double>(head.begin(), head.end()), "head " + std::to_string(i)));
  }
  for (int row = 0; row < kQueryRows; ++row) {
    const auto [of_row, scaled_of_row] = run(row, 1);
    ASSERT_TRUE(std::equal(of_row.begin(), of_row.end(), codes.begin() + row * kHeads * kDim));
    ASSERT_TRUE(
        std::equal(scaled_of_row.begin(), scaled_of_row.end(), scaled.begin() + row * kHeads));
  }
}

TEST_F(IndexQueriesTest, AreRoundedAsPublished) {
  constexpr int kAllHeads = 21;
  std::mt19937 random(9);
  std::vector<uint16_t> q;
  for (int i = 0; i < kAllHeads; ++i) {
    const std::vector<uint16_t> head =
        NormalBf16(random, kDim, std::exp2(static_cast<float>(i) - 12));
    q.insert(q.end(), head.begin(), head.end());
  }
  const DeviceArray<uint16_t> d_q(q);
  const DeviceArray<uint16_t> rounded(size_t{1} * kAllHeads * kDim);
  CudaOk(RoundIndexQueries({.num_rows = kAllHeads / 3,
                            .heads = 3,
                            .q = d_q.data(),
                            .codes = rounded.data(),
                            .fp4_numbers = true},
                           nullptr),
         "RoundIndexQueries");
  CudaOk(cudaDeviceSynchronize(), "run");
  const std::vector<uint16_t> got = rounded.Download();
  for (int i = 0; i < kAllHeads; ++i) {
    const std::vector<float> head = ToFloats(std::span(q).subspan(size_t{1} * i * kDim, kDim));
    ExpectPublished(std::span(got).subspan(size_t{1} * i * kDim, kDim),
                    Transformed({head.begin(), head.end()}), true, "head " + std::to_string(i));
  }
}

TEST(IndexKeysCases, RefuseWhatCannotBeWritten) {
  IndexKeysParams params = {.num_rows = 1, .x_stride = 128, .block_stride = 4096, .block_size = 16};
  params.x_stride = 124;
  EXPECT_THROW(WriteIndexKeys(params, nullptr), Error);
  params.x_stride = 130;
  EXPECT_THROW(WriteIndexKeys(params, nullptr), Error);
  params.x_stride = 128;
  params.block_size = 0;
  EXPECT_THROW(WriteIndexKeys(params, nullptr), Error);
  params.block_size = 16;
  params.block_stride = 4100;
  EXPECT_THROW(WriteIndexKeys(params, nullptr), Error);
  params.block_stride = 4096;
  params.block_size = 6;
  params.codes = true;
  EXPECT_THROW(WriteIndexKeys(params, nullptr), Error);
}

}  // namespace
}  // namespace outrider::cuda
