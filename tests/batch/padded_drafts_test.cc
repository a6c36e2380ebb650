#include "outrider/batch/padded_drafts.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace outrider {
namespace {

std::vector<int32_t> Iota(int32_t count) {
  std::vector<int32_t> v(static_cast<size_t>(count));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

// Four requests with k = 3, first positions 10, 20, 30, 40, rejections 2, 0, 1, 3 in one batch.
TEST(PaddedDraftsTest, RejectionsTwoNoneOneThreeInOneBatch) {
  const std::vector<int32_t> blocks = Iota(8);
  const std::vector<int32_t> token = {1};
  const std::vector<int32_t> drafts = {2, 3, 4};
  std::vector<RequestWork> work;
  for (int32_t slot = 0; slot < 4; ++slot) {
    work.push_back({.slot = slot,
                    .phase = Phase::kDecode,
                    .context_length = 10 * (slot + 1),
                    .tokens = token,
                    .draft_tokens = drafts,
                    .block_tables = {&blocks, 1}});
  }
  BatchLayout layout(16);
  layout.Assign(work);
  ASSERT_EQ(layout.num_rows(), 16);
  constexpr std::array<int32_t, 4> kRejected = {2, 0, 1, 3};
  constexpr std::array<int32_t, 4> kValid = {2, 4, 3, 1};
  constexpr std::array<int32_t, 4> kSampleRow = {1, 7, 10, 12};
  constexpr std::array<int32_t, 4> kFrontier = {11, 23, 32, 40};
  for (size_t i = 0; i < 4; ++i) {
    const DraftStart start = StartOfDrafts(layout.requests()[i], 3 - kRejected[i]);
    EXPECT_EQ(start.num_rejected, kRejected[i]);
    EXPECT_EQ(start.num_valid, kValid[i]);
    EXPECT_EQ(start.sample_row, kSampleRow[i]);
    EXPECT_EQ(start.frontier, kFrontier[i]);
    // The passes after the first write the next positions; the next verify step starts after the
    // frontier and covers k + 1 positions.
    EXPECT_EQ(start.frontier + 1, layout.requests()[i].context_length + start.num_valid);
  }
}

TEST(PaddedDraftsTest, AMidPromptChunkEmitsNothing) {
  const std::vector<int32_t> blocks = Iota(2);
  const std::vector<int32_t> tokens = Iota(5);
  BatchLayout layout(16);
  layout.Assign(std::vector<RequestWork>{{.slot = 0,
                                          .phase = Phase::kPromptChunk,
                                          .context_length = 7,
                                          .tokens = tokens,
                                          .draft_tokens = {},
                                          .samples = false,
                                          .block_tables = {&blocks, 1}}});
  const DraftStart start = StartOfDrafts(layout.requests()[0], 0);
  EXPECT_EQ(start.num_valid, 0);
  EXPECT_EQ(start.num_rejected, 0);
  EXPECT_EQ(start.sample_row, 4);
  EXPECT_EQ(start.frontier, 11);
}

}  // namespace
}  // namespace outrider
