// The noise and the order of the token race have the same bits on a GPU as on the host, so both
// draw the same tokens. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "outrider/base/gumbel_noise.h"
#include "outrider/base/token_order.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sampling/token_race_kernels.h"

namespace outrider::cuda {
namespace {

using TokenRaceTest = HopperTest<>;

TEST_F(TokenRaceTest, NoiseHasTheHostsBits) {
  std::vector<uint32_t> words;
  for (uint64_t word = 0; word < (uint64_t{1} << 32); word += 257) {
    words.push_back(static_cast<uint32_t>(word));
  }
  for (uint32_t i = 0; i < 1000000; ++i) words.insert(words.end(), {i, ~i, 0x3FF80000 + i});
  const std::vector<uint32_t> noise = DeviceNoise(words);
  for (size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(noise[2 * i], FloatBits(Gumbel(words[i]))) << words[i];
    ASSERT_EQ(noise[2 * i + 1], FloatBits(GumbelBound(words[i]))) << words[i];
  }
}

TEST_F(TokenRaceTest, OrderWeightsAndLimitsHaveTheHostsBits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> xs = {0.0F,      -0.0F,      1e-45F, -1e-45F, 1.0F,         -1.0F,
                           kInfinity, -kInfinity, 3e38F,  -3e38F,  std::nanf("")};
  for (float x = 0; x > -30; x -= 1e-5F) xs.push_back(x);
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) xs.push_back(BitsFloat(static_cast<uint32_t>(random())));
  const std::vector<uint64_t> order = DeviceOrder(xs);
  for (size_t i = 0; i < xs.size(); ++i) {
    const float x = xs[i];
    const uint64_t key = TokenKey(x, static_cast<int32_t>(i));
    const float fraction = std::abs(x) <= 1 ? std::abs(x) : 1.0F;
    ASSERT_EQ(order[4 * i], key) << x;
    ASSERT_EQ(order[4 * i + 1], TokenWeight(x > 0 ? 0.0F : x)) << x;
    ASSERT_EQ(order[4 * i + 2], MinPWeight(fraction)) << x;
    ASSERT_EQ(order[4 * i + 3], TopPLimit(key, fraction)) << x;
  }
}

TEST_F(TokenRaceTest, WordsAndTemperaturesHaveTheHostsBits) {
  constexpr int32_t kTokens = 154880;
  const uint64_t seed = 0x0123456789ABCDEF;
  const std::vector<uint32_t> bits = DeviceBits(seed, 70000, kTokens);
  for (int32_t token = 0; token < kTokens; ++token) {
    ASSERT_EQ(bits[static_cast<size_t>(token)],
              GumbelBits(seed, 70000, RandomStream::kTarget, token))
        << token;
  }
  std::vector<float> temperatures = {1e-45F, 1e-38F, 1e-5F, 0x1p-16F};
  for (float t = 0.001F; t <= 2; t += 0.0001F) temperatures.push_back(t);
  const std::vector<uint32_t> inverses = DeviceInverseTemperatures(temperatures);
  for (size_t i = 0; i < temperatures.size(); ++i) {
    ASSERT_EQ(inverses[i], FloatBits(InverseTemperature(temperatures[i]))) << temperatures[i];
  }
}

}  // namespace
}  // namespace outrider::cuda
