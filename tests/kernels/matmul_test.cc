// matmul is one chain of FMAs per output, or sums in the order of bfloat16 instructions, so every
// table must give the same bits as the sum written out here, whatever the number of rows, jobs and
// threads. Long because every weight format, shape and ISA goes through this one sum.

#include <array>
#include <cmath>
#include <memory>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/packed_weight.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

float Chain(const float* x, const Weight& w, int64_t n, bool round_x) {
  float sum = 0;
  for (int64_t k = 0; k < w.packed.cols; ++k) {
    sum = w.Term(round_x ? RoundToBFloat16(x[k]) : x[k], n, k, sum);
  }
  return w.Finished(sum, n);
}

float WithoutSubnormals(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

/// The order of TDPBF16PS (kernel_table.h).
float UnitSum(const float* x, const Weight& w, int64_t n) {
  const int64_t cols = w.packed.cols;
  const bool has_groups = w.packed.format.dtype == DType::kF8E4M3;
  const int64_t group_cols = has_groups ? w.packed.format.scale_cols : cols;
  float whole = 0;
  for (int64_t group = 0; group < cols; group += group_cols) {
    const int64_t group_end = std::min(cols, group + group_cols);
    float sum = 0;
    for (int64_t tile = group; tile < group_end; tile += 32) {
      float parts[2] = {};
      for (int64_t k = tile; k < std::min(group_end, tile + 32); ++k) {
        const float xk = WithoutSubnormals(RoundToBFloat16(x[k]));
        const float wk = WithoutSubnormals(w.values.view().row(n)[k]);
        parts[k % 2] = WithoutSubnormals(std::fma(xk, wk, parts[k % 2]));
      }
      sum = WithoutSubnormals(sum + WithoutSubnormals(parts[0] + parts[1]));
    }
    if (!has_groups) return w.Finished(sum, n);
    whole = WithoutSubnormals(std::fma(sum, w.Scales(n)[group / group_cols], whole));
  }
  return w.Finished(whole, n);
}

/// The order of VDPBF16PS (kernel_table.h).
float DotSum(const float* x, const Weight& w, int64_t n) {
  const int64_t cols = w.packed.cols;
  const bool has_groups = w.packed.format.dtype == DType::kF8E4M3;
  const int64_t group_cols = has_groups ? w.packed.format.scale_cols : cols;
  float whole = 0;
  for (int64_t group = 0; group < cols; group += group_cols) {
    const int64_t group_end = std::min(cols, group + group_cols);
    float sum = 0;
    for (int64_t pair = group; pair < group_end; pair += 2) {
      for (int64_t k = pair + 1; k >= pair; --k) {
        const bool exists = k < group_end;  // else it is zero
        const float xk = exists ? WithoutSubnormals(RoundToBFloat16(x[k])) : 0;
        const float wk = exists ? WithoutSubnormals(w.values.view().row(n)[k]) : 0;
        sum = WithoutSubnormals(std::fma(xk, wk, sum));
      }
    }
    if (!has_groups) return w.Finished(sum, n);
    whole = std::fma(sum, w.Scales(n)[group / group_cols], whole);
  }
  return w.Finished(whole, n);
}

/// Whether sums have the order of bfloat16 instructions, UnitSum's or DotSum's.
bool HasBf16DotOrder(Isa isa, const PackedFormat& format, DType operand_dtype) {
  if (isa < Isa::kAvx512Bf16 || operand_dtype != DType::kBF16) return false;
  if (format.dtype == DType::kF8E4M3) return format.scale_cols % 32 == 0;
  return format.dtype != DType::kF32 && format.dtype != DType::kI4;
}

void ExpectSums(Isa isa, const MatMulJob& job, const Weight& weight, const TestMatrix& before,
                DType operand_dtype) {
  const bool round_x = operand_dtype == DType::kBF16;
  const bool bf16_dot_order = HasBf16DotOrder(isa, weight.packed.format, operand_dtype);
  for (int64_t r = 0; r < job.y.rows; ++r) {
    const float* x = job.x.row(job.x_rows != nullptr ? job.x_rows[r] : r);
    for (int64_t n = 0; n < job.y.cols; ++n) {
      float want = !bf16_dot_order    ? Chain(x, weight, n, round_x)
                   : isa == Isa::kAmx ? UnitSum(x, weight, n)
                                      : DotSum(x, weight, n);
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

constexpr PackedFormat kNarrowFormats[] = {
    {.dtype = DType::kBF16},
    {.dtype = DType::kI8},
    {.dtype = DType::kF4E2M1},
    {.dtype = DType::kF4E2M1, .group_scale = DType::kF8E4M3, .row_scales = true},
    {.dtype = DType::kI4, .group_scale = DType::kBF16},
    {.dtype = DType::kF8E4M3, .scale_cols = 256, .power_of_two_scales = true, .row_scales = true},
    {.dtype = DType::kF8E4M3, .scale_cols = 48},
    {.dtype = DType::kF8E4M3, .scale_cols = 96},
    {.dtype = DType::kF8E4M3, .scale_cols = 128, .power_of_two_scales = true}};

/// k, or the next number of columns that the format has.
int64_t ColumnsOf(const PackedFormat& format, int64_t k) {
  const int64_t group = std::max<int64_t>(format.group_cols(), 1);
  return (k + group - 1) / group * group;
}

class MatMulTest : public KernelTest {
 protected:
  void RunOne(DType dtype, DType operand, int64_t rows, int64_t n, int64_t k, bool accumulate) {
    RunOne(PackedFormat{.dtype = dtype}, operand, rows, n, k, accumulate);
  }
  void RunOne(PackedFormat format, DType operand, int64_t rows, int64_t n, int64_t k,
              bool accumulate) {
    k = ColumnsOf(format, k);
    const Weight weight(format, n, k, random);
    const TestMatrix x = TestMatrix::Random(rows, k, random, Pick(0, 9));
    const TestMatrix before = TestMatrix::Random(rows, n, random, Pick(0, 9));
    TestMatrix y = before;
    const MatMulJob job = {
        .x = x.view(), .w = &weight.packed, .y = y.view(), .accumulate = accumulate};
    kernels.matmul(pool, {&job, 1}, operand);
    ExpectSums(GetParam(), job, weight, before, operand);
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
  // Blocks of k, with and without a last tile that is not whole, and more panels than a run.
  if (kSanitized) return;
  for (const int64_t rows : {20, 33, 48, 64, 81, 130})
    RunOne(DType::kBF16, DType::kBF16, rows, 300, 2085, true);
}

TEST_P(MatMulTest, EveryOutputIsOneChainOverNarrowWeights) {
  for (const PackedFormat format : kNarrowFormats) {
    for (int64_t rows = 1; rows <= 20; rows += kSanitized ? 7 : 1) {
      for (const int64_t k : {4, 44, 128, 256, 260, 516}) {
        const DType operand = rows % 3 == 0 ? DType::kF32 : DType::kBF16;
        RunOne(format, operand, rows, Pick(1, 200), k, Pick(0, 1) == 1);
      }
    }
    for (const int64_t rows : {1, 2, 4, 32, 45, 49, 64, 193}) {
      const bool many_panels = !kSanitized && (rows <= 4 || rows == 45);
      RunOne(format, DType::kBF16, rows, many_panels ? 530 : 130, 768, false);
    }
  }
}

void ExpectEveryCodeIsRead(const KernelTable& kernels, ThreadPool& pool, int64_t scale_cols) {
  // One output per code: 127 positive, 127 negative, each times 1 in a chain of zeros.
  const int64_t n = 256;
  const PackedFormat format = {.dtype = DType::kF8E4M3, .scale_cols = scale_cols};
  Buffer storage(PackedBytes(format, n, 4));
  std::vector<uint8_t> codes(n * 4);
  for (int64_t i = 0; i < n; ++i) {
    if (i % 128 != 127) codes[static_cast<size_t>(i * 4 + i % 4)] = static_cast<uint8_t>(i);
  }
  const PackedMatrix w = {.format = format, .rows = n, .cols = 4, .data = storage.data()};
  for (int64_t p = 0; p < n / 16; ++p) {
    PackFp8Panel(codes.data() + p * 64, 16, 4, storage.data() + p * 64);
    *const_cast<float*>(w.scales(p)) = 0.375F;
  }
  for (const int64_t rows : {1, 2, 3, 4, 7, 30}) {
    TestMatrix x(rows, 4);
    for (float& v : x.values) v = 1;
    TestMatrix y(rows, n);
    const MatMulJob job = {.x = x.view(), .w = &w, .y = y.view()};
    kernels.matmul(pool, {&job, 1}, DType::kBF16);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const float want =
            i % 128 == 127 ? 0.0F : 0.375F * Float8E4M3ToFloat(static_cast<uint8_t>(i));
        ASSERT_EQ(y.view().row(r)[i], want) << "row " << r << " of " << rows << ", code " << i;
      }
    }
  }
}

TEST_P(MatMulTest, EveryCodeOfE4M3IsRead) {
  ExpectEveryCodeIsRead(kernels, pool, 4);
  ExpectEveryCodeIsRead(kernels, pool, 32);
}

// One row of the weight per exponent, every code in each, times 1 in a chain of zeros.
TEST_P(MatMulTest, EveryCodeOfE2M1IsReadWithEveryScale) {
  const int64_t n = kLargestFp4Exponent - kLeastFp4Exponent + 1;
  const PackedFormat format = {.dtype = DType::kF4E2M1};
  Buffer storage(PackedBytes(format, n, kFp4Group));
  const PackedMatrix w = {.format = format, .rows = n, .cols = kFp4Group, .data = storage.data()};
  std::vector<uint8_t> codes(16 * 16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i % 8 * 34 + 16);
  for (int64_t p = 0; p < w.panels(); ++p) {
    uint8_t exponents[16];
    for (int64_t i = 0; i < 16; ++i) {
      exponents[i] = static_cast<uint8_t>(kLeastFp4Exponent + p * 16 + i);
    }
    PackFourBitPanel(w, p, codes.data(), exponents, std::min<int64_t>(16, n - p * 16));
  }
  for (int64_t k = 0; k < 16; ++k) {  // code k: the halves of eight bytes, in order
    for (const int64_t rows : {1, 3, 9}) {
      TestMatrix x(rows, kFp4Group);
      for (float& v : x.values) v = 0;
      for (int64_t r = 0; r < rows; ++r) x.view().row(r)[k] = 1;
      TestMatrix y(rows, n);
      const MatMulJob job = {.x = x.view(), .w = &w, .y = y.view()};
      kernels.matmul(pool, {&job, 1}, DType::kBF16);
      const float value = Float4E2M1ToFloat(static_cast<uint8_t>(k));
      for (int64_t i = 0; i < n; ++i) {
        const float want = std::ldexp(value, static_cast<int>(kLeastFp4Exponent + i) - 127);
        ASSERT_EQ(y.view().row(rows - 1)[i], want) << "column " << k << ", 2^" << i + 2 << "/2^127";
      }
    }
  }
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
    const bool has_subnormals = GetParam() < Isa::kAvx512Bf16;
    EXPECT_EQ(y.view().row(4)[n],
              has_subnormals ? std::fma(RoundToBFloat16(-1e-40f), w, 0.0f) : 0.0f);
  }
}

TEST_P(MatMulTest, JobListsLikeExpertsGatherRowsAndShareInputs) {
  const int64_t k = 132;
  const TestMatrix x = TestMatrix::Random(21, k, random, 3);
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::vector<int32_t>> rows;
  std::vector<TestMatrix> before;
  std::vector<TestMatrix> y;
  for (int expert = 0; expert < 12; ++expert) {
    constexpr DType kFormats[] = {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI8};
    weights.push_back(std::make_unique<Weight>(kFormats[expert % 4], Pick(1, 70), k, random));
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
      ExpectSums(GetParam(), jobs[e], *weights[e], before[e], operand);
    }
    ExpectSums(GetParam(), jobs.back(), other, before.back(), operand);
  }
}

TEST_P(MatMulTest, ARowHasTheSameBitsInAnyBatchOnAnyNumberOfThreads) {
  const int64_t outputs = kSanitized || GetParam() == Isa::kReference ? 70 : 530;
  for (const PackedFormat format : kNarrowFormats) {
    const int64_t k = ColumnsOf(format, 700);
    const Weight weight(format, outputs, k, random);
    const TestMatrix x = TestMatrix::Random(64, k, random);
    TestMatrix alone(64, outputs);
    for (int64_t r = 0; r < 64; ++r) {
      const MatMulJob job = {
          .x = x.view().Rows(r, 1), .w = &weight.packed, .y = alone.view().Rows(r, 1)};
      kernels.matmul(single, {&job, 1}, DType::kBF16);
    }
    ThreadPool four(4);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<int32_t> rows(static_cast<size_t>(Pick(1, 64)));
      for (int32_t& r : rows) r = Pick(0, 63);
      TestMatrix y(static_cast<int64_t>(rows.size()), outputs);
      const MatMulJob job = {
          .x = x.view(), .x_rows = rows.data(), .w = &weight.packed, .y = y.view()};
      kernels.matmul(trial % 2 == 0 ? pool : four, {&job, 1}, DType::kBF16);
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_TRUE(
            SameBits(y.view().row(static_cast<int64_t>(i)), alone.view().row(rows[i]), outputs));
      }
    }
  }
}

