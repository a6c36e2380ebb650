#include "outrider/base/gumbel_noise.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

namespace outrider {
namespace {

/// Words from all over the range, dense where the formula changes and at the ends.
std::vector<uint32_t> Words() {
  std::vector<uint32_t> words;
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += 4093) {
    words.push_back(static_cast<uint32_t>(i));
  }
  for (uint32_t i = 0; i < 100000; ++i) {
    words.insert(words.end(), {i, ~i, 0x40000000 - 50000 + i, 0x40000000 + i});
  }
  for (int bit = 1; bit < 32; ++bit) {  // where midpoints change their exponents
    for (uint32_t i = 0; i < 600; ++i) words.push_back((uint32_t{1} << bit) - 300 + i);
  }
  return words;
}

// What a seed gives is part of the contract: no change of the code, the compiler or the processor
// may change a bit.
TEST(GumbelNoiseTest, BitsAreWhatTheyWere) {
  const std::vector<std::array<uint32_t, 2>> pins = {
      {0x00000000, 0x41B6FDA9}, {0x00000001, 0x41AE33B3}, {0x00000002, 0x41AA1D88},
      {0x0000FFFF, 0x41317218}, {0x12345678, 0x4026D6B8}, {0x3FFFFFFF, 0x3F9F79A1},
      {0x40000000, 0x3F9F79A1}, {0x5E2D58D9, 0x3F47879C}, {0x80000000, 0x3EBBA795},
      {0xC0000000, 0xBEA73C9B}, {0xFFFFFF00, 0xC033F236}, {0xFFFFFFFF, 0xC04851D5}};
  for (const auto& [word, noise] : pins) EXPECT_EQ(FloatBits(Gumbel(word)), noise) << word;
  EXPECT_EQ(GumbelBits(0, 0, RandomStream::kTarget, 0), 0x6627E8D5U);
  EXPECT_EQ(GumbelBits(0, 0, RandomStream::kTarget, 8), 0xE169C58DU);
  EXPECT_EQ(GumbelBits(7, 5, RandomStream::kTarget, 31), 0xBE96FB34U);
  EXPECT_EQ(GumbelBits(7, 5, RandomStream::kTarget, 32), 0x8E871A8EU);
  EXPECT_EQ(GumbelBits(7, 5, RandomStream::kDraft, 32), 0x945E71B9U);
  EXPECT_EQ(GumbelBits(~uint64_t{0}, int64_t{1} << 33, RandomStream::kTarget, 154879), 0xDD496E9DU);
}

TEST(GumbelNoiseTest, IsTheLogarithmOfALogarithm) {
  for (const uint32_t word : Words()) {
    const double v = (word + 0.5) * 0x1p-32;
    ASSERT_NEAR(Gumbel(word), -std::log(-std::log1p(-v)), 0x1p-19) << word;
  }
}

TEST(GumbelNoiseTest, LogarithmIsExactToTwentyTwoBits) {
  for (float x = 0x1p-40F; x < 0x1p40F; x *= 1.00001F) {
    const double truth = std::log(static_cast<double>(x));
    ASSERT_LE(std::abs(RoundedLog(x) - truth), std::abs(truth) * 0x1p-22) << x;
  }
  EXPECT_EQ(RoundedLog(1.0F), 0.0F);
}

TEST(GumbelNoiseTest, BoundIsNeverBelowTheNoise) {
  for (const uint32_t word : Words()) ASSERT_GE(GumbelBound(word), Gumbel(word)) << word;
}

TEST(GumbelNoiseTest, EachTokenHasAWordOfItsOwn) {
  std::set<std::pair<uint32_t, uint32_t>> places;
  for (int32_t token = 0; token < 4096; ++token) {
    places.insert({GumbelBlock(token), GumbelWord(token)});
    const auto words = GumbelWords(3, 4, RandomStream::kTarget, GumbelBlock(token));
    ASSERT_EQ(GumbelBits(3, 4, RandomStream::kTarget, token), words[GumbelWord(token)]);
  }
  EXPECT_EQ(places.size(), 4096U);
  EXPECT_EQ(places.rbegin()->first, 1023U);  // no word is left out
}

TEST(GumbelNoiseTest, TinyTemperaturesCountAsTheLeast) {
  EXPECT_EQ(InverseTemperature(0.5F), 2.0F);
  EXPECT_EQ(InverseTemperature(0x1p-16F), 0x1p16F);
  EXPECT_EQ(InverseTemperature(1e-42F), 0x1p16F);
}

}  // namespace
}  // namespace outrider
