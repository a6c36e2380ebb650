// The residual stream's operation against the reference table of CPU kernels, and the equality of a
// row's bits for every number of rows. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/rows/norm_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct Shape {
  int hidden;
  int terms;
  bool weighted;
  DType dtype;
};

/// What a run leaves.
struct Rows {
  std::vector<float> x;
  std::vector<uint16_t> out;
};

class NormRowsTest : public HopperTest<::testing::TestWithParam<Shape>> {
 protected:
  static constexpr int kRows = 140;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    const auto [hidden, terms, weighted, dtype] = GetParam();
    const size_t size = size_t{kRows} * hidden;
    x_ = NormalFloats(random_, size, 3.0F);
    weight_ = NormalFloats(random_, hidden);
    term_weights_ = NormalFloats(random_, size_t{kRows} * terms);
    const std::vector<uint16_t> values = NormalBf16(random_, size * terms);
    terms_ = ToFloats(values);
    d_weight_ = DeviceArray<float>(weight_);
    d_term_weights_ = DeviceArray<float>(term_weights_);
    if (dtype == DType::kF32) {
      d_terms_f32_ = DeviceArray<float>(terms_);
    } else {
      d_terms_bf16_ = DeviceArray<uint16_t>(values);
    }
  }

  NormRowsParams Params(int first) const {
    const auto [hidden, terms, weighted, dtype] = GetParam();
    NormRowsParams params;
    params.hidden = hidden;
    params.num_terms = terms;
    params.terms_dtype = dtype;
    const size_t at = static_cast<size_t>(first) * terms * hidden;
    params.terms = dtype == DType::kF32 ? static_cast<const void*>(d_terms_f32_.data() + at)
                                        : static_cast<const void*>(d_terms_bf16_.data() + at);
    if (weighted) params.term_weights = d_term_weights_.data() + size_t{1} * first * terms;
    params.norm_weight = d_weight_.data();
    params.epsilon = 1e-5F;
    return params;
  }

  /// Rows first .. first + rows - 1; `bound` rows are launched.
  Rows Run(int first, int rows, int bound, bool graph = false) const {
    const int hidden = GetParam().hidden;
    const std::vector<float> part(x_.begin() + static_cast<int64_t>(first) * hidden,
                                  x_.begin() + static_cast<int64_t>(first + rows) * hidden);
    const DeviceArray<float> d_x(part);
    const DeviceArray<uint16_t> d_out(part.size());
    const DeviceArray<int32_t> true_rows(std::vector<int32_t>{rows});
    NormRowsParams params = Params(first);
    params.num_rows = bound;
    params.x = d_x.data();
    params.out = d_out.data();
    if (bound != rows) params.true_rows = true_rows.data();
    RunOnDevice([&](cudaStream_t stream) { CudaOk(NormRows(params, stream), "NormRows"); },
                graph ? 1 : 0);
    return {d_x.Download(), d_out.Download()};
  }

  std::mt19937 random_{17};
  std::vector<float> x_, weight_, term_weights_, terms_;
  DeviceArray<float> d_weight_, d_term_weights_, d_terms_f32_;
  DeviceArray<uint16_t> d_terms_bf16_;
};

