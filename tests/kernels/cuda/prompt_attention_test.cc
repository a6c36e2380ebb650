// Attention of prompts through cuDNN against the reference table of CPU kernels, and the equality
// of a row's bits however a prompt is cut. Needs a GPU of compute capability 9.0 and cuDNN.
#include "outrider/kernels/cuda/prompt_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct Shape {
  int heads;
  int nope;
  int value;
};

class PromptAttentionTest : public HopperTest<::testing::TestWithParam<Shape>> {
 protected:
  static constexpr int kRope = 64;
  static constexpr int kKeys = 700;
  static constexpr int kRoom = 4096;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    const auto [heads, nope, value] = GetParam();
    width_ = nope + kRope;
    scale_ = 1.0F / std::sqrt(static_cast<float>(width_));
    try {
      attention_ = std::make_unique<PromptAttention>(PromptAttentionShape{.heads = heads,
                                                                          .key_width = width_,
                                                                          .value_width = value,
                                                                          .scale = scale_,
                                                                          .max_queries = 2048,
                                                                          .max_keys = kRoom});
    } catch (const Error& error) {
      if (std::string(error.what()).find("was not found") != std::string::npos) {
        GTEST_SKIP() << error.what();
      }
      throw;
    }
    // Keys: every head's own part, then the rotated part that all share.
    const std::vector<uint16_t> own = NormalBf16(random_, size_t{kKeys} * heads * nope);
    rope_ = NormalBf16(random_, size_t{kKeys} * kRope);
    std::vector<uint16_t> k;
    for (int row = 0; row < kKeys; ++row) {
      for (int head = 0; head < heads; ++head) {
        const auto at = own.begin() + (static_cast<int64_t>(row) * heads + head) * nope;
        k.insert(k.end(), at, at + nope);
        k.insert(k.end(), rope_.begin() + row * kRope, rope_.begin() + (row + 1) * kRope);
      }
    }
    q_ = NormalBf16(random_, size_t{kKeys} * heads * width_);
    // Values lie beside the keys' own parts, as a product leaves them.
    kv_.resize(size_t{kKeys} * heads * (nope + value));
    const std::vector<uint16_t> v = NormalBf16(random_, size_t{kKeys} * heads * value);
    for (size_t i = 0; i < size_t{kKeys} * heads; ++i) {
      std::copy_n(own.begin() + i * nope, nope, kv_.begin() + i * (nope + value));
      std::copy_n(v.begin() + i * value, value, kv_.begin() + i * (nope + value) + nope);
    }
    d_q_ = Roomy(q_, size_t{1} * heads * width_);
    d_k_ = Roomy(k, size_t{1} * heads * width_);
    d_kv_ = Roomy(kv_, size_t{1} * heads * (nope + value));
  }

  static DeviceArray<uint16_t> Roomy(std::vector<uint16_t> values, size_t row) {
    values.resize(kRoom * row, 0);
    return DeviceArray<uint16_t>(values);
  }

  /// Rows begin .. end - 1 of a prompt of `end` tokens.
  std::vector<uint16_t> Run(int begin, int end, int replays = 0) {
    const auto [heads, nope, value] = GetParam();
    DeviceArray<uint16_t> out(size_t{kRoom} * heads * value);
    const PromptAttentionParams params = {
        .num_queries = end - begin,
        .num_keys = end,
        .q = d_q_.data() + size_t{1} * begin * heads * width_,
        .k = d_k_.data(),
        .v = d_kv_.data() + nope,
        .v_row_stride = static_cast<int64_t>(heads) * (nope + value),
        .v_head_stride = nope + value,
        .out = out.data()};
    if (replays > 0) {
      ReplayAsGraph([&](cudaStream_t stream) { attention_->Run(params, stream); }, replays);
    } else {
      attention_->Run(params, nullptr);
      CudaOk(cudaDeviceSynchronize(), "run");
    }
    std::vector<uint16_t> rows = out.Download();
    rows.resize(static_cast<size_t>(end - begin) * heads * value);
    return rows;
  }

  std::mt19937 random_{61};
  int width_ = 0;
  float scale_ = 0;
  std::unique_ptr<PromptAttention> attention_;
  std::vector<uint16_t> q_, kv_, rope_;
  DeviceArray<uint16_t> d_q_, d_k_, d_kv_;
};

