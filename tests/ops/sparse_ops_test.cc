// The operations of sparse attention on the CPU.
#include <gtest/gtest.h>

#include "tests/ops/choice_checks.h"
#include "tests/ops/sparse_checks.h"

namespace outrider {
namespace {

using sparse_test::SparseCase;
using sparse_test::SparseMachine;

constexpr float kScale = 0.3F;
const SparseCase kCases[] = {
    {"float32", 3, 3, 7, {61, 33, 8, 7, 1}, false, DType::kF32, 20, 4, 37, 6, kScale},
    {"more_than_there_is", 2, 2, 64, {40, 7}, true, DType::kF32, 20, 4, 37, 6, kScale},
    {"bfloat16", 3, 3, 7, {60, 21, 6}, true, DType::kBF16, 40, 6, 32, 8, kScale},
    {"eight_bits", 3, 3, 7, {60, 33, 9}, false, DType::kF8E4M3, 40, 6, 32, 8, kScale},
};

class SparseOpsTest : public testing::TestWithParam<Isa> {
 protected:
  const Ops& ops() const { return cpu::GetCpuOps(GetParam()); }

  /// check(machine) of every case.
  void OfEveryCase(const std::function<void(SparseMachine&)>& check) const {
    for (const SparseCase& test : kCases) {
      SCOPED_TRACE(test.name);
      SparseMachine machine(ops(), test);
      check(machine);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(SparseOpsTest, EntriesAndKeys) { OfEveryCase(sparse_test::ExpectEntriesAndKeys); }

TEST_P(SparseOpsTest, ChoiceAndAttention) {
  OfEveryCase([](SparseMachine& machine) {
    // Over entries that are not float32 weights are rounded, too.
    const bool exact = machine.parameters().type == DType::kF32;
    sparse_test::ExpectChoiceAndAttention(machine, {.rest = exact ? 1e-5 : 8e-3});
  });
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsAloneAndInWindows) {
  OfEveryCase(sparse_test::ExpectBitsAloneAndInWindows);
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsInAnyStep) {
  OfEveryCase([](SparseMachine& machine) { sparse_test::ExpectBitsInAnyStep(machine); });
}

TEST_P(SparseOpsTest, OfEqualScoresTheLowerIsChosen) {
  sparse_test::ExpectTheLowerOfEquals(ops(), {.heads = 3, .width = 20, .type = DType::kF32});
}

TEST_P(SparseOpsTest, ScoresThatAreNoNumbersAreTheLowest) {
  sparse_test::ExpectScoresThatAreNoNumbersToBeTheLowest(
      ops(), {.heads = 2, .width = 8, .type = DType::kF32});
}

// Scores of a row at a time are in memory, and a request's keys once for all of its rows.
TEST(SparseWorkSpaceTest, HoldsKeysAndNoScoresOfAllRows) {
  constexpr int32_t kShort = 8 << 10;
  constexpr int32_t kLong = 128 << 10;
  constexpr int64_t kWidth = 8;
  const auto bytes = [&](int32_t rows, int32_t tokens) {
    return sparse_test::WorkBytesOfAChoice(cpu::GetCpuOps(SelectIsa()),
                                           {.heads = 2, .width = kWidth, .type = DType::kF32}, rows,
                                           tokens);
  };
  const int64_t of_keys = (kLong - kShort) * kWidth * static_cast<int64_t>(sizeof(float));
  for (const int32_t rows : {32, 64}) {
    EXPECT_EQ(bytes(rows, kLong) - bytes(rows, kShort), of_keys) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SparseOpsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
