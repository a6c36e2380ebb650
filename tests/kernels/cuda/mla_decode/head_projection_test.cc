// Projections of every head by a matrix of its own against the reference table of CPU kernels, and
// the equality of a token's bits for every number of tokens. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/mla_decode/head_projection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {
namespace {

struct Shape {
  int heads;
  int k;
  int n;
};

class HeadProjection : public HopperTest<::testing::TestWithParam<Shape>> {
 protected:
  std::vector<uint16_t> Noise(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = FloatToBf16(normal(random_));
    return values;
  }

  std::mt19937 random_{9};
};

TEST_P(HeadProjection, MatchesTheCpuReferenceAndKeepsBits) {
  const auto [heads, k, n] = GetParam();
  constexpr int kTokens = 300;
  constexpr int kPad = 64;  // between the heads of x and of y
  const std::vector<uint16_t> x = Noise(static_cast<size_t>(kTokens) * heads * (k + kPad));
  const std::vector<uint16_t> w = Noise(static_cast<size_t>(heads) * n * k);
  const DeviceArray<uint16_t> d_x(x), d_w(w);
  const size_t y_token = static_cast<size_t>(heads) * (n + kPad);
  auto run = [&](int first, int tokens) {
    DeviceArray<uint16_t> d_y(y_token * tokens);
    HeadProjectionParams params;
    params.num_tokens = tokens;
    params.heads = heads;
    params.k = k;
    params.n = n;
    params.x_head_stride = k + kPad;
    params.x_token_stride = static_cast<int64_t>(heads) * (k + kPad);
    params.x = d_x.data() + first * params.x_token_stride;
    params.w = d_w.data();
    params.y = d_y.data();
    params.y_head_stride = n + kPad;
    params.y_token_stride = static_cast<int64_t>(y_token);
    CudaOk(ProjectHeads(params, nullptr), "ProjectHeads");
    CudaOk(cudaDeviceSynchronize(), "run");
    return d_y.Download();
  };
  const std::vector<uint16_t> all = run(0, kTokens);
  const std::vector<float> x_floats = ToFloats(x), got = ToFloats(all);
  ThreadPool pool(1);
  for (int head : {0, heads / 2, heads - 1}) {
    const PackedBf16 head_w(std::span<const uint16_t>(w).subspan(static_cast<size_t>(head) * n * k,
                                                                 static_cast<size_t>(n) * k),
                            n, k);
    std::vector<float> expected(static_cast<size_t>(kTokens) * n);
    const int64_t x_stride = static_cast<int64_t>(heads) * (k + kPad);
    const MatMulJob job = {.x = {x_floats.data() + head * (k + kPad), kTokens, k, x_stride},
                           .w = &head_w.matrix(),
                           .y = {expected.data(), kTokens, n}};
    CpuReference().matmul(pool, {&job, 1}, DType::kBF16);
    for (int token = 0; token < kTokens; ++token) {
      double difference = 0, norm = 0;
      for (int column = 0; column < n; ++column) {
        const double wanted = expected[static_cast<size_t>(token) * n + column];
        const double delta = got[token * y_token + head * (n + kPad) + column] - wanted;
        difference += delta * delta;
        norm += wanted * wanted;
      }
      ASSERT_LT(std::sqrt(difference / norm), 4e-3) << "token " << token << " head " << head;
    }
  }
  // What lies between the heads stays as it was.
  for (int i = 0; i < kPad; ++i) ASSERT_EQ(all[n + i], 0xFFFF);
  for (int tokens : {1, 2, 7, 8, 16, 17, 33, 64, 65, 128, 129, 257}) {
    for (int first : {0, 5, kTokens - tokens}) {
      const std::vector<uint16_t> some = run(first, tokens);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * y_token))
          << tokens << " tokens from " << first;
    }
  }
}

