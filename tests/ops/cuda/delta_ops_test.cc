// Kimi Delta Attention on the GPU: rows and states beside the recurrence in double and the CPU's,
// their bits however rows are cut into steps, and norms and gates beside the CPU's. Needs a GPU of
// compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/kda/kda_step.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/delta_checks.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kHeadDim = 128;

class DeltaCudaOpsTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    gpu_ = std::make_unique<CudaOps>();
    arena_ = gpu_->MakeArena();
  }

  Context GpuContext() { return {{*gpu_, &pool_}, *arena_, DType::kBF16}; }

  /// A copy in the device's memory.
  Tensor Put(const Context& c, const TestMatrix& m) const {
    const Tensor rows = c.Rows(m.view_rows, m.view_cols);
    OUTRIDER_CHECK(rows.stride == m.view_cols);
    c.ops.CopyFromHost(std::as_bytes(std::span(m.values)), static_cast<std::byte*>(rows.data));
    return rows;
  }

  ThreadPool pool_{2};
  std::unique_ptr<CudaOps> gpu_;
  std::unique_ptr<Arena> arena_;
};

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want,
                const std::vector<double>& exact, double bound) {
  ASSERT_EQ(got.size(), exact.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], exact[i], bound) << "number " << i;
    ASSERT_NEAR(got[i], want[i], bound) << "number " << i << " beside the CPU's";
  }
}

TEST_F(DeltaCudaOpsTest, RowsAndStatesFollowTheRecurrence) {
  for (const bool bounded : {true, false}) {
    for (const float decay_mean : {2.0F, -1.0F, -6.0F}) {
      const delta_test::Sizes sizes = {
          .head_dim = kHeadDim, .bounded = bounded, .decay_mean = decay_mean};
      const delta_test::TokenRows rows(320, sizes, 11);
      delta_test::Sizes gpu_sizes = sizes;
      gpu_sizes.state_place = KdaStatePlace;
      delta_test::DeltaMachine gpu(*gpu_, DType::kBF16, gpu_sizes);
      delta_test::DeltaMachine cpu(cpu::GetCpuOps(SelectIsa()), DType::kF32, sizes);
      delta_test::Request on_gpu = gpu.NewRequest();
      delta_test::Request on_cpu = cpu.NewRequest();
      const std::vector<float> got = gpu.RunAll(on_gpu, rows, 100);
      const std::vector<float> want = cpu.RunAll(on_cpu, rows, 100);
      std::vector<double> state;
      const std::vector<double> exact = delta_test::Recurrence(rows, sizes, gpu.numbers(), &state);
      ExpectNear(got, want, exact, 2e-6);
      ExpectNear(gpu.StateOf(on_gpu.tables.state), cpu.StateOf(on_cpu.tables.state), state, 1e-5);
    }
  }
}

TEST_F(DeltaCudaOpsTest, TheStateStaysRightOverManyTokens) {
  delta_test::ExpectStateOfManyTokens(
      *gpu_, DType::kBF16,
      {.heads = 1, .head_dim = kHeadDim, .decay_mean = -4, .state_place = KdaStatePlace}, 4000);
}

TEST_F(DeltaCudaOpsTest, BitsDoNotDependOnStepsOrDrafts) {
  delta_test::ExpectBitsOfAnySteps(*gpu_, DType::kBF16, kHeadDim);
}

TEST_F(DeltaCudaOpsTest, RequestsDoNotSeeEachOther) {
  delta_test::ExpectRequestsApart(*gpu_, DType::kBF16, kHeadDim);
}

TEST_F(DeltaCudaOpsTest, ARequestGoesOnFromACheckpoint) {
  delta_test::ExpectCheckpointsGoOn(*gpu_, DType::kBF16, kHeadDim);
}

// Blocks of several rows have the bits of blocks of one.
TEST_F(DeltaCudaOpsTest, LongStepsHaveTheBitsOfShortOnes) {
  const delta_test::Sizes sizes = {.head_dim = kHeadDim, .decay_mean = -2};
  delta_test::DeltaMachine machine(*gpu_, DType::kBF16, sizes);
  const delta_test::TokenRows rows(1100, sizes, 13);
  ASSERT_GT(rows.tokens, 1024);
  std::vector<float> outputs[2];
  std::vector<float> states[2];
  for (const int i : {0, 1}) {
    delta_test::Request request = machine.NewRequest();
    // Tokens of a step have room for 1024 parts; two requests in one step make it long.
    delta_test::Request company = machine.NewRequest();
    const delta_test::TokenRows other(400, sizes, 14);
    std::vector<float> out;
    std::vector<float> other_out;
    const int32_t chunk = i == 0 ? 900 : 100;
    while (request.computed < rows.tokens) {
      const int32_t known = std::min(chunk, rows.tokens - request.computed);
      std::vector<delta_test::Part> parts = {{&request, &rows, known, nullptr, 0, &out}};
      if (i == 0 && request.computed == 0) {
        parts.push_back({&company, &other, 400, nullptr, 0, &other_out});
      }
      machine.Run(parts);
      request.computed += known;
    }
    outputs[i] = out;
    states[i] = machine.StateOf(request.tables.state);
  }
  EXPECT_TRUE(delta_test::EqualBits(outputs[0], outputs[1]));
  EXPECT_TRUE(delta_test::EqualBits(states[0], states[1]));
}

