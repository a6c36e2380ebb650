// Hyper-connections against double precision, and the equality of a row's bits over batches. Needs
// a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/hyper/hyper_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kIterations = 20;
constexpr float kEpsilon = 1e-6F;
constexpr float kNormEpsilon = 1e-6F;

/// What the kernel leaves of some rows.
struct Results {
  std::vector<float> streams;  // [rows, 4 * hidden]
  std::vector<float> weights;  // [rows, 20]
  std::vector<float> mixture;  // [rows, hidden]
  std::vector<float> mean;     // [rows, hidden]
  std::vector<uint16_t> out;   // [rows, hidden]
};

struct HyperRun {
  bool adds = true;
  bool as_terms = false;  // what is added
  HyperPart part = HyperPart::kMix;
  bool norms = true;
  int padding = 0;  // rows that the device's count leaves out
  int replays = 0;
};

class HyperRowsTest : public HopperTest<::testing::TestWithParam<int>> {
 protected:
  static constexpr int kRows = 150;
  static constexpr int kTerms = 9;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    hidden_ = GetParam();
    width_ = int64_t{kStreams} * hidden_;
    streams_ = NormalFloats(random_, static_cast<size_t>(kRows * width_), 1.5F);
    y_ = NormalFloats(random_, static_cast<size_t>(kRows) * hidden_);
    terms_ = NormalFloats(random_, static_cast<size_t>(kRows) * kTerms * hidden_);
    term_weights_ = NormalFloats(random_, size_t{kRows} * kTerms, 0.5F);
    y16_ = NormalBf16(random_, static_cast<size_t>(kRows) * hidden_);
    before_ = NormalFloats(random_, size_t{kRows} * kHyperWeights, 0.5F);
    fn_ = NormalFloats(random_, static_cast<size_t>(kHyperSums * width_), 0.02F);
    scale_ = {0.7F, 1.3F, 0.9F};
    base_ = NormalFloats(random_, kHyperSums);
    norm_ = NormalFloats(random_, static_cast<size_t>(hidden_));
  }

  Results Run(int first, int rows, const HyperRun& run) {
    const int all = rows + run.padding;
    const auto part = [&](const auto& values, int64_t width) {
      auto some = std::vector(values.begin() + first * width,
                              values.begin() + std::min<int64_t>(first + all, kRows) * width);
      some.resize(static_cast<size_t>(all * width));
      return some;
    };
    const std::vector<float> streams = part(streams_, width_);
    const DeviceArray<float> d_streams(streams), y(part(y_, hidden_)),
        weights(part(before_, kHyperWeights)), fn(fn_), scale(scale_), base(base_), norm(norm_);
    const DeviceArray<float> terms(part(terms_, int64_t{kTerms} * hidden_)),
        term_weights(part(term_weights_, kTerms));
    const DeviceArray<uint16_t> y16(part(y16_, hidden_));
    const auto of_rows = static_cast<size_t>(all) * hidden_;
    const DeviceArray<float> mixture(of_rows), mean(of_rows), made(size_t{1} * all * kHyperWeights);
    const DeviceArray<uint16_t> out(of_rows);
    const DeviceArray<int32_t> true_rows(std::vector<int32_t>{rows});
    HyperRowsParams params;
    params.num_rows = all;
    if (run.padding > 0) params.true_rows = true_rows.data();
    params.hidden = hidden_;
    params.streams = d_streams.data();
    params.streams_stride = width_;
    if (run.adds) params.add_weights = weights.data();
    if (run.adds && run.as_terms) {
      params.terms = terms.data();
      params.num_terms = kTerms;
      params.term_weights = term_weights.data();
      params.last_term = y.data();
    } else if (run.adds) {
      params.y = y_is_bf16_ ? static_cast<const void*>(y16.data()) : y.data();
      params.y_dtype = y_is_bf16_ ? DType::kBF16 : DType::kF32;
      params.y_stride = hidden_;
    }
    params.mean = mean.data();
    params.mean_stride = hidden_;
    params.part = run.part;
    params.fn = fn.data();
    params.scale = scale.data();
    params.base = base.data();
    params.iterations = kIterations;
    params.epsilon = kEpsilon;
    params.norm_epsilon = kNormEpsilon;
    params.weights = made.data();
    params.mixture = mixture.data();
    params.mixture_stride = hidden_;
    if (run.norms) {
      params.norm_weight = norm.data();
      params.out = out.data();
      params.out_stride = hidden_;
    }
    const auto launch = [&](cudaStream_t stream) {
      CudaOk(cudaMemcpyAsync(d_streams.data(), streams.data(), streams.size() * sizeof(float),
                             cudaMemcpyHostToDevice, stream),
             "streams");
      CudaOk(HyperRows(params, stream), "HyperRows");
    };
    launch(nullptr);
    CudaOk(cudaDeviceSynchronize(), "run");
    return {d_streams.Download(), made.Download(), mixture.Download(), mean.Download(),
            out.Download()};
  }

  /// Row `row` in double precision: {streams, weights, mixture, mean, normed}.
  struct Wanted {
    std::vector<double> streams, weights, mixture, mean, out;
  };
  Wanted Reference(int row, const HyperRun& run) const {
    const auto h = static_cast<size_t>(hidden_);
    Wanted wanted;
    const float* x = streams_.data() + row * width_;
    wanted.streams.assign(x, x + width_);
    if (run.adds) {
      const float* post = before_.data() + int64_t{row} * kHyperWeights;
      const float* comb = post + kStreams;
      for (size_t i = 0; i < h; ++i) {
        const size_t at = static_cast<size_t>(row) * h + i;
        const double y = y_is_bf16_ ? ToFloats(std::span(&y16_[at], 1))[0] : y_[at];
        for (int k = 0; k < kStreams; ++k) {
          double sum = post[k] * y;
          for (int j = 0; j < kStreams; ++j) {
            sum += double{comb[j * kStreams + k]} * x[static_cast<size_t>(j) * h + i];
          }
          wanted.streams[static_cast<size_t>(k) * h + i] = sum;
        }
      }
    }
    double squares = 0;
    for (const double value : wanted.streams) squares += value * value;
    const double inverse =
        1 / std::sqrt(squares / static_cast<double>(width_) + double{kNormEpsilon});
    std::vector<double> m;
    for (int s = 0; s < kHyperSums; ++s) {
      double sum = 0;
      for (int64_t i = 0; i < width_; ++i) {
        sum += double{fn_[static_cast<size_t>(s * width_ + i)]} *
               wanted.streams[static_cast<size_t>(i)];
      }
      const int kind = s < 4 ? 0 : s < 8 ? 1 : 2;
      m.push_back(sum * inverse * scale_[static_cast<size_t>(kind)] +
                  base_[static_cast<size_t>(s)]);
    }
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    double c[kStreams][kStreams];
    for (int j = 0; j < kStreams; ++j) {
      double sum = 0;
      for (int k = 0; k < kStreams; ++k) sum += c[j][k] = std::exp(m[8 + j * kStreams + k]);
      for (int k = 0; k < kStreams; ++k) c[j][k] = c[j][k] / sum + kEpsilon;
    }
    const auto divide = [&](bool columns) {
      for (int a = 0; a < kStreams; ++a) {
        double sum = kEpsilon;
        for (int b = 0; b < kStreams; ++b) sum += columns ? c[b][a] : c[a][b];
        for (int b = 0; b < kStreams; ++b) (columns ? c[b][a] : c[a][b]) /= sum;
      }
    };
    divide(true);
    for (int i = 1; i < kIterations; ++i) {
      divide(false);
      divide(true);
    }
    for (int k = 0; k < kStreams; ++k) {
      wanted.weights.push_back(2 * sigmoid(m[static_cast<size_t>(4 + k)]));
    }
    for (const auto& of_row : c) wanted.weights.insert(wanted.weights.end(), of_row, of_row + 4);
    for (size_t i = 0; i < h; ++i) {
      double u = 0;
      double mean = 0;
      for (int j = 0; j < kStreams; ++j) {
        const double value = wanted.streams[static_cast<size_t>(j) * h + i];
        u += (sigmoid(m[static_cast<size_t>(j)]) + kEpsilon) * value;
        mean += value / kStreams;
      }
      wanted.mixture.push_back(u);
      wanted.mean.push_back(mean);
    }
    double of_mixture = 0;
    for (const double u : wanted.mixture) of_mixture += u * u;
    const double factor = 1 / std::sqrt(of_mixture / hidden_ + double{kNormEpsilon});
    for (size_t i = 0; i < h; ++i) {
      wanted.out.push_back(norm_[i] * wanted.mixture[i] * factor);
    }
    return wanted;
  }

  template <typename Got>
  static void ExpectNear(const Got& got, const std::vector<double>& wanted, int row, double bound,
                         const char* what) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double value = got(static_cast<size_t>(row) * wanted.size() + i);
      ASSERT_NEAR(value, wanted[i], bound * (1 + std::abs(wanted[i])))
          << what << " of row " << row << ", number " << i;
    }
  }

  void ExpectReference(const Results& got, int rows, const HyperRun& run) {
    const auto floats = [](const std::vector<float>& values) {
      return [&values](size_t i) { return double{values[i]}; };
    };
    for (int row = 0; row < rows; row += 7) {
      const Wanted wanted = Reference(row, run);
      ExpectNear(floats(got.streams), wanted.streams, row, 1e-5, "streams");
      ExpectNear(floats(got.mean), wanted.mean, row, 1e-5, "the mean");
      if (run.part == HyperPart::kNothing) continue;
      ExpectNear(floats(got.mixture), wanted.mixture, row, 1e-4, "the mixture");
      if (run.part == HyperPart::kMix) {
        ExpectNear(floats(got.weights), wanted.weights, row, 1e-4, "weights");
      }
      if (run.norms) {
        ExpectNear([&](size_t i) { return double{ToFloats(std::span(&got.out[i], 1))[0]}; },
                   wanted.out, row, 0.005, "the norm");
      }
    }
  }

  /// Rows first .. of `all` are those of `some`.
  void ExpectPart(const Results& some, const Results& all, HyperPart part, int first, int rows,
                  const std::string& where) const {
    const auto equal = [&](const auto& few, const auto& whole, int64_t width, const char* what) {
      for (int64_t i = 0; i < rows * width; ++i) {
        ASSERT_EQ(few[static_cast<size_t>(i)], whole[static_cast<size_t>(first * width + i)])
            << what << ", number " << i % width << " of row " << i / width << ", " << where;
      }
    };
    equal(some.streams, all.streams, width_, "streams");
    if (part == HyperPart::kMix) equal(some.weights, all.weights, kHyperWeights, "weights");
    equal(some.mixture, all.mixture, hidden_, "the mixture");
    equal(some.mean, all.mean, hidden_, "the mean");
    equal(some.out, all.out, hidden_, "the norm");
  }

  int hidden_ = 0;
  int64_t width_ = 0;
  bool y_is_bf16_ = false;
  std::mt19937 random_{17};
  std::vector<float> streams_, y_, terms_, term_weights_, before_, fn_, scale_, base_, norm_;
  std::vector<uint16_t> y16_;
};

