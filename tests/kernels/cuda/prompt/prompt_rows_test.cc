// The rows of a prompt before its attention against the reference table of CPU kernels. Needs a GPU
// of compute capability 9.0.
#include "outrider/kernels/cuda/prompt/prompt_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

class PromptRowsTest : public HopperTest<> {
 protected:
  std::mt19937 random_{81};
  ThreadPool pool_{1};
};

TEST_F(PromptRowsTest, LatentRowsComeBackFromThePages) {
  constexpr int kPage = 16;
  constexpr int kPages = 30;
  constexpr int kStride = kPage * 576 + 3 * 128 + 16;              // numbers from page to page
  const std::vector<int32_t> starts = {0, 1, 202, 218, 219, 330};  // of five prompts
  const int rows = starts.back();
  const auto prompts = static_cast<int>(starts.size()) - 1;
  const std::vector<uint16_t> bf16 = NormalBf16(random_, size_t{kPages} * kStride);
  std::vector<int32_t> tables(static_cast<size_t>(prompts) * kPages);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i * 7 % kPages);
  std::vector<uint8_t> codes(bf16.size());
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random_());
    if ((code & 0x7F) == 0x7F) code = 0;  // NaN
  }
  const float scale = 0.037F;
  const DeviceArray<uint16_t> d_bf16(bf16);
  const DeviceArray<uint8_t> d_codes(codes);
  const DeviceArray<int32_t> d_tables(tables), d_starts(starts);
  for (const bool e4m3 : {false, true}) {
    const DeviceArray<uint16_t> latent(size_t{1} * (rows + 1) * 512),
        rope(size_t{1} * (rows + 1) * 64);
    CudaOk(
        GatherLatentRows({.num_prompts = prompts,
                          .num_rows = rows,
                          .key_start_loc = d_starts.data(),
                          .block_tables = d_tables.data(),
                          .block_table_stride = kPages,
                          .page_size = kPage,
                          .page_stride = kStride * (e4m3 ? 1 : 2),
                          .cache = e4m3 ? static_cast<const void*>(d_codes.data()) : d_bf16.data(),
                          .cache_type = e4m3 ? MlaCacheType::kE4m3 : MlaCacheType::kBf16,
                          .cache_scale = e4m3 ? scale : 1.0F,
                          .latent = latent.data(),
                          .rope = rope.data()},
                         nullptr),
        "GatherLatentRows");
    // Values as the cache holds them.
    std::vector<float> values = ToFloats(bf16);
    if (e4m3) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = RoundToBFloat16(E4m3ToFloat(codes[i]) * scale);
      }
    }
    std::vector<float> wanted_latent(size_t{1} * rows * 512), wanted_rope(size_t{1} * rows * 64);
    for (int prompt = 0; prompt < prompts; ++prompt) {
      const int first = starts[prompt], count = starts[prompt + 1] - first;
      CpuReference().gather_latent(pool_,
                                   {.data = reinterpret_cast<std::byte*>(values.data()),
                                    .dtype = DType::kF32,
                                    .block_size = kPage,
                                    .width = 576,
                                    .block_stride = kStride},
                                   tables.data() + size_t{kPages} * prompt, 0,
                                   {wanted_latent.data() + size_t{512} * first, count, 512},
                                   {wanted_rope.data() + size_t{64} * first, count, 64});
    }
    const std::vector<uint16_t> got_latent = latent.Download(), got_rope = rope.Download();
    for (size_t i = 0; i < got_latent.size(); ++i) {
      ASSERT_EQ(got_latent[i],
                i < wanted_latent.size() ? FloatToBf16(wanted_latent[i]) : uint16_t{0xFFFF})
          << "latent " << i << (e4m3 ? " e4m3" : " bf16");
    }
    for (size_t i = 0; i < got_rope.size(); ++i) {
      ASSERT_EQ(got_rope[i],
                i < wanted_rope.size() ? FloatToBf16(wanted_rope[i]) : uint16_t{0xFFFF})
          << "rope " << i << (e4m3 ? " e4m3" : " bf16");
    }
  }
}