// More weights than stay in a cache, where another number of rows may be the first that a matrix
// unit takes.
TEST_P(MatMulTest, ARowOfFewHasTheSameBitsWithALargeWeight) {
  constexpr int64_t kOutputs = 1600;
  const Weight weight({.dtype = DType::kBF16}, kOutputs, 700, random);
  const TestMatrix x = TestMatrix::Random(6, 700, random);
  TestMatrix alone(6, kOutputs);
  for (int64_t rows = 1; rows <= 6; ++rows) {
    TestMatrix y(rows, kOutputs);
    const MatMulJob one = {
        .x = x.view().Rows(rows - 1, 1), .w = &weight.packed, .y = alone.view().Rows(rows - 1, 1)};
    const MatMulJob all = {.x = x.view().Rows(0, rows), .w = &weight.packed, .y = y.view()};
    kernels.matmul(single, {&one, 1}, DType::kBF16);
    kernels.matmul(pool, {&all, 1}, DType::kBF16);
    ASSERT_TRUE(SameBits(y.values.data(), alone.values.data(), rows * kOutputs)) << rows;
  }
}

TEST_P(MatMulTest, ARowHasTheSameBitsInAnyBatchAtTheEndsOfTheRange) {
  // Products around the least normal number, with sums that vanish or become subnormal on the way.
  const int64_t k = 330;
  Weight weight(DType::kBF16, 40, k, random);
  TestMatrix x = TestMatrix::Random(70, k, random);
  for (float& v : x.values) v = std::ldexp(RoundToBFloat16(v), -Pick(58, 70));
  for (float& v : weight.values.values) v = std::ldexp(v, -Pick(58, 66));
  for (int64_t p = 0; p < 3; ++p) {
    PackPanel(DType::kBF16, weight.values.view().row(p * 16), std::min<int64_t>(16, 40 - p * 16), k,
              weight.storage.data() + p * static_cast<int64_t>(PanelBytes(DType::kBF16, k)));
  }
  TestMatrix all(70, 40);
  const MatMulJob job = {.x = x.view(), .w = &weight.packed, .y = all.view()};
  kernels.matmul(pool, {&job, 1}, DType::kBF16);
  for (int64_t r = 0; r < 70; ++r) {
    TestMatrix alone(1, 40);
    const MatMulJob one = {.x = x.view().Rows(r, 1), .w = &weight.packed, .y = alone.view()};
    kernels.matmul(single, {&one, 1}, DType::kBF16);
    ASSERT_TRUE(SameBits(alone.values.data(), all.view().row(r), 40)) << "row " << r;
  }
}

