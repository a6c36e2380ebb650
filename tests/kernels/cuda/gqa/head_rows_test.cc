// Norms, rotation and cache writes of heads on a Hopper GPU against double precision, and the
// equality of a row's bits over batches.
#include "outrider/kernels/cuda/gqa/head_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kDim = 128;
constexpr float kEpsilon = 1e-5F;

struct Case {
  int heads;
  int kv_heads;
  int rotary_dims;
  bool interleaved;
  DType dtype;
  bool norms = true;
};

class HeadRowsTest : public HopperTest<::testing::TestWithParam<Case>> {
 protected:
  static constexpr int kBlock = 12;
  static constexpr int kBlocks = 7;
  static constexpr int kGap = 8;  // columns between parts of a row

  struct Rows {
    std::vector<uint16_t> x;  // [rows][q, gap, k, gap, v]
    std::vector<float> cos, sin;
    std::vector<int64_t> slots;
  };
  struct Result {
    std::vector<uint16_t> x;
    std::vector<uint8_t> cache;
  };

  static int64_t Stride() { return (GetParam().heads + 2 * GetParam().kv_heads) * kDim + 2 * kGap; }
  static int64_t KeysAt() { return GetParam().heads * kDim + kGap; }
  static int64_t ValuesAt() { return KeysAt() + GetParam().kv_heads * kDim + kGap; }
  static int64_t ElementBytes() { return GetParam().dtype == DType::kBF16 ? 2 : 1; }
  static int64_t EntryBytes() { return 2 * GetParam().kv_heads * kDim * ElementBytes(); }
  static int64_t BlockBytes() { return kBlock * EntryBytes() + 48; }

  static Rows MakeRows(int count) {
    std::mt19937 random(3);
    Rows rows;
    rows.x = NormalBf16(random, count * Stride());
    const int half = GetParam().rotary_dims / 2;
    for (int i = 0; i < count * half; ++i) {
      const float angle = static_cast<float>(random() % 1000) / 100;
      rows.cos.push_back(std::cos(angle));
      rows.sin.push_back(std::sin(angle));
    }
    for (int r = 0; r < count; ++r) {
      rows.slots.push_back(r % 5 == 2 ? -1 : (r * 29) % (kBlock * kBlocks));
    }
    return rows;
  }

  Result Run(const Rows& rows, int first, int count) {
    const Case& c = GetParam();
    const int half = c.rotary_dims / 2;
    const DeviceArray<uint16_t> x(std::vector<uint16_t>(
        rows.x.begin() + first * Stride(), rows.x.begin() + (first + count) * Stride()));
    const DeviceArray<float> cos(
        std::vector<float>(rows.cos.begin() + first * half, rows.cos.end()));
    const DeviceArray<float> sin(
        std::vector<float>(rows.sin.begin() + first * half, rows.sin.end()));
    const DeviceArray<int64_t> slots(
        std::vector<int64_t>(rows.slots.begin() + first, rows.slots.end()));
    const DeviceArray<float> q_norm(q_norm_), k_norm(k_norm_);
    const DeviceArray<uint8_t> cache(BlockBytes() * kBlocks);
    HeadRowsParams params;
    params.num_rows = count;
    params.heads = c.heads;
    params.kv_heads = c.kv_heads;
    params.q = x.data();
    params.k = x.data() + KeysAt();
    params.v = x.data() + ValuesAt();
    params.q_stride = params.k_stride = params.v_stride = Stride();
    params.q_norm = c.norms ? q_norm.data() : nullptr;
    params.k_norm = c.norms ? k_norm.data() : nullptr;
    params.epsilon = kEpsilon;
    params.cos = cos.data();
    params.sin = sin.data();
    params.rotary_dims = c.rotary_dims;
    params.interleaved = c.interleaved;
    params.slots = slots.data();
    params.cache = cache.data();
    params.cache_dtype = c.dtype;
    params.block_stride = BlockBytes();
    params.block_size = kBlock;
    CudaOk(NormHeadRows(params, nullptr), "launch");
    CudaOk(cudaDeviceSynchronize(), "run");
    return {x.Download(), cache.Download()};
  }

  /// The head at `at` of row r, normalised, if the case says so, and rotated.
  std::vector<double> Expected(const Rows& rows, int r, int64_t at,
                               const std::vector<float>& norm) const {
    const Case& c = GetParam();
    std::vector<double> x(kDim);
    double squares = 0;
    for (int d = 0; d < kDim; ++d) {
      x[d] = Bf16ToFloat(rows.x[r * Stride() + at + d]);
      squares += x[d] * x[d];
    }
    for (int d = 0; d < kDim && c.norms; ++d) {
      x[d] *= norm[d] / std::sqrt(squares / kDim + kEpsilon);
    }
    const int half = c.rotary_dims / 2;
    for (int i = 0; i < half; ++i) {
      const int a = c.interleaved ? 2 * i : i;
      const int b = c.interleaved ? 2 * i + 1 : i + half;
      const double cos = rows.cos[r * half + i];
      const double sin = rows.sin[r * half + i];
      const double first = x[a] * cos - x[b] * sin;
      x[b] = x[a] * sin + x[b] * cos;
      x[a] = first;
    }
    return x;
  }