TEST_P(PromptAttentionTest, MatchesTheCpuReference) {
  const auto [heads, nope, value] = GetParam();
  const std::vector<uint16_t> got = Run(0, kKeys);
  const std::vector<float> q = ToFloats(q_), kv = ToFloats(kv_), rope = ToFloats(rope_);
  std::vector<ExpandedBlock> blocks;
  for (int key = 0; key < kKeys; key += kExpandedBlock) {
    blocks.push_back({.request = {.query_length = kKeys},
                      .first_key = key,
                      .num_keys = std::min(kExpandedBlock, kKeys - key),
                      .kv_row = key});
  }
  std::vector<float> out(size_t{kKeys} * heads * value), maximum(size_t{kKeys} * heads),
      sum(maximum.size());
  ThreadPool pool(4);
  CpuReference().expanded_attention(pool, {.q = {q.data(), kKeys, heads * width_},
                                           .heads = heads,
                                           .nope = nope,
                                           .rope = kRope,
                                           .value = value,
                                           .scale = scale_,
                                           .kv = {kv.data(), kKeys, heads * (nope + value)},
                                           .k_rope = {rope.data(), kKeys, kRope},
                                           .blocks = blocks,
                                           .out = {out.data(), kKeys, heads * value},
                                           .running_max = {maximum.data(), kKeys, heads},
                                           .running_sum = {sum.data(), kKeys, heads}});
  for (size_t i = 0; i < sum.size(); ++i) {
    double difference = 0, norm = 0;
    for (int d = 0; d < value; ++d) {
      const double wanted = out[i * value + d] / sum[i];
      const double delta = Bf16ToFloat(got[i * value + d]) - wanted;
      difference += delta * delta;
      norm += wanted * wanted;
    }
    ASSERT_LT(std::sqrt(difference / norm), 8e-3) << "row " << i / heads << " head " << i % heads;
  }
}

TEST_P(PromptAttentionTest, BitsDoNotDependOnHowAPromptIsCut) {
  const auto [heads, nope, value] = GetParam();
  const std::vector<uint16_t> whole = Run(0, kKeys);
  const auto row = static_cast<int64_t>(heads) * value;
  auto compare = [&](int begin, int end) {
    const std::vector<uint16_t> piece = Run(begin, end);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + begin * row))
        << "rows " << begin << " to " << end;
  };
  for (const int cut : {1, 2, 63, 64, 127, 128, 129, 200, 256, 300, 512, 513, 640, 699}) {
    compare(0, cut);
    compare(cut, kKeys);
    compare(cut - 1, cut);
  }
  EXPECT_EQ(Run(0, kKeys, /*replays=*/3), whole);
}

// Queries as a product of queries and latents leaves them.
TEST_P(PromptAttentionTest, QueriesMayLieApart) {
  const auto [heads, nope, value] = GetParam();
  const size_t dense = size_t{1} * heads * width_;
  const size_t stride = dense + 576;
  std::vector<uint16_t> apart(size_t{kRoom} * stride, 0x3F80);
  for (int row = 0; row < kKeys; ++row) {
    std::copy_n(q_.begin() + row * dense, dense, apart.begin() + row * stride);
  }
  const DeviceArray<uint16_t> d_apart(apart), out(size_t{kRoom} * heads * value);
  attention_->Run({.num_queries = kKeys,
                   .num_keys = kKeys,
                   .q = d_apart.data(),
                   .q_row_stride = static_cast<int64_t>(stride),
                   .k = d_k_.data(),
                   .v = d_kv_.data() + nope,
                   .v_row_stride = static_cast<int64_t>(heads) * (nope + value),
                   .v_head_stride = nope + value,
                   .out = out.data()},
                  nullptr);
  CudaOk(cudaDeviceSynchronize(), "run");
  std::vector<uint16_t> got = out.Download();
  got.resize(size_t{kKeys} * heads * value);
  EXPECT_EQ(got, Run(0, kKeys));
}

// Plans of other sizes are compared with the first when they are made.
TEST_P(PromptAttentionTest, LargerPlansGiveTheSameBits) {
  const auto [heads, nope, value] = GetParam();
  const DeviceArray<uint16_t> out(size_t{kRoom} * heads * value);
  for (const auto& [queries, keys] :
       {std::pair(1, 3000), std::pair(600, 1500), std::pair(2000, 4000)}) {
    attention_->Run({.num_queries = queries,
                     .num_keys = keys,
                     .q = d_q_.data(),
                     .k = d_k_.data(),
                     .v = d_kv_.data() + nope,
                     .v_row_stride = static_cast<int64_t>(heads) * (nope + value),
                     .v_head_stride = nope + value,
                     .out = out.data()},
                    nullptr);
    CudaOk(cudaDeviceSynchronize(), "run");
  }
}

TEST_P(PromptAttentionTest, RefusesWhatItCannotDo) {
  PromptAttentionParams params = {.num_queries = 10, .num_keys = 9};
  EXPECT_THROW(attention_->Run(params, nullptr), Error);
  params = {.num_queries = 3000, .num_keys = 3000};
  EXPECT_THROW(attention_->Run(params, nullptr), Error);
  params = {.num_queries = 1, .num_keys = 1, .q_row_stride = 8};
  EXPECT_THROW(attention_->Run(params, nullptr), Error);
  params = {.num_queries = 1, .num_keys = 1, .v_row_stride = 7};
  EXPECT_THROW(attention_->Run(params, nullptr), Error);
}

INSTANTIATE_TEST_SUITE_P(Hopper, PromptAttentionTest,
                         ::testing::Values(Shape{16, 128, 128}, Shape{20, 192, 256},
                                           Shape{8, 64, 64}),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return "heads" + std::to_string(shape.param.heads) + "width" +
                                  std::to_string(shape.param.nope + 64) + "value" +
                                  std::to_string(shape.param.value);
                         });

}  // namespace
}  // namespace outrider::cuda