TEST_P(NormRowsTest, MatchesTheCpuReferenceAndKeepsBits) {
  const auto [hidden, terms, weighted, dtype] = GetParam();
  const Rows all = Run(0, kRows, kRows);
  ThreadPool pool(1);
  std::vector<float> x = x_;
  std::vector<int32_t> rows(size_t{kRows} * terms);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<float> ones(rows.size(), 1.0F);
  CpuReference().combine_experts(pool, {terms_.data(), int64_t{kRows} * terms, hidden}, rows.data(),
                                 weighted ? term_weights_.data() : ones.data(), terms,
                                 {x.data(), kRows, hidden});
  std::vector<float> normed(x.size());
  CpuReference().rms_norm(pool, {x.data(), kRows, hidden}, weight_.data(), 1e-5F,
                          {normed.data(), kRows, hidden});
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(all.x[i], x[i], 1e-5F * (1 + std::abs(x[i]))) << "residual, value " << i;
    ASSERT_NEAR(Bf16ToFloat(all.out[i]), normed[i], std::abs(normed[i]) / 200 + 1e-5F)
        << "norm, value " << i;
  }
  for (const int count : {1, 2, 7, 32, 33, 128}) {
    for (const int first : {0, 5, kRows - count}) {
      for (const int bound : {count, count + 9}) {
        const Rows some = Run(first, count, bound);
        const auto at = static_cast<int64_t>(first) * hidden;
        ASSERT_TRUE(std::equal(some.x.begin(), some.x.end(), all.x.begin() + at))
            << count << " rows from " << first << ", bound " << bound;
        ASSERT_TRUE(std::equal(some.out.begin(), some.out.end(), all.out.begin() + at))
            << count << " rows from " << first << ", bound " << bound;
      }
    }
  }
  const Rows replayed = Run(0, kRows, kRows, /*graph=*/true);
  EXPECT_EQ(replayed.x, all.x);
  EXPECT_EQ(replayed.out, all.out);
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, NormRowsTest,
    ::testing::Values(Shape{2048, 0, false, DType::kBF16}, Shape{2048, 7, true, DType::kF32},
                      Shape{2048, 5, true, DType::kBF16}, Shape{7168, 9, true, DType::kBF16},
                      Shape{7168, 1, false, DType::kF32}, Shape{256, 3, true, DType::kF32},
                      Shape{5120, 2, true, DType::kBF16}, Shape{8192, 0, false, DType::kBF16},
                      Shape{36, 2, true, DType::kF32}),
    [](const ::testing::TestParamInfo<Shape>& shape) {
      return "hidden" + std::to_string(shape.param.hidden) + "terms" +
             std::to_string(shape.param.terms) +
             (shape.param.dtype == DType::kF32 ? "float32" : "bfloat16");
    });

using NormRowsLastTermTest = HopperTest<>;

// The last of the terms, which weighs 1, by itself.
TEST_F(NormRowsLastTermTest, ATermByItselfIsTheLastOfTheTerms) {
  constexpr int kRows = 150, kHidden = 2052, kTerms = 4;
  std::mt19937 random(23);
  const std::vector<float> x = NormalFloats(random, size_t{kRows} * kHidden);
  const std::vector<float> terms = NormalFloats(random, x.size() * kTerms);
  const std::vector<float> norm = NormalFloats(random, kHidden);
  std::vector<float> weights = NormalFloats(random, size_t{kRows} * kTerms);
  std::vector<float> first_terms, last_terms, first_weights;
  for (int row = 0; row < kRows; ++row) {
    const auto of_row = terms.begin() + int64_t{row} * kTerms * kHidden;
    const auto last = of_row + int64_t{kTerms - 1} * kHidden;
    first_terms.insert(first_terms.end(), of_row, last);
    last_terms.insert(last_terms.end(), last, last + kHidden);
    weights[row * kTerms + kTerms - 1] = 1;
    const auto own = weights.begin() + int64_t{row} * kTerms;
    first_weights.insert(first_weights.end(), own, own + kTerms - 1);
  }
  const DeviceArray<float> d_terms(terms), d_weights(weights), d_norm(norm);
  const DeviceArray<float> d_first(first_terms), d_last(last_terms), d_own(first_weights);
  for (const int rows : {1, 9, kRows}) {
    const auto run = [&](bool apart) {
      const DeviceArray<float> d_x(x);
      const DeviceArray<uint16_t> d_out(x.size());
      NormRowsParams params;
      params.num_rows = rows;
      params.hidden = kHidden;
      params.x = d_x.data();
      params.terms = apart ? d_first.data() : d_terms.data();
      params.terms_dtype = DType::kF32;
      params.num_terms = apart ? kTerms - 1 : kTerms;
      params.term_weights = apart ? d_own.data() : d_weights.data();
      if (apart) params.last_term = d_last.data();
      params.norm_weight = d_norm.data();
      params.out = d_out.data();
      CudaOk(NormRows(params, nullptr), "NormRows");
      CudaOk(cudaDeviceSynchronize(), "run");
      return Rows{d_x.Download(), d_out.Download()};
    };
    const Rows together = run(false), apart = run(true);
    EXPECT_EQ(together.x, apart.x) << rows;
    EXPECT_EQ(together.out, apart.out) << rows;
  }
}

