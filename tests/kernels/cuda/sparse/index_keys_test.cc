// Index keys from their product to the cache, against double precision, and the equality of a row's
// bits over batches. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sparse/index_keys.h"

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

namespace outrider::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kHalf = 32;
constexpr int kRows = 37;
constexpr int kBlockSize = 16;
constexpr int kBlocks = 5;
constexpr int kGap = 24;  // numbers of something else behind a block
constexpr float kEpsilon = 1e-6F;

/// Of rows whose slots are in random order, the first and the fifth without one.
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

  /// The cache after rows first .. first + rows - 1; NaN where nothing was written.
  std::vector<uint16_t> Run(int first, int rows) const {
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
    params.block_stride = kBlockNumbers * 2;
    params.block_size = kBlockSize;
    CudaOk(WriteIndexKeys(params, nullptr), "WriteIndexKeys");
    CudaOk(cudaDeviceSynchronize(), "run");
    return cache.Download();
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

INSTANTIATE_TEST_SUITE_P(Hopper, IndexKeysTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "interleaved" : "halves");
});

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
}

}  // namespace
}  // namespace outrider::cuda
