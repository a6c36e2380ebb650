// The row operations around MLA decode against the reference table of CPU kernels, and the equality
// of a row's bits alone and in a batch. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/step_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode_reference.h"

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

TEST_F(StepRowsTest, WriteLatentMatchesTheCpuReference) {
  constexpr int kRows = 37;
  constexpr int kSlots = 64;
  const std::vector<uint16_t> kv = Noise(size_t{kRows} * 576, 2.0f);
  const std::vector<float> kv_floats = ToFloats(kv);
  std::vector<float> weight(512), cos(kRows * 32), sin(kRows * 32);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  for (float& value : weight) value = uniform(random_);
  for (size_t i = 0; i < cos.size(); ++i) {
    const float angle = uniform(random_) * 7;
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
  std::vector<int64_t> slots(kSlots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random_);
  slots.resize(kRows);
  slots[5] = -1;
  DeviceArray<uint16_t> d_kv(kv);
  DeviceArray<float> d_weight(weight), d_cos(cos), d_sin(sin);
  DeviceArray<int64_t> d_slots(slots);
  for (const bool e4m3 : {false, true}) {
    for (const bool interleaved : {true, false}) {
      const size_t bytes = size_t{kSlots} * 576 * (e4m3 ? 1 : 2);
      DeviceArray<uint8_t> cache(bytes, 0xEE);
      LatentWriteParams params;
      params.num_rows = kRows;
      params.kv = d_kv.data();
      params.weight = d_weight.data();
      params.cos = d_cos.data();
      params.sin = d_sin.data();
      params.interleaved = interleaved;
      params.slot_mapping = d_slots.data();
      params.cache = cache.data();
      params.cache_type = e4m3 ? MlaCacheType::kE4m3 : MlaCacheType::kBf16;
      params.cache_scale = e4m3 ? 0.02f : 1.0f;
      ASSERT_EQ(WriteLatentRows(params, nullptr), cudaSuccess);
      const std::vector<uint8_t> got = cache.Download();
      // In float32, so that what is compared is rounded once.
      std::vector<float> expected(size_t{kSlots} * 576);
      CpuReference().write_latent(pool_, {kv_floats.data(), kRows, 576}, weight.data(),
                                  params.epsilon,
                                  {.cos = {cos.data(), kRows, 32},
                                   .sin = {sin.data(), kRows, 32},
                                   .interleaved = interleaved},
                                  slots.data(),
                                  {.data = reinterpret_cast<std::byte*>(expected.data()),
                                   .dtype = DType::kF32,
                                   .block_size = 16,
                                   .width = 576});
      std::vector<bool> written(kSlots, false);
      for (int row = 0; row < kRows; ++row) {
        if (slots[row] < 0) continue;
        written[slots[row]] = true;
        for (int d = 0; d < 576; ++d) {
          const size_t at = static_cast<size_t>(slots[row]) * 576 + d;
          const double x = expected[at];
          if (e4m3) {
            const double wanted = std::clamp(x / 0.02, -448.0, 448.0);
            ASSERT_NEAR(E4m3ToFloat(got[at]), wanted, std::abs(wanted) / 15.9 + 0.001);
          } else {
            uint16_t bits;
            __builtin_memcpy(&bits, &got[2 * at], 2);
            ASSERT_NEAR(Bf16ToFloat(bits), x, std::abs(x) / 255 + 1e-6);
          }
        }
      }
      const size_t width = bytes / kSlots;
      for (int slot = 0; slot < kSlots; ++slot) {
        if (written[slot]) continue;
        for (size_t i = 0; i < width; ++i) ASSERT_EQ(got[slot * width + i], 0xEE);
      }
      // Row 9 alone.
      DeviceArray<uint8_t> alone(bytes, 0xEE);
      params.num_rows = 1;
      params.kv = d_kv.data() + 9 * 576;
      params.cos = d_cos.data() + 9 * 32;
      params.sin = d_sin.data() + 9 * 32;
      params.slot_mapping = d_slots.data() + 9;
      params.cache = alone.data();
      ASSERT_EQ(WriteLatentRows(params, nullptr), cudaSuccess);
      const std::vector<uint8_t> single = alone.Download();
      const size_t begin = static_cast<size_t>(slots[9]) * width;
      EXPECT_TRUE(
          std::equal(single.begin() + begin, single.begin() + begin + width, got.begin() + begin));
    }
  }
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
