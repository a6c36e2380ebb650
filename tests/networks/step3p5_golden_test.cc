// Step-3.5 against its reference: residual streams, logits and MTP modules, however the prompt is
// cut.
#include "tests/networks/step3p5_golden.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

constexpr double kLogProbabilityTolerance = 1e-3;

class Step3p5GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(Step3p5GoldenTest, LogitsOfTargetAndModulesInChunksAndBlocks) {
  Step3p5Golden golden(GoldenDirectory() / GetParam());
  ASSERT_EQ(golden.network().num_mtp_modules(), 3);
  ASSERT_EQ(golden.num_cases(), 2);
  for (int c = 0; c < 2; ++c) {
    for (const StepGoldenRun& run : {StepGoldenRun{},
                                     {Phase::kDecode, 1, 16},
                                     {Phase::kDecode, 7},
                                     {Phase::kPromptChunk, 5, 64}}) {
      EXPECT_LT(golden.LargestDifference(c, run), kLogProbabilityTolerance)
          << "case " << c << " chunk " << run.chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Step3p5GoldenTest,
                         ::testing::Values("tiny-step3p5", "tiny-step3p5-fp8"),
                         [](const auto& test) {
                           return std::string(test.param) == "tiny-step3p5" ? "Bfloat16" : "Fp8";
                         });

}  // namespace
}  // namespace outrider
