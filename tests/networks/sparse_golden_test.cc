// The golden checkpoints whose rows choose what they read, in sizes that a GPU takes, by a CPU that
// rounds its numbers as a GPU does: whether a GPU can be expected to be as near to transformers as
// cuda/sparse_golden_test.cc asks.
#include "tests/networks/sparse_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/networks/rounded_queries_ops.h"

namespace outrider {
namespace {

class SparseGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(SparseGoldenTest, LogProbabilitiesOfRoundedNumbers) {
  const SparseGolden model(GetParam());
  ASSERT_TRUE(model.HasCase(0));
  for (int c = 0; model.HasCase(c); ++c) {
    const KnownRequest request = model.Request(c, /*prompt=*/true);
    const SparseGoldenRun rounded = model.RunOnCpu(
        request, DType::kBF16, [](ChoiceLog& log) { return RecordingOps<RoundedQueriesOps>(log); });
    model.Judge(c, request, rounded, Float32DotBound, fmt::format("{}, case {}", GetParam(), c));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SparseGoldenTest, testing::ValuesIn(kSparseGoldens),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
