// Drafts of blocks on the CPU.
#include <gtest/gtest.h>

#include "tests/ops/block_draft_checks.h"

namespace outrider {
namespace {

class CpuBlockSamplerTest : public KernelTest {};

TEST_P(CpuBlockSamplerTest, TokensWithAndWithoutDistributions) {
  block_draft_test::BlockDraftMachine draws(cpu::GetCpuOps(GetParam()), /*on_device=*/false);
  for (int round = 0; round < 20; ++round) draws.Check(/*distributions=*/round % 4 == 3);
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuBlockSamplerTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
