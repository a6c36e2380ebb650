// What rows leave in the latent cache, against the reference table of CPU kernels, and the equality
// of a row's bits alone and in a batch. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/rows/step_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {
namespace {

/// A step's rows that enter the cache, with angles by position, and the reference's entries.
class WriteLatentTest : public HopperTest<> {
 protected:
  static constexpr int kRows = 37;
  static constexpr int kSlots = 64;
  static constexpr int kPositions = 90;
  static constexpr int kQueryColumns = 768;
  static constexpr int kStride = kQueryColumns + 576;  // q, then kv

  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (int i = 0; i < kRows * kStride; ++i) bf16_.push_back(FloatToBf16(normal(random_)));
    floats_ = ToFloats(bf16_);
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    weight_.resize(512);
    q_weight_.resize(kQueryColumns);
    for (float& value : weight_) value = uniform(random_);
    for (float& value : q_weight_) value = uniform(random_);
    for (int i = 0; i < kPositions * 32; ++i) {
      const float angle = uniform(random_) * 7;
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
    for (int row = 0; row < kRows; ++row) positions_.push_back(row * 29 % kPositions);
    slots_.resize(kSlots);
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    slots_.resize(kRows);
    slots_[5] = -1;
    d_bf16_ = DeviceArray<uint16_t>(bf16_);
    d_floats_ = DeviceArray<float>(floats_);
    d_weight_ = DeviceArray<float>(weight_);
    d_q_weight_ = DeviceArray<float>(q_weight_);
    d_cos_ = DeviceArray<float>(cos_);
    d_sin_ = DeviceArray<float>(sin_);
    d_positions_ = DeviceArray<int32_t>(positions_);
    d_slots_ = DeviceArray<int64_t>(slots_);
  }

  /// Rows from `first` on; cache and q_out are to be set.
  LatentWriteParams Params(int first, int rows, DType input) const {
    LatentWriteParams params;
    params.num_rows = rows;
    params.input_dtype = input;
    params.row_stride = kStride;
    const size_t at = static_cast<size_t>(first) * kStride;
    const void* source = input == DType::kF32 ? static_cast<const void*>(d_floats_.data() + at)
                                              : static_cast<const void*>(d_bf16_.data() + at);
    params.q = source;
    params.kv = static_cast<const std::byte*>(source) + kQueryColumns * DTypeSize(input);
    params.weight = d_weight_.data();
    params.rotary = {
        .cos = d_cos_.data(), .sin = d_sin_.data(), .positions = d_positions_.data() + first};
    params.slot_mapping = d_slots_.data() + first;
    params.q_columns = kQueryColumns;
    params.q_weight = d_q_weight_.data();
    return params;
  }

  /// The cache in float32, so that what is compared is rounded once.
  std::vector<float> ReferenceCache(bool interleaved) {
    std::vector<float> row_cos, row_sin;
    for (const int32_t position : positions_) {
      row_cos.insert(row_cos.end(), cos_.begin() + position * 32,
                     cos_.begin() + position * 32 + 32);
      row_sin.insert(row_sin.end(), sin_.begin() + position * 32,
                     sin_.begin() + position * 32 + 32);
    }
    std::vector<float> cache(size_t{kSlots} * 576);
    CpuReference().write_latent(pool_, {floats_.data() + kQueryColumns, kRows, 576, kStride},
                                weight_.data(), LatentWriteParams{}.epsilon,
                                {.cos = {row_cos.data(), kRows, 32},
                                 .sin = {row_sin.data(), kRows, 32},
                                 .interleaved = interleaved},
                                slots_.data(),
                                {.data = reinterpret_cast<std::byte*>(cache.data()),
                                 .dtype = DType::kF32,
                                 .block_size = 16,
                                 .width = 576,
                                 .block_stride = int64_t{16} * 576});
    return cache;
  }

