// Projections of every head by a matrix of its own against the reference table of CPU kernels, and
// the equality of a token's bits for every number of tokens. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/head_projection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode_reference.h"

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

INSTANTIATE_TEST_SUITE_P(Hopper, HeadProjection,
                         ::testing::Values(Shape{16, 128, 512}, Shape{16, 512, 128},
                                           Shape{128, 128, 512}, Shape{128, 512, 128},
                                           Shape{3, 96, 32}),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return "heads" + std::to_string(shape.param.heads) + "k" +
                                  std::to_string(shape.param.k) + "n" +
                                  std::to_string(shape.param.n);
                         });

TEST(HeadProjectionArguments, AreChecked) {
  HeadProjectionParams params;
  params.heads = 16;
  params.k = 100;
  params.n = 128;
  EXPECT_EQ(ProjectHeads(params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace outrider::cuda
