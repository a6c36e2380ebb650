// What bench kernels times, and how it says what came of it.
#include "outrider/measure/kernel_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "outrider/base/error.h"
#include "outrider/kernels/machine_limits.h"
#include "outrider/measure/kernel_loads.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// What each call of the product kernel was given.
std::vector<std::vector<MatMulJob>> g_calls;

std::vector<std::vector<MatMulJob>> CallsOf(const ModelProducts& products, int64_t rows) {
  KernelTable kernels;
  kernels.matmul = [](ThreadPool& /*pool*/, std::span<const MatMulJob> jobs, DType /*operand*/) {
    g_calls.emplace_back(jobs.begin(), jobs.end());
  };
  ThreadPool pool(1);
  g_calls.clear();
  const std::vector<double> seconds = products.Seconds(kernels, pool, rows, 1);
  EXPECT_EQ(seconds.size(), products.groups().size() + 1);
  EXPECT_EQ(g_calls.size() % 2, 0U);  // a pass that warms up and one that counts
  g_calls.resize(g_calls.size() / 2);
  return g_calls;
}

TEST(ModelProducts, EachWeightIsReadOnceAndItsBytesCount) {
  const PackedFormat format = {.dtype = DType::kI8};
  const ModelProducts products(format, {{.name = "a", .n = 48, .k = 32, .per_call = 2, .calls = 3},
                                        {.name = "b", .n = 20, .k = 64}});
  std::set<const std::byte*> weights;
  const auto calls = CallsOf(products, 5);
  ASSERT_EQ(calls.size(), 4U);
  for (const auto& jobs : calls) {
    EXPECT_EQ(jobs.size(), &jobs == &calls.back() ? 1U : 2U);
    for (const MatMulJob& job : jobs) {
      EXPECT_TRUE(weights.insert(job.w->data).second);
      EXPECT_EQ(job.y.rows, 5);
      EXPECT_EQ(job.y.cols, job.w->rows);
      EXPECT_EQ(job.x.cols, job.w->cols);
      for (int64_t p = 0; p < job.w->panels(); ++p) EXPECT_GT(job.w->scales(p)[0], 0);
    }
  }
  EXPECT_EQ(products.bytes_per_pass(),
            6 * PackedBytes(format, 48, 32) + PackedBytes(format, 20, 64));
  EXPECT_EQ(products.weights_per_pass(), 6 * 48 * 32 + 20 * 64);
}

TEST(ModelProducts, ExpertsOfACallAreDistinctAndChangeFromCallToCall) {
  const ModelProducts products(
      {.dtype = DType::kBF16},
      {{.name = "experts", .n = 16, .k = 16, .per_call = 3, .calls = 6, .pool = 8}});
  std::set<const std::byte*> all;
  std::set<std::set<const std::byte*>> choices;
  for (const auto& jobs : CallsOf(products, 1)) {
    std::set<const std::byte*> choice;
    for (const MatMulJob& job : jobs) choice.insert(job.w->data);
    EXPECT_EQ(choice.size(), 3U);
    choices.insert(choice);
    all.insert(choice.begin(), choice.end());
  }
  EXPECT_GT(choices.size(), 1U);
  EXPECT_LE(all.size(), 8U);
  EXPECT_EQ(products.bytes_per_pass(), 18 * PackedBytes({.dtype = DType::kBF16}, 16, 16));
}

TEST(ModelProducts, M8HasTheSizeOfItsActiveParameters) {
  double weights = 0;
  for (const ProductGroup& group : M8Products()) weights += group.WeightsPerPass();
  EXPECT_NEAR(weights * 1e-9, 0.885, 0.01);  // billions per token, as published for this shape
  weights = 0;
  for (const ProductGroup& group : D8Products(8, true)) weights += group.WeightsPerPass();
  EXPECT_NEAR(weights * 1e-9, 0.87, 0.01);
}

TEST(KernelBench, SaysWhichTargetsAreMet) {
  KernelReport report;
  report.kernels = "avx2";
  report.cpu = "a processor";
  report.num_threads = 2;
  report.read_bytes_per_second = 40e9;
  report.fma_flops_per_second = 180e9;
  report.figures = {{"share", 12.5, 0.95, 0.9},
                    {"low share", 1, 0.5, 0.9},
                    {"ratio", 3, 1.1, 1.25, true},
                    {"high ratio", 4, 1.3, 1.25, true}};
  const std::string text = KernelTableText(report);
  EXPECT_THAT(text, AllOf(HasSubstr("avx2 kernels, 2 threads, a processor"), HasSubstr("40.0 GB/s"),
                          HasSubstr("180 GFLOP/s")));
  EXPECT_THAT(text, HasSubstr("0.95  >= 0.90  met"));
  EXPECT_THAT(text, HasSubstr("0.50  >= 0.90  missed"));
  EXPECT_THAT(text, HasSubstr("1.10  <= 1.25  met"));
  EXPECT_THAT(text, HasSubstr("1.30  <= 1.25  missed"));
  const nlohmann::json json = nlohmann::json::parse(KernelJson(report));
  ASSERT_EQ(json.at("figures").size(), 4U);
  EXPECT_EQ(json["figures"][3]["met"], false);
  EXPECT_EQ(json["figures"][0]["milliseconds"], 12.5);
  EXPECT_EQ(json["num_threads"], 2);
  EXPECT_THAT(text, Not(AnyOf(HasSubstr("AMX"), HasSubstr("VDPBF16PS"))));
  report.dot_flops_per_second = 4e11;
  EXPECT_THAT(KernelTableText(report), HasSubstr("180 GFLOP/s float32 FMA, 400 GFLOP/s VDPBF16PS"));
  report.dot_flops_per_second = 0;
  report.tile_flops_per_second = 5e12;
  EXPECT_THAT(KernelTableText(report), HasSubstr("180 GFLOP/s float32 FMA, 5000 GFLOP/s AMX"));
}

TEST(KernelBench, NeedsAvx2) {
  ThreadPool pool(1);
  try {
    MeasureKernels(Isa::kReference, pool, [](const KernelFigure&) {});
    FAIL() << "measured the reference";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs a processor with AVX2"));
  }
}

TEST(MachineLimits, AreWhatAProcessorCanDo) {
  if (DetectIsa() < Isa::kAvx2) GTEST_SKIP() << "needs AVX2";
  ThreadPool pool(1);
  Buffer data(size_t{4} << 20);
  const double read =
      static_cast<double>(data.size()) / ReadSeconds(pool, data.data(), data.size(), 2);
  EXPECT_GT(read, 1e8);
  EXPECT_LT(read, 1e12);
  const double flops = FmaFlopsPerSecond(pool, DetectIsa());
  EXPECT_GT(flops, 1e9);
  EXPECT_LT(flops, 1e12);
  if (DetectIsa() < Isa::kAvx512Bf16) GTEST_SKIP() << "further limits: no AVX-512 BF16, no AMX";
  const double dot_flops = DotFlopsPerSecond(pool);
  EXPECT_GT(dot_flops, flops / 8);
  EXPECT_LT(dot_flops, 1e12);
  if (DetectIsa() < Isa::kAmx) GTEST_SKIP() << "AMX's limit: this machine has no AMX";
  const double tile_flops = TileFlopsPerSecond(pool);
  EXPECT_GT(tile_flops, flops);
  EXPECT_LT(tile_flops, 1e13);
}

}  // namespace
}  // namespace outrider
