// Matrix products against the reference table of CPU kernels, and the equality of a row's bits for
// every number of rows, order, tile and share of the segments. Needs compute capability 9.0. Long
// because every form of weights goes through one list of cases.
#include "outrider/kernels/cuda/matmul/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul_shape.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/matmul/matmul_shapes.h"
#include "tests/kernels/cuda/matmul/matmul_world.h"

namespace outrider::cuda {
namespace {

struct Case {
  const char* name;
  WeightFormat format;
  int n;  // of one matrix
  int k;
  int segments = 0;
  bool gate_up = false;
  OutputType output = OutputType::kF32;
  bool accumulate = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr int kRows = 300;
constexpr int kPad = 8;  // columns between the rows of x and y

class MatMulTest : public HopperTest<::testing::TestWithParam<Case>> {
 protected:
  void Prepare(Spread spread) {
    const Case& c = GetParam();
    x_ = DrawBf16(static_cast<size_t>(kRows) * c.k, spread, random_);
    x_stride_ = (c.k + 7) / 8 * 8 + kPad;
    std::vector<uint16_t> padded(static_cast<size_t>(kRows) * x_stride_, 0xFFFF);
    for (int r = 0; r < kRows; ++r) std::copy_n(&x_[r * c.k], c.k, &padded[r * x_stride_]);
    d_x_ = DeviceArray<uint16_t>(padded);
    w_.emplace(c.n, c.k, c.format, spread, random_);
    up_.reset();
    if (c.gate_up) up_.emplace(c.n, c.k, c.format, spread, random_);
    d_w_.emplace(*w_, c.gate_up ? &*up_ : nullptr, c.segments);
    y_stride_ = (c.n + 7) / 8 * 8 + kPad;
    old_.resize(static_cast<size_t>(kRows) * y_stride_);
    std::normal_distribution<float> normal;
    for (float& value : old_) value = normal(random_);
  }

  size_t Size() const { return GetParam().output == OutputType::kF32 ? 4 : 2; }

  std::vector<const MatMulShape*> Shapes(bool numbered) const {
    return ShapesOf(d_w_->weight(), numbered);
  }

  MatMulParams Params(int rows, const MatMulShape* shape) const {
    MatMulParams params;
    params.rows = rows;
    params.x = d_x_.data();
    params.x_stride = x_stride_;
    params.w = d_w_->weight();
    params.y_stride = y_stride_;
    params.y_type = GetParam().output;
    params.accumulate = GetParam().accumulate;
    params.shape = shape;
    return params;
  }

  /// What y holds before a product of these rows.
  std::vector<uint8_t> Before(const std::vector<int32_t>& rows) const {
    std::vector<uint8_t> bytes((rows.size() + 1) * y_stride_ * Size(), 0xFF);
    if (GetParam().accumulate) {
      for (size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(&bytes[i * y_stride_ * 4], &old_[rows[i] * y_stride_], y_stride_ * 4);
      }
    }
    return bytes;
  }

  /// y's bytes, one row more than asked for. Consecutive rows go without numbers unless asked.
  std::vector<uint8_t> Run(const std::vector<int32_t>& rows, const MatMulShape* shape,
                           bool numbered) {
    const DeviceArray<uint8_t> y(Before(rows));
    const DeviceArray<int32_t> numbers(rows);
    MatMulParams params = Params(static_cast<int>(rows.size()), shape);
    params.y = y.data();
    if (numbered) {
      params.x_rows = numbers.data();
      params.x_size = kRows;
    } else {
      params.x = d_x_.data() + rows[0] * x_stride_;
    }
    MatMul(params, nullptr);
    CudaOk(cudaDeviceSynchronize(), "run");
    return y.Download();
  }

  static std::vector<int32_t> Consecutive(int first, int count) {
    std::vector<int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), first);
    return rows;
  }