// A sum that AMX has flushed to -0 meets, in a tile that the columns do not fill,
// products that are flushed to -0 as well, and the zeros behind them, which make it +0.
TEST_P(MatMulTest, ZeroHasTheSameSignInAnyBatchWhereColumnsEndWithinATile) {
  for (const int64_t cols : {66, 67}) {
    Weight weight(DType::kBF16, 16, cols, random);
    TestMatrix w(16, cols);
    TestMatrix x(40, cols);
    for (int64_t r = 0; r < 40; ++r) x.view().row(r)[0] = x.view().row(r)[32] = 0x1p-63F;
    for (int64_t n = 0; n < 16; ++n) {
      w.view().row(n)[0] = 0x1.8p-63F;
      w.view().row(n)[32] = -0x1.cp-63F;
    }
    for (int64_t k = 64; k < cols; ++k) {
      for (int64_t r = 0; r < 40; ++r) x.view().row(r)[k] = 0x1p-65F;
      for (int64_t n = 0; n < 16; ++n) w.view().row(n)[k] = -0x1p-65F;
    }
    PackPanel(DType::kBF16, w.values.data(), 16, cols, weight.storage.data());
    TestMatrix all(40, 16);
    const MatMulJob job = {.x = x.view(), .w = &weight.packed, .y = all.view()};
    kernels.matmul(pool, {&job, 1}, DType::kBF16);
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 17}) {
      TestMatrix some(rows, 16);
      const MatMulJob few = {.x = x.view().Rows(0, rows), .w = &weight.packed, .y = some.view()};
      kernels.matmul(single, {&few, 1}, DType::kBF16);
      EXPECT_TRUE(SameBits(some.values.data(), all.values.data(), rows * 16))
          << rows << " rows, " << cols << " columns";
    }
    if (GetParam() == Isa::kAmx) {
      EXPECT_EQ(all.values[0], 0);
      EXPECT_FALSE(std::signbit(all.values[0]));
    }
  }
}

