#include "outrider/kv/block_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace outrider {
namespace {

std::vector<int32_t> Tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

BlockKeys KeysOf(const std::vector<int32_t>& tokens, int32_t ahead, std::string_view salt = "") {
  BlockKeyHasher hasher(4, ahead);
  BlockKeys keys = hasher.Start(salt);
  hasher.Extend(tokens, keys);
  return keys;
}

TEST(BlockKeyTest, RootIsTheHashOfTheSalt) {
  // SHA-256 of nothing and of "abc" (FIPS 180-4).
  const BlockKey empty = KeysOf({}, 0).root;
  EXPECT_EQ(empty[0], 0xe3);
  EXPECT_EQ(empty[31], 0x55);
  const BlockKey abc = KeysOf({}, 0, "abc").root;
  EXPECT_EQ(abc[0], 0xba);
  EXPECT_EQ(abc[31], 0xad);
}

TEST(BlockKeyTest, CoversFullBlocksAndTheTokensAfterThem) {
  EXPECT_EQ(KeysOf(Tokens(7), 0).blocks.size(), 1U);
  EXPECT_EQ(KeysOf(Tokens(8), 0).blocks.size(), 2U);
  EXPECT_EQ(KeysOf(Tokens(8), 3).blocks.size(), 1U);
  EXPECT_EQ(KeysOf(Tokens(10), 3).blocks.size(), 1U);
  EXPECT_EQ(KeysOf(Tokens(11), 3).blocks.size(), 2U);
}

TEST(BlockKeyTest, ExtendingStepByStepGivesTheSameKeys) {
  const std::vector<int32_t> tokens = Tokens(30);
  BlockKeyHasher hasher(4, 2);
  BlockKeys keys = hasher.Start("salt");
  for (size_t n = 0; n <= tokens.size(); ++n) hasher.Extend(std::span(tokens).first(n), keys);
  EXPECT_EQ(keys.blocks, KeysOf(tokens, 2, "salt").blocks);
}

TEST(BlockKeyTest, DependsOnEverythingBeforeAndOnTheTokensAhead) {
  const std::vector<int32_t> tokens = Tokens(20);
  const BlockKeys keys = KeysOf(tokens, 3);
  ASSERT_EQ(keys.blocks.size(), 4U);
  for (size_t changed = 0; changed < tokens.size(); ++changed) {
    std::vector<int32_t> other = tokens;
    other[changed] += 1;
    const BlockKeys other_keys = KeysOf(other, 3);
    for (size_t b = 0; b < 4; ++b) {
      EXPECT_EQ(keys.blocks[b] == other_keys.blocks[b], changed >= b * 4 + 4 + 3) << changed;
    }
  }
  EXPECT_NE(keys.blocks[0], KeysOf(tokens, 3, "other").blocks[0]);
}

}  // namespace
}  // namespace outrider
