// Makes an engine's executor of the weights that were read, and takes it apart. So an engine can go
// on with other weights of its model, or give memory back for a while.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/engine/checkpoints.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/load_progress.h"
#include "outrider/engine/plan/engine_plan.h"
#include "outrider/engine/weight_folders.h"
#include "outrider/execute/executor.h"
#include "outrider/execute/rank.h"
#include "outrider/execute/step_runner.h"
#include "outrider/networks/block_draft_model.h"

namespace outrider {

class ExecutorMaker {
 public:
  /// plan: made from these options and checkpoints. ops: of the plan's device, by rank.
  ExecutorMaker(EngineOptions options, EnginePlan plan, std::vector<const Ops*> ops,
                Checkpoints checkpoints);

  /// Reads the weights and closes the checkpoints. own_ops: the owners of `ops`, which the executor
  /// keeps; empty: nobody owns them.
  void ReadWeights(std::vector<std::unique_ptr<Ops>> own_ops, const LoadProgress& progress);

  /// On a GPU, runs passes of the largest step on every rank, with the weights that were read.
  /// Throws Error where their work space does not fit.
  void WarmUpDevice(const SchedulerConfig& scheduler);

  /// Makes the caches of all executors. Called after ReadWeights, before the first Make.
  void MakeCaches(const CacheConfig& cache);

  /// Makes an executor with the weights that were read last.
  std::unique_ptr<Executor> Make();

  /// Tells the drafters of this executor and of later ones how long steps take.
  void SetStepTimes(const StepTimes& times);

  /// Reads the weights of these folders beside those that run, for the next executor. Throws Error
  /// for what is wrong with them, and where they do not fit beside the others; nothing has changed
  /// then. Called between two steps, on a processor only.
  void ReadOtherWeights(const WeightFolders& folders);

  /// Takes the executor that was made last apart, which frees its weights. It must have no
  /// requests.
  void TakeApart(std::unique_ptr<Executor> executor);

  /// Where the weights were read from last.
  const WeightFolders& folders() const { return folders_; }

  /// Gives back the memory of the last executor's cache. What was in it is lost. The executor may
  /// not run until RestoreCache.
  void FreeCache();
  void RestoreCache();

  /// Throws Error on a device whose weights and cache cannot be changed.
  void CheckCanChange() const;

 private:
  struct RankWeights {
    std::unique_ptr<Network> model;
    std::unique_ptr<DraftModel> draft_model;  // with a checkpoint of its own
    std::unique_ptr<BlockDraftModel> blocks;  // the stages that came with the model
  };

  std::vector<RankWeights> Read(const Checkpoints& checkpoints, const LoadProgress& progress) const;
  /// What the ranks read of the files of a drafter's own checkpoint; 0 without one.
  std::vector<int64_t> DrafterBytes(const Checkpoints& checkpoints) const;
  /// The processors of a rank's threads, where several ranks share a machine; empty: any.
  std::vector<int> ProcessorsOf(const RankPlace& place) const;
  void WarmUpRank(RankWeights& rank, const SchedulerConfig& scheduler) const;
  /// What of `weights` is not the model.
  std::unique_ptr<Drafter> MakeDrafter(RankParts& rank, RankWeights weights) const;
  /// Throws Error where the weights do not fit beside what there is.
  void CheckFits(const WeightFolders& folders, const Checkpoints& checkpoints) const;

  const EngineOptions options_;
  const EnginePlan plan_;
  const std::vector<const Ops*> ops_;  // by rank
  Checkpoints checkpoints_;            // once the weights were read: facts only
  WeightFolders folders_;
  std::vector<Device> devices_;       // by rank
  std::vector<RankParts> ranks_;      // of which the next executor is made
  std::vector<RankWeights> weights_;  // that it will have, by rank
  std::vector<KvCache*> caches_;      // of the last executor, or of ranks_
  StepRunner* runner_ = nullptr;      // of the last executor
  std::vector<Drafter*> drafters_;    // of the last executor; null: none
  std::optional<StepTimes> step_times_;
};

}  // namespace outrider