TEST_P(HyperRowsTest, MatchDoublePrecision) {
  for (const int rows : {1, 9, kRows}) {
    for (const HyperPart part : {HyperPart::kMix, HyperPart::kContract, HyperPart::kNothing}) {
      for (const bool adds : {true, false}) {
        const HyperRun run = {.adds = adds, .part = part, .norms = rows != 9};
        ExpectReference(Run(0, rows, run), rows, run);
        if (HasFatalFailure()) return;
      }
    }
  }
  y_is_bf16_ = true;
  ExpectReference(Run(0, 40, {}), 40, {});
}

TEST_P(HyperRowsTest, ARowsBitsAreItsOwn) {
  for (const HyperPart part : {HyperPart::kMix, HyperPart::kContract}) {
    HyperRun run = {.part = part};
    const Results all = Run(0, kRows, run);
    for (const int rows : {1, 2, 5, 31, 32, 33, 77}) {
      for (const int first : {0, 3, kRows - rows}) {
        run.padding = 0;
        const std::string where = std::to_string(rows) + " rows from " + std::to_string(first);
        ExpectPart(Run(first, rows, run), all, part, first, rows, where);
        run.padding = 3;
        ExpectPart(Run(first, rows, run), all, part, first, rows, where + ", padded");
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The last term is y, the sum is made in float32 here and taken for y then.
TEST_P(HyperRowsTest, TermsAddWhatTheirSumAdds) {
  for (const int rows : {1, kRows}) {
    const Results of_terms = Run(0, rows, {.as_terms = true});
    const std::vector<float> last = y_;
    for (size_t i = 0; i < y_.size(); ++i) {
      const size_t row = i / static_cast<size_t>(hidden_);
      const size_t column = i % static_cast<size_t>(hidden_);
      float sum = 0;
      for (size_t t = row * kTerms; t < (row + 1) * kTerms; ++t) {
        sum = std::fma(terms_[t * static_cast<size_t>(hidden_) + column], term_weights_[t], sum);
      }
      y_[i] = sum + last[i];
    }
    const Results of_sum = Run(0, rows, {});
    ExpectPart(of_terms, of_sum, HyperPart::kMix, 0, rows, "terms");
    ExpectReference(of_terms, rows, {});
    y_ = last;
    if (HasFatalFailure()) return;
  }
}

TEST_P(HyperRowsTest, LeaveRowsPastTheTrueNumberAlone) {
  const Results got = Run(0, 5, {.padding = 6});
  for (size_t i = static_cast<size_t>(5 * width_); i < got.streams.size(); ++i) {
    ASSERT_EQ(got.streams[i], streams_[i]);
  }
  for (size_t i = size_t{5} * hidden_; i < got.out.size(); ++i) ASSERT_EQ(got.out[i], 0xFFFF);
}

// A cluster takes several rows here.
TEST_P(HyperRowsTest, ManyRowsSmallForTheSanitizers) {
  constexpr int kFew = 33;
  for (const HyperPart part : {HyperPart::kMix, HyperPart::kContract, HyperPart::kNothing}) {
    const HyperRun run = {.part = part, .padding = 3};
    ExpectReference(Run(0, kFew, run), kFew, run);
    if (HasFatalFailure()) return;
  }
  Run(0, kFew, {.as_terms = true});
}

INSTANTIATE_TEST_SUITE_P(Hopper, HyperRowsTest, ::testing::Values(4096, 7168, 256, 36),
                         [](const auto& test) { return "hidden" + std::to_string(test.param); });

TEST(HyperRowsArguments, AreRefused) {
  const HyperRowsParams good = {.num_rows = 1, .hidden = 64, .streams_stride = 256};
  const auto refused = [&](auto change) {
    HyperRowsParams params = good;
    change(params);
    EXPECT_THROW(static_cast<void>(HyperRows(params, nullptr)), Error);
  };
  refused([](HyperRowsParams& p) { p.num_rows = -1; });
  refused([](HyperRowsParams& p) { p.hidden = 66; });
  refused([](HyperRowsParams& p) { p.hidden = 8196; });
  refused([](HyperRowsParams& p) { p.streams_stride = 252; });
  refused([](HyperRowsParams& p) { p.part = HyperPart::kMix; });
  refused([](HyperRowsParams& p) { p.y_dtype = DType::kF8E4M3; });
  const float term = 0;
  refused([&](HyperRowsParams& p) { p.terms = &term; });
  refused([](HyperRowsParams& p) {
    p.y = &p;
    p.y_stride = 60;
  });
}

}  // namespace
}  // namespace outrider::cuda