class NormRowsCases : public HopperTest<> {
 protected:
  std::mt19937 random_{18};
};

TEST_F(NormRowsCases, EmbeddingsBeginTheResidual) {
  constexpr int kVocab = 50;
  constexpr int kHidden = 2048;
  const std::vector<uint16_t> table = NormalBf16(random_, size_t{kVocab} * kHidden);
  const std::vector<int32_t> tokens = {49, 0, 7, 7, 23};
  const std::vector<float> weight = NormalFloats(random_, kHidden);
  const DeviceArray<uint16_t> d_table(table), out(tokens.size() * kHidden);
  const DeviceArray<int32_t> d_tokens(tokens);
  const DeviceArray<float> d_weight(weight), x(tokens.size() * kHidden);
  NormRowsParams params;
  params.num_rows = static_cast<int>(tokens.size());
  params.hidden = kHidden;
  params.x = x.data();
  params.embedding = d_table.data();
  params.tokens = d_tokens.data();
  params.vocab_size = kVocab;
  params.norm_weight = d_weight.data();
  params.out = out.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  const std::vector<float> got = x.Download();
  for (size_t row = 0; row < tokens.size(); ++row) {
    for (int i = 0; i < kHidden; ++i) {
      ASSERT_EQ(got[row * kHidden + i],
                Bf16ToFloat(table[static_cast<size_t>(tokens[row]) * kHidden + i]))
          << "row " << row;
    }
  }
  // The norm of the same residual by itself.
  const DeviceArray<uint16_t> again(out.size());
  params.embedding = nullptr;
  params.out = again.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  EXPECT_EQ(again.Download(), out.Download());
}

TEST_F(NormRowsCases, NormsRowsOfBf16) {
  constexpr int kHidden = 2048, kRows = 9, kStride = kHidden + 16;
  const std::vector<uint16_t> rows = NormalBf16(random_, size_t{kRows} * kStride);
  const std::vector<float> weight = NormalFloats(random_, kHidden);
  std::vector<float> same;
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kHidden; ++i) same.push_back(Bf16ToFloat(rows[row * kStride + i]));
  }
  const DeviceArray<uint16_t> d_rows(rows), out(same.size()), of_floats(same.size());
  const DeviceArray<float> d_weight(weight), x(same);
  NormRowsParams params;
  params.num_rows = kRows;
  params.hidden = kHidden;
  params.norm_weight = d_weight.data();
  params.embedding = d_rows.data();
  params.embedding_stride = kStride;
  params.out = out.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  params.embedding = nullptr;
  params.x = x.data();
  params.out = of_floats.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  EXPECT_EQ(out.Download(), of_floats.Download());
  EXPECT_EQ(x.Download(), same);
}

