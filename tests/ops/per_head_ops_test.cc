// Grouped-query attention on the CPU.
#include <gtest/gtest.h>

#include "tests/ops/per_head_checks.h"

namespace outrider {
namespace {

class PerHeadOpsTest : public KernelTest {};

TEST_P(PerHeadOpsTest, GroupedQueriesWithAWindow) {
  const per_head_test::PerHeadSizes sizes = {.heads = 6, .dim = 16, .rope = 8};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(type));
    per_head_test::PerHeadSizes of_type = sizes;
    of_type.type = type;
    per_head_test::PerHeadBounds bounds = {.rows = 1e-5, .attention = 1e-5};
    if (type == DType::kBF16) bounds = {.rows = 1e-5, .rows_part = 0.008, .attention = 8e-3};
    per_head_test::ExpectGroupedQueries(cpu::GetCpuOps(GetParam()), of_type, bounds);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, PerHeadOpsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