  std::mt19937 random_{3};
  ThreadPool pool_{1};
  std::vector<uint16_t> bf16_;
  std::vector<float> floats_, weight_, q_weight_, cos_, sin_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
  DeviceArray<uint16_t> d_bf16_;
  DeviceArray<float> d_floats_, d_weight_, d_q_weight_, d_cos_, d_sin_;
  DeviceArray<int32_t> d_positions_;
  DeviceArray<int64_t> d_slots_;
};

TEST_F(WriteLatentTest, MatchesTheCpuReferenceAndKeepsBits) {
  std::vector<float> q(size_t{kRows} * kQueryColumns);
  CpuReference().rms_norm(pool_, {floats_.data(), kRows, kQueryColumns, kStride}, q_weight_.data(),
                          LatentWriteParams{}.epsilon, {q.data(), kRows, kQueryColumns});
  for (const DType input : {DType::kBF16, DType::kF32}) {
    for (const bool e4m3 : {false, true}) {
      for (const bool interleaved : {true, false}) {
        const size_t width = 576 * (e4m3 ? 1 : 2);
        auto run = [&](int first, int rows, bool fewer) {
          const DeviceArray<uint8_t> cache(kSlots * width, 0xEE);
          const DeviceArray<uint16_t> q_out(size_t{kRows} * kQueryColumns, 0xEE);
          const DeviceArray<int32_t> true_rows(std::vector<int32_t>{rows});
          LatentWriteParams params = Params(first, rows, input);
          params.rotary.interleaved = interleaved;
          params.cache = cache.data();
          params.cache_type = e4m3 ? MlaCacheType::kE4m3 : MlaCacheType::kBf16;
          params.cache_scale = e4m3 ? 0.02f : 1.0f;
          params.q_out = q_out.data();
          if (fewer) {
            params.num_rows = kRows - first;
            params.true_rows = true_rows.data();
          }
          CudaOk(WriteLatentRows(params, nullptr), "WriteLatentRows");
          return std::pair(cache.Download(), q_out.Download());
        };
        const auto [got, got_q] = run(0, kRows, false);
        const std::vector<float> expected = ReferenceCache(interleaved);
        std::vector<bool> written(kSlots, false);
        for (int row = 0; row < kRows; ++row) {
          for (int i = 0; i < kQueryColumns; ++i) {
            const size_t at = static_cast<size_t>(row) * kQueryColumns + i;
            ASSERT_NEAR(Bf16ToFloat(got_q[at]), q[at], std::abs(q[at]) / 255 + 1e-6) << row;
          }
          if (slots_[row] < 0) continue;
          written[slots_[row]] = true;
          for (int d = 0; d < 576; ++d) {
            const size_t at = static_cast<size_t>(slots_[row]) * 576 + d;
            const double x = expected[at];
            if (e4m3) {
              const double wanted = std::clamp(x / 0.02, -448.0, 448.0);
              ASSERT_NEAR(E4m3ToFloat(got[at]), wanted, std::abs(wanted) / 15.9 + 0.001)
                  << "row " << row << " column " << d;
            } else {
              uint16_t bits;
              __builtin_memcpy(&bits, &got[2 * at], 2);
              ASSERT_NEAR(Bf16ToFloat(bits), x, std::abs(x) / 255 + 1e-6)
                  << "row " << row << " column " << d;
            }
          }
        }
        for (int slot = 0; slot < kSlots; ++slot) {
          if (written[slot]) continue;
          for (size_t i = 0; i < width; ++i) ASSERT_EQ(got[slot * width + i], 0xEE);
        }
        for (const int rows : {1, 2, 8, 27}) {
          for (const bool fewer : {false, true}) {
            const auto [some, some_q] = run(9, rows, fewer);
            for (int row = 9; row < 9 + rows; ++row) {
              const auto at = static_cast<int64_t>(slots_[row] * width);
              ASSERT_TRUE(
                  std::equal(some.begin() + at, some.begin() + at + width, got.begin() + at))
                  << rows << " rows, row " << row;
            }
            for (size_t i = 0; i < some_q.size(); ++i) {
              const bool has = i < static_cast<size_t>(rows) * kQueryColumns;
              ASSERT_EQ(some_q[i], has ? got_q[i + size_t{9} * kQueryColumns] : 0xEEEE)
                  << rows << " rows, value " << i;
            }
          }
        }
      }
    }
  }
}

// Other layers' bytes lie between the blocks of a layer.
TEST_F(WriteLatentTest, BlocksMayLieApart) {
  constexpr int kBlock = 16;
  constexpr int kBlocks = (kSlots + kBlock - 1) / kBlock;
  for (const bool e4m3 : {false, true}) {
    const size_t width = 576 * (e4m3 ? 1 : 2);
    const size_t stride = kBlock * width + 48;
    const auto run = [&](int64_t block_stride) {
      const DeviceArray<uint8_t> cache(kBlocks * stride, 0xEE);
      const DeviceArray<uint16_t> q_out(size_t{kRows} * kQueryColumns, 0xEE);
      LatentWriteParams params = Params(0, kRows, DType::kBF16);
      params.cache = cache.data();
      params.cache_type = e4m3 ? MlaCacheType::kE4m3 : MlaCacheType::kBf16;
      params.block_stride = block_stride;
      params.block_size = kBlock;
      params.q_out = q_out.data();
      CudaOk(WriteLatentRows(params, nullptr), "WriteLatentRows");
      return cache.Download();
    };
    const std::vector<uint8_t> together = run(0);
    const std::vector<uint8_t> apart = run(static_cast<int64_t>(stride));
    std::vector<uint8_t> want(apart.size(), 0xEE);
    for (int slot = 0; slot < kSlots; ++slot) {
      std::copy_n(
          together.begin() + static_cast<int64_t>(slot * width), width,
          want.begin() + static_cast<int64_t>(slot / kBlock * stride + slot % kBlock * width));
    }
    EXPECT_EQ(apart, want) << (e4m3 ? "e4m3" : "bf16");
  }
}

TEST_F(WriteLatentTest, RefusesWhatItCannotDo) {
  LatentWriteParams params = Params(0, 1, DType::kBF16);
  params.q_columns = 2052;
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
  params = Params(0, 1, DType::kF16);
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
  params = Params(0, 1, DType::kBF16);
  params.cache_scale = 0;
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
  params = Params(0, 1, DType::kBF16);
  params.block_size = 16;
  params.block_stride = 16 * 576 * 2 + 8;
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
}

}  // namespace
}  // namespace outrider::cuda
