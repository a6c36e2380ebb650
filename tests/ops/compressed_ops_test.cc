// DeepSeek-V4's operations on the CPU, against what their definitions say in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/moe.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/compressed_checks.h"

namespace outrider {
namespace {

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

class CompressedOpsTest : public KernelTest {
 protected:
  const Ops& ops() const { return cpu::GetCpuOps(GetParam()); }
  Context MakeContext(DType dtype = DType::kF32) { return {{ops(), &pool}, arena_, dtype}; }

  Arena arena_;
};

TEST_P(CompressedOpsTest, ALayerIsFloat64s) {
  // A step begins inside of an entry.
  const compressed_test::CompressedSizes sizes = {.heads = 2,
                                                  .dim = 24,
                                                  .rope = 6,
                                                  .key = 18,
                                                  .latents = 37,
                                                  .window = 9,
                                                  .top_k = 3,
                                                  .block_tokens = 16,
                                                  .scale = 0.3F,
                                                  .ends = {6, 27, 28, 45}};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [ratio, overlaps] : {std::pair(4, false), {4, true}, {8, false}}) {
      SCOPED_TRACE(testing::Message()
                   << DTypeName(type) << ", ratio " << ratio << (overlaps ? ", overlapping" : ""));
      compressed_test::CompressedSizes of_layer = sizes;
      of_layer.type = type;
      of_layer.ratio = of_layer.unit_tokens = ratio;
      of_layer.overlaps = overlaps;
      compressed_test::CompressedBounds bounds = {.rows = {.rest = 1e-5},
                                                  .entries = {.rest = 1e-5},
                                                  .states = {.rest = 2e-6},
                                                  .attention = {.rest = 1e-5}};
      if (type == DType::kBF16) {
        bounds.entries = {.rest = 1e-5, .part = 0.008};
        bounds.attention = {.rest = 8e-3};  // weights are rounded, too
      }
      compressed_test::CompressedMachine machine(ops(), of_layer);
      compressed_test::ExpectALayer(machine, bounds);
    }
  }
}

TEST_P(CompressedOpsTest, StreamsAreMixedAndAddedAsSinkhornSays) {
  constexpr int32_t kStreams = 3;
  constexpr int64_t kWidth = 37;
  constexpr int64_t kRows = 5;
  const HyperShape shape = {.streams = kStreams, .iterations = 7, .eps = 1e-3F, .norm_eps = 1e-5F};
  const TestMatrix before = TestMatrix::Random(kRows, kStreams * kWidth, random);
  TestMatrix streams = before;
  const auto source = MakeDummyWeights(ModelConfig{}, 7);
  const auto loader = ops().MakeWeightLoader(*source, {.compute_dtype = DType::kF32});
  Weight fn;
  Weight head_fn;
  loader->StreamMatrix(&fn, "fn", (2 + kStreams) * kStreams, kStreams * kWidth);
  loader->StreamMatrix(&head_fn, "head_fn", kStreams, kStreams * kWidth);
  const auto memory = loader->Load({ops(), &pool}, nullptr);
  const TestMatrix y = TestMatrix::Random(kRows, kWidth, random);
  const TestMatrix base = TestMatrix::Random(1, (2 + kStreams) * kStreams, random);
  const float scale[3] = {0.7F, 1.3F, 2.1F};
  TestMatrix mixture(kRows, kWidth);
  TestMatrix weights(kRows, (1 + kStreams) * kStreams);
  const Context context = MakeContext();
  ops().hyper()->HyperMix(context, shape,
                          {.streams = streams.view(),
                           .fn = &fn,
                           .scale = scale,
                           .base = base.values.data(),
                           .mixture = mixture.view(),
                           .weights = weights.view()});
  const HyperAddArgs add = {.y = y.view(), .weights = weights.view()};
  ops().hyper()->HyperAdd(context, shape, add, streams.view());
  TestMatrix contracted(kRows, kWidth);
  ops().hyper()->HyperMix(context, shape,
                          {.streams = before.view(),
                           .fn = &head_fn,
                           .scale = scale,
                           .base = base.values.data(),
                           .mixture = contracted.view()});
  // With what is added before, and a norm behind.
  TestMatrix added_before = before;
  const TestMatrix norm = TestMatrix::Random(1, kWidth, random);
  TestMatrix normed(kRows, kWidth);
  TestMatrix plain(kRows, kWidth);
  for (const bool norms : {true, false}) {
    ops().hyper()->HyperMix(context, shape,
                            {.streams = norms ? added_before.view() : streams.view(),
                             .add = norms ? add : HyperAddArgs{},
                             .fn = &head_fn,
                             .scale = scale,
                             .base = base.values.data(),
                             .norm = norms ? norm.values.data() : nullptr,
                             .mixture = norms ? normed.view() : plain.view()});
  }
  EXPECT_EQ(added_before.values, streams.values);
  ops().Norm(context, plain.view(), norm.values.data(), shape.norm_eps, plain.view());
  EXPECT_EQ(normed.values, plain.values);
  TestMatrix sums(kRows, (2 + kStreams) * kStreams);
  TestMatrix head_sums(kRows, kStreams);
  ops().Multiply(
      context,
      std::array{
          Product{.x = before.view(), .w = &fn, .y = sums.view(), .float32 = true},
          Product{.x = before.view(), .w = &head_fn, .y = head_sums.view(), .float32 = true}});
  for (int64_t r = 0; r < kRows; ++r) {
    const float* x = before.view().row(r);
    double squares = 0;
    for (int64_t i = 0; i < kStreams * kWidth; ++i) squares += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(squares / (kStreams * kWidth) + 1e-5);
    const auto sum = [&](int part, int i) {
      const int at = part * kStreams + i;
      return sums.view().row(r)[at] * inverse * scale[part] + base.values[static_cast<size_t>(at)];
    };
    double comb[kStreams][kStreams];
    for (int j = 0; j < kStreams; ++j) {
      double total = 0;
      for (int k = 0; k < kStreams; ++k) total += std::exp(sum(2, j * kStreams + k));
      for (int k = 0; k < kStreams; ++k) {
        comb[j][k] = std::exp(sum(2, j * kStreams + k)) / total + 1e-3;
      }
    }
    for (int half = 0; half < 2 * shape.iterations - 1; ++half) {
      for (int a = 0; a < kStreams; ++a) {
        double total = 1e-3;
        for (int b = 0; b < kStreams; ++b) total += half % 2 == 0 ? comb[b][a] : comb[a][b];
        for (int b = 0; b < kStreams; ++b) (half % 2 == 0 ? comb[b][a] : comb[a][b]) /= total;
      }
    }
    for (int64_t i = 0; i < kWidth; ++i) {
      double mixed = 0;
      double head = 0;
      for (int j = 0; j < kStreams; ++j) {
        mixed += (SigmoidOf(sum(0, j)) + 1e-3) * x[j * kWidth + i];
        const double m =
            head_sums.view().row(r)[j] * inverse * scale[0] + base.values[static_cast<size_t>(j)];
        head += (SigmoidOf(m) + 1e-3) * x[j * kWidth + i];
      }
      EXPECT_NEAR(mixture.view().row(r)[i], mixed, 1e-5);
      EXPECT_NEAR(contracted.view().row(r)[i], head, 1e-5);
      for (int k = 0; k < kStreams; ++k) {
        double added = 2 * SigmoidOf(sum(1, k)) * y.view().row(r)[i];
        for (int j = 0; j < kStreams; ++j) added += comb[j][k] * x[j * kWidth + i];
        EXPECT_NEAR(streams.view().row(r)[k * kWidth + i], added, 1e-5);
      }
    }
  }
}