TEST_P(MatMulTest, NoJobsAndNoRowsAreNothingToDo) {
  kernels.matmul(pool, {}, DType::kBF16);
  const Weight weight(DType::kBF16, 16, 8, random);
  const TestMatrix x = TestMatrix::Random(3, 8, random);
  TestMatrix y(3, 16);
  std::ranges::fill(y.values, 7.0F);
  const std::vector<float> before(y.values.begin(), y.values.end());
  const MatMulJob none = {.x = x.view().Rows(0, 0), .w = &weight.packed, .y = y.view().Rows(0, 0)};
  kernels.matmul(pool, {&none, 1}, DType::kBF16);
  EXPECT_TRUE(std::ranges::equal(y.values, before));
  // Beside a job with rows, one without changes nothing.
  TestMatrix alone(2, 16);
  const MatMulJob some = {.x = x.view().Rows(1, 2), .w = &weight.packed, .y = y.view().Rows(1, 2)};
  const MatMulJob same = {.x = x.view().Rows(1, 2), .w = &weight.packed, .y = alone.view()};
  const std::array jobs = {none, some, none};
  kernels.matmul(pool, jobs, DType::kBF16);
  kernels.matmul(pool, {&same, 1}, DType::kBF16);
  EXPECT_TRUE(SameBits(y.values.data(), before.data(), 16));
  EXPECT_TRUE(SameBits(y.values.data() + 16, alone.values.data(), 2 * 16));
}

