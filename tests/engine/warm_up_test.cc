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

// The last row of a prompt attends to keys and values that are made for it.
TEST(WarmUp, ADrafterHasTheWorkSpaceForTheLastRowsOfPrompts) {
  constexpr int32_t kLongest = 400;
  ModelAndDrafter models;
  const NetworkCache needs =
      Eagle3DraftModel::CacheNeeds(models.config, models.drafter_config, KvCacheForm::kLatent);
  SchedulerConfig scheduler;
  scheduler.cache = MakeCacheConfig(needs, DType::kF32, 64, 7);
  scheduler.max_num_seqs = 3;
  scheduler.max_num_batched_tokens = 32;
  scheduler.max_model_len = kLongest;
  WarmUp(models.drafter, models.target->hidden_size(), 1, scheduler, needs.layers, DType::kF32);
  const size_t before = models.WorkSpace();

  KvCache cache(models.target->device(), scheduler.cache, needs.layers, DType::kF32);
  const std::vector<int32_t> blocks = FirstBlocks(7);
  const std::vector<int32_t> token = {5};
  BatchLayout layout(scheduler.cache.groups);
  layout.Assign(std::vector{RequestWork{.slot = 0,
                                        .phase = Phase::kPromptChunk,
                                        .context_length = kLongest - 1,
                                        .tokens = token,
                                        .draft_tokens = {},
                                        .samples = false,
                                        .block_tables = {&blocks, 1}}});
  AttentionPlan plan = models.drafter.attention();
  plan.Assign(layout);
  const Ops& ops = models.target->device().ops;
  const auto none = ops.MakeStepInputs();
  const auto rows = ops.MakeStepInputs();
  rows->Assign(layout, plan, RowCount::kExact);
  const auto hidden = ops.MakeRows(1, models.drafter.width());
  std::fill_n(hidden->rows().floats().row(0), models.drafter.width(), 1.0F);
  models.drafter.Forward({0, *none, *rows, hidden->rows(), hidden->rows()}, cache);
  EXPECT_EQ(models.WorkSpace(), before);
}

}  // namespace
}  // namespace outrider