  /// Rows of `some` that differ from those of `all` (which has every row), and what must not have
  /// been written.
  std::string Compare(const std::vector<uint8_t>& some, const std::vector<int32_t>& rows,
                      const std::vector<uint8_t>& all) const {
    const size_t written = GetParam().n * Size();
    const std::vector<uint8_t> before = Before(rows);
    const size_t stride = y_stride_ * Size();
    std::string wrong;
    int count = 0;
    for (size_t i = 0; i <= rows.size() && count < 8; ++i) {
      const bool inside = i < rows.size();
      if (inside && std::memcmp(&some[i * stride], &all[rows[i] * stride], written) != 0) {
        size_t at = 0;
        while (some[i * stride + at] == all[rows[i] * stride + at]) ++at;
        wrong += " row " + std::to_string(i) + " from column " + std::to_string(at / Size());
        ++count;
      }
      const size_t from = i * stride + (inside ? written : 0);
      if (std::memcmp(&some[from], &before[from], (i + 1) * stride - from) != 0) {
        wrong += " written behind row " + std::to_string(i);
        ++count;
      }
    }
    return wrong;
  }

  std::mt19937 random_{21};
  std::vector<uint16_t> x_;
  int64_t x_stride_ = 0;
  int64_t y_stride_ = 0;
  DeviceArray<uint16_t> d_x_;
  std::optional<PlainWeight> w_, up_;
  std::optional<DeviceWeight> d_w_;
  std::vector<float> old_;
};

TEST_P(MatMulTest, MatchesTheCpuReference) {
  Prepare(Spread::kNormal);
  const Case& c = GetParam();
  constexpr int kChecked = 70;
  std::vector<float> expected = w_->Multiply(x_, kChecked);
  if (c.gate_up) {
    const std::vector<float> up = up_->Multiply(x_, kChecked);
    std::vector<float> both, product(expected.size());
    for (int r = 0; r < kChecked; ++r) {
      both.insert(both.end(), &expected[r * c.n], &expected[r * c.n] + c.n);
      both.insert(both.end(), &up[r * c.n], &up[r * c.n] + c.n);
    }
    ThreadPool pool(1);
    CpuReference().silu_mul(pool, {both.data(), kChecked, 2 * c.n}, kNoLimit,
                            {product.data(), kChecked, c.n});
    expected = product;
  }
  for (const MatMulShape* const shape : Shapes(false)) {
    const std::vector<uint8_t> got = Run(Consecutive(0, kChecked), shape, false);
    double worst = 0;
    int worst_row = 0;
    for (int r = 0; r < kChecked; ++r) {
      double difference = 0, norm = 0;
      for (int column = 0; column < c.n; ++column) {
        const size_t at = (r * y_stride_ + column) * Size();
        double value;
        if (c.output == OutputType::kF32) {
          float bits;
          std::memcpy(&bits, &got[at], sizeof(bits));
          value = bits;
        } else {
          uint16_t bits;
          std::memcpy(&bits, &got[at], sizeof(bits));
          value = Bf16ToFloat(bits);
        }
        double wanted = expected[r * c.n + column];
        if (c.accumulate) wanted += old_[r * y_stride_ + column];
        difference += (value - wanted) * (value - wanted);
        norm += wanted * wanted;
      }
      const double error = std::sqrt(difference / norm);
      if (!(error <= worst)) {
        worst = error;
        worst_row = r;
      }
    }
    EXPECT_LT(worst, c.output == OutputType::kF32 ? 5e-6 : 4e-3)
        << Name(shape) << ", row " << worst_row;
  }
}

void CheckBits(const std::string& wrong, int rows, int first, const MatMulShape* shape,
               const char* order) {
  EXPECT_EQ(wrong, "") << rows << " rows from " << first << ", " << Name(shape) << ", " << order;
}

TEST_P(MatMulTest, ARowsBitsDependOnItAlone) {
  for (const Spread spread : {Spread::kNormal, Spread::kWideExponents}) {
    Prepare(spread);
    const std::vector<uint8_t> all = Run(Consecutive(0, kRows), nullptr, false);
    std::vector<int32_t> shuffled = Consecutive(0, kRows);
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    int number = 0;
    for (const bool numbered : {false, true}) {
      for (const MatMulShape* const shape : Shapes(numbered)) {
        for (const int rows : {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 127, 129, 200, 257, kRows}) {
          const int first = (rows * 37 + ++number) % (kRows - rows + 1);
          const std::vector<int32_t> some =
              numbered
                  ? std::vector<int32_t>(shuffled.begin() + first, shuffled.begin() + first + rows)
                  : Consecutive(first, rows);
          CheckBits(Compare(Run(some, shape, numbered), some, all), rows, first, shape,
                    numbered ? "shuffled" : "in order");
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Every body once: what the tools that watch every access can run.
TEST_P(MatMulTest, EveryBodyOnFewRows) {
  Prepare(Spread::kNormal);
  const std::vector<int32_t> rows = Consecutive(5, 70);
  std::vector<uint8_t> expected;
  for (const bool numbered : {false, true}) {
    for (const MatMulShape* const shape : Shapes(numbered)) {
      const std::vector<uint8_t> got = Run(rows, shape, numbered);
      if (expected.empty()) expected = got;
      ASSERT_EQ(got, expected) << Name(shape) << (numbered ? ", numbered" : "");
    }
  }
}

// Each group's columns of y are those of a product of its own, with the whole weight's segments.
TEST_P(MatMulTest, GroupsReadColumnsOfTheirOwn) {
  Prepare(Spread::kNormal);
  const Case& c = GetParam();
  const PackedWeight& w = d_w_->weight();
  const DeviceArray<uint16_t> x(x_);
  int fits = 0;
  for (const int groups : {2, 4}) {
    for (const int rows : {1, 7, 33, 70}) {
      if (!FitsGroups(w, groups, rows)) continue;
      ++fits;
      MatMulParams params;
      params.rows = rows;
      params.x = x.data();
      params.x_stride = int64_t{groups} * c.k;
      params.w = w;
      params.groups = groups;
      params.y_stride = y_stride_;
      params.y_type = c.output;
      const std::vector<uint8_t> before(static_cast<size_t>(rows) * y_stride_ * Size(), 0xFF);
      const DeviceArray<uint8_t> together(before);
      const DeviceArray<uint8_t> apart(before);
      params.y = together.data();
      MatMul(params, nullptr);
      const int of_group = c.n / groups;
      for (int g = 0; g < groups; ++g) {
        MatMulParams own = params;
        own.groups = 1;
        own.x = x.data() + int64_t{g} * c.k;
        own.w.n = of_group;
        own.w.segments = SegmentsOf(w).count;
        own.w.data =
            static_cast<const std::byte*>(w.data) + PackedUnitBytes(w.format, g * of_group, c.k);
        if (PackedScaleBytes(w.format, c.n, c.k) > 0) {
          own.w.scales = static_cast<const std::byte*>(ScalesOf(w)) +
                         PackedScaleBytes(w.format, g * of_group, c.k);
        }
        own.y = apart.data() + static_cast<size_t>(g) * of_group * Size();
        MatMul(own, nullptr);
      }
      CudaOk(cudaDeviceSynchronize(), "run");
      ASSERT_EQ(together.Download(), apart.Download()) << groups << " groups, " << rows << " rows";
    }
  }
  if (!c.gate_up && c.n % 256 == 0 && c.k % 256 == 0) {
    EXPECT_GT(fits, 0);
  }
}

TEST_P(MatMulTest, ReplaysOfAGraphGiveTheSameBits) {
  Prepare(Spread::kWideExponents);
  constexpr int kProducts = 3;  // they start beside each other's ends
  const std::vector<int32_t> rows = Consecutive(3, 37);
  const std::vector<uint8_t> expected = Run(rows, nullptr, false);
  const std::vector<uint8_t> before = Before(rows);
  std::vector<DeviceArray<uint8_t>> outputs;
  cudaStream_t stream;
  CudaOk(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  for (int i = 0; i < kProducts; ++i) outputs.emplace_back(before);
  CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < kProducts; ++i) {
    MatMulParams params = Params(static_cast<int>(rows.size()), nullptr);
    params.x = d_x_.data() + rows[0] * x_stride_;
    params.y = outputs[i].data();
    MatMul(params, stream);
  }
  CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
  CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int replay = 0; replay < 20; ++replay) {
    for (const DeviceArray<uint8_t>& output : outputs) {
      CudaOk(cudaMemcpyAsync(output.data(), before.data(), before.size(), cudaMemcpyHostToDevice,
                             stream),
             "poison");
    }
    CudaOk(cudaGraphLaunch(executable, stream), "replay");
    CudaOk(cudaStreamSynchronize(stream), "replay");
    for (const DeviceArray<uint8_t>& output : outputs) {
      ASSERT_EQ(output.Download(), expected) << "replay " << replay;
    }
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

using MatMulSharedRowsTest = HopperTest<>;

// Blocks that load rows for each other, more of them than run at once: some end while others start
// in their places.
TEST_F(MatMulSharedRowsTest, ManyBlocksEndWhileOthersStart) {
  constexpr int kN = 20480, kK = 512, kLaunches = 200;
  std::mt19937 random(3);
  const PlainWeight plain(kN, kK, WeightFormat::kBf16, Spread::kNormal, random);
  const DeviceWeight weight(plain);
  for (const int tokens : {32, 64}) {
    const DeviceArray<uint16_t> x(
        DrawBf16(static_cast<size_t>(tokens) * kK, Spread::kNormal, random));
    const DeviceArray<float> y(static_cast<size_t>(tokens) * kN);
    MatMulParams params;
    params.rows = tokens;
    params.x = x.data();
    params.x_stride = kK;
    params.w = weight.weight();
    params.w.segments = 1;
    params.y = y.data();
    params.y_stride = kN;
    params.y_type = OutputType::kF32;
    std::vector<float> expected;
    for (const auto variant : {MatMulVariant::kUsual, kDeep}) {
      for (const int shares : {1, 2, 4}) {
        const MatMulShape shape = {.tokens = tokens, .variant = variant, .shares = shares};
        params.shape = &shape;
        for (int i = 0; i < kLaunches; ++i) MatMul(params, nullptr);
        CudaOk(cudaDeviceSynchronize(), Name(&shape).c_str());
        const std::vector<float> got = y.Download();
        if (expected.empty()) expected = got;
        ASSERT_TRUE(got == expected) << Name(&shape);
      }
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

constexpr auto kBf16 = WeightFormat::kBf16;
constexpr auto kF8 = WeightFormat::kF8;
constexpr auto kF8Power = WeightFormat::kF8PowerOfTwo;

INSTANTIATE_TEST_SUITE_P(
    Hopper, MatMulTest,
    ::testing::Values(
        Case{.name = "Small", .format = kBf16, .n = 64, .k = 64, .segments = 1},
        Case{.name = "Bf16", .format = kBf16, .n = 256, .k = 1024, .segments = 1},
        Case{.name = "Bf16Segments", .format = kBf16, .n = 192, .k = 2048, .segments = 8},
        Case{.name = "Bf16ThreeSegments",
             .format = kBf16,
             .n = 320,
             .k = 896,
             .segments = 3,
             .output = OutputType::kBf16},
        Case{.name = "Bf16Ragged", .format = kBf16, .n = 203, .k = 331, .segments = 2},
        Case{.name = "Bf16RaggedOut",
             .format = kBf16,
             .n = 75,
             .k = 72,
             .segments = 1,
             .output = OutputType::kBf16},
        Case{.name = "Bf16Residual", .format = kBf16, .n = 256, .k = 1536, .accumulate = true},
        Case{.name = "Bf16ResidualRagged",
             .format = kBf16,
             .n = 130,
             .k = 200,
             .segments = 1,
             .accumulate = true},
        Case{.name = "Bf16GateUp",
             .format = kBf16,
             .n = 352,
             .k = 512,
             .segments = 1,
             .gate_up = true,
             .output = OutputType::kBf16},
        Case{.name = "Bf16GateUpSegments",
             .format = kBf16,
             .n = 104,
             .k = 640,
             .segments = 4,
             .gate_up = true},
        Case{.name = "F8", .format = kF8, .n = 256, .k = 1024, .segments = 1},
        Case{.name = "F8Segments", .format = kF8, .n = 192, .k = 2048, .segments = 8},
        Case{.name = "F8Ragged",
             .format = kF8,
             .n = 203,
             .k = 332,
             .segments = 2,
             .accumulate = true},
        Case{.name = "F8GateUp",
             .format = kF8,
             .n = 352,
             .k = 512,
             .segments = 1,
             .gate_up = true,
             .output = OutputType::kBf16},
        Case{.name = "F8GateUpSegments",
             .format = kF8,
             .n = 104,
             .k = 640,
             .segments = 3,
             .gate_up = true},
        Case{.name = "F8Power", .format = kF8Power, .n = 256, .k = 1024, .segments = 1},
        Case{
            .name = "F8PowerSegments", .format = kF8Power, .n = 200, .k = 2048, .accumulate = true},
        Case{.name = "F8PowerGateUp",
             .format = kF8Power,
             .n = 352,
             .k = 512,
             .segments = 2,
             .gate_up = true,
             .output = OutputType::kBf16}),
    CaseName);

/// A format's form of every case: one segment, several, ragged sizes, gate and up.
auto CasesOf(WeightFormat format) {
  return ::testing::Values(
      Case{.name = "Whole", .format = format, .n = 256, .k = 1024, .segments = 1},
      Case{.name = "Segments", .format = format, .n = 192, .k = 2048, .segments = 8},
      Case{.name = "Ragged",
           .format = format,
           .n = 203,
           .k = 352,
           .segments = 2,
           .accumulate = true},
      Case{.name = "GateUp",
           .format = format,
           .n = 352,
           .k = 512,
           .segments = 1,
           .gate_up = true,
           .output = OutputType::kBf16},
      Case{.name = "GateUpSegments",
           .format = format,
           .n = 104,
           .k = 672,
           .segments = 3,
           .gate_up = true});
}
INSTANTIATE_TEST_SUITE_P(HopperF8Rows, MatMulTest, CasesOf(WeightFormat::kF8Rows), CaseName);
INSTANTIATE_TEST_SUITE_P(HopperInt4, MatMulTest, CasesOf(WeightFormat::kInt4), CaseName);
INSTANTIATE_TEST_SUITE_P(HopperFp4, MatMulTest, CasesOf(WeightFormat::kFp4), CaseName);
INSTANTIATE_TEST_SUITE_P(HopperNvfp4, MatMulTest, CasesOf(WeightFormat::kNvfp4), CaseName);

using MatMulPromptTest = HopperTest<>;

// Rows of a whole step of prompts are compared with some of them by themselves and the CPU's.
TEST_F(MatMulPromptTest, ProductsOf16384Rows) {
  constexpr int kMany = 16384;
  for (const Case& c :
       {Case{.name = "bf16", .format = kBf16, .n = 640, .k = 1024},
        Case{.name = "bf16, one segment", .format = kBf16, .n = 640, .k = 1024, .segments = 1},
        Case{.name = "e4m3", .format = kF8, .n = 640, .k = 1024},
        Case{.name = "e4m3, powers", .format = kF8Power, .n = 640, .k = 1024},
        Case{.name = "e4m3, rows", .format = WeightFormat::kF8Rows, .n = 640, .k = 1024},
        Case{.name = "int4", .format = WeightFormat::kInt4, .n = 640, .k = 1024},
        Case{.name = "fp4", .format = WeightFormat::kFp4, .n = 640, .k = 1024},
        Case{.name = "nvfp4", .format = WeightFormat::kNvfp4, .n = 640, .k = 1024}}) {
    std::mt19937 random(29);
    const std::vector<uint16_t> x =
        DrawBf16(static_cast<size_t>(kMany) * c.k, Spread::kNormal, random);
    const PlainWeight w(c.n, c.k, c.format, Spread::kNormal, random);
    const DeviceWeight d_w(w, nullptr, c.segments);
    const DeviceArray<uint16_t> d_x(x);
    const auto run = [&](int first, int rows) {
      const DeviceArray<float> y(static_cast<size_t>(rows) * c.n);
      MatMulParams params;
      params.rows = rows;
      params.x = d_x.data() + static_cast<size_t>(first) * c.k;
      params.x_stride = c.k;
      params.w = d_w.weight();
      params.y = y.data();
      params.y_stride = c.n;
      params.y_type = OutputType::kF32;
      MatMul(params, nullptr);
      CudaOk(cudaDeviceSynchronize(), "product");
      return y.Download();
    };
    const std::vector<float> all = run(0, kMany);
    for (const auto& [first, rows] :
         {std::pair(0, 1), {kMany - 1, 1}, {8191, 300}, {5000, 4097}, {kMany - 40, 40}}) {
      const std::vector<float> some = run(first, rows);
      EXPECT_EQ(std::memcmp(some.data(), &all[static_cast<size_t>(first) * c.n],
                            some.size() * sizeof(float)),
                0)
          << c.name << ": rows from " << first;
    }
    constexpr int kCompared = 64;
    const std::vector<uint16_t> last(x.end() - int64_t{kCompared} * c.k, x.end());
    const std::vector<float> wanted = w.Multiply(last, kCompared);
    double worst = 0, mean = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double got = all[static_cast<size_t>(kMany - kCompared) * c.n + i];
      worst = std::max(worst, std::abs(got - wanted[i]));
      mean += std::abs(wanted[i]) / static_cast<double>(wanted.size());
    }
    EXPECT_LT(worst, 1e-4 * mean) << c.name;
  }
}

// Units of two weights, then scales of both: together they are one weight.
TEST_F(MatMulPromptTest, TwoWeightsWithCodesAreOneSideBySide) {
  constexpr int kLeft = 192, kRight = 136, kK = 640, kBatch = 40;
  std::mt19937 random(31);
  for (const WeightFormat format : {kF8, kF8Power}) {
    const PlainWeight left(kLeft, kK, format, Spread::kNormal, random);
    const PlainWeight right(kRight, kK, format, Spread::kNormal, random);
    const std::vector<uint16_t> x = DrawBf16(size_t{kBatch} * kK, Spread::kNormal, random);
    const DeviceArray<uint16_t> d_x(x);
    const size_t left_units = PackedUnitBytes(format, kLeft, kK);
    const size_t units = left_units + PackedUnitBytes(format, kRight, kK);
    const size_t left_scales = PackedScaleBytes(format, kLeft, kK);
    const DeviceArray<uint8_t> memory(units + left_scales + PackedScaleBytes(format, kRight, kK));
    const auto pack = [&](const PlainWeight& plain, size_t data, size_t scales) {
      const DeviceArray<uint8_t> codes(plain.codes);
      const DeviceArray<float> d_scales(plain.scales);
      PackedWeight weight;
      weight.format = format;
      weight.n = plain.n;
      weight.k = kK;
      weight.segments = 2;
      weight.data = memory.data() + data;
      weight.scales = memory.data() + scales;
      PackWeight({.w = codes.data(), .scales = d_scales.data()}, weight, nullptr);
      CudaOk(cudaDeviceSynchronize(), "packing");
      return weight;
    };
    const PackedWeight first = pack(left, 0, units);
    const PackedWeight second = pack(right, left_units, units + left_scales);
    PackedWeight both = first;
    both.n += second.n;
    const auto run = [&](const PackedWeight& weight) {
      const DeviceArray<float> y(size_t{kBatch} * weight.n);
      MatMulParams params;
      params.rows = kBatch;
      params.x = d_x.data();
      params.x_stride = kK;
      params.w = weight;
      params.y = y.data();
      params.y_stride = weight.n;
      params.y_type = OutputType::kF32;
      MatMul(params, nullptr);
      CudaOk(cudaDeviceSynchronize(), "product");
      return y.Download();
    };
    const std::vector<float> together = run(both), of_first = run(first), of_second = run(second);
    for (int r = 0; r < kBatch; ++r) {
      const float* const row = &together[size_t{1} * r * both.n];
      ASSERT_EQ(std::memcmp(row, &of_first[size_t{1} * r * kLeft], kLeft * 4), 0) << r;
      ASSERT_EQ(std::memcmp(row + kLeft, &of_second[size_t{1} * r * kRight], kRight * 4), 0) << r;
    }
    // The usual form of the same weight, with scales behind its units.
    const DeviceWeight usual(left, nullptr, 2);
    EXPECT_EQ(run(usual.weight()), of_first);
  }
}

using ::testing::HasSubstr;

template <typename Call>
void ExpectError(Call call, const char* text) {
  try {
    call();
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(MatMulArguments, AreChecked) {
  alignas(16) uint8_t memory[16];
  MatMulParams good;
  good.rows = 1;
  good.x = memory;
  good.x_stride = 64;
  good.w = {.format = kBf16, .n = 64, .k = 64, .data = memory};
  good.y = memory;
  good.y_stride = 64;
  const auto refused = [&](auto change, const char* text) {
    MatMulParams params = good;
    change(params);
    ExpectError([&] { MatMul(params, nullptr); }, text);
  };
  refused([](MatMulParams& p) { p.rows = -1; }, "-1 rows: 0 to 1048576");
  refused([](MatMulParams& p) { p.x_stride = 60; }, "a multiple of 8 that is at least 64");
  refused([](MatMulParams& p) { p.x_stride = 56; }, "a multiple of 8 that is at least 64");
  refused([&](MatMulParams& p) { p.y = memory + 8; }, "y at");
  refused([](MatMulParams& p) { p.x = nullptr; }, "x at");
  refused([](MatMulParams& p) { p.accumulate = true; }, "only a float32 y");
  const auto refused_shape = [&](const MatMulShape& shape, const char* text) {
    refused([&](MatMulParams& p) { p.shape = &shape; }, text);
  };
  refused_shape({.tokens = 24}, "usual ones have 8, 16, 32, 64 or 128");
  refused_shape({.tokens = 128, .variant = kDeep}, "deep ones up to 64");
  refused_shape({.tokens = 128, .variant = kPair}, "pairs 192 or 256");
  refused_shape({.tokens = 192, .variant = kWide}, "wide ones 128 (bf16 also 256)");
  refused_shape({.tokens = 256, .variant = kWide, .all_segments = true}, "have all segments");
  refused_shape({.tokens = 256, .variant = kPair, .all_segments = true}, "have all segments");
  refused_shape({.tokens = 64, .all_segments = true}, "usual ones of 128 and deep ones of 64");
  refused_shape({.tokens = 64, .variant = kDeep, .shares = 2, .all_segments = true},
                "one segment per block");
  refused_shape({.tokens = 16, .shares = 4}, "tiles of 8 rows for each");
  refused_shape({.tokens = 128, .variant = kWide, .shares = 2}, "x shared by 2 blocks");
  refused([](MatMulParams& p) { p.w.k = 0; }, "sizes must be positive");
  refused(
      [](MatMulParams& p) {
        p.w.n = 1 << 22;
        p.w.k = 1 << 20;
        p.x_stride = p.w.k;
        p.y_stride = p.w.n;
      },
      "must not take more than");
  refused([](MatMulParams& p) { p.w.segments = 9; }, "9 segments of K: 1 to 8");
  refused(
      [](MatMulParams& p) {
        p.w.gate_up = true;
        p.w.n = 72;
      },
      "each needs a multiple of 8 rows");
  refused([&](MatMulParams& p) { p.x_rows = reinterpret_cast<const int32_t*>(memory); },
          "x_size must be positive");
  refused(
      [](MatMulParams& p) {
        p.w.format = WeightFormat::kInt4;
        p.w.k = 48;
      },
      "64 x 48 with codes of 4 bits: its columns must fill groups of 32");
  const auto refused_destinations = [&](std::vector<MatMulDestination> destinations,
                                        const char* text) {
    refused(
        [&](MatMulParams& p) {
          p.num_destinations = static_cast<int>(destinations.size());
          std::copy(destinations.begin(), destinations.end(), p.destinations);
        },
        text);
  };
  auto* const floats = reinterpret_cast<float*>(memory);
  const MatMulDestination narrow = {.columns = 32, .y = floats, .row_stride = 32};
  refused_destinations({narrow, narrow}, "destination 0 of 32 columns: a multiple of 64");
  refused_destinations({narrow}, "destinations of 32 columns together for a weight of 64 rows");
  refused_destinations({{.columns = 64, .y = floats + 1, .row_stride = 64}}, "16-byte aligned");
  refused_destinations({{.columns = 64, .y = floats, .row_stride = 66}}, "a multiple of 4");
  refused_destinations({{.columns = 64, .y = floats, .row_stride = 64, .block_size = 3}},
                       "in blocks of 3 rows");
  refused([](MatMulParams& p) { p.num_destinations = 6; }, "6 destinations: 1 to 5");
  refused(
      [&](MatMulParams& p) {
        p.num_destinations = 1;
        p.destinations[0] = {.columns = 64, .y = floats, .row_stride = 64};
        p.accumulate = true;
        p.y_type = OutputType::kF32;
      },
      "go to y");
  ExpectError([&] { PackWeight({}, good.w, nullptr); }, "a pointer to each matrix");
  ExpertMatMulParams experts;
  experts.max_rows = 1;
  experts.choices = 3;
  experts.experts = 2;
  experts.w = good.w;
  ExpectError([&] { ExpertMatMul(experts, nullptr); }, "choices 1 to the number of experts");
  experts.experts = 4;
  experts.x = memory;
  experts.x_stride = 64;
  experts.y = memory;
  experts.y_stride = 64;
  experts.tile_rows = 12;
  ExpectError([&] { ExpertMatMul(experts, nullptr); }, "8, 16, 32, 64, 128 or 256 are possible");
  experts.tile_rows = 16;
  ExpectError([&] { ExpertMatMul(experts, nullptr); }, "tiles, their number and pairs");
}

}  // namespace
}  // namespace outrider::cuda
