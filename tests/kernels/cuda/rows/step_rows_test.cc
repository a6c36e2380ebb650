// The row operations around MLA decode against the reference table of CPU kernels, and the equality
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

class StepRowsTest : public HopperTest<> {
 protected:
  std::vector<uint16_t> Noise(size_t count, float size = 1.0f) {
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = FloatToBf16(normal(random_));
    return values;
  }

  std::mt19937 random_{3};
  ThreadPool pool_{1};
};

/// A step's rows that enter the cache, with angles by position, and the reference's entries.
class WriteLatentTest : public StepRowsTest {
 protected:
  static constexpr int kRows = 37;
  static constexpr int kSlots = 64;
  static constexpr int kPositions = 90;
  static constexpr int kQueryColumns = 768;
  static constexpr int kStride = kQueryColumns + 576;  // q, then kv

  void SetUp() override {
    StepRowsTest::SetUp();
    if (IsSkipped()) return;
    bf16_ = Noise(size_t{kRows} * kStride, 2.0f);
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

TEST_F(WriteLatentTest, RefusesWhatItCannotDo) {
  LatentWriteParams params = Params(0, 1, DType::kBF16);
  params.q_columns = 2052;
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
  params = Params(0, 1, DType::kF16);
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
  params = Params(0, 1, DType::kBF16);
  params.cache_scale = 0;
  EXPECT_THROW(static_cast<void>(WriteLatentRows(params, nullptr)), Error);
}

TEST_F(StepRowsTest, MergeWeighsByLogSumExp) {
  constexpr int kRows = 19;
  constexpr int kWidth = 512;
  std::vector<uint16_t> a = Noise(size_t{kRows} * kWidth), b = Noise(size_t{kRows} * kWidth);
  std::vector<float> lse_a(kRows), lse_b(kRows);
  for (int i = 0; i < kRows; ++i) {
    lse_a[i] = 0.37f * i - 3;
    lse_b[i] = 2 - 0.2f * i;
  }
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  lse_a[2] = kNone;
  lse_b[3] = kNone;
  lse_a[4] = lse_b[4] = kNone;
  for (int d = 0; d < kWidth; ++d) a[2 * kWidth + d] = 0x7FC0;  // NaN where there is no key
  DeviceArray<uint16_t> d_a(a), d_b(b), output(size_t{kRows} * kWidth);
  DeviceArray<float> d_lse_a(lse_a), d_lse_b(lse_b), lse(kRows);
  ASSERT_EQ(MergeAttentionRows(d_a.data(), d_lse_a.data(), d_b.data(), d_lse_b.data(), kRows,
                               kWidth, output.data(), lse.data(), nullptr),
            cudaSuccess);
  const std::vector<uint16_t> got = output.Download();
  const std::vector<float> got_lse = lse.Download();
  for (int row = 0; row < kRows; ++row) {
    const double x = std::exp(static_cast<double>(lse_a[row]));
    const double y = std::exp(static_cast<double>(lse_b[row]));
    if (row == 4) {
      EXPECT_EQ(got_lse[row], kNone);
    } else {
      EXPECT_NEAR(got_lse[row], std::log(x + y), 1e-5);
    }
    for (int d = 0; d < kWidth; ++d) {
      const size_t at = static_cast<size_t>(row) * kWidth + d;
      if (row == 2) {
        ASSERT_EQ(got[at], b[at]);
      } else if (row == 3) {
        ASSERT_EQ(got[at], a[at]);
      } else if (row == 4) {
        ASSERT_EQ(got[at], 0);
      } else {
        const double wanted = (x * Bf16ToFloat(a[at]) + y * Bf16ToFloat(b[at])) / (x + y);
        ASSERT_NEAR(Bf16ToFloat(got[at]), wanted, std::abs(wanted) / 255 + 1e-5);
      }
    }
  }
}

// Attention over all keys by the CPU reference is attention over the first and over the rest of
// them, merged.
TEST_F(StepRowsTest, MergeOfTwoPartsIsTheCpuReferenceOverAllKeys) {
  constexpr int kRows = 24;
  constexpr int kHeads = 4;
  constexpr int kNope = 32, kRope = 64, kValue = 128;
  constexpr int kFirst = kExpandedBlock;
  constexpr int kSecond = 100;
  constexpr int kKeys = kFirst + kSecond;
  const std::vector<float> q = ToFloats(Noise(size_t{kRows} * kHeads * (kNope + kRope)));
  const std::vector<float> kv = ToFloats(Noise(size_t{kKeys} * kHeads * (kNope + kValue)));
  const std::vector<float> k_rope = ToFloats(Noise(size_t{kKeys} * kRope));
  struct Part {
    std::vector<float> output;  // [rows, heads * value]
    std::vector<float> lse;     // [rows, heads]
  };
  // Every row sees all of these keys.
  auto attend = [&](int first_row, int keys) {
    std::vector<ExpandedBlock> blocks;
    for (int key = 0; key < keys; key += kExpandedBlock) {
      blocks.push_back({.request = {.query_length = kRows, .context_length = kKeys},
                        .first_key = key,
                        .num_keys = std::min(kExpandedBlock, keys - key),
                        .kv_row = first_row + key});
    }
    Part part = {std::vector<float>(size_t{kRows} * kHeads * kValue),
                 std::vector<float>(size_t{kRows} * kHeads)};
    std::vector<float> maximum(part.lse.size()), sum(part.lse.size());
    CpuReference().expanded_attention(pool_, {.q = {q.data(), kRows, kHeads * (kNope + kRope)},
                                              .heads = kHeads,
                                              .nope = kNope,
                                              .rope = kRope,
                                              .value = kValue,
                                              .scale = 0.1f,
                                              .kv = {kv.data(), kKeys, kHeads * (kNope + kValue)},
                                              .k_rope = {k_rope.data(), kKeys, kRope},
                                              .blocks = blocks,
                                              .out = {part.output.data(), kRows, kHeads * kValue},
                                              .running_max = {maximum.data(), kRows, kHeads},
                                              .running_sum = {sum.data(), kRows, kHeads}});
    for (size_t i = 0; i < part.lse.size(); ++i) {
      part.lse[i] = maximum[i] + std::log(sum[i]);
      for (int d = 0; d < kValue; ++d) part.output[i * kValue + d] /= sum[i];
    }
    return part;
  };
  auto rounded = [](const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    bits.reserve(values.size());
    for (const float value : values) bits.push_back(FloatToBf16(value));
    return DeviceArray<uint16_t>(bits);
  };
  const Part first = attend(0, kFirst);
  const Part second = attend(kFirst, kSecond);
  const Part all = attend(0, kKeys);
  const DeviceArray<uint16_t> d_first = rounded(first.output), d_second = rounded(second.output);
  const DeviceArray<float> d_lse_first(first.lse), d_lse_second(second.lse);
  DeviceArray<uint16_t> output(all.output.size());
  DeviceArray<float> lse(all.lse.size());
  ASSERT_EQ(
      MergeAttentionRows(d_first.data(), d_lse_first.data(), d_second.data(), d_lse_second.data(),
                         kRows * kHeads, kValue, output.data(), lse.data(), nullptr),
      cudaSuccess);
  const std::vector<float> got = ToFloats(output.Download());
  const std::vector<float> got_lse = lse.Download();
  for (size_t i = 0; i < all.lse.size(); ++i) {
    ASSERT_NEAR(got_lse[i], all.lse[i], 1e-5);
    double difference = 0, norm = 0;
    for (int d = 0; d < kValue; ++d) {
      const double wanted = all.output[i * kValue + d];
      difference += (got[i * kValue + d] - wanted) * (got[i * kValue + d] - wanted);
      norm += wanted * wanted;
    }
    // Both parts and the result are rounded to bf16.
    ASSERT_LT(std::sqrt(difference / norm), 4e-3) << "row " << i;
  }
}

// In the CPU reference a product gathers the rows that it takes.
TEST_F(StepRowsTest, GatheredRowsGiveTheCpuReferencesProduct) {
  constexpr int kWidth = 512;
  constexpr int kOutputs = 48;
  const std::vector<uint16_t> input = Noise(size_t{12} * kWidth);
  const std::vector<int> rows = {11, 0, 3, 3, 7};
  const auto count = static_cast<int64_t>(rows.size());
  DeviceArray<uint16_t> d_input(input), gathered(rows.size() * kWidth, 0xAB);
  DeviceArray<int> d_rows(rows);
  ASSERT_EQ(GatherRows(d_input.data(), d_rows.data(), static_cast<int>(count), kWidth,
                       gathered.data(), nullptr),
            cudaSuccess);
  const std::vector<float> x = ToFloats(input), got = ToFloats(gathered.Download());
  const PackedBf16 w(Noise(size_t{kOutputs} * kWidth), kOutputs, kWidth);
  auto product = [&](MatrixView<const float> from, const int32_t* x_rows) {
    std::vector<float> y(rows.size() * kOutputs);
    const MatMulJob job = {
        .x = from, .x_rows = x_rows, .w = &w.matrix(), .y = {y.data(), count, kOutputs}};
    CpuReference().matmul(pool_, {&job, 1}, DType::kF32);
    return y;
  };
  EXPECT_EQ(product({got.data(), count, kWidth}, nullptr),
            product({x.data(), 12, kWidth}, rows.data()));
}

TEST_F(StepRowsTest, GatherCopiesTheNamedRows) {
  constexpr int kWidth = 7168;
  const std::vector<uint16_t> input = Noise(size_t{12} * kWidth);
  const std::vector<int> rows = {11, 0, -1, 3, 3};
  DeviceArray<uint16_t> d_input(input), output(rows.size() * kWidth, 0xAB);
  DeviceArray<int> d_rows(rows);
  ASSERT_EQ(GatherRows(d_input.data(), d_rows.data(), static_cast<int>(rows.size()), kWidth,
                       output.data(), nullptr),
            cudaSuccess);
  const std::vector<uint16_t> got = output.Download();
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int d = 0; d < kWidth; ++d) {
      ASSERT_EQ(got[i * kWidth + d],
                rows[i] < 0 ? 0xABAB : input[static_cast<size_t>(rows[i]) * kWidth + d]);
    }
  }
  EXPECT_EQ(GatherRows(d_input.data(), d_rows.data(), 1, 12, output.data(), nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace outrider::cuda
