#include "outrider/engine/plan/rank_plan.h"

#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"

namespace outrider {

void PlanRanks(const EngineOptions& options, const ModelFacts& model, DeviceKind device,
               Decisions& decisions) {
  constexpr const char* kFlag = "--tensor-parallel-size";
  const int32_t ranks = options.tensor_parallel_size;
  if (device != DeviceKind::kCpu && ranks != 1) {
    throw InvalidArgument(
        "{} is {}, but several GPUs are not supported yet: use 1, or --device cpu", kFlag, ranks);
  }
  CheckRanks(model.config, ranks, kFlag);
  if (model.drafter) CheckRanks(model.drafter->config, ranks, kFlag);
  if (ranks == 1) return;
  if (options.num_threads > 0 && options.num_threads < ranks) {
    throw InvalidArgument("--num-threads is {}, but {} ranks need a thread each: use {} or more",
                          options.num_threads, ranks, ranks);
  }
  decisions.push_back(
      {"ranks", fmt::format("{}, threads of this process", ranks),
       fmt::format("{}: each has its part of the weights and of the heads", kFlag)});
}

ComputeThreads PlanThreads(const EngineOptions& options, const std::vector<int>& processors) {
  const auto usable = static_cast<int>(processors.size());
  ComputeThreads threads;
  threads.count = options.num_threads > 0 ? options.num_threads : usable;
  if (options.pin_threads && threads.count > 1 && threads.count == usable) {
    threads.processors = processors;
  }
  return threads;
}

ComputeThreads ThreadsOf(const ComputeThreads& all, const RankPlace& place) {
  const auto begin = [&](int32_t rank) { return all.count * rank / place.ranks; };
  const int first = begin(place.rank);
  ComputeThreads own;
  own.count = std::max(1, begin(place.rank + 1) - first);
  if (!all.processors.empty() && all.count >= place.ranks) {
    own.processors.assign(all.processors.begin() + first,
                          all.processors.begin() + first + own.count);
  }
  return own;
}

}  // namespace outrider