  /// Number d of head `head` (keys, then values) in a slot of the cache.
  static double Entry(const std::vector<uint8_t>& cache, int64_t slot, int head, int d) {
    const uint8_t* at = cache.data() + slot / kBlock * BlockBytes() + slot % kBlock * EntryBytes() +
                        (head * kDim + d) * ElementBytes();
    if (ElementBytes() == 1) return E4m3ToFloat(*at);
    uint16_t bits;
    __builtin_memcpy(&bits, at, 2);
    return Bf16ToFloat(bits);
  }

  std::mt19937 random_{11};
  std::vector<float> q_norm_ = NormalFloats(random_, kDim);
  std::vector<float> k_norm_ = NormalFloats(random_, kDim);
};

TEST_P(HeadRowsTest, HeadsAreNormalisedRotatedAndWritten) {
  const Case& c = GetParam();
  constexpr int kRows = 33;
  const Rows rows = MakeRows(kRows);
  const Result result = Run(rows, 0, kRows);
  const double rounding = c.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-4;
  std::vector<uint8_t> written(kBlock * kBlocks);
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < c.heads; ++h) {
      const std::vector<double> expected = Expected(rows, r, h * kDim, q_norm_);
      for (int d = 0; d < kDim; ++d) {
        ASSERT_NEAR(Bf16ToFloat(result.x[r * Stride() + h * kDim + d]), expected[d],
                    std::abs(expected[d]) * 0x1p-8 + 1e-5)
            << "row " << r << " head " << h << " value " << d;
      }
    }
    if (rows.slots[r] < 0) continue;
    written[rows.slots[r]] = 1;
    for (int h = 0; h < c.kv_heads; ++h) {
      const std::vector<double> key = Expected(rows, r, KeysAt() + h * kDim, k_norm_);
      for (int d = 0; d < kDim; ++d) {
        ASSERT_NEAR(Entry(result.cache, rows.slots[r], h, d), key[d],
                    std::abs(key[d]) * rounding + 2e-3)
            << "row " << r << " key " << h << " value " << d;
        const double value = Bf16ToFloat(rows.x[r * Stride() + ValuesAt() + h * kDim + d]);
        ASSERT_NEAR(Entry(result.cache, rows.slots[r], c.kv_heads + h, d), value,
                    c.dtype == DType::kBF16 ? 0 : std::abs(value) * rounding + 2e-3)
            << "row " << r << " value head " << h << " value " << d;
      }
    }
  }
  for (int slot = 0; slot < kBlock * kBlocks; ++slot) {
    if (written[slot] != 0) continue;
    const uint8_t* at =
        result.cache.data() + slot / kBlock * BlockBytes() + slot % kBlock * EntryBytes();
    for (int64_t i = 0; i < EntryBytes(); ++i) ASSERT_EQ(at[i], 0xFF) << "slot " << slot;
  }
}

TEST_P(HeadRowsTest, ARowsBitsDependOnThatRowAlone) {
  constexpr int kRows = 12;
  const Rows rows = MakeRows(kRows);
  const Result all = Run(rows, 0, kRows);
  for (int r = 0; r < kRows; ++r) {
    const Result alone = Run(rows, r, 1);
    for (int64_t i = 0; i < GetParam().heads * kDim; ++i) {
      ASSERT_EQ(alone.x[i], all.x[r * Stride() + i]) << "row " << r << " value " << i;
    }
    if (rows.slots[r] < 0) continue;
    const int64_t at =
        rows.slots[r] / kBlock * BlockBytes() + rows.slots[r] % kBlock * EntryBytes();
    for (int64_t i = 0; i < EntryBytes(); ++i) ASSERT_EQ(alone.cache[at + i], all.cache[at + i]);
  }
}

INSTANTIATE_TEST_SUITE_P(, HeadRowsTest,
                         ::testing::Values(Case{64, 8, 64, false, DType::kBF16},
                                           Case{96, 8, 128, false, DType::kBF16},
                                           Case{0, 8, 128, false, DType::kF8E4M3},
                                           Case{6, 2, 24, true, DType::kF8E4M3},
                                           Case{3, 3, 0, false, DType::kBF16},
                                           Case{56, 8, 128, false, DType::kBF16, false},
                                           Case{4, 4, 128, false, DType::kF8E4M3, false}));

TEST(HeadRows, RefusesOddRotations) {
  HeadRowsParams params;
  params.kv_heads = 1;
  params.block_size = 1;
  params.rotary_dims = 12;
  EXPECT_ANY_THROW(NormHeadRows(params, nullptr));
}

}  // namespace
}  // namespace outrider::cuda
