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

}  // namespace
}  // namespace outrider
