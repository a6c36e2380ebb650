// matmul_arg_max finds the first of the largest numbers that matmul of the same table writes, at
// every number of rows and threads.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/packed_weight.h"

namespace outrider {
namespace {

/// Products of these are often equal.
TestMatrix FewValues(int64_t rows, int64_t cols, std::mt19937& random) {
  TestMatrix m(rows, cols);
  for (float& v : m.values) v = static_cast<float>(random() % 5) - 2;
  return m;
}

std::vector<int32_t> FirstNumbers(int64_t n) {
  std::vector<int32_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class MatMulArgMaxTest : public KernelTest {
 protected:
  std::vector<int32_t> ArgMaxOf(ThreadPool& team, const TestMatrix& x, const Weight& weight,
                                DType operand_dtype, const std::vector<int32_t>& rows) {
    std::vector<int32_t> columns(rows.size(), -7);
    kernels.matmul_arg_max(
        team, {.x = x.view(), .x_rows = rows.data(), .w = &weight.packed, .columns = columns},
        operand_dtype);
    return columns;
  }

  std::vector<int32_t> ArgMaxOfProduct(const TestMatrix& x, const Weight& weight,
                                       DType operand_dtype, const std::vector<int32_t>& rows) {
    TestMatrix y(static_cast<int64_t>(rows.size()), weight.packed.rows);
    const MatMulJob job{.x = x.view(), .x_rows = rows.data(), .w = &weight.packed, .y = y.view()};
    kernels.matmul(single, {&job, 1}, operand_dtype);
    std::vector<int32_t> columns;
    for (int64_t r = 0; r < y.view_rows; ++r) {
      const float* row = y.view().row(r);
      int32_t best = -1;
      for (int32_t n = 0; n < y.view_cols; ++n) {
        if (row[n] > (best < 0 ? -std::numeric_limits<float>::infinity() : row[best])) best = n;
      }
      columns.push_back(best);
    }
    return columns;
  }
};

TEST_P(MatMulArgMaxTest, IsTheFirstOfTheLargestOutputs) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    for (const int64_t n : {1, 15, 16, 17, 100, 700}) {
      const int64_t cols = 4 * Pick(1, 17);  // as 8-bit formats want it
      const PackedFormat format{.dtype = dtype, .scale_cols = dtype == DType::kF8E4M3 ? 32 : 0};
      const Weight weight(format, FewValues(n, cols, random), random);
      const TestMatrix x = FewValues(300, cols, random);
      for (const int num_rows : {1, 3, 8, 33, n == 17 ? 300 : 64}) {
        std::vector<int32_t> rows(static_cast<size_t>(num_rows));
        std::iota(rows.rbegin(), rows.rend(), 0);
        for (const DType operand : {DType::kF32, DType::kBF16}) {
          const std::vector<int32_t> want = ArgMaxOfProduct(x, weight, operand, rows);
          EXPECT_EQ(ArgMaxOf(pool, x, weight, operand, rows), want) << n << " x " << cols;
          EXPECT_EQ(ArgMaxOf(single, x, weight, operand, rows), want) << n << " x " << cols;
        }
      }
    }
  }
}

// Some of a weight's rows are a weight: the first outputs, bit for bit.
TEST_P(MatMulArgMaxTest, FirstRowsOfAWeight) {
  constexpr int64_t kRows = 100;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    const PackedFormat format{.dtype = dtype, .scale_cols = dtype == DType::kF8E4M3 ? 32 : 0};
    const Weight weight(format, kRows, 72, random);
    const TestMatrix x = TestMatrix::Random(20, 72, random);
    for (const int64_t num_rows : {1, 4, 20}) {
      const std::vector<int32_t> rows = FirstNumbers(num_rows);
      TestMatrix all(num_rows, kRows);
      const MatMulJob whole{
          .x = x.view(), .x_rows = rows.data(), .w = &weight.packed, .y = all.view()};
      kernels.matmul(pool, {&whole, 1}, DType::kBF16);
      for (const int64_t n : {1, 16, 41, 100}) {
        const PackedMatrix first = weight.packed.FirstRows(n);
        TestMatrix y(num_rows, n);
        const MatMulJob part{.x = x.view(), .x_rows = rows.data(), .w = &first, .y = y.view()};
        kernels.matmul(pool, {&part, 1}, DType::kBF16);
        std::vector<int32_t> columns(rows.size());
        kernels.matmul_arg_max(
            pool, {.x = x.view(), .x_rows = rows.data(), .w = &first, .columns = columns},
            DType::kBF16);
        for (int64_t r = 0; r < num_rows; ++r) {
          const float* want = all.view().row(r);
          EXPECT_EQ(std::memcmp(y.view().row(r), want, static_cast<size_t>(n) * sizeof(float)), 0)
              << n << " of " << DTypeName(dtype);
          EXPECT_EQ(columns[static_cast<size_t>(r)], std::max_element(want, want + n) - want);
        }
      }
    }
  }
}

