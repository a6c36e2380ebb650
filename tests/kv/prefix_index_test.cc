#include "outrider/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace outrider {
namespace {

/// A key whose hash is `home`, told apart by `tag`.
BlockKey Key(uint8_t home, uint8_t tag) {
  BlockKey key{};
  key[0] = home;
  key[31] = tag;
  return key;
}

TEST(PrefixIndexTest, OneBlockPerKeyAndOneKeyPerBlock) {
  PrefixIndex index(4);
  EXPECT_FALSE(index.Find(Key(1, 1)).has_value());
  EXPECT_TRUE(index.Insert(Key(1, 1), 2));
  EXPECT_FALSE(index.Insert(Key(1, 1), 3));
  EXPECT_FALSE(index.Insert(Key(1, 2), 2));
  EXPECT_EQ(index.Find(Key(1, 1)), 2);
  EXPECT_TRUE(index.Holds(2));
  EXPECT_FALSE(index.Holds(3));
  index.Erase(2);
  EXPECT_FALSE(index.Find(Key(1, 1)).has_value());
  EXPECT_TRUE(index.Insert(Key(1, 1), 3));
}

TEST(PrefixIndexTest, BehavesAsAMapWhateverCollides) {
  constexpr int32_t kBlocks = 8;
  PrefixIndex index(kBlocks);
  std::map<BlockKey, int32_t> expected;
  std::mt19937 random(5);
  for (int step = 0; step < 20000; ++step) {
    const BlockKey key =
        Key(static_cast<uint8_t>(13 + random() % 4), static_cast<uint8_t>(random() % 8));
    const auto block = static_cast<int32_t>(random() % kBlocks);
    const bool holds = std::any_of(expected.begin(), expected.end(),
                                   [&](const auto& entry) { return entry.second == block; });
    ASSERT_EQ(index.Holds(block), holds);
    if (holds && random() % 2 == 0) {
      index.Erase(block);
      std::erase_if(expected, [&](const auto& entry) { return entry.second == block; });
    } else {
      const bool fits = !holds && !expected.contains(key);
      ASSERT_EQ(index.Insert(key, block), fits);
      if (fits) expected[key] = block;
    }
    for (uint8_t home = 13; home < 17; ++home) {
      for (uint8_t tag = 0; tag < 8; ++tag) {
        const auto it = expected.find(Key(home, tag));
        ASSERT_EQ(index.Find(Key(home, tag)),
                  it == expected.end() ? std::nullopt : std::optional(it->second));
      }
    }
  }
}

}  // namespace
}  // namespace outrider