TEST_F(PromptRowsTest, PromptsBeginWhereTheirRowsDo) {
  const std::vector<int32_t> queries = {0, 3, 4, 300}, keys = {0, 3, 50, 700};
  const DeviceArray<int32_t> d_queries(queries), d_keys(keys);
  for (const int plan : {3, 4, 300}) {
    const DeviceArray<int32_t> lengths(size_t{2} * plan + 1);
    const DeviceArray<int64_t> offsets(size_t{4} * (plan + 1) + 1);
    CudaOk(MakePromptOffsets({.num_prompts = 3,
                              .plan_prompts = plan,
                              .query_start_loc = d_queries.data(),
                              .key_start_loc = d_keys.data(),
                              .q_stride = 1'000'000'000,
                              .k_stride = 10,
                              .v_stride = 100,
                              .out_stride = 7,
                              .lengths = lengths.data(),
                              .offsets = offsets.data()},
                             nullptr),
           "MakePromptOffsets");
    const std::vector<int32_t> got = lengths.Download();
    const std::vector<int64_t> begins = offsets.Download();
    for (int i = 0; i <= plan; ++i) {
      const int at = std::min(i, 3), next = std::min(i + 1, 3);
      if (i < plan) {
        EXPECT_EQ(got[i], queries[next] - queries[at]) << i;
        EXPECT_EQ(got[plan + i], keys[next] - keys[at]) << i;
      }
      EXPECT_EQ(begins[i], queries[at] * int64_t{1'000'000'000}) << i;
      EXPECT_EQ(begins[plan + 1 + i], keys[at] * 10) << i;
      EXPECT_EQ(begins[2 * (plan + 1) + i], keys[at] * 100) << i;
      EXPECT_EQ(begins[3 * (plan + 1) + i], queries[at] * 7) << i;
    }
    EXPECT_EQ(got.back(), -1);
    EXPECT_EQ(begins.back(), -1);
  }
}

TEST_F(PromptRowsTest, KeysJoinTheirPartsAndPaddingIsZero) {
  constexpr int kRows = 9;
  constexpr int kPadded = 13;
  for (const auto& [heads, nope, value] :
       {std::array{16, 128, 128}, std::array{20, 192, 256}, std::array{3, 64, 64}}) {
    const size_t kv_width = static_cast<size_t>(heads) * (nope + value);
    const size_t k_width = static_cast<size_t>(heads) * (nope + 64);
    const std::vector<uint16_t> kv = NormalBf16(random_, (kPadded + 1) * kv_width);
    const std::vector<uint16_t> rope = NormalBf16(random_, size_t{kRows} * 64);
    const DeviceArray<uint16_t> d_kv(kv), d_rope(rope), d_k((kPadded + 1) * k_width);
    CudaOk(MakePromptKeys({.num_rows = kRows,
                           .padded_rows = kPadded,
                           .heads = heads,
                           .nope = nope,
                           .value = value,
                           .kv = d_kv.data(),
                           .rope = d_rope.data(),
                           .k = d_k.data()},
                          nullptr),
           "MakePromptKeys");
    const std::vector<uint16_t> k = d_k.Download(), kv_after = d_kv.Download();
    for (int row = 0; row <= kPadded; ++row) {
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < nope + 64; ++i) {
          const uint16_t wanted =
              row == kPadded ? uint16_t{0xFFFF}
              : row >= kRows ? uint16_t{0}
              : i < nope     ? kv[row * kv_width + static_cast<size_t>(head) * (nope + value) + i]
                             : rope[static_cast<size_t>(row) * 64 + i - nope];
          ASSERT_EQ(k[row * k_width + static_cast<size_t>(head) * (nope + 64) + i], wanted)
              << "row " << row << " head " << head << " column " << i;
        }
      }
    }
    for (size_t i = 0; i < kv.size(); ++i) {
      const bool padding = i / kv_width >= kRows && i / kv_width < kPadded;
      ASSERT_EQ(kv_after[i], padding ? uint16_t{0} : kv[i]) << "kv " << i;
    }
  }
}