TEST_P(MatMulArgMaxTest, OverflownRowsHaveNone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kColumns = 900;
  TestMatrix values(kColumns, 1);
  const TestMatrix x = TestMatrix::Random(1, 1, random);
  const float sign = std::copysign(1.0F, x.values[0]);
  const auto columns = [&] {
    return ArgMaxOf(pool, x, Weight(PackedFormat{.dtype = DType::kF32}, values, random),
                    DType::kF32, {0});
  };
  std::fill(values.values.begin(), values.values.end(), kNaN);
  EXPECT_EQ(columns(), std::vector<int32_t>{-1});
  for (size_t n = 300; n < 600; ++n) values.values[n] = -sign * kInfinity;
  EXPECT_EQ(columns(), std::vector<int32_t>{-1});
  values.values[450] = -sign;
  EXPECT_EQ(columns(), std::vector<int32_t>{-1}) << "NaN beside a number";
  std::fill(values.values.begin(), values.values.end(), -sign * kInfinity);
  values.values[450] = -sign;
  EXPECT_EQ(columns(), std::vector<int32_t>{450});
  values.values[700] = sign * kInfinity;
  EXPECT_EQ(columns(), std::vector<int32_t>{-1});
}

// Wherever it stands, and however many rows are computed together.
TEST_P(MatMulArgMaxTest, OneNaNOverflowsItsRowAndNoOther) {
  constexpr int64_t kColumns = 700;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int num_rows : {1, 5, 64}) {
      TestMatrix x = TestMatrix::Random(num_rows, 40, random);
      const Weight weight(dtype, kColumns, 40, random);
      const std::vector<int32_t> rows = FirstNumbers(num_rows);
      std::vector<int32_t> want = ArgMaxOf(pool, x, weight, DType::kBF16, rows);
      const auto bad = static_cast<size_t>(Pick(0, num_rows - 1));
      x.values[bad * 40 + 3] = kNaN;
      want[bad] = -1;
      EXPECT_EQ(ArgMaxOf(pool, x, weight, DType::kBF16, rows), want);
    }
  }
  for (const size_t n : {0, 17, 699}) {  // a row of the weight
    TestMatrix values = TestMatrix::Random(kColumns, 1, random);
    values.values[n] = kNaN;
    const Weight weight(PackedFormat{.dtype = DType::kF32}, values, random);
    EXPECT_EQ(ArgMaxOf(pool, TestMatrix::Random(1, 1, random), weight, DType::kF32, {0}),
              std::vector<int32_t>{-1});
  }
}

TEST_P(MatMulArgMaxTest, NoRows) {
  const Weight weight(DType::kF32, 40, 8, random);
  EXPECT_TRUE(ArgMaxOf(pool, TestMatrix(0, 8), weight, DType::kF32, {}).empty());
}

INSTANTIATE_TEST_SUITE_P(Tables, MatMulArgMaxTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
