// matmul is one chain of FMAs per output, so every table must give the same bits as the chain
// written out here, whatever the number of rows, jobs and threads.

#include <cmath>
#include <memory>

#include "outrider/base/buffer.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {
namespace {

struct Weight {
  Weight(DType format, int64_t rows, int64_t cols, std::mt19937& random)
      : values(TestMatrix::Random(rows, cols, random)),
        storage(PackedBytes(format, rows, cols) + 1) {
    if (format == DType::kBF16) {
      for (float& v : values.values) v = RoundToBFloat16(v);
    }
    packed = {.format = format, .rows = rows, .cols = cols, .data = storage.data()};
    for (int64_t p = 0; p < packed.panels(); ++p) {
      PackPanel(format, values.view().row(p * kPanelRows),
                std::min(kPanelRows, rows - p * kPanelRows), cols,
                storage.data() + p * static_cast<int64_t>(PanelBytes(format, cols)));
    }
  }

  TestMatrix values;
  Buffer storage;
  PackedMatrix packed;
};

float Chain(const float* x, const float* w, int64_t cols, bool round_x) {
  float sum = 0;
  for (int64_t k = 0; k < cols; ++k) {
    sum = std::fma(round_x ? RoundToBFloat16(x[k]) : x[k], w[k], sum);
  }
  return sum;
}

void ExpectChain(const MatMulJob& job, const Weight& weight, const TestMatrix& before,
                 DType operand_dtype) {
  const bool round_x = operand_dtype == DType::kBF16;
  for (int64_t r = 0; r < job.y.rows; ++r) {
    const float* x = job.x.row(job.x_rows != nullptr ? job.x_rows[r] : r);
    for (int64_t n = 0; n < job.y.cols; ++n) {
      float want = Chain(x, weight.values.view().row(n), job.x.cols, round_x);
      if (job.accumulate) want = before.view().row(r)[n] + want;
      ASSERT_TRUE(SameBits(&want, job.y.row(r) + n, 1))
          << "row " << r << " column " << n << ": " << job.y.row(r)[n] << " is not " << want
          << " (rows " << job.y.rows << ", N " << job.y.cols << ", K " << job.x.cols << ")";
    }
    for (int64_t n = job.y.cols; n < job.y.stride; ++n) {
      ASSERT_TRUE(SameBits(&before.values[static_cast<size_t>(r * job.y.stride + n)],
                           job.y.data + r * job.y.stride + n, 1))
          << "wrote past column " << job.y.cols << " of row " << r;
    }
  }
}

class MatMulTest : public KernelTest {
 protected:
  void RunOne(DType format, DType operand, int64_t rows, int64_t n, int64_t k, bool accumulate) {
    const Weight weight(format, n, k, random);
    const TestMatrix x = TestMatrix::Random(rows, k, random, Pick(0, 9));
    const TestMatrix before = TestMatrix::Random(rows, n, random, Pick(0, 9));
    TestMatrix y = before;
    const MatMulJob job = {
        .x = x.view(), .w = &weight.packed, .y = y.view(), .accumulate = accumulate};
    kernels.matmul(pool, {&job, 1}, operand);
    ExpectChain(job, weight, before, operand);
  }
};

TEST_P(MatMulTest, EveryOutputIsOneChainAtEveryRowCount) {
  for (const DType format : {DType::kBF16, DType::kF32}) {
    for (int64_t rows = 1; rows <= 33; ++rows) {
      RunOne(format, format, rows, Pick(1, 90), Pick(1, 90), rows % 2 == 0);
    }
  }
}

TEST_P(MatMulTest, EveryOutputIsOneChainAcrossBlocksOfK) {
  for (const DType format : {DType::kBF16, DType::kF32}) {
    for (const DType operand : {DType::kBF16, DType::kF32}) {
      for (const int64_t k : {255, 256, 257, 511, 512, 513, 1031}) {
        RunOne(format, operand, Pick(1, 20), Pick(1, 40), k, Pick(0, 1) == 1);
      }
    }
  }
}

TEST_P(MatMulTest, EveryOutputIsOneChainForManyRowsAndPanels) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6})
    RunOne(DType::kBF16, DType::kBF16, rows, 1000, 300, false);
  for (const int64_t rows : {97, 193, 400})
    RunOne(DType::kBF16, DType::kBF16, rows, 70, 130, false);
}

TEST_P(MatMulTest, EveryOutputIsOneChainForFewRowsAndWholeAndPartialPanels) {
  for (int64_t rows = 1; rows <= 6; ++rows) {
    for (const int64_t n : {33, 48, 49, 64, 100}) {
      for (const int64_t k : {2, 3, 64, 190, 254, 256, 258}) {
        for (const bool accumulate : {false, true}) {
          RunOne(DType::kBF16, DType::kBF16, rows, n, k, accumulate);
        }
      }
    }
  }
}

