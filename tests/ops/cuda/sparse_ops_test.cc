// The operations of sparse attention on the GPU, in any order of pages, with few scores at a time
// and in recorded passes. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/ops/choice_checks.h"
#include "tests/ops/sparse_checks.h"

namespace outrider::cuda {
namespace {

using sparse_test::SparseCase;
using sparse_test::SparseRows;

const SparseCase kCases[] = {
    {"v32", 128, 64, 48, {700, 90, 33, 1, 257}, false},
    {"glm5", 64, 32, 300, {700, 301, 300, 2}, true},  // lists of two splits
    {"few_heads", 3, 8, 20, {129, 64, 21, 20, 19, 400}, false},
    {"more_than_there_is", 16, 16, 2048, {130, 7, 64}, true},  // nothing is scored
    {"v32_8_bits", 128, 64, 48, {700, 90, 33, 1, 257}, false, DType::kF8E4M3},
    {"glm5_8_bits", 64, 32, 300, {700, 301, 300, 2}, true, DType::kF8E4M3},
    {"few_heads_8_bits", 3, 8, 20, {129, 64, 21, 20, 19, 400}, true, DType::kF8E4M3},
};

/// Scores of so few rows are in memory together that a step takes several rounds.
class FewScoresOps : public CudaOps {
 public:
  bool few = false;
  /// What scores that are in memory together may have.
  int64_t bound() const { return CudaOps::score_bytes(); }

 protected:
  int64_t score_bytes() const override { return few ? 1 : CudaOps::score_bytes(); }
};

class SparseOpsTest : public HopperTest<testing::TestWithParam<SparseCase>> {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    gpu_ = std::make_unique<FewScoresOps>();
    machine_ = std::make_unique<sparse_test::SparseMachine>(
        *gpu_, GetParam(), [this](void* to, const void* from, size_t bytes) {
          CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu_->stream()),
                    "results of a test");
        });
  }

  std::unique_ptr<FewScoresOps> gpu_;
  std::unique_ptr<sparse_test::SparseMachine> machine_;
};

TEST_P(SparseOpsTest, EntriesAndKeys) { sparse_test::ExpectEntriesAndKeys(*machine_); }

TEST_P(SparseOpsTest, ChoiceAndAttention) {
  // bfloat16 has 8 bits: a rounded number is off by 2^-8 of itself at most. Weights may be rounded,
  // and so their sum, by which the result is divided; the result is rounded.
  sparse_test::ExpectChoiceAndAttention(
      *machine_, {.terms = 0x1p-7, .result = 3 * 0x1p-8, .rest = 1e-5, .near_ties = true});
}

// The memory of new inputs may be that of inputs that are gone, whose runs are known.
TEST_P(SparseOpsTest, NewInputsAreNotTakenForOldOnes) {
  machine_->SpreadPages(64);
  const Context c = machine_->context();
  sparse_test::SparseCache cache = machine_->MakeCache(*gpu_);
  const auto step = machine_->MakeStep(machine_->LastRows(Phase::kDecode));
  const auto replayer = gpu_->MakeReplayer(c);
  for (int i = 0; i < 4; ++i) {
    const auto inputs = gpu_->MakeStepInputs();
    step->AssignTo(*inputs, RowCount::kRounded);
    const StepInputs* const all[] = {inputs.get()};
    replayer->Run(c, RunKey(), all,
                  [&](const Context&) { Cast(*inputs).Of(cache.keys(sparse_test::kLayer)); });
  }
  EXPECT_EQ(replayer->counts().repeated, 0);
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsAloneAndInWindows) {
  sparse_test::ExpectBitsAloneAndInWindows(*machine_);
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsInAnyStep) {
  const SparseRows all = sparse_test::ExpectBitsInAnyStep(*machine_);
  gpu_->few = true;
  sparse_test::ExpectBits(machine_->Run(machine_->LastRows(Phase::kPromptChunk)), all,
                          "scores of 32 rows at a time");
}

TEST_P(SparseOpsTest, RecordedStepsHaveTheSameBits) {
  const SparseRows all = machine_->Run(machine_->LastRows(Phase::kDecode));
  sparse_test::ExpectBits(machine_->Run(machine_->LastRows(Phase::kDecode), {.recorded = true}),
                          all, "recorded");
  // Rows that are not a rounded number: some are added.
  for (const int32_t rows : {17, 19, 35}) {
    const int32_t length = GetParam().lengths[0];
    sparse_test::ExpectBits(
        machine_->Run({{0, length - rows, length}}, {.block = 16, .recorded = true}), all,
        std::to_string(rows) + " rows, recorded");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SparseOpsTest, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

using SparseWorkSpaceTest = HopperTest<>;

// Rows of a prompt's chunk are scored in rounds, so that its work space ends to grow with the
// context. Without rounds 2048 rows would have 1 GiB of scores behind 128k tokens.
TEST_F(SparseWorkSpaceTest, IsBoundedAtAnyContext) {
  constexpr int32_t kRows = 2048;
  constexpr int64_t kFloat = sizeof(float);
  const FewScoresOps gpu;
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    const auto bytes = [&](int32_t tokens) {
      return sparse_test::WorkBytesOfAChoice(gpu, {.heads = 32, .width = 128, .type = type}, kRows,
                                             tokens);
    };
    const int64_t of_8k = bytes(8 << 10);
    const int64_t of_128k = bytes(128 << 10);
    const int64_t of_256k = bytes(256 << 10);
    std::printf("%s: %lld MiB behind 8k tokens, %lld behind 128k, %lld behind 256k\n",
                std::string(DTypeName(type)).c_str(), static_cast<long long>(of_8k >> 20),
                static_cast<long long>(of_128k >> 20), static_cast<long long>(of_256k >> 20));
    const int64_t scores_of_8k = kRows * (int64_t{8} << 10) * kFloat;
    ASSERT_LT(scores_of_8k, gpu.bound());
    ASSERT_LT(2 * gpu.bound(), kRows * (int64_t{128} << 10) * kFloat);
    EXPECT_LE(of_128k - of_8k, gpu.bound() - scores_of_8k);
    EXPECT_EQ(of_256k, of_128k);
  }
}

class SparseChoiceTest : public HopperTest<> {};

TEST_F(SparseChoiceTest, OfEqualScoresTheLowerIsChosen) {
  sparse_test::ExpectTheLowerOfEquals(CudaOps(), {.heads = 8, .width = 128, .type = DType::kBF16});
}

TEST_F(SparseChoiceTest, ScoresThatAreNoNumbersAreTheLowest) {
  sparse_test::ExpectScoresThatAreNoNumbersToBeTheLowest(
      CudaOps(), {.heads = 8, .width = 128, .type = DType::kBF16});
}

}  // namespace
}  // namespace outrider::cuda
