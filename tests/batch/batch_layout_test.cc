#include "outrider/batch/batch_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <numeric>
#include <random>

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockSize = 4;

class LayoutBuilder {
 public:
  LayoutBuilder& Add(Phase phase, int32_t context, int32_t tokens, int32_t drafts, bool samples) {
    Part& part = parts_.emplace_back();
    part.tokens.resize(static_cast<size_t>(tokens));
    std::iota(part.tokens.begin(), part.tokens.end(), 100 * static_cast<int32_t>(parts_.size()));
    part.drafts.assign(static_cast<size_t>(drafts), -static_cast<int32_t>(parts_.size()));
    const int32_t blocks = (context + tokens + drafts + kBlockSize - 1) / kBlockSize;
    for (int32_t b = 0; b < blocks; ++b) part.blocks.push_back(next_block_++);
    part.phase = phase;
    part.context = context;
    part.samples = samples;
    return *this;
  }
  LayoutBuilder& Decode(int32_t context, int32_t drafts) {
    return Add(Phase::kDecode, context, 1, drafts, true);
  }

  BatchLayout Build() const {
    std::vector<RequestWork> work;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& p = parts_[i];
      work.push_back({static_cast<int32_t>(i) + 50,
                      p.phase,
                      p.context,
                      p.tokens,
                      p.drafts,
                      p.samples,
                      {&p.blocks, 1}});
    }
    BatchLayout layout(kBlockSize);
    layout.Assign(work);
    return layout;
  }

 private:
  struct Part {
    Phase phase = Phase::kDecode;
    int32_t context = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> drafts;
    std::vector<int32_t> blocks;
    bool samples = true;
  };
  std::vector<Part> parts_;
  int32_t next_block_ = 7;
};

TEST(BatchLayoutTest, DecodesComeFirstByLengthThenPromptsByArrival) {
  const BatchLayout layout = LayoutBuilder()
                                 .Add(Phase::kPromptEnd, 0, 5, 0, true)
                                 .Decode(9, 2)
                                 .Decode(3, 0)
                                 .Add(Phase::kPromptChunk, 8, 2, 0, false)
                                 .Decode(6, 2)
                                 .Build();
  std::vector<int32_t> order;
  std::vector<int32_t> first_rows;
  std::vector<int32_t> lengths;
  for (const RequestRows& r : layout.requests()) {
    order.push_back(r.work_index);
    first_rows.push_back(r.first_row);
    lengths.push_back(r.query_length);
  }
  EXPECT_THAT(order, ElementsAre(2, 1, 4, 0, 3));
  EXPECT_THAT(first_rows, ElementsAre(0, 1, 4, 7, 12));
  EXPECT_THAT(lengths, ElementsAre(1, 3, 3, 5, 2));
  EXPECT_EQ(layout.num_rows(), 14);
  EXPECT_THAT(layout.logits_rows(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 11));
  EXPECT_EQ(layout.requests()[4].num_logits_rows, 0);
  EXPECT_EQ(layout.requests()[0].slot, 52);
}

TEST(BatchLayoutTest, RowsHoldTokensThenDraftsAtTheirPositions) {
  const BatchLayout layout = LayoutBuilder().Decode(6, 3).Build();
  EXPECT_THAT(layout.tokens(), ElementsAre(100, -1, -1, -1));
  EXPECT_THAT(layout.positions(), ElementsAre(6, 7, 8, 9));
  // Blocks 7, 8, 9 hold positions 0-3, 4-7, 8-11.
  EXPECT_THAT(layout.slot_mapping(0), ElementsAre(8 * 4 + 2, 8 * 4 + 3, 9 * 4, 9 * 4 + 1));
  EXPECT_EQ(layout.requests()[0].RowOf(8), 2);
}

TEST(BatchLayoutTest, TokensComputedAgainAreNotSampledBeforeTheLast) {
  const BatchLayout again = LayoutBuilder().Add(Phase::kDecode, 10, 6, 0, false).Build();
  EXPECT_THAT(again.logits_rows(), IsEmpty());
  const BatchLayout end = LayoutBuilder().Add(Phase::kDecode, 10, 6, 0, true).Build();
  EXPECT_THAT(end.logits_rows(), ElementsAre(5));
}

TEST(BatchLayoutTest, PromptRowsThatNeedLogitsAreNotSampled) {
  const std::vector<int32_t> tokens(5, 1);
  const std::vector<int32_t> blocks = {0, 1};
  RequestWork work;
  work.phase = Phase::kPromptChunk;
  work.tokens = tokens;
  work.samples = false;
  work.block_tables = {&blocks, 1};
  work.prompt_logits = true;
  BatchLayout layout(4);
  layout.Assign({&work, 1});
  EXPECT_EQ(layout.requests()[0].num_prompt_logits_rows, 5);
  EXPECT_THAT(layout.logits_rows(), IsEmpty());
  work.phase = Phase::kPromptEnd;
  work.samples = true;
  layout.Assign({&work, 1});
  EXPECT_EQ(layout.requests()[0].num_prompt_logits_rows, 4);
  EXPECT_THAT(layout.logits_rows(), ElementsAre(4));
  work.prompt_logits = false;
  layout.Assign({&work, 1});
  EXPECT_EQ(layout.requests()[0].num_prompt_logits_rows, 0);
}

TEST(BatchLayoutTest, CountsSumAndEveryRowBelongsToOneRequest) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    LayoutBuilder builder;
    int32_t rows = 0;
    const int n = static_cast<int>(random() % 8);
    for (int i = 0; i < n; ++i) {
      const auto context = static_cast<int32_t>(random() % 20);
      const auto count = static_cast<int32_t>(random() % 6);
      if (random() % 2 == 0) {
        builder.Decode(context, count);
        rows += 1 + count;
      } else {
        builder.Add(Phase::kPromptEnd, context, count + 1, 0, true);
        rows += count + 1;
      }
    }
    const BatchLayout layout = builder.Build();
    ASSERT_EQ(layout.num_rows(), rows);
    ASSERT_EQ(std::ssize(layout.requests()), n);
    int32_t next_row = 0;
    int32_t next_logits = 0;
    for (const RequestRows& r : layout.requests()) {
      ASSERT_EQ(r.first_row, next_row);
      ASSERT_EQ(r.first_logits_row, next_logits);
      for (int32_t i = 0; i < r.query_length; ++i) {
        ASSERT_EQ(layout.positions()[static_cast<size_t>(next_row + i)], r.context_length + i);
      }
      next_row += r.query_length;
      next_logits += r.num_logits_rows;
    }
    ASSERT_EQ(next_row, rows);
    ASSERT_EQ(next_logits, std::ssize(layout.logits_rows()));
  }
}

TEST(BatchLayoutDeathTest, RefusesWhatOnlyABugCanAskFor) {
  EXPECT_DEATH(LayoutBuilder().Add(Phase::kPromptChunk, 0, 2, 0, true).Build(), "check failed");
  EXPECT_DEATH(LayoutBuilder().Add(Phase::kPromptEnd, 0, 2, 1, true).Build(), "check failed");
  EXPECT_DEATH(LayoutBuilder().Add(Phase::kDecode, 0, 0, 1, true).Build(), "check failed");
}

}  // namespace
}  // namespace outrider