TEST_P(MatMulTest, SpecialValuesPassThroughTheChain) {
  const float tiny = 1e-30f;
  Weight weight(DType::kF32, 16, 1, random);
  for (float& v : weight.values.values) v = tiny;
  PackPanel(DType::kF32, weight.values.values.data(), 16, 1, weight.storage.data());
  TestMatrix x(4, 1);
  x.values = {tiny, -tiny, kNaN, std::numeric_limits<float>::infinity()};
  TestMatrix y(4, 16);
  const MatMulJob job = {.x = x.view(), .w = &weight.packed, .y = y.view()};
  kernels.matmul(pool, {&job, 1}, DType::kF32);
  for (int64_t n = 0; n < 16; ++n) {
    EXPECT_FALSE(std::signbit(y.view().row(0)[n]));
    EXPECT_TRUE(std::signbit(y.view().row(1)[n])) << "an underflow keeps its sign";
    EXPECT_TRUE(std::isnan(y.view().row(2)[n]));
    EXPECT_TRUE(std::isinf(y.view().row(3)[n]));
  }
}

TEST_P(MatMulTest, RoundingOfXIsToNearestEvenAndKeepsNaN) {
  const Weight weight(DType::kBF16, 5, 1, random);
  TestMatrix x(6, 1);
  x.values = {1.00390625f, 1.01171875f, kNaN, 3.4e38f, -1e-40f, -0.0f};
  const TestMatrix before(6, 5);
  TestMatrix y(6, 5);
  const MatMulJob job = {.x = x.view(), .w = &weight.packed, .y = y.view()};
  kernels.matmul(pool, {&job, 1}, DType::kBF16);
  for (int64_t n = 0; n < 5; ++n) {
    const float w = weight.values.view().row(n)[0];
    EXPECT_EQ(y.view().row(0)[n], w);
    EXPECT_EQ(y.view().row(1)[n], 1.015625f * w);
    EXPECT_TRUE(std::isnan(y.view().row(2)[n]));
    EXPECT_EQ(y.view().row(3)[n], std::fma(RoundToBFloat16(3.4e38f), w, 0.0f));
    EXPECT_EQ(y.view().row(4)[n], std::fma(RoundToBFloat16(-1e-40f), w, 0.0f));
  }
}

TEST_P(MatMulTest, JobListsLikeExpertsGatherRowsAndShareInputs) {
  const int64_t k = 130;
  const TestMatrix x = TestMatrix::Random(21, k, random, 3);
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::vector<int32_t>> rows;
  std::vector<TestMatrix> before;
  std::vector<TestMatrix> y;
  for (int expert = 0; expert < 12; ++expert) {
    weights.push_back(std::make_unique<Weight>(expert % 2 == 0 ? DType::kBF16 : DType::kF32,
                                               Pick(1, 70), k, random));
    rows.emplace_back();
    for (int i = Pick(0, 9); i > 0; --i) rows.back().push_back(Pick(0, 20));
    before.push_back(TestMatrix::Random(static_cast<int64_t>(rows.back().size()),
                                        weights.back()->packed.rows, random, 2));
  }
  y = before;
  std::vector<MatMulJob> jobs;
  for (size_t e = 0; e < weights.size(); ++e) {
    jobs.push_back({.x = x.view(),
                    .x_rows = rows[e].data(),
                    .w = &weights[e]->packed,
                    .y = y[e].view(),
                    .accumulate = e % 3 == 0});
  }
  const Weight other(DType::kBF16, 33, 64, random);
  const TestMatrix other_x = TestMatrix::Random(2, 64, random);
  before.push_back(TestMatrix(2, 33));
  y.push_back(before.back());
  jobs.push_back({.x = other_x.view(), .w = &other.packed, .y = y.back().view()});
  for (const DType operand : {DType::kBF16, DType::kF32}) {
    for (size_t e = 0; e < y.size(); ++e) y[e].values = before[e].values;
    kernels.matmul(pool, jobs, operand);
    for (size_t e = 0; e + 1 < jobs.size(); ++e) {
      ExpectChain(jobs[e], *weights[e], before[e], operand);
    }
    ExpectChain(jobs.back(), other, before.back(), operand);
  }
}

TEST_P(MatMulTest, ARowHasTheSameBitsInAnyBatchOnAnyNumberOfThreads) {
  const Weight weight(DType::kBF16, 530, 700, random);
  const TestMatrix x = TestMatrix::Random(64, 700, random);
  TestMatrix alone(64, 530);
  for (int64_t r = 0; r < 64; ++r) {
    const MatMulJob job = {
        .x = x.view().Rows(r, 1), .w = &weight.packed, .y = alone.view().Rows(r, 1)};
    kernels.matmul(single, {&job, 1}, DType::kBF16);
  }
  ThreadPool four(4);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int32_t> rows(static_cast<size_t>(Pick(1, 64)));
    for (int32_t& r : rows) r = Pick(0, 63);
    TestMatrix y(static_cast<int64_t>(rows.size()), 530);
    const MatMulJob job = {
        .x = x.view(), .x_rows = rows.data(), .w = &weight.packed, .y = y.view()};
    kernels.matmul(trial % 2 == 0 ? pool : four, {&job, 1}, DType::kBF16);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(SameBits(y.view().row(static_cast<int64_t>(i)), alone.view().row(rows[i]), 530));
    }
  }
}

TEST_P(MatMulTest, NoJobsAndNoRowsAreNothingToDo) {
  kernels.matmul(pool, {}, DType::kBF16);
  const Weight weight(DType::kBF16, 16, 8, random);
  TestMatrix x(0, 8);
  TestMatrix y(0, 16);
  const MatMulJob job = {.x = x.view(), .w = &weight.packed, .y = y.view()};
  kernels.matmul(pool, {&job, 1}, DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Isas, MatMulTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
