// Layers whose rows take several paths, in one step and over the pages of one group: latent
// attention, grouped queries, and latent attention to what an indexer chooses. What each gives has
// the bits that it has where it is the only layer: by ops_table_test.cc for every table of the CPU,
// by cuda/cuda_ops_test.cc for a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/ops/attention_cases.h"

namespace outrider {

/// The cases as layers of one network. They have one group.
inline AttentionCase CaseOfLayers(const std::vector<AttentionCase>& layers) {
  AttentionCase all = {.name = "Layers",
                       .groups = layers.front().groups,
                       .layers = {},
                       .attention = {},
                       .in = 0,
                       .cols = 0,
                       .run = {}};
  RowPaths paths;
  for (const AttentionCase& layer : layers) {
    all.layers.insert(all.layers.end(), layer.layers.begin(), layer.layers.end());
    all.in += layer.in;
    all.cols += layer.cols;
    paths = paths | layer.attention.paths();
  }
  all.attention = {.form = KvCacheForm::kLatent, .others = paths};
  all.run = [layers](const AttentionCall& call) {
    int64_t in = 0;
    int64_t cols = 0;
    int32_t first_layer = 0;
    for (const AttentionCase& layer : layers) {
      layer.run({call.side, call.inputs, call.cache, call.x.Columns(in, layer.in),
                 call.out.Columns(cols, layer.cols), first_layer});
      in += layer.in;
      cols += layer.cols;
      first_layer += static_cast<int32_t>(layer.layers.size());
    }
  };
  return all;
}

/// Steps of two requests: a prompt, then generated rows beside prompt rows, then generated rows.
inline std::vector<std::vector<StepPart>> StepsOfTwoRequests() {
  const std::vector<int32_t> first = {4, 0, 7};
  const std::vector<int32_t> second = {2, 6};
  const auto part = [](Phase phase, int32_t context, size_t rows,
                       const std::vector<int32_t>& table) {
    return StepPart{.phase = phase,
                    .context = context,
                    .tokens = std::vector<int32_t>(rows, 1),
                    .tables = {table}};
  };
  return {{part(Phase::kPromptEnd, 0, 150, first)},
          {part(Phase::kDecode, 150, 1, first), part(Phase::kPromptChunk, 0, 70, second)},
          {part(Phase::kDecode, 151, 3, first), part(Phase::kPromptEnd, 70, 20, second)},
          {part(Phase::kDecode, 90, 2, second), part(Phase::kDecode, 154, 3, first)},
          {part(Phase::kDecode, 157, 1, first), part(Phase::kDecode, 92, 1, second)}};
}

/// What a case gives for the rows of all steps, one step behind the other. x: of as many rows.
inline TestMatrix RunSteps(const AttentionCase& test, OpsSide& side, const TestMatrix& x,
                           RowCount count) {
  const Scratch::Frame frame(side.arena());
  KvCache cache({side.ops()}, {.groups = test.groups, .num_pages = 8}, test.layers, DType::kBF16);
  const auto inputs = side.ops().MakeStepInputs();
  TestMatrix all(x.view_rows, test.cols);
  int64_t first = 0;
  for (const std::vector<StepPart>& parts : StepsOfTwoRequests()) {
    const Scratch::Frame of_step(side.arena());
    TestStep step(side.context(), cache.config().groups, parts, test.attention);
    step.AssignTo(*inputs, count);
    const int64_t rows = step.layout().num_rows();
    EXPECT_EQ(inputs->num_rows(), rows);
    TestMatrix part(rows, x.view_cols);
    std::copy_n(x.view().row(first), part.values.size(), part.values.begin());
    const Tensor out = side.context().Rows(rows, test.cols);
    test.run({side, *inputs, cache, side.Put(part), out});
    const TestMatrix got = side.Get(out);
    std::ranges::copy(got.values, all.values.begin() + first * test.cols);
    first += rows;
  }
  EXPECT_EQ(first, x.view_rows);
  return all;
}

/// Runs layers of three paths in each other's order, and each alone.
inline void CheckLayersOfSeveralPaths(OpsSide& side, const MlaShape& mla, std::mt19937& random) {
  constexpr int64_t kRows = 150 + 71 + 23 + 5 + 2;
  const std::vector<AttentionCase> layers = {CaseOfChosenEntries(20), CaseOfLatentRows(mla),
                                             CaseOfGroupedQueries(40)};
  const AttentionCase together = CaseOfLayers(layers);
  TestMatrix x = TestMatrix::Random(kRows, together.in, random);
  for (float& value : x.values) value = RoundToBFloat16(value);
  for (const RowCount count : {RowCount::kExact, RowCount::kRounded}) {
    const TestMatrix got = RunSteps(together, side, x, count);
    int64_t in = 0;
    int64_t cols = 0;
    for (const AttentionCase& layer : layers) {
      TestMatrix own(kRows, layer.in);
      for (int64_t r = 0; r < kRows; ++r) {
        std::copy_n(x.view().row(r) + in, layer.in, own.view().row(r));
      }
      const TestMatrix alone = RunSteps(layer, side, own, count);
      for (int64_t r = 0; r < kRows; ++r) {
        ASSERT_TRUE(SameBits(got.view().row(r) + cols, alone.view().row(r), layer.cols))
            << layer.name << " row " << r;
      }
      in += layer.in;
      cols += layer.cols;
    }
  }
}

}  // namespace outrider
