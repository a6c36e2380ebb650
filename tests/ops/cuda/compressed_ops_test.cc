// The operations of DeepSeek-V4's attention on the GPU, and how often attention and
// choices are planned. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <string>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/ops/compressed_checks.h"

namespace outrider::cuda {
namespace {

class CompressedCudaOpsTest : public HopperTest<testing::TestWithParam<int32_t>> {
 protected:
  static compressed_test::CompressedSizes Sizes() {
    const int32_t ratio = GetParam();
    return {.weights = DType::kBF16,
            .ratio = ratio,
            .overlaps = ratio == 4,
            .top_k = ratio == 4 ? 8 : 0,
            .ends = {130, 300}};
  }
};

TEST_P(CompressedCudaOpsTest, ALayerIsFloat64s) {
  const CudaOps gpu;
  compressed_test::CompressedMachine machine(gpu, Sizes());
  compressed_test::ExpectALayer(machine, {.rows = {.rest = 0.005, .part = 0.01},
                                          .entries = {.rest = 0.001, .part = 0.01},
                                          .states = {.rest = 2e-6},
                                          .attention = {.rest = 0.01, .part = 0.02}});
}

// Steps have a few rows, and more than the tables of a short step have room for.
TEST_P(CompressedCudaOpsTest, AttentionIsPlannedOnceForAllLayersOfAKind) {
  for (const int32_t rows : {130, 4500}) {
    const CudaOps gpu;
    compressed_test::CompressedSizes of_step = Sizes();
    of_step.ends = {rows};
    compressed_test::CompressedMachine machine(gpu, of_step);
    const compressed_test::CompressedSizes sizes = machine.sizes();
    const Context c = machine.context();
    const Scratch::Frame frame(c.arena);
    const auto step = machine.MakeStep(0, rows);
    const Tensor q = c.Activations(rows, machine.numbers().q.view_cols);
    const Tensor out = c.Activations(q.rows, q.cols);
    gpu.Copy(c, machine.Put(machine.numbers().q, 0, rows), q);
    const int64_t plans = ArenaOf(c).compressed_plans;
    for (int layer = 0; layer < 6; ++layer) {
      const bool reads_entries = layer % 2 == 1;
      gpu.CompressedAttention(c, step->inputs(),
                              {.heads = sizes.heads,
                               .window = sizes.window,
                               .ratio = reads_entries ? sizes.ratio : 0,
                               .softmax_scale = sizes.scale,
                               .q = q,
                               .out = out,
                               .sinks = machine.PutVector(machine.numbers().sinks),
                               .window_rows = machine.window(),
                               .entries = reads_entries ? machine.entries(0) : LayerCache()});
    }
    EXPECT_EQ(ArenaOf(c).compressed_plans - plans, 4)
        << "the rows and the work of two kinds, " << rows << " rows";
  }
}

class ChoicePlansTest : public HopperTest<> {};

// Of two indexers, of which one has three layers and the other two; and of the attention behind
// them. Another step has plans of its own.
TEST_F(ChoicePlansTest, AreMadeOnceForAllLayersOfAKind) {
  constexpr int32_t kRows = 130;
  const CudaOps gpu;
  compressed_test::CompressedMachine machine(
      gpu, {.weights = DType::kBF16, .ratio = 4, .overlaps = true, .top_k = 8, .ends = {kRows}});
  const compressed_test::CompressedSizes sizes = machine.sizes();
  const Context c = machine.context();
  const Scratch::Frame frame(c.arena);
  const auto activations = [&](const TestMatrix& m) {
    const Tensor to = c.Activations(kRows, m.view_cols);
    gpu.Copy(c, machine.Put(m, 0, kRows), to);
    return to;
  };
  const Tensor q = activations(machine.numbers().q);
  const Tensor index_q = activations(machine.numbers().index_q);
  const Tensor weights = machine.Put(machine.numbers().index_weights, 0, kRows);
  const float* const sinks = machine.PutVector(machine.numbers().sinks);
  const Tensor out = c.Activations(q.rows, q.cols);
  const CudaArena& arena = ArenaOf(c);
  for (int step_number = 0; step_number < 2; ++step_number) {
    const auto step = machine.MakeStep(0, kRows);
    const int64_t choices = arena.sparse_plans;
    const int64_t attention = arena.compressed_plans;
    for (int layer = 0; layer < 5; ++layer) {
      const Scratch::Frame of_layer(c.arena);
      const SelectedEntries selected =
          gpu.SelectEntries(c, step->inputs(),
                            {.heads = sizes.heads,
                             .ratio = sizes.ratio,
                             .top_k = layer % 2 == 0 ? sizes.top_k : 2 * sizes.top_k,
                             .q = index_q,
                             .weights = weights,
                             .keys = machine.entries(1)});
      gpu.CompressedAttention(c, step->inputs(),
                              {.heads = sizes.heads,
                               .window = sizes.window,
                               .ratio = sizes.ratio,
                               .softmax_scale = sizes.scale,
                               .q = q,
                               .out = out,
                               .sinks = sinks,
                               .window_rows = machine.window(),
                               .entries = machine.entries(0),
                               .selected = &selected});
    }
    EXPECT_EQ(arena.sparse_plans - choices, 2) << "step " << step_number;
    EXPECT_EQ(arena.compressed_plans - attention, 4)
        << "the rows and the work of two kinds, step " << step_number;
  }
}

INSTANTIATE_TEST_SUITE_P(Ratios, CompressedCudaOpsTest, testing::Values(4, 128),
                         [](const auto& test) { return "ratio" + std::to_string(test.param); });

}  // namespace
}  // namespace outrider::cuda
