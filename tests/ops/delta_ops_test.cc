// Kimi Delta Attention on the CPU: rows against the recurrence in double, and their bits however
// they are cut into steps, with rejected drafts, beside other requests, from checkpoints.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/ops/delta_checks.h"

namespace outrider {
namespace {

std::vector<Isa> DeltaIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (isa <= DetectIsa()) isas.push_back(isa);
  }
  return isas;
}

class DeltaTest : public testing::TestWithParam<Isa> {};

TEST_P(DeltaTest, RowsAndStateFollowTheRecurrence) {
  for (const bool bounded : {true, false}) {
    for (const float decay_mean : {2.0F, -1.0F, -6.0F}) {
      for (const int32_t dim : {16, 24, 128}) {
        const delta_test::Sizes sizes = {
            .head_dim = dim, .bounded = bounded, .decay_mean = decay_mean};
        delta_test::DeltaMachine machine(cpu::GetCpuOps(GetParam()), DType::kF32, sizes);
        const delta_test::TokenRows rows(dim == 128 ? 160 : 400, sizes, 11);
        delta_test::Request request = machine.NewRequest();
        const std::vector<float> out = machine.RunAll(request, rows, 100);
        std::vector<double> state;
        const std::vector<double> expected =
            delta_test::Recurrence(rows, sizes, machine.numbers(), &state);
        ASSERT_EQ(out.size(), expected.size());
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], expected[i], 2e-6) << bounded << " " << decay_mean << " " << i;
        }
        const std::vector<float> own = machine.StateOf(request.tables.state);
        ASSERT_EQ(own.size(), state.size());
        for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], state[i], 1e-5) << i;
      }
    }
  }
}

TEST_P(DeltaTest, TheStateStaysRightOverManyTokens) {
  delta_test::ExpectStateOfManyTokens(cpu::GetCpuOps(GetParam()), DType::kF32,
                                      {.heads = 1, .decay_mean = -4}, 32'000);
}

TEST_P(DeltaTest, BitsDoNotDependOnStepsOrDrafts) {
  delta_test::ExpectBitsOfAnySteps(cpu::GetCpuOps(GetParam()), DType::kF32, 16);
}

TEST_P(DeltaTest, RequestsDoNotSeeEachOther) {
  delta_test::ExpectRequestsApart(cpu::GetCpuOps(GetParam()), DType::kF32, 16);
}

TEST_P(DeltaTest, ARequestGoesOnFromACheckpoint) {
  delta_test::ExpectCheckpointsGoOn(cpu::GetCpuOps(GetParam()), DType::kF32, 16);
}

TEST_P(DeltaTest, NormAndGates) {
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  ThreadPool pool(2);
  const std::unique_ptr<Arena> arena = ops.MakeArena();
  const Context context({ops, &pool}, *arena, DType::kF32);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const Tensor x = context.Rows(7, 3 * 20);
  const Tensor gates = context.Rows(7, 3 * 20);
  const Tensor head_gates = context.Rows(7, 3);
  std::vector<float> norm(20);
  for (float& w : norm) w = 1 + 0.1F * normal(random);
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      x.floats().row(r)[i] = normal(random);
      gates.floats().row(r)[i] = 3 * normal(random);
    }
    for (int64_t h = 0; h < 3; ++h) head_gates.floats().row(r)[h] = normal(random);
  }
  std::vector<double> expected;
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      const float* head = x.floats().row(r) + i / 20 * 20;
      double squares = 0;
      for (int64_t j = 0; j < 20; ++j) squares += double{head[j]} * double{head[j]};
      const double value = double{x.floats().row(r)[i]} / std::sqrt(squares / 20 + 1e-6) *
                           double{norm[static_cast<size_t>(i % 20)]};
      const auto sigmoid = [](float g) { return 1 / (1 + std::exp(-double{g})); };
      expected.push_back(value * sigmoid(gates.floats().row(r)[i]) *
                         sigmoid(head_gates.floats().row(r)[i / 20]));
    }
  }
  ops.NormGate(
      context,
      {.x = x, .heads = 3, .norm = norm.data(), .norm_eps = 1e-6F, .gates = gates, .y = x});
  ops.GateHeads(context, head_gates, x);
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      EXPECT_NEAR(x.floats().row(r)[i], expected[static_cast<size_t>(r * x.cols + i)], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, DeltaTest, testing::ValuesIn(DeltaIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace outrider