TEST_F(NormRowsCases, TakesNamedRowsForTheHead) {
  constexpr int kHidden = 2048;
  const std::vector<float> weight = NormalFloats(random_, kHidden);
  const std::vector<float> x = NormalFloats(random_, size_t{10} * kHidden);
  const std::vector<int32_t> rows = {9, 3, 3, 0};
  const DeviceArray<float> d_weight(weight), d_x(x);
  const DeviceArray<int32_t> d_rows(rows);
  const DeviceArray<uint16_t> all(x.size()), named(rows.size() * kHidden);
  NormRowsParams params;
  params.num_rows = 10;
  params.hidden = kHidden;
  params.x = d_x.data();
  params.norm_weight = d_weight.data();
  params.out = all.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  params.num_rows = static_cast<int>(rows.size());
  params.x_rows = d_rows.data();
  params.out = named.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  const std::vector<uint16_t> wanted = all.Download(), got = named.Download();
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(std::equal(got.begin() + i * kHidden, got.begin() + (i + 1) * kHidden,
                           wanted.begin() + static_cast<size_t>(rows[i]) * kHidden))
        << "row " << i;
  }
  EXPECT_EQ(d_x.Download(), x) << "the residual must stay as it was";
}

// As the two halves of an MTP module's input: beside each other, the first token's without an
// embedding.
TEST_F(NormRowsCases, WritesRowsApartAndZerosAtTheFirstPosition) {
  constexpr int kHidden = 260;
  constexpr int kStride = 2 * kHidden;
  const std::vector<uint16_t> table = NormalBf16(random_, size_t{5} * kHidden);
  const std::vector<float> weight = NormalFloats(random_, kHidden);
  const DeviceArray<uint16_t> d_table(table), dense(size_t{3} * kHidden);
  const DeviceArray<uint16_t> apart(size_t{3} * kStride), zeroed(size_t{3} * kHidden);
  const DeviceArray<float> d_weight(weight), d_x(size_t{3} * kHidden);
  const DeviceArray<int32_t> tokens(std::vector<int32_t>{4, 0, 2});
  const DeviceArray<int32_t> positions(std::vector<int32_t>{7, 0, 1});
  NormRowsParams params;
  params.num_rows = 3;
  params.hidden = kHidden;
  params.x = d_x.data();
  params.embedding = d_table.data();
  params.tokens = tokens.data();
  params.vocab_size = 5;
  params.norm_weight = d_weight.data();
  params.out = dense.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  params.out = apart.data();
  params.out_stride = kStride;
  CudaOk(NormRows(params, nullptr), "NormRows");
  params.out = zeroed.data();
  params.out_stride = 0;
  params.zero_at = positions.data();
  CudaOk(NormRows(params, nullptr), "NormRows");
  const std::vector<uint16_t> wanted = dense.Download(), got = apart.Download(),
                              with_zeros = zeroed.Download();
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < kStride; ++i) {
      ASSERT_EQ(got[row * kStride + i], i < kHidden ? wanted[row * kHidden + i] : uint16_t{0xFFFF})
          << "row " << row << " column " << i;
    }
    for (int i = 0; i < kHidden; ++i) {
      const uint16_t bits = with_zeros[row * kHidden + i];
      ASSERT_EQ(row == 1 ? bits & 0x7FFF : bits, row == 1 ? 0 : wanted[row * kHidden + i])
          << "row " << row << " column " << i;
    }
  }
}

TEST(NormRowsArguments, AreRefusedWithWhatWouldBeRight) {
  float x = 0;
  NormRowsParams params;
  params.num_rows = 1;
  params.hidden = 2048;
  EXPECT_THROW(static_cast<void>(NormRows(params, nullptr)), Error);  // neither x nor embedding
  params.x = &x;
  params.hidden = 2050;
  EXPECT_THROW(static_cast<void>(NormRows(params, nullptr)), Error);
  params.hidden = 8196;
  EXPECT_THROW(static_cast<void>(NormRows(params, nullptr)), Error);
  params.hidden = 2048;
  params.out_stride = 2044;
  EXPECT_THROW(static_cast<void>(NormRows(params, nullptr)), Error);
  params.out_stride = 0;
  params.num_terms = 1;
  params.terms_dtype = DType::kF16;
  try {
    static_cast<void>(NormRows(params, nullptr));
    FAIL() << "float16 terms were taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("float32 or bfloat16"), std::string::npos);
  }
}

}  // namespace
}  // namespace outrider::cuda
