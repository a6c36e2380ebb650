#include "outrider/batch/rows_of_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "outrider/kv/page_number.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kRanks = 3;

/// Requests of one group of 4 tokens a page and of one with a window; some pages have left that.
class RowsOfRankTest : public ::testing::Test {
 protected:
  RowsOfRankTest() {
    groups_ = FullHistoryCache(64, 4).groups;
    groups_.push_back({.name = "window",
                       .kind = CacheGroupKind::kSlidingWindow,
                       .tokens_per_block = 4,
                       .window = 3});
  }

  /// Page `own` of a rank; negative: none.
  static int32_t Page(int32_t own, int32_t rank) {
    return own < 0 ? own : PageNumber(own, {rank, kRanks});
  }

  void Add(int32_t slot, int32_t rank, Phase phase, int32_t context,
           const std::vector<int32_t>& tokens, const std::vector<int32_t>& own_pages,
           const std::vector<int32_t>& window_pages, int32_t drafts = 0) {
    tokens_.push_back(tokens);
    std::vector<std::vector<int32_t>>& tables = tables_.emplace_back(2);
    for (const int32_t own : own_pages) tables[0].push_back(Page(own, rank));
    for (const int32_t own : window_pages) tables[1].push_back(Page(own, rank));
    const std::span<const int32_t> all = tokens_.back();
    const size_t known = all.size() - static_cast<size_t>(drafts);
    work_.push_back({.slot = slot,
                     .phase = phase,
                     .context_length = context,
                     .tokens = all.first(known),
                     .draft_tokens = all.subspan(known),
                     .samples = phase != Phase::kPromptChunk,
                     .block_tables = tables});
  }

  std::vector<CacheGroupSpec> groups_;
  std::deque<std::vector<int32_t>> tokens_;
  std::deque<std::vector<std::vector<int32_t>>> tables_;
  std::vector<RequestWork> work_;
};

TEST_F(RowsOfRankTest, EveryRankHasItsRequestsInTheirOrderWithItsPages) {
  Add(0, 1, Phase::kDecode, 5, {50, 51, 52}, {7, 3}, {-1, 9}, /*drafts=*/2);  // rows 2, 3, 4
  Add(1, 0, Phase::kPromptEnd, 0, {60, 61, 62}, {2}, {4});                    // rows 5, 6, 7
  Add(2, 1, Phase::kDecode, 3, {70}, {1}, {2});                               // row 0
  Add(3, 1, Phase::kPromptChunk, 4, {80, 81}, {5, 6}, {-1, 8});               // rows 8, 9
  Add(4, 0, Phase::kDecode, 0, {90}, {8}, {10});                              // row 1
  BatchLayout layout(groups_);
  layout.Assign(work_);
  ASSERT_THAT(layout.tokens(), ElementsAre(70, 90, 50, 51, 52, 60, 61, 62, 80, 81));

  RowsOfRank of_1(groups_, {1, kRanks});
  of_1.Assign(layout);
  const std::vector<RankRun> runs = {{0, 1, 1}, {1, 1, 0}, {2, 3, 1}, {5, 3, 0}, {8, 2, 1}};
  EXPECT_THAT(of_1.runs(), testing::ElementsAreArray(runs));
  EXPECT_THAT(of_1.rows(), ElementsAre(0, 2, 3, 4, 8, 9));
  // Places of ranks 0, 1 and 2 in turn.
  const std::vector<int32_t> side_by_side = {1, 0, 4, 7, 10, 3, 6, 9, 13, 16};
  EXPECT_THAT(of_1.side_by_side(), testing::ElementsAreArray(side_by_side));
  EXPECT_EQ(of_1.most_rows(), 6);
  const BatchLayout& own = of_1.layout();
  EXPECT_THAT(own.tokens(), ElementsAre(70, 50, 51, 52, 80, 81));
  EXPECT_THAT(own.positions(), ElementsAre(3, 5, 6, 7, 4, 5));
  EXPECT_THAT(own.slot_mapping(0),
              ElementsAre(1 * 4 + 3, 3 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3, 6 * 4, 6 * 4 + 1));
  EXPECT_THAT(own.slot_mapping(1),
              ElementsAre(2 * 4 + 3, 9 * 4 + 1, 9 * 4 + 2, 9 * 4 + 3, 8 * 4, 8 * 4 + 1));
  EXPECT_THAT(own.requests()[1].block_tables[0], ElementsAre(7, 3));
  EXPECT_THAT(own.requests()[1].block_tables[1], ElementsAre(-1, 9));

  RowsOfRank of_0(groups_, {0, kRanks});
  of_0.Assign(layout);
  EXPECT_THAT(of_0.runs(), testing::ElementsAreArray(runs));
  EXPECT_THAT(of_0.rows(), ElementsAre(1, 5, 6, 7));
  RowsOfRank of_2(groups_, {2, kRanks});
  of_2.Assign(layout);
  EXPECT_THAT(of_2.runs(), testing::ElementsAreArray(runs));
  EXPECT_THAT(of_2.rows(), IsEmpty());
  EXPECT_EQ(of_2.layout().num_rows(), 0);
  // All ranks know where the rows of each are, also a rank that has none.
  for (const RowsOfRank* rows : {&of_0, &of_2}) {
    EXPECT_THAT(rows->side_by_side(), testing::ElementsAreArray(side_by_side));
    EXPECT_EQ(rows->most_rows(), 6);
  }

  layout.Assign(std::span(work_).subspan(1, 1));
  of_1.Assign(layout);
  EXPECT_THAT(of_1.side_by_side(), ElementsAre(0, 3, 6));
  EXPECT_EQ(of_1.most_rows(), 3);
}

