// Grouped-query attention on the GPU. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/ops/per_head_checks.h"

namespace outrider::cuda {
namespace {

class PerHeadCudaOpsTest : public HopperTest<> {};

TEST_F(PerHeadCudaOpsTest, GroupedQueriesWithAWindow) {
  const CudaOps gpu;
  for (const int32_t window : {9, 40, 0}) {
    SCOPED_TRACE(window);
    per_head_test::ExpectGroupedQueries(
        gpu,
        {.window = window,
         .block = 64,
         .positions = 150,
         .queries = 7,
         .scale = 0.09F,
         .left = per_head_test::PerHeadSizes::kOwn},
        {.rows = 1e-3, .rows_part = 0.01, .attention = 0.015, .attention_part = 0.03});
  }
}

}  // namespace
}  // namespace outrider::cuda