TEST_F(PromptRowsTest, RotationMatchesTheCpuReference) {
  constexpr int kRows = 21;
  constexpr int kHeads = 5;
  constexpr int kWidth = 192;
  constexpr int kOffset = 128;
  const std::vector<uint16_t> x = NormalBf16(random_, size_t{kRows} * kHeads * kWidth);
  const std::vector<float> cos = NormalFloats(random_, size_t{50} * 32),
                           sin = NormalFloats(random_, size_t{50} * 32);
  std::vector<int32_t> positions(kRows);
  std::vector<float> row_cos, row_sin;
  for (int row = 0; row < kRows; ++row) {
    positions[row] = row * 11 % 50;
    const int64_t at = positions[row] * 32;
    row_cos.insert(row_cos.end(), cos.begin() + at, cos.begin() + at + 32);
    row_sin.insert(row_sin.end(), sin.begin() + at, sin.begin() + at + 32);
  }
  const DeviceArray<float> d_cos(cos), d_sin(sin);
  const DeviceArray<int32_t> d_positions(positions);
  for (const bool interleaved : {true, false}) {
    const DeviceArray<uint16_t> d_x(x);
    CudaOk(RotateRows({.num_rows = kRows,
                       .heads = kHeads,
                       .width = kWidth,
                       .offset = kOffset,
                       .x = d_x.data(),
                       .rotary = {.cos = d_cos.data(),
                                  .sin = d_sin.data(),
                                  .positions = d_positions.data(),
                                  .interleaved = interleaved}},
                      nullptr),
           "RotateRows");
    std::vector<float> wanted = ToFloats(x);
    CpuReference().rotate(pool_, {wanted.data(), kRows, kHeads * kWidth}, kHeads, kWidth, kOffset,
                          {.cos = {row_cos.data(), kRows, 32},
                           .sin = {row_sin.data(), kRows, 32},
                           .interleaved = interleaved});
    const std::vector<uint16_t> got = d_x.Download();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(Bf16ToFloat(got[i]), wanted[i], std::abs(wanted[i]) / 255 + 1e-6) << i;
    }
    // Rows with others' columns between them.
    constexpr int kDense = kHeads * kWidth;
    constexpr int kStride = kDense + 576;
    std::vector<uint16_t> apart(size_t{kRows} * kStride, 0xABCD);
    for (int row = 0; row < kRows; ++row) {
      std::copy_n(x.begin() + row * kDense, kDense, apart.begin() + row * kStride);
    }
    const DeviceArray<uint16_t> d_apart(apart);
    CudaOk(RotateRows({.num_rows = kRows,
                       .heads = kHeads,
                       .width = kWidth,
                       .offset = kOffset,
                       .row_stride = kStride,
                       .x = d_apart.data(),
                       .rotary = {.cos = d_cos.data(),
                                  .sin = d_sin.data(),
                                  .positions = d_positions.data(),
                                  .interleaved = interleaved}},
                      nullptr),
           "RotateRows");
    const std::vector<uint16_t> rotated = d_apart.Download();
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kStride; ++i) {
        ASSERT_EQ(rotated[row * kStride + i], i < kDense ? got[row * kDense + i] : 0xABCD)
            << "row " << row << " column " << i;
      }
    }
  }
}

TEST(PromptRowsArguments, AreRefusedWithWhatWouldBeRight) {
  EXPECT_THROW(static_cast<void>(GatherLatentRows({.num_prompts = 0}, nullptr)), Error);
  EXPECT_THROW(static_cast<void>(GatherLatentRows({.num_prompts = 1, .num_rows = -1}, nullptr)),
               Error);
  EXPECT_THROW(static_cast<void>(
                   GatherLatentRows({.num_prompts = 1, .num_rows = 1, .page_size = 0}, nullptr)),
               Error);
  for (const int64_t stride : {16 * 1152 - 16, 16 * 1152 + 8}) {
    const LatentGatherParams params = {.num_prompts = 1, .page_size = 16, .page_stride = stride};
    EXPECT_THROW(static_cast<void>(GatherLatentRows(params, nullptr)), Error) << stride;
  }
  EXPECT_THROW(static_cast<void>(MakePromptOffsets({.num_prompts = 2, .plan_prompts = 1}, nullptr)),
               Error);
  EXPECT_THROW(static_cast<void>(MakePromptKeys({.num_rows = 2, .padded_rows = 1}, nullptr)),
               Error);
  EXPECT_THROW(static_cast<void>(MakePromptKeys(
                   {.num_rows = 1, .padded_rows = 1, .heads = 1, .nope = 12, .value = 8}, nullptr)),
               Error);
  RotationParams rotation;
  rotation.num_rows = rotation.heads = 1;
  rotation.width = 100;
  rotation.offset = 64;
  EXPECT_THROW(static_cast<void>(RotateRows(rotation, nullptr)), Error);
  rotation.width = 128;
  rotation.row_stride = 120;
  EXPECT_THROW(static_cast<void>(RotateRows(rotation, nullptr)), Error);
}

}  // namespace
}  // namespace outrider::cuda
