#include "outrider/draft/ngram_drafter.h"

#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

using Proposed = std::vector<TokenRef>;

Proposed Propose(const std::vector<int32_t>& tokens, int32_t k, int32_t min, int32_t max,
                 bool always = false) {
  NgramDrafter drafter(k, min, max);
  Proposed drafts(static_cast<size_t>(k), 9);
  const DraftRequest request{
      .tokens = tokens, .num_drafts = k, .always_drafts = always, .block_tables = {}};
  drafter.Propose({&request, 1}, k, {}, {drafts.data(), 1, k});
  return drafts;
}

TEST(NgramDrafterTest, ProposesWhatFollowedTheLongestMatch) {
  // 1 2 3 was followed by 4, 9 2 3 by 5: the longer match wins over the later one.
  EXPECT_EQ(Propose({1, 2, 3, 4, 8, 9, 2, 3, 5, 7, 1, 2, 3}, 2, 1, 5), (Proposed{4, 8}));
  // The latest of equally long ones.
  EXPECT_EQ(Propose({2, 3, 4, 8, 2, 3, 5, 7, 1, 2, 3}, 2, 1, 5), (Proposed{5, 7}));
  // With no more than two tokens compared, the latest again.
  EXPECT_EQ(Propose({1, 2, 3, 4, 8, 9, 2, 3, 5, 7, 1, 2, 3}, 2, 1, 2), (Proposed{5, 7}));
}

TEST(NgramDrafterTest, ARepeatingTextGoesOnRepeating) {
  EXPECT_EQ(Propose({7, 1, 2, 3, 1, 2, 3}, 5, 2, 5), (Proposed{1, 2, 3, 1, 2}));
  EXPECT_EQ(Propose({5, 5, 5}, 3, 2, 5), (Proposed{5, 5, 5}));
}

TEST(NgramDrafterTest, NothingWithoutAMatchOfTheLeastLength) {
  EXPECT_EQ(Propose({1, 2, 3, 4}, 2, 1, 5)[0], TokenRef());
  EXPECT_EQ(Propose({1, 3, 2, 3}, 2, 2, 5)[0], TokenRef());
  EXPECT_EQ(Propose({1, 3, 2, 3}, 2, 1, 5), (Proposed{2, 3}));
  EXPECT_EQ(Propose({1}, 2, 1, 5)[0], TokenRef());
}

TEST(NgramDrafterTest, TheLastTokenWhereThereMustBeDrafts) {
  EXPECT_EQ(Propose({1, 2, 3, 4}, 2, 1, 5, true), (Proposed{4, 4}));
  EXPECT_EQ(Propose({1}, 3, 2, 5, true), (Proposed{1, 1, 1}));
  EXPECT_EQ(Propose({1, 3, 2, 3}, 2, 1, 5, true), (Proposed{2, 3}));
}

}  // namespace
}  // namespace outrider
