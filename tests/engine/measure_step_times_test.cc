// The table of step times that an engine measures before it serves.
#include "outrider/engine/measure_step_times.h"

#include <gtest/gtest.h>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

/// The batches that were measured, smallest first.
std::vector<int32_t> Sizes(const StepTimes& times) {
  std::vector<int32_t> sizes;
  sizes.reserve(times.batches.size());
  for (const StepTimes::Batch& batch : times.batches) sizes.push_back(batch.num_requests);
  return sizes;
}

TEST(MeasureStepTimesTest, MeasuresEveryNumberOfDraftsForEveryDrafter) {
  for (const DrafterKind kind :
       {DrafterKind::kChain, DrafterKind::kRepeated, DrafterKind::kNgram}) {
    // Steps of one kind overlap, as a GPU's do.
    const bool queued = kind == DrafterKind::kRepeated;
    EngineParts parts =
        MakeTestParts({.drafter = kind, .adaptive = true, .max_num_seqs = 5, .queued = queued});
    parts.draft_length_policy.reset();
    std::vector<int32_t> progress;
    const StepTimes times = MeasureStepTimes(
        parts, kind == DrafterKind::kNgram,
        [&](const StepTimes::Batch& batch) { progress.push_back(batch.num_requests); });
    ASSERT_FALSE(times.batches.empty());
    EXPECT_EQ(times.batches.front().num_requests, 1);
    EXPECT_LE(times.batches.back().num_requests, 4);
    EXPECT_EQ(progress, Sizes(times));
    for (const StepTimes::Batch& batch : times.batches) {
      ASSERT_EQ(batch.seconds.size(), 4U);
      for (const double seconds : batch.seconds) EXPECT_GT(seconds, 0);
      EXPECT_EQ(batch.looking_seconds > 0, kind == DrafterKind::kNgram);
    }
    if (kind == DrafterKind::kNgram) {
      EXPECT_TRUE(times.prompt_row_seconds.empty());
    } else if (times.batches.size() > 1) {  // prompts of four requests and more tell
      ASSERT_EQ(times.prompt_row_seconds.size(), 4U);
      for (const double seconds : times.prompt_row_seconds) EXPECT_GT(seconds, 0);
    }
    EXPECT_NE(parts.executor, nullptr);
    EXPECT_EQ(parts.draft_schedule.TokensFor(1), 3) << "what it was before";
  }
}

TEST(MeasureStepTimesTest, MeasuresNoMoreThanThereIsRoomFor) {
  // A request of 18 steps and 4 tokens each takes 5 blocks of 16 tokens.
  EngineParts parts = MakeTestParts({.adaptive = true, .num_blocks = 11, .max_model_len = 100});
  parts.draft_length_policy.reset();
  const StepTimes times = MeasureStepTimes(parts, false, nullptr);
  EXPECT_LE(times.batches.size(), 2U);
  EngineParts small = MakeTestParts({.adaptive = true, .num_blocks = 4, .max_model_len = 60});
  small.draft_length_policy.reset();
  EXPECT_TRUE(MeasureStepTimes(small, false, nullptr).batches.empty());
}

}  // namespace
}  // namespace outrider