// The rotary part of the queries goes with the absorption; fewer rows than the launch was made for.
TEST_P(HeadProjection, RotatesWhatFollows) {
  const auto [heads, k, n] = GetParam();
  constexpr int kTokens = 70;
  constexpr int kPositions = 50;
  const size_t x_token = static_cast<size_t>(heads) * (k + 64);
  const size_t y_token = static_cast<size_t>(heads) * (n + 64);
  const std::vector<uint16_t> x = Noise(x_token * kTokens);
  const std::vector<uint16_t> w = Noise(static_cast<size_t>(heads) * n * k);
  std::vector<float> cos, sin;
  std::vector<int32_t> positions;
  for (int i = 0; i < kPositions * 32; ++i) {
    cos.push_back(std::cos(0.37f * static_cast<float>(i)));
    sin.push_back(std::sin(0.37f * static_cast<float>(i)));
  }
  for (int i = 0; i < kTokens; ++i) positions.push_back(i * 17 % kPositions);
  const DeviceArray<uint16_t> d_x(x), d_w(w);
  const DeviceArray<float> d_cos(cos), d_sin(sin);
  const DeviceArray<int32_t> d_positions(positions);
  for (const bool interleaved : {true, false}) {
    auto run = [&](int tokens, bool rotates) {
      const DeviceArray<uint16_t> d_y(y_token * kTokens);
      const DeviceArray<int32_t> true_rows(std::vector<int32_t>{tokens});
      const RotaryTable rotary = {.cos = d_cos.data(),
                                  .sin = d_sin.data(),
                                  .positions = d_positions.data(),
                                  .interleaved = interleaved};
      HeadProjectionParams params;
      params.num_tokens = kTokens;
      params.true_rows = true_rows.data();
      params.heads = heads;
      params.k = k;
      params.n = n;
      params.x = d_x.data();
      params.x_head_stride = k + 64;
      params.x_token_stride = static_cast<int64_t>(x_token);
      params.w = d_w.data();
      params.y = d_y.data();
      params.y_head_stride = n + 64;
      params.y_token_stride = static_cast<int64_t>(y_token);
      params.rotary = rotates ? &rotary : nullptr;
      CudaOk(ProjectHeads(params, nullptr), "ProjectHeads");
      CudaOk(cudaDeviceSynchronize(), "run");
      return d_y.Download();
    };
    const std::vector<uint16_t> got = run(kTokens, true), plain = run(kTokens, false);
    std::vector<float> expected = ToFloats(x);
    std::vector<float> row_cos, row_sin;
    for (const int32_t position : positions) {
      row_cos.insert(row_cos.end(), cos.begin() + position * 32, cos.begin() + position * 32 + 32);
      row_sin.insert(row_sin.end(), sin.begin() + position * 32, sin.begin() + position * 32 + 32);
    }
    ThreadPool pool(1);
    CpuReference().rotate(pool, {expected.data(), kTokens, static_cast<int64_t>(x_token)}, heads,
                          k + 64, k,
                          {.cos = {row_cos.data(), kTokens, 32},
                           .sin = {row_sin.data(), kTokens, 32},
                           .interleaved = interleaved});
    for (int token = 0; token < kTokens; ++token) {
      for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < n + 64; ++i) {
          const size_t at = token * y_token + static_cast<size_t>(head) * (n + 64) + i;
          if (i < n) {
            ASSERT_EQ(got[at], plain[at]) << "token " << token << " head " << head;
            continue;
          }
          ASSERT_EQ(plain[at], 0xFFFF);
          const float wanted =
              expected[token * x_token + static_cast<size_t>(head) * (k + 64) + k + i - n];
          ASSERT_NEAR(Bf16ToFloat(got[at]), wanted, std::abs(wanted) / 255 + 1e-6)
              << "token " << token << " head " << head << " value " << i - n;
        }
      }
    }
    for (const int tokens : {0, 1, 19, 64}) {
      const std::vector<uint16_t> some = run(tokens, true);
      for (size_t i = 0; i < some.size(); ++i) {
        ASSERT_EQ(some[i], i < tokens * y_token ? got[i] : 0xFFFF)
            << tokens << " tokens, value " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hopper, HeadProjection,
                         ::testing::Values(Shape{16, 128, 512}, Shape{16, 512, 128},
                                           Shape{128, 128, 512}, Shape{128, 512, 128},
                                           Shape{20, 192, 512}, Shape{20, 512, 256},
                                           Shape{8, 64, 512}, Shape{8, 512, 64}, Shape{3, 96, 32}),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return "heads" + std::to_string(shape.param.heads) + "k" +
                                  std::to_string(shape.param.k) + "n" +
                                  std::to_string(shape.param.n);
                         });

TEST(HeadProjectionArguments, AreRefusedWithWhatWouldBeRight) {
  HeadProjectionParams params;
  params.num_tokens = 1;
  params.heads = 16;
  params.n = 128;
  for (const int k : {0, 100, 288, 1152}) {
    params.k = k;
    EXPECT_THROW(static_cast<void>(ProjectHeads(params, nullptr)), Error) << k;
  }
  params.k = 512;
  params.n = 100;
  EXPECT_THROW(static_cast<void>(ProjectHeads(params, nullptr)), Error);
  params.n = 128;
  params.x_token_stride = 4;
  EXPECT_THROW(static_cast<void>(ProjectHeads(params, nullptr)), Error);
}

}  // namespace
}  // namespace outrider::cuda