TEST(MatMulLeaves, BothWaysOfReadingE4M3GiveTheSameBits) {
  if (DetectIsa() < Isa::kAvx2) GTEST_SKIP() << "needs AVX2";
  std::mt19937 random(3);
  for (const int64_t rows : {1, 2, 3, 4, 5, 17}) {
    const int64_t k = 516;
    const Weight weight({.dtype = DType::kF8E4M3, .scale_cols = 516}, 96, k, random);
    const auto panel_bytes = static_cast<int64_t>(PanelBytes(DType::kF8E4M3, k));
    const TestMatrix x = TestMatrix::Random(rows, k, random);
    TestMatrix y[2] = {TestMatrix(rows, 90), TestMatrix(rows, 90)};
    Buffer sums(static_cast<size_t>(cpu::PanelProductScratch(rows)) * sizeof(float));
    Buffer widened(cpu::kWidenedWeights * sizeof(float));
    for (const int way : {0, 1}) {
      TestMatrix scaled = x;
      std::vector<const float*> pointers;
      for (int64_t r = 0; r < rows; ++r) {
        (way == 0 ? cpu::avx2::ScaleRow : cpu::avx2::ScaleRowForFloat16)(
            x.view().row(r), weight.packed.scales(0), 516, k, scaled.view().row(r));
        pointers.push_back(scaled.view().row(r));
      }
      (way == 0 ? cpu::avx2::MultiplyPanels : cpu::avx2::MultiplyPanelsByFloat16)(
          {.format = DType::kF8E4M3,
           .panels = weight.storage.data(),
           .panel_bytes = panel_bytes,
           .num_panels = 6,
           .cols = k,
           .x = pointers.data(),
           .rows = rows,
           .y = y[way].values.data(),
           .y_stride = 90,
           .columns = 90,
           .sums = reinterpret_cast<float*>(sums.data()),
           .widened = reinterpret_cast<float*>(widened.data())});
    }
    EXPECT_TRUE(SameBits(y[0].values.data(), y[1].values.data(), rows * 90)) << rows << " rows";
  }
}

TEST(KernelTables, OfThisMachineAreAllTested) {
  for (const Isa isa : TestedIsas()) EXPECT_EQ(GetKernels(isa).name, IsaName(isa));
  std::string missing;
  for (const Isa isa : kAllIsas) {
    if (isa > DetectIsa()) missing += " " + std::string(IsaName(isa));
  }
  if (!missing.empty()) GTEST_SKIP() << "not tested, this machine lacks" << missing;
}

INSTANTIATE_TEST_SUITE_P(Isas, MatMulTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