/// Random weights in a form.
struct V4OpsWeights {
  V4OpsWeights(const Ops& ops, ThreadPool& pool, const WeightForm& form) {
    const auto source = MakeDummyWeights(ModelConfig{}, 7);
    const auto loader = ops.MakeWeightLoader(*source, form);
    loader->Matrix(&grouped, "grouped", 3 * 32, 48);
    loader->MoeExperts(&experts, {.routed = {{"g0", "u0", "d0"}},
                                  .width = 16,
                                  .shared = {"sg", "su", "sd"},
                                  .shared_width = 16,
                                  .hidden = 48});
    loader->Matrix(&gate, "sg", 16, 48);
    loader->Matrix(&up, "su", 16, 48);
    memory = loader->Load({ops, &pool}, nullptr);
  }

  Weight grouped, gate, up;
  ExpertWeights experts;
  std::unique_ptr<WeightMemory> memory;
};

TEST_P(CompressedOpsTest, AGroupedProductIsThatOfEachGroupsColumns) {
  for (const WeightQuantization quantization :
       {WeightQuantization::kNone, WeightQuantization::kInt8}) {
    const V4OpsWeights w(ops(), pool,
                         {.compute_dtype = DType::kBF16, .quantization = quantization});
    const TestMatrix x = TestMatrix::Random(7, 3 * 48, random);
    TestMatrix y(7, 3 * 32);
    const Context context = MakeContext(DType::kBF16);
    ops().Multiply(context,
                   std::array{Product{.x = x.view(), .w = &w.grouped, .y = y.view(), .groups = 3}});
    for (int64_t g = 0; g < 3; ++g) {
      TestMatrix whole(7, 3 * 32);
      ops().Multiply(context, std::array{Product{.x = Tensor(x.view()).Columns(g * 48, 48),
                                                 .w = &w.grouped,
                                                 .y = whole.view()}});
      for (int64_t r = 0; r < 7; ++r) {
        EXPECT_TRUE(SameBits(y.view().row(r) + g * 32, whole.view().row(r) + g * 32, 32)) << g;
      }
    }
  }
}

TEST_P(CompressedOpsTest, GatesAreCutBeforeSiluWhereTheLimitsSaySo) {
  const V4OpsWeights w(ops(), pool, {.compute_dtype = DType::kF32});
  const TestMatrix x = TestMatrix::Random(9, 48, random);
  const Context context = MakeContext();
  TestMatrix gate(9, 16);
  TestMatrix up(9, 16);
  ops().Multiply(context, std::array{Product{.x = x.view(), .w = &w.gate, .y = gate.view()},
                                     Product{.x = x.view(), .w = &w.up, .y = up.view()}});
  TestMatrix logits(9, 1);
  const RouterSpec router = {.experts = 1, .top_k = 1};
  const std::unique_ptr<StepInputs> no_inputs = ops().MakeStepInputs();  // not read
  const Routing& routing =
      ops().moe()->Route(context, router, *no_inputs, 0, w.experts, logits.view(), nullptr);
  const ExpertRows inner = ops().moe()->ExpertGateUp(
      context, w.experts, {.routed = 0.5F, .shared = 0.5F, .limits_gate = true}, routing, x.view());
  int cut = 0;
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t i = 0; i < 16; ++i) {
      const double g = std::min(double{gate.view().row(r)[i]}, 0.5);
      cut += g == 0.5 ? 1 : 0;
      const double u = std::clamp(double{up.view().row(r)[i]}, -0.5, 0.5);
      EXPECT_NEAR(inner.shared.floats().row(r)[i], g * SigmoidOf(g) * u, 1e-5);
    }
  }
  EXPECT_GT(cut, 5);
}

INSTANTIATE_TEST_SUITE_P(Isas, CompressedOpsTest, ::testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