// Blocks of tokens of which all rows run, at any row of a step, in steps of several requests; and
// states behind them, of checkpoints too.
TEST_F(DeltaCudaOpsTest, PromptsBesideEachOtherHaveTheBitsOfGeneratedRows) {
  for (const bool bounded : {true, false}) {
    const delta_test::Sizes sizes = {.head_dim = kHeadDim, .bounded = bounded, .decay_mean = -2};
    delta_test::DeltaMachine machine(*gpu_, DType::kBF16, sizes);
    std::vector<delta_test::TokenRows> rows;
    std::vector<delta_test::Request> alone;
    std::vector<std::vector<float>> expected;
    for (const int32_t tokens : {350, 288, 130, 64}) {
      rows.emplace_back(tokens, sizes, static_cast<uint32_t>(40 + tokens));
      alone.push_back(machine.NewRequest());
      for (const int32_t at : {16, 48, 64}) {
        alone.back().tables.checkpoints.push_back({at, machine.StatePages()});
      }
      expected.push_back(machine.RunAll(alone.back(), rows.back(), 7));
    }
    std::mt19937 random(10);
    for (int trial = 0; trial < 10; ++trial) {
      std::vector<delta_test::Request> requests;
      std::vector<std::vector<float>> out(rows.size());
      for (const delta_test::Request& other : alone) {
        requests.push_back(machine.NewRequest());
        for (const StateCheckpoint& checkpoint : other.tables.checkpoints) {
          requests.back().tables.checkpoints.push_back({checkpoint.tokens, machine.StatePages()});
        }
      }
      while (true) {
        std::vector<delta_test::Part> parts;
        for (size_t i = 0; i < rows.size(); ++i) {
          const int32_t left = rows[i].tokens - requests[i].computed;
          const auto known = static_cast<int32_t>(1 + random() % (trial < 2 ? 400 : 120));
          if (left == 0) continue;
          parts.push_back({&requests[i], &rows[i], std::min(known, left), nullptr, 0, &out[i]});
        }
        if (parts.empty()) break;
        std::ranges::shuffle(parts, random);
        machine.Run(parts);
        for (const delta_test::Part& part : parts) part.request->computed += part.known;
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_TRUE(delta_test::EqualBits(out[i], expected[i])) << trial << ", request " << i;
        const StateTables& own = requests[i].tables;
        ASSERT_TRUE(delta_test::EqualBits(machine.StateOf(own.state),
                                          machine.StateOf(alone[i].tables.state)))
            << trial << ", request " << i;
        for (size_t c = 0; c < own.checkpoints.size(); ++c) {
          ASSERT_TRUE(delta_test::EqualBits(machine.StateOf(own.checkpoints[c].pages),
                                            machine.StateOf(alone[i].tables.checkpoints[c].pages)))
              << trial << ", request " << i << ", checkpoint " << c;
        }
      }
    }
  }
}

// Every path of the pass: prompts, decodes with drafts, a checkpoint and a request that starts from
// it.
TEST_F(DeltaCudaOpsTest, SmallForTheSanitizers) {
  const delta_test::Sizes sizes = {.head_dim = kHeadDim, .decay_mean = -2};
  delta_test::DeltaMachine machine(*gpu_, DType::kBF16, sizes);
  const delta_test::TokenRows rows(80, sizes, 15);
  delta_test::Request first = machine.NewRequest();
  first.tables.checkpoints.push_back({32, machine.StatePages()});
  std::vector<float> out;
  machine.Run({{&first, &rows, 60, nullptr, 0, &out}});
  first.computed = 60;
  delta_test::Request second = machine.NewRequest();
  second.tables.restored = first.tables.checkpoints.front().pages;
  second.computed = second.state_tokens = 32;
  second.restores = true;
  std::vector<float> other;
  machine.Run({{&first, &rows, 1, &rows, 9, &out}, {&second, &rows, 8, nullptr, 0, &other}});
  first.computed = 61 + 9;
  second.computed = 40;
  machine.Run({{&first, &rows, 1, nullptr, 0, &out}, {&second, &rows, 11, nullptr, 0, &other}});
  const auto from = static_cast<std::ptrdiff_t>(32 * rows.width);
  ASSERT_GE(out.size(), other.size());
  EXPECT_TRUE(std::equal(other.begin() + from, other.end(), out.begin() + from));
}

TEST_F(DeltaCudaOpsTest, NormAndGatesBesideTheCpus) {
  constexpr int32_t kHeads = 5;
  std::mt19937 random(2);
  for (const int64_t rows : {1, 7, 300}) {
    const TestMatrix x = TestMatrix::Random(rows, int64_t{kHeads} * kHeadDim, random);
    const TestMatrix gates = TestMatrix::Random(rows, int64_t{kHeads} * kHeadDim, random);
    const TestMatrix norm = TestMatrix::Random(1, kHeadDim, random);
    const TestMatrix head_gates = TestMatrix::Random(rows, kHeads, random);
    Arena cpu_arena;
    const Context contexts[2] = {GpuContext(),
                                 {{cpu::GetCpuOps(SelectIsa()), &pool_}, cpu_arena, DType::kF32}};
    TestMatrix results[2] = {TestMatrix(rows, x.view_cols), TestMatrix(rows, x.view_cols)};
    for (const int device : {0, 1}) {
      const Context& c = contexts[device];
      const Scratch::Frame frame(c.arena);
      const Tensor y = c.Activations(rows, x.view_cols);
      const DeltaOps& ops = *c.ops.delta();
      ops.NormGate(c, {.x = Put(c, x),
                       .heads = kHeads,
                       .norm = static_cast<const float*>(Put(c, norm).data),
                       .norm_eps = 1e-6F,
                       .gates = Put(c, gates),
                       .y = y});
      ops.GateHeads(c, Put(c, head_gates), y);
      c.ops.ToHost(c, y, results[device].values);
    }
    for (size_t i = 0; i < results[0].values.size(); ++i) {
      const float want = results[1].values[i];
      // Two roundings to bfloat16.
      ASSERT_NEAR(results[0].values[i], want, 0.008 * std::abs(want) + 1e-6)
          << rows << " rows, number " << i;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
