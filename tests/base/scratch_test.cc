#include "outrider/base/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {
namespace {

TEST(ScratchTest, EveryPieceCanBeReadAsFarAsTheReach) {
  constexpr size_t kReach = size_t{3} << 20;
  std::vector<std::pair<std::byte*, size_t>> chunks;
  Scratch scratch(
      [&](size_t bytes) {
        Buffer buffer(bytes);
        chunks.emplace_back(buffer.data(), buffer.size());
        return buffer;
      },
      kReach);
  const auto check = [&](const std::byte* piece, size_t bytes) {
    for (const auto& [begin, size] : chunks) {
      if (piece < begin || piece >= begin + size) continue;
      EXPECT_LE(piece + bytes + kReach, begin + size);
      return;
    }
    ADD_FAILURE() << "a piece of no chunk";
  };
  for (int round = 0; round < 2; ++round) {
    const Scratch::Frame frame(scratch);
    for (const size_t bytes : {size_t{1}, size_t{100}, size_t{5} << 20, size_t{64}, kReach,
                               size_t{9} << 20, size_t{1} << 20}) {
      check(scratch.Take<std::byte>(static_cast<int64_t>(bytes)), bytes);
    }
  }
}

TEST(ScratchTest, FitHoldsWhatWasTakenAtATimeInOnePiece) {
  constexpr size_t kReach = 4096;
  std::vector<size_t> chunks;
  Scratch scratch(
      [&](size_t bytes) {
        chunks.push_back(bytes);
        return Buffer(bytes);
      },
      kReach);
  const auto step = [&] {
    const Scratch::Frame frame(scratch);
    scratch.Take<std::byte>(int64_t{700} << 10);
    for (int i = 0; i < 3; ++i) {
      const Scratch::Frame inner(scratch);
      scratch.Take<std::byte>(int64_t{900} << 10);
      scratch.Take<std::byte>(int64_t{i + 1} << 20);
    }
  };
  step();
  EXPECT_GT(chunks.size(), 1);
  chunks.clear();
  scratch.Fit();
  const size_t most = (size_t{700 + 900} << 10) + (size_t{3} << 20);
  EXPECT_EQ(chunks, std::vector{most + kReach});
  EXPECT_EQ(scratch.capacity(), most + kReach);
  step();
  EXPECT_EQ(chunks.size(), 1);
}

TEST(ScratchTest, WhatGrowsHoldsLittleMoreThanItNeeds) {
  Scratch scratch([](size_t bytes) { return Buffer(bytes); });
  const Scratch::Frame frame(scratch);
  scratch.Take<std::byte>(int64_t{1} << 30);
  scratch.Take<std::byte>(1);
  EXPECT_LE(scratch.capacity(), (size_t{1} << 30) + (size_t{256} << 20));
}

}  // namespace
}  // namespace outrider