TEST(PlacesOfRanksTest, HoldTheRankThatHasMostAndAreFew) {
  EXPECT_EQ(PlacesOfRanks(32, 16, 2), 16);
  EXPECT_EQ(PlacesOfRanks(32, 17, 2), 20);
  EXPECT_EQ(PlacesOfRanks(32, 21, 2), 24);
  EXPECT_EQ(PlacesOfRanks(32, 25, 2), 32);
  EXPECT_EQ(PlacesOfRanks(8, 2, 8), 2);
  EXPECT_EQ(PlacesOfRanks(1, 1, 8), 1);
  for (const int32_t ranks : {2, 3, 4, 8}) {
    for (int32_t rows = 1; rows <= 1024; ++rows) {
      std::set<int32_t> numbers;
      for (int32_t most = (rows + ranks - 1) / ranks; most <= rows; ++most) {
        const int32_t places = PlacesOfRanks(rows, most, ranks);
        ASSERT_GE(places, most) << rows << " rows, " << ranks << " ranks";
        ASSERT_LE(places, rows) << rows << " rows, " << ranks << " ranks";
        numbers.insert(places);
      }
      EXPECT_LE(numbers.size(), 7U) << rows << " rows, " << ranks << " ranks";
    }
  }
}

TEST_F(RowsOfRankTest, RunningStatesHaveTheRanksOwnPages) {
  Add(0, 1, Phase::kDecode, 5, {50, 51, 52}, {7, 3}, {-1, 9}, /*drafts=*/2);
  Add(1, 2, Phase::kPromptChunk, 0, {60, 61}, {2}, {4});
  StateTables mine;
  for (const int32_t own : {4, 11}) mine.state.push_back(Page(own, 1));
  mine.rows = {Page(6, 1)};
  mine.restored = {Page(0, 1), Page(2, 1)};
  mine.checkpoints = {{16, {Page(5, 1), Page(8, 1)}}};
  StateTables other;
  other.state = {Page(1, 2)};
  work_[0].state = {.tables = &mine, .tokens = 5, .restores = true};
  work_[1].state = {.tables = &other};
  BatchLayout layout(groups_);
  layout.Assign(work_);

  RowsOfRank of_1(groups_, {1, kRanks});
  for (int round = 0; round < 2; ++round) {
    of_1.Assign(layout);
    ASSERT_EQ(of_1.layout().requests().size(), 1U);
    const RequestRows& request = of_1.layout().requests()[0];
    // Drafts leave nothing in a state.
    EXPECT_EQ(request.num_drafts, 2);
    EXPECT_EQ(request.num_logits_rows, 0);
    EXPECT_EQ(request.state.tokens, 5);
    EXPECT_TRUE(request.state.restores);
    EXPECT_THAT(request.state.tables->state, ElementsAre(4, 11));
    EXPECT_THAT(request.state.tables->rows, ElementsAre(6));
    EXPECT_THAT(request.state.tables->restored, ElementsAre(0, 2));
    ASSERT_EQ(request.state.tables->checkpoints.size(), 1U);
    EXPECT_EQ(request.state.tables->checkpoints[0].tokens, 16);
    EXPECT_THAT(request.state.tables->checkpoints[0].pages, ElementsAre(5, 8));
  }
}

TEST_F(RowsOfRankTest, RowsThatGoOnWithARanksRowsAreOneRun) {
  std::vector<RankRun> runs;
  AddRankRows(0, 2, 1, runs);
  AddRankRows(2, 1, 1, runs);
  AddRankRows(3, 1, 0, runs);
  AddRankRows(5, 1, 0, runs);  // row 4 is nobody's
  const std::vector<RankRun> expected = {{0, 3, 1}, {3, 1, 0}, {5, 1, 0}};
  EXPECT_EQ(runs, expected);
}

}  // namespace
}  // namespace outrider
