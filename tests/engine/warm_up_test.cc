// After a warm-up the largest passes find their work space. On a processor, whose passes take
// memory alike; engines warm up GPUs only.
#include "outrider/engine/warm_up.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/networks/cpu_network.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

/// The bundled model, and its drafter over latent entries.
struct ModelAndDrafter {
  ModelAndDrafter()
      : target(LoadNetwork(config, 0, *OpenCheckpoint(TinyModelDirectory(), config), {},
                           {{cpu::GetCpuOps(SelectIsa()), &pool},
                            DType::kF32,
                            AttentionPlan(AttentionBackend::kRagged, 1)})),
        drafter(drafter_config,
                Eagle3Taps(*drafter_config.eagle3, config.num_hidden_layers(), {}, ""),
                LoadEagle3(drafter_config, *OpenCheckpoint(TinyEagle3Directory(), drafter_config),
                           {}, target->device(), nullptr),
                *target) {}

  size_t WorkSpace() { return drafter.MakeContext().arena.capacity(); }

  ModelConfig config = ReadModelConfig(TinyModelDirectory());
  ModelConfig drafter_config = ReadModelConfig(TinyEagle3Directory());
  ThreadPool pool{1};
  std::unique_ptr<Network> target;
  Eagle3DraftModel drafter;
};

constexpr int32_t kLongest = 400;  // tokens of a request

/// What a step may have.
struct StepSize {
  int32_t requests;
  int32_t rows;
};

/// How much the drafter's work space grows after a warm-up for steps of `most`, in bytes, by a pass
/// over the last `rows` rows of each of `requests` prompts of the greatest length: as entries, or
/// as outputs.
size_t Grows(StepSize most, int32_t requests, int32_t rows, bool as_outputs) {
  ModelAndDrafter models;
  const NetworkCache needs =
      Eagle3DraftModel::CacheNeeds(models.config, models.drafter_config, KvCacheForm::kLatent);
  SchedulerConfig scheduler;
  scheduler.cache = MakeCacheConfig(needs, DType::kF32, 64, 7);
  scheduler.max_num_seqs = most.requests;
  scheduler.max_num_batched_tokens = most.rows;
  scheduler.max_model_len = kLongest;
  WarmUp(models.drafter, models.target->hidden_size(), 1, scheduler, needs.layers, DType::kF32);
  const size_t before = models.WorkSpace();

  KvCache cache(models.target->device(), scheduler.cache, needs.layers, DType::kF32);
  const std::vector<int32_t> blocks = FirstBlocks(7);
  const std::vector<int32_t> tokens(static_cast<size_t>(rows), 5);
  std::vector<RequestWork> work;
  for (int32_t slot = 0; slot < requests; ++slot) {
    work.push_back({.slot = slot,
                    .phase = Phase::kPromptChunk,
                    .context_length = kLongest - rows,
                    .tokens = tokens,
                    .draft_tokens = {},
                    .samples = false,
                    .block_tables = {&blocks, 1}});
  }
  BatchLayout layout(scheduler.cache.groups);
  layout.Assign(work);
  AttentionPlan plan = models.drafter.attention();
  plan.Assign(layout);
  const Ops& ops = models.target->device().ops;
  const auto none = ops.MakeStepInputs();
  const auto inputs = ops.MakeStepInputs();
  inputs->Assign(layout, plan, RowCount::kExact);
  const auto hidden = ops.MakeRows(inputs->num_rows(), models.drafter.width());
  for (int64_t row = 0; row < inputs->num_rows(); ++row) {
    std::fill_n(hidden->rows().floats().row(row), models.drafter.width(), 1.0F);
  }
  models.drafter.Forward({0, as_outputs ? *none : *inputs, as_outputs ? *inputs : *none,
                          hidden->rows(), hidden->rows()},
                         cache);
  return models.WorkSpace() - before;
}

// The last row of a prompt attends to keys and values that are made for it.
TEST(WarmUp, ADrafterHasTheWorkSpaceForTheLastRowsOfPrompts) {
  EXPECT_EQ(Grows({3, 32}, 1, 1, /*as_outputs=*/true), 0);
}

// Few requests whose rows fill a step: all of them are among the longest prompts.
TEST(WarmUp, AStepHasTheWorkSpaceForAllRowsOfFewRequests) {
  EXPECT_EQ(Grows({2, 700}, 2, 350, /*as_outputs=*/false), 0);
  EXPECT_EQ(Grows({3, 32}, 3, 10, /*as_outputs=*/false), 0);
  EXPECT_EQ(Grows({3, 4000}, 3, 400, /*as_outputs=*/false), 0);
}

}  // namespace
}  // namespace outrider
