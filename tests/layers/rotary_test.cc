#include "outrider/layers/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/ops/test_step.h"

namespace outrider {
namespace {

RotarySpec Spec() {
  RotarySpec spec;
  spec.dims = 64;
  spec.theta = 10000;
  return spec;
}

TEST(RotaryTest, PlainFrequencies) {
  const auto f = RotaryFrequencies(Spec());
  ASSERT_EQ(f.size(), 32U);
  EXPECT_FLOAT_EQ(f[0], 1.0F);
  EXPECT_NEAR(f[16], 0.01F, 1e-7);
}

TEST(RotaryTest, YarnKeepsFastAndInterpolatesSlowDimensions) {
  RotarySpec spec = Spec();
  spec.yarn = YarnScaling{.factor = 40,
                          .original_max_position_embeddings = 4096,
                          .beta_fast = 32,
                          .beta_slow = 1,
                          .mscale = 1,
                          .mscale_all_dim = 1};
  const auto plain = RotaryFrequencies(Spec());
  const auto yarn = RotaryFrequencies(spec);
  // DeepSeek-V3: the ramp runs from dimension 10 to 23.
  for (size_t i = 0; i <= 10; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i]) << i;
  for (size_t i = 23; i < 32; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i] / 40) << i;
  EXPECT_LT(yarn[16], plain[16]);
  EXPECT_GT(yarn[16], plain[16] / 40);
}

// "truncate": false: the ramp runs from dimension 10.47 to 22.51 instead, as transformers has it.
TEST(RotaryTest, YarnsRampMayBeginBetweenDimensions) {
  RotarySpec spec = Spec();
  spec.yarn = YarnScaling{
      .factor = 40, .original_max_position_embeddings = 4096, .beta_fast = 32, .truncate = false};
  const auto plain = RotaryFrequencies(Spec());
  const auto yarn = RotaryFrequencies(spec);
  for (size_t i = 0; i <= 10; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i]) << i;
  for (size_t i = 23; i < 32; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i] / 40) << i;
  const auto dimension = [](double rotations) {
    return 64 * std::log(4096 / (rotations * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  for (size_t i = 11; i < 23; ++i) {
    const double ramp = (static_cast<double>(i) - dimension(32)) / (dimension(1) - dimension(32));
    EXPECT_NEAR(yarn[i], plain[i] * (1 - ramp + ramp / 40), 1e-6 * plain[i]) << i;
  }
  EXPECT_NEAR(yarn[11], 0.0403675845, 1e-8);
  EXPECT_NEAR(yarn[22], 0.000118387732, 1e-8);
}

// Where an original context is shorter than a rotation the ramp ends before dimension 0.
TEST(RotaryTest, YarnsRampMayEndBeforeItBegins) {
  RotarySpec spec = Spec();
  spec.yarn = YarnScaling{.factor = 4, .original_max_position_embeddings = 4};
  EXPECT_EQ(RotaryFrequencies(spec), RotaryFrequencies(Spec()));
}

TEST(RotaryTest, RowsHoldCosineAndSineTimesMagnitude) {
  Arena scratch;
  ThreadPool pool(1);
  const cpu::CpuOps& ops = cpu::GetCpuOps(Isa::kReference);
  const std::vector<float> frequencies = {1.0F, 0.5F};
  const Context context({ops, &pool}, scratch, DType::kF32);
  const TestStep step(context, FullHistoryCache(1, 16).groups,
                      {{.context = 0, .tokens = {0}, .tables = {{0}}},
                       {.context = 3, .tokens = {0}, .tables = {{0}}}});
  const Rotary rotary = ops.MakeRotary(context, frequencies, 2.0F, true, step.inputs());
  const RotaryRows rows = {rotary.cos.floats(), rotary.sin.floats(), rotary.interleaved};
  EXPECT_EQ(rows.cos.row(0)[0], 2.0F);
  EXPECT_EQ(rows.sin.row(0)[1], 0.0F);
  EXPECT_FLOAT_EQ(rows.cos.row(1)[1], 2.0F * std::cos(1.5F));
  EXPECT_FLOAT_EQ(rows.sin.row(1)[0], 2.0F * std::sin(3.0F));
}

}  // namespace
}  // namespace outrider
