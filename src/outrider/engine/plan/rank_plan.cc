#include "outrider/engine/plan/rank_plan.h"

#include <algorithm>
#include <set>
#include <string>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"

namespace outrider {

namespace {

/// GPUs that have several ranks each get the caches of all of them.
void CheckSharedGpus(const EngineOptions& options) {
  const std::set<int> different(options.rank_devices.begin(), options.rank_devices.end());
  if (different.size() == options.rank_devices.size() || options.kv_cache_memory_bytes) return;
  throw InvalidArgument("ranks that share a GPU need --kv-cache-memory-bytes");
}

}  // namespace

void PlanRanks(const EngineOptions& options, const ModelFacts& model, DeviceKind device,
               Decisions& decisions) {
  constexpr const char* kFlag = "--tensor-parallel-size";
  const int32_t ranks = options.tensor_parallel_size;
  const bool divides_requests = options.data_parallel_attention;
  if (divides_requests && ranks == 1) {
    throw InvalidArgument(
        "--data-parallel-attention shares requests among ranks: it needs --tensor-parallel-size 2 "
        "or more");
  }
  CheckRanks(model.config, ranks, kFlag, divides_requests);
  if (model.drafter) CheckRanks(model.drafter->config, ranks, kFlag, divides_requests);
  if (ranks == 1) return;
  if (device != DeviceKind::kCpu) CheckSharedGpus(options);
  if (options.num_threads > 0 && options.num_threads < ranks) {
    throw InvalidArgument("--num-threads is {}, but {} ranks need a thread each: use {} or more",
                          options.num_threads, ranks, ranks);
  }
  const bool on_gpus = device != DeviceKind::kCpu;
  decisions.push_back({"ranks",
                       fmt::format("{}, {} of this process", ranks, on_gpus ? "GPUs" : "threads"),
                       fmt::format("{}: each has its part of the weights{}", kFlag,
                                   divides_requests ? "" : " and of the heads")});
  if (divides_requests) {
    decisions.push_back({"attention", "of its own requests on every rank",
                         "--data-parallel-attention: a rank has their KV cache and all heads"});
  }
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
